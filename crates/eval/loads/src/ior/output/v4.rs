//! The forms of version 4 for people, and its CSV.

use super::text::{self, number};
use super::{MIB, Row, max, names, row_settings, sizes_and_times};
use crate::ior::conductor::Measured;
use crate::ior::order::Reorder;
use crate::ior::parameters::Parameters;
use crate::ior::phase::Order;
use std::fmt::Write as _;

const TABLE_HEAD: &str = "
access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   \
total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   \
--------   ----
";

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name:<20}: {value}");
}

/// What is said once.
pub(super) fn head(began: &str, command: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("tsumugi-{version} as IOR-4: MPI Coordinated Test of Parallel I/O\n");
    line(&mut text, "Began", began);
    line(&mut text, "Command line", command);
    line(&mut text, "Machine", &text::machine());
    text
}

/// What is said when a test begins.
pub(super) fn begin(index: usize, started: &str, it: &Parameters, about: &str) -> String {
    let mut text = String::new();
    line(&mut text, "TestID", &index.to_string());
    line(&mut text, "StartTime", started);
    let path = it.file(0, 0);
    line(&mut text, "Path", &path.display().to_string());
    if let Some([size, used, inodes, used_inodes]) = text::file_system(&path) {
        let value =
            format!("{size}   Used FS: {used}   Inodes: {inodes}   Used Inodes: {used_inodes}");
        line(&mut text, "FS", &value);
    }
    text.push_str("\nOptions: \n");
    for (name, value) in options(it, about) {
        line(&mut text, name, &value);
    }
    text.push_str("\nResults: \n");
    text.push_str(TABLE_HEAD);
    text
}

/// The options that are shown, by name.
pub(super) fn options(it: &Parameters, about: &str) -> Vec<(&'static str, String)> {
    let sharing = if it.is_file_per_process { "file-per-process" } else { "single-shared-file" };
    let is_random = it.order != Order::Sequential;
    let mut all = vec![
        ("api", it.api.name().to_string()),
        ("apiVersion", about.to_string()),
        ("test filename", names(it)),
        ("access", sharing.into()),
        ("type", if it.is_collective { "collective" } else { "independent" }.into()),
        ("segments", it.segments.to_string()),
        ("ordering in a file", if is_random { "random" } else { "sequential" }.into()),
    ];
    let inter = "ordering inter file";
    match it.reorder {
        Reorder::None => all.push((inter, "no tasks offsets".into())),
        Reorder::Constant(_) => {
            all.push((inter, "constant task offset".into()));
            all.push(("task offset", it.task_offset.to_string()));
        }
        Reorder::Random { .. } | Reorder::Shuffled { .. } => {
            all.push((inter, "random task offset".into()));
            all.push(("task offset", it.task_offset.to_string()));
            all.push(("reorder random seed", it.reorder_seed.to_string()));
        }
    }
    all.extend([
        ("nodes", it.nodes.to_string()),
        ("tasks", it.ranks.to_string()),
        ("clients per node", it.per_node.to_string()),
        ("memoryBuffer", "CPU".into()),
        ("dataAccess", "CPU".into()),
        ("GPUDirect", "0".into()),
        ("repetitions", it.repetitions.to_string()),
        ("xfersize", text::size(it.transfer_bytes)),
        ("blocksize", text::size(it.block_bytes)),
        ("aggregate filesize", text::size(it.aggregate_bytes())),
    ]);
    if it.verbose > 0 {
        all.push(("verbose", it.verbose.to_string()));
    }
    if it.stonewall.deadline_s > 0 {
        all.push(("stonewallingTime", it.stonewall.deadline_s.to_string()));
        all.push(("stoneWallingWearOut", u8::from(it.stonewall.wears_out).to_string()));
    }
    all
}

/// Operations per second of a repetition: unlike the summary's, of the time of transfers alone.
pub(super) fn operations(parameters: &Parameters, measured: &Measured) -> f64 {
    measured.bytes as f64 / parameters.transfer_bytes as f64 / measured.transfer_s
}

/// The figures of a row, as the table and the CSV have them.
fn columns(parameters: &Parameters, measured: &Measured) -> impl Iterator<Item = f64> {
    let speed = [measured.bandwidth() / MIB, operations(parameters, measured), measured.latency_s];
    speed.into_iter().chain(sizes_and_times(parameters, measured))
}

/// A row of the table of repetitions.
pub(super) fn row(parameters: &Parameters, measured: &Measured) -> String {
    let mut text = format!("{:<10}", measured.access.name());
    for (index, value) in columns(parameters, measured).enumerate() {
        text.push_str(&number(value));
        // The column of latencies is wider by one.
        text.push_str(if index == 2 { "  " } else { " " });
    }
    let _ = writeln!(text, "{:<4}", measured.repetition);
    text
}

/// The row of a removal.
pub(super) fn removed(repetition: u32, seconds: f64) -> String {
    let blank = "-          ".repeat(2) + "-           " + &"-          ".repeat(5);
    format!("{:<10}{blank}{} {repetition:<4}\n", "remove", number(seconds))
}

/// What is said when a test is over.
pub(super) fn short_summary(it: &Parameters, rows: &[Row<'_>], index: usize) -> String {
    if it.has_summary_always {
        return summary_head()
            + &rows.iter().map(|row| summary_row(index, row)).collect::<String>();
    }
    if it.verbose < 1 {
        return String::new();
    }
    rows.iter().map(max).collect()
}

/// What is said when all are over.
pub(super) fn summary(rows: &[(usize, Row<'_>)]) -> String {
    let mut text = String::from("\nSummary of all tests:");
    text.push_str(&summary_head());
    for (index, row) in rows {
        text.push_str(&summary_row(*index, row));
    }
    line(&mut text, "Finished", &text::now());
    text
}

fn summary_head() -> String {
    let mut text = format!(
        "\n{:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>13}",
        "Operation",
        "Max(MiB)",
        "Min(MiB)",
        "Mean(MiB)",
        "StdDev",
        "Max(OPs)",
        "Min(OPs)",
        "Mean(OPs)",
        "StdDev",
        "Mean(s)",
        "Stonewall(s)",
        "Stonewall(MiB)"
    );
    text.push_str(" Test# #Tasks tPN reps fPP reord reordoff reordrand seed segcnt ");
    let _ =
        writeln!(text, "{:>8} {:>8} {:>9} {:>5} RefNum", " blksiz", "xsize", "aggs(MiB)", "API");
    text
}

fn summary_row(index: usize, row: &Row<'_>) -> String {
    let (it, bandwidth, calls) = (row.parameters, &row.bandwidth, &row.operations);
    let mut text = format!("{:<9} ", row.access.name());
    for value in [bandwidth.max, bandwidth.min, bandwidth.mean, bandwidth.deviation] {
        let _ = write!(text, "{value:10.2} ");
    }
    for value in [calls.max, calls.min, calls.mean, calls.deviation] {
        let _ = write!(text, "{value:10.2} ");
    }
    let _ = write!(text, "{:10.5} ", row.seconds_mean);
    let _ = match row.stonewall {
        Some((seconds, rate)) => write!(text, "{seconds:10.2} {rate:13.2} "),
        None => write!(text, "{:>10} {:>13} ", "NA", "NA"),
    };
    let _ = write!(text, "{index:5} ");
    for (value, width) in row_settings(it).iter().zip([6, 3, 4, 3, 5, 8, 9, 4, 6, 8, 8]) {
        let _ = write!(text, "{value:>width$} ");
    }
    let size = row.bytes as f64 / MIB;
    let _ = writeln!(text, "{size:9.1} {:>3} {:6}", it.api.name(), it.number);
    text
}

/// The head of the CSV.
pub(super) fn csv_head() -> String {
    "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,\
     iter\n"
        .into()
}

/// A row of the CSV.
pub(super) fn csv_row(parameters: &Parameters, measured: &Measured) -> String {
    let values: Vec<String> =
        columns(parameters, measured).map(|value| format!("{value:.4}")).collect();
    let (name, ranks, repetition) = (measured.access.name(), parameters.ranks, measured.repetition);
    format!("{name},{},{ranks},{repetition}\n", values.join(","))
}
