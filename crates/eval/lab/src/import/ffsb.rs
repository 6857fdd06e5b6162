//! What FFSB prints.
//!
//! A record for each operation of the total results. Its transactions are what FFSB counts: blocks of
//! reads, writes, creates and appends, else operations; its time runs until after the final `sync()`.
//! Throughput has three digits and units of 1024, whatever their name.

use super::{Record, Wrong, number};
use base::calendar;
use loads::metric::Metric;
use loads::workload::Pattern;
use std::collections::BTreeMap;

/// The settings of the thread groups, by name.
#[derive(Default)]
struct Setup {
    threads: u32,
    values: BTreeMap<String, String>,
    is_direct: bool,
}

impl Setup {
    fn is_on(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| value == "on")
    }

    /// The size of blocks for reads or writes.
    fn block(&self, name: &str) -> u64 {
        let words = self.values.get(name).and_then(|value| value.split_whitespace().next());
        words.and_then(|word| word.parse().ok()).unwrap_or_default()
    }
}

/// Reads what it printed.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let mut base = Record::of("ffsb");
    let mut setup = Setup::default();
    let mut records = Vec::new();
    let mut is_total = false;
    for (index, line) in text.lines().enumerate() {
        let number_of_line = index + 1;
        if let Some(rest) = line.strip_prefix("FFSB version ") {
            base.program = format!("ffsb-{}", rest.trim_end_matches("started").trim());
        } else if let Some(time) = line.strip_prefix("Starting Actual Benchmark At:") {
            base.started_unix_s = calendar::parse_ctime(time);
        } else if let Some(rest) = line.strip_prefix("Benchmark took ") {
            let seconds = rest.trim().trim_end_matches("sec");
            base.seconds = number(seconds, number_of_line, "Benchmark took")?;
        } else if line.starts_with("Total Results") {
            is_total = true;
        } else if let Some((name, value)) = line.split_once(" = ") {
            configure(&mut setup, name.trim(), value.trim(), number_of_line)?;
        } else if let (true, Some((name, rest))) = (is_total, line.split_once(" : ")) {
            records.push(operation(&base, &setup, name.trim(), rest, (number_of_line, line))?);
        }
    }
    Ok(records)
}

fn configure(setup: &mut Setup, name: &str, value: &str, line: usize) -> Result<(), Wrong> {
    match name {
        "num_threads" => {
            let threads: u32 = value
                .parse()
                .map_err(|_| Wrong::new(line, name, format!("{value:?} is no number")))?;
            setup.threads = setup.threads.saturating_add(threads);
        }
        "directio" => setup.is_direct |= value == "on",
        // Of several groups with other settings the first counts.
        _ => {
            setup.values.entry(name.into()).or_insert_with(|| value.into());
        }
    }
    Ok(())
}

/// A line of the table of operations.
fn operation(
    base: &Record,
    setup: &Setup,
    name: &str,
    rest: &str,
    (number_of_line, line): (usize, &str),
) -> Result<Record, Wrong> {
    let columns: Vec<&str> = rest.split_whitespace().collect();
    let [count, rate, share, weight, throughput] = columns[..] else {
        let message = format!("{} columns instead of 5", columns.len());
        return Err(Wrong::new(number_of_line, name, message));
    };
    let mut record = base.clone();
    let is_write = !matches!(name, "read" | "readall");
    let side = if is_write { "write" } else { "read" };
    record.workload = name.into();
    record.way = "ffsb".into();
    let is_random = setup.is_on(&format!("{side}_random"));
    record.pattern = match name {
        "read" if is_random => Some(Pattern::RandomRead),
        "read" | "readall" => Some(Pattern::Read),
        "write" | "write_fsync" if is_random => Some(Pattern::RandomWrite),
        "write" | "write_fsync" | "writeall" | "writeall_fsync" => Some(Pattern::Write),
        _ => None,
    };
    // A file that one thread creates or removes no other uses, all others are everybody's.
    record.has_own_files = Some(false);
    record.is_direct = setup.is_direct;
    record.jobs = setup.threads.max(1);
    record.raw = line.trim().into();
    let what = |column: &str| format!("{name}: {column}");
    let value = |text: &str, column: &str| number(text, number_of_line, &what(column));
    let rate = value(rate, "Trans/sec")?;
    let percent = |text: &str, column: &str| value(text.trim_end_matches('%'), column);
    record.metrics.insert(Metric::Iops, rate);
    if throughput != "NA" {
        record.block_bytes = setup.block(&format!("{side}_blocksize"));
        let bytes = size(throughput).ok_or_else(|| {
            let message = format!("{throughput:?} is none, e.g. 12.3KB/sec");
            Wrong::new(number_of_line, &what("Throughput"), message)
        })?;
        record.metrics.insert(Metric::Bandwidth, bytes);
    }
    record.further = [
        ("ios".to_string(), value(count, "Transactions")?),
        ("transactions_percent".into(), percent(share, "% Trans")?),
        ("weight_percent".into(), percent(weight, "% Op Weight")?),
    ]
    .into();
    Ok(record)
}

/// Bytes per second of `1.5KB/sec`.
fn size(text: &str) -> Option<f64> {
    let text = text.strip_suffix("B/sec")?;
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: f64 = digits.parse().ok()?;
    (number.is_finite() && number >= 0.0).then(|| number * (1_u64 << shift) as f64)
}
