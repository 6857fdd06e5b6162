//! IOR's output: text of 2.10.3 and 4 (and 3, whose table has fewer columns), JSON of 4.
//!
//! Each repetition is a run. Operations per second are bandwidth by transfer size in all forms: IOR's own
//! are of another time in version 4's repetitions, and forget segments in 2.10.3. What 2.10.3 prints
//! without `verbose=2` has no repetitions, only their mean and extremes: that is one run, of the mean.

mod json;
mod table;

use super::{Record, Wrong};
use loads::metric::Metric;
use loads::workload::Pattern;

const MIB: f64 = (1 << 20) as f64;

/// Reads the output.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let start = text.len() - text.trim_start().len();
    if text[start..].starts_with('{') {
        let skipped = text[..start].matches('\n').count();
        return json::parse(&text[start..])
            .map_err(|wrong| Wrong { line: wrong.line + skipped, ..wrong });
    }
    table::parse(text)
}

/// What a test says of itself.
#[derive(Clone, Debug)]
struct Test {
    api: String,
    is_collective: bool,
    has_own_files: bool,
    is_random: bool,
    ranks: u32,
    transfer_bytes: u64,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Write,
    Read,
}

impl Access {
    fn of(name: &str) -> Option<Self> {
        match name {
            "write" => Some(Self::Write),
            "read" => Some(Self::Read),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        if self == Self::Write { "write" } else { "read" }
    }
}

/// The run of a repetition, at so many MiB/s.
fn record(base: &Record, test: &Test, access: Access, mib_per_s: f64, seconds: f64) -> Record {
    let mut record = base.clone();
    record.workload = access.name().into();
    if test.has_own_files {
        record.workload.push_str(" own files");
    }
    record.way.clone_from(&test.api);
    if test.is_collective {
        record.way.push_str(" collective");
    }
    record.pattern = Some(match (access, test.is_random) {
        (Access::Write, false) => Pattern::Write,
        (Access::Write, true) => Pattern::RandomWrite,
        (Access::Read, false) => Pattern::Read,
        (Access::Read, true) => Pattern::RandomRead,
    });
    record.has_own_files = Some(test.has_own_files);
    record.block_bytes = test.transfer_bytes;
    record.jobs = test.ranks;
    record.seconds = seconds;
    record.metrics = [
        (Metric::Bandwidth, mib_per_s * MIB),
        (Metric::Iops, mib_per_s * MIB / test.transfer_bytes.max(1) as f64),
    ]
    .into();
    record
}

/// IOR's own name of itself: `IOR-4.1.0`, or what is before the colon of another program's.
fn program(head: &str) -> String {
    head.split(": MPI Coordinated").next().unwrap_or(head).trim().into()
}
