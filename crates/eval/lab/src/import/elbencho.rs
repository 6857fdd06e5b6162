//! elbencho's CSV (`--csvfile`): a line for each phase, with the columns of its documentation.
//!
//! Rates are those of all threads until the last was done. Commas never occur within a field: elbencho
//! replaces them.

use super::{Record, Wrong, number};
use base::calendar;
use loads::metric::Metric;
use loads::workload::Pattern;
use std::collections::BTreeMap;

const MIB: f64 = (1 << 20) as f64;

/// A line with its columns.
struct Row<'a> {
    line: usize,
    fields: BTreeMap<&'a str, &'a str>,
}

impl<'a> Row<'a> {
    fn text(&self, name: &str) -> Result<&'a str, Wrong> {
        let field = self.fields.get(name).copied();
        field.ok_or_else(|| Wrong::new(1, name, "the table has no such column"))
    }

    fn number(&self, name: &str) -> Result<f64, Wrong> {
        number(self.text(name)?, self.line, name)
    }

    fn whole(&self, name: &str) -> Result<u64, Wrong> {
        let text = self.text(name)?;
        let message = || format!("{text:?} is no whole number");
        text.parse().map_err(|_| Wrong::new(self.line, name, message()))
    }

    /// A number that may be left out.
    fn optional(&self, name: &str) -> Result<Option<f64>, Wrong> {
        if self.text(name)?.is_empty() { Ok(None) } else { self.number(name).map(Some) }
    }
}

/// Reads the file; the line with the names may occur again, as elbencho appends to files.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let mut head: Vec<&str> = Vec::new();
    let mut records = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.contains(&"operation") {
            head = fields;
            continue;
        }
        let line = index + 1;
        if fields.len() != head.len() {
            let message =
                format!("{} fields, but {} columns have a name", fields.len(), head.len());
            return Err(Wrong::new(line, "line", message));
        }
        let row = Row { line, fields: head.iter().copied().zip(fields).collect() };
        records.extend(record(&row)?);
    }
    Ok(records)
}

/// The run of a line; `None` of phases that have nothing to compare: directories, sync, dropped caches.
fn record(row: &Row<'_>) -> Result<Option<Record>, Wrong> {
    let operation = row.text("operation")?;
    let version = row.text("version")?;
    let mut record = Record::of(&format!("elbencho-{version}"));
    let is_random = row.whole("random")? == 1;
    let of_blocks = match operation {
        "WRITE" if is_random => Some(Pattern::RandomWrite),
        "WRITE" => Some(Pattern::Write),
        "READ" if is_random => Some(Pattern::RandomRead),
        "READ" => Some(Pattern::Read),
        _ => None,
    };
    let rate = match operation {
        "STAT" => Some(Metric::StatRate),
        "RMFILES" => Some(Metric::RemoveRate),
        _ => None,
    };
    if of_blocks.is_none() && rate.is_none() {
        return Ok(None);
    }
    let label = row.text("label")?;
    record.workload = match label {
        "" => operation.to_ascii_lowercase(),
        label => format!("{label} {}", operation.to_ascii_lowercase()),
    };
    record.way = row.text("path type")?.into();
    record.command = row.text("command")?.into();
    record.started_unix_s = calendar::parse_iso(row.text("ISO date")?);
    record.pattern = of_blocks;
    // Of a directory each thread has its own, of files and devices all have the same.
    record.has_own_files = Some(record.way == "dir");
    record.is_direct = row.whole("direct IO")? == 1;
    let jobs = row.whole("hosts")?.saturating_mul(row.whole("threads")?);
    record.jobs = u32::try_from(jobs)
        .map_err(|_| Wrong::new(row.line, "threads", format!("{jobs} threads are too many")))?;
    record.depth = row.whole("IO depth")?.clamp(1, u64::from(u32::MAX)) as u32;
    record.seconds = row.number("time ms [last]")? / 1000.0;
    let said: Vec<String> = row.fields.iter().map(|(name, it)| format!("{name}: {it}")).collect();
    record.raw = said.join("\n");
    if let Some(metric) = rate {
        record.metrics.insert(metric, row.number("entries/s [last]")?);
        return Ok(Some(record));
    }
    record.block_bytes = row.whole("block size")?;
    record.metrics = [
        (Metric::Bandwidth, row.number("MiB/s [last]")? * MIB),
        (Metric::Iops, row.number("IOPS [last]")?),
    ]
    .into();
    if let Some(latency) = row.optional("IO lat us [avg]")? {
        record.metrics.insert(Metric::Latency, latency);
    }
    for (name, column) in [("cpu_percent", "CPU% [last]"), ("first_done_s", "time ms [first]")] {
        let scale = if name == "first_done_s" { 1e-3 } else { 1.0 };
        if let Some(value) = row.optional(column)? {
            record.further.insert(name.into(), value * scale);
        }
    }
    Ok(Some(record))
}
