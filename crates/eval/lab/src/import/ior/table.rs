//! Text: a block of options for each test, then tables.

use super::{Access, Test, program, record};
use crate::import::{Record, Wrong, number};
use base::calendar;
use std::collections::BTreeMap;

const KIB: f64 = 1024.0;
/// Columns of a table of repetitions that have to be there.
const BANDWIDTH: &str = "bw(MiB/s)";
const TRANSFER: &str = "xfer(KiB)";
const TOTAL: &str = "total(s)";
/// First columns of 2.10.3's summary.
const SUMMARY: [&str; 4] = ["Operation", "Max (MiB)", "Min (MiB)", "Mean (MiB)"];
/// Columns of a line of that summary before those of `verbose=1`.
const SUMMARY_COLUMNS: usize = 10;

/// Which table the lines are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    None,
    Repetitions,
    /// Mean and extremes of 2.10.3.
    Summary,
}

/// What was read so far.
struct Reader {
    base: Record,
    /// Options of the test, by name, with their lines.
    options: BTreeMap<String, (usize, String)>,
    table: Table,
    /// Columns of repetitions: 2.10.3 names them before the first test only.
    columns: Vec<String>,
    /// Whether the test's repetitions were shown one by one.
    has_repetitions: bool,
    records: Vec<Record>,
}

/// Reads it.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let mut reader = Reader {
        base: Record::of("IOR"),
        options: BTreeMap::new(),
        table: Table::None,
        columns: Vec::new(),
        has_repetitions: false,
        records: Vec::new(),
    };
    for (index, line) in text.lines().enumerate() {
        reader.line(index + 1, line)?;
    }
    Ok(reader.records)
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), Wrong> {
        let trimmed = line.trim();
        if trimmed.contains(": MPI Coordinated Test of Parallel I/O") {
            self.base.program = program(trimmed);
        } else if trimmed.starts_with("Options:") || trimmed == "Summary:" {
            // Options of the next test.
            self.options.clear();
            self.has_repetitions = false;
            self.table = Table::None;
        } else if trimmed.starts_with("access ") && trimmed.contains("bw(") {
            let names: Vec<String> = trimmed.split_whitespace().map(str::to_string).collect();
            for name in [BANDWIDTH, TRANSFER, TOTAL] {
                if !names.iter().any(|it| it == name) {
                    let message = format!("the table has no such column: {}", names.join(" "));
                    return Err(Wrong::new(number, name, message));
                }
            }
            self.table = Table::Repetitions;
            self.columns = names;
        } else if trimmed.starts_with("Operation ") {
            self.table = Table::None;
            // Version 4 has shown each repetition before.
            if !trimmed.contains("Max(MiB)") {
                for name in SUMMARY {
                    if !trimmed.contains(name) {
                        let message = "the summary has no such column";
                        return Err(Wrong::new(number, name, message));
                    }
                }
                self.table = Table::Summary;
            }
        } else if trimmed.starts_with("Summary of all tests") {
            self.table = Table::None;
        } else if let Some(access) = trimmed.split_whitespace().next().and_then(Access::of) {
            self.row(number, trimmed, access)?;
        } else {
            self.option(number, trimmed);
        }
        Ok(())
    }

    /// `name : value` and `name = value`; the first mark counts.
    fn option(&mut self, number: usize, line: &str) {
        let Some(at) = line.find([':', '=']) else { return };
        let (name, value) = (line[..at].trim(), line[at + 1..].trim());
        match name {
            "Command line" | "Command line used" => self.base.command = value.into(),
            "Machine" => self.base.machine = Some(value.into()),
            "Began" | "Run began" | "StartTime" => {
                self.base.started_unix_s = calendar::parse_ctime(value);
            }
            _ => {
                self.options.insert(name.into(), (number, value.into()));
            }
        }
    }

    fn row(&mut self, at: usize, line: &str, access: Access) -> Result<(), Wrong> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_repetition = words.last() == Some(&"XXCEL") && !self.columns.is_empty();
        match self.table {
            Table::None if !is_repetition => Ok(()),
            Table::None | Table::Repetitions => self.repetition(at, line, &words, access),
            Table::Summary if self.has_repetitions => Ok(()),
            Table::Summary => self.summary(at, line, &words, access),
        }
    }

    fn repetition(
        &mut self,
        at: usize,
        line: &str,
        words: &[&str],
        access: Access,
    ) -> Result<(), Wrong> {
        if words.len() < self.columns.len() {
            let message = format!("{} columns instead of {}", words.len(), self.columns.len());
            return Err(Wrong::new(at, access.name(), message));
        }
        let column = |name: &str| {
            let index = self.columns.iter().position(|it| it == name);
            let word = index.map_or("", |index| words[index]);
            number(word, at, &format!("{} {name}", access.name()))
        };
        let mut test = self.test(at)?;
        test.transfer_bytes = (column(TRANSFER)? * KIB).round() as u64;
        let mut run = record(&self.base, &test, access, column(BANDWIDTH)?, column(TOTAL)?);
        for (name, from) in [("open_s", "open(s)"), ("close_s", "close(s)")] {
            run.further.insert(name.into(), column(from)?);
        }
        run.raw = line.into();
        self.has_repetitions = true;
        self.records.push(run);
        Ok(())
    }

    /// A line of 2.10.3's summary: the mean of all repetitions, with their extremes.
    fn summary(
        &mut self,
        at: usize,
        line: &str,
        words: &[&str],
        access: Access,
    ) -> Result<(), Wrong> {
        if words.len() < SUMMARY_COLUMNS {
            let message = format!("{} columns instead of {SUMMARY_COLUMNS}", words.len());
            return Err(Wrong::new(at, access.name(), message));
        }
        let column = |index: usize, name: &str| {
            number(words[index], at, &format!("{} {name}", access.name()))
        };
        let mut run = record(
            &self.base,
            &self.test(at)?,
            access,
            column(3, "Mean (MiB)")?,
            column(9, "Mean (s)")?,
        );
        for (index, name) in
            [(1, "max_mib_per_s"), (2, "min_mib_per_s"), (4, "deviation_mib_per_s")]
        {
            run.further.insert(name.into(), column(index, name)?);
        }
        run.raw = line.into();
        self.records.push(run);
        Ok(())
    }

    /// What the options say; `at` is where they are needed.
    fn test(&self, at: usize) -> Result<Test, Wrong> {
        let option = |names: &[&str]| {
            let found = names.iter().find_map(|name| self.options.get(*name));
            found.ok_or_else(|| Wrong::new(at, names[0], "no option before this line says it"))
        };
        let access = &option(&["access"])?.1;
        let (line, ranks) = option(&["tasks", "clients"])?;
        let (size_line, size) = option(&["xfersize"])?;
        let api = &option(&["api"])?.1;
        let first = |text: &str| text.split_whitespace().next().unwrap_or_default().to_string();
        let collective = self.options.get("type").is_some_and(|(_, it)| it == "collective");
        Ok(Test {
            api: first(api),
            is_collective: collective || access.ends_with("collective"),
            has_own_files: access.starts_with("file-per-process"),
            is_random: self
                .options
                .get("ordering in a file")
                .is_some_and(|(_, order)| order.starts_with("random")),
            ranks: first(ranks)
                .parse()
                .map_err(|_| Wrong::new(*line, "tasks", format!("{ranks:?} is no number")))?,
            transfer_bytes: bytes(size).ok_or_else(|| {
                Wrong::new(*size_line, "xfersize", format!("{size:?} is no size, e.g. 1 MiB"))
            })?,
        })
    }
}

/// `262144 bytes`, `4 MiB`, `1.50 GiB`
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    let shift = match unit.trim() {
        "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok().filter(|it: &f64| it.is_finite() && *it >= 0.0)?;
    Some((number * (1_u64 << shift) as f64).round() as u64)
}
