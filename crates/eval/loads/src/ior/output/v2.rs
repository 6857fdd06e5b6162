//! The form of 2.10.3.

use super::text::{self, number};
use super::{MIB, Row, max, names, row_settings, sizes_and_times};
use crate::ior::conductor::Measured;
use crate::ior::order::Reorder;
use crate::ior::parameters::{Api, Parameters};
use crate::ior::phase::Order;
use std::fmt::Write as _;

pub(super) const TABLE_HEAD: &str = "\
access    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s) total(s)  iter
------    ---------  ---------- ---------  --------   --------   --------  --------   ----
";

/// What is said when a test begins.
pub(super) fn begin(command: &str, parameters: &Parameters, about: &str) -> String {
    let mut text = String::new();
    let version = env!("CARGO_PKG_VERSION");
    let _ =
        writeln!(text, "tsumugi-{version} as IOR-2.10.3: MPI Coordinated Test of Parallel I/O\n");
    let _ = writeln!(text, "Run began: {}", text::now());
    let _ = writeln!(text, "Command line used: {command}");
    let _ = writeln!(text, "Machine: {}", text::machine());
    if parameters.verbose >= 1 {
        let _ = writeln!(text, "Participating tasks: {}", parameters.ranks);
    }
    text.push_str("\nSummary:\n");
    for (name, value) in setup(parameters, about) {
        let _ = writeln!(text, "\t{name:<19}={value}");
    }
    text.push('\n');
    text
}

fn setup(it: &Parameters, about: &str) -> Vec<(&'static str, String)> {
    let mut access =
        if it.is_file_per_process { " file-per-process" } else { " single-shared-file" }
            .to_string();
    if it.verbose >= 1 && it.api == Api::Mpiio {
        access += if it.is_collective { ", collective" } else { ", independent" };
    }
    let api = match it.api {
        Api::Posix => " POSIX".into(),
        Api::Mpiio => format!(" MPIIO ({about})"),
    };
    let mut all =
        vec![("api", api), ("test filename", format!(" {}", names(it))), ("access", access)];
    if it.verbose >= 1 && it.segments > 1 {
        all.push(("pattern", format!(" strided ({} segments)", it.segments)));
    } else if it.verbose >= 1 {
        all.push(("pattern", " segmented (1 segment)".into()));
    }
    let is_random = it.order != Order::Sequential;
    all.push((
        "ordering in a file",
        if is_random { " random offsets" } else { " sequential offsets" }.into(),
    ));
    all.push((
        "ordering inter file",
        match it.reorder {
            Reorder::None => " no tasks offsets".into(),
            Reorder::Constant(_) => format!("constant task offsets = {}", it.task_offset),
            _ => format!("random task offsets >= {}, seed={}", it.task_offset, it.reorder_seed),
        },
    ));
    all.extend([
        ("clients", format!(" {} ({} per node)", it.ranks, it.per_node)),
        ("repetitions", format!(" {}", it.repetitions)),
        ("xfersize", format!(" {}", text::size(it.transfer_bytes))),
        ("blocksize", format!(" {}", text::size(it.block_bytes))),
        ("aggregate filesize", format!(" {}", text::size(it.aggregate_bytes()))),
    ]);
    if it.stonewall.deadline_s > 0 {
        all.push(("Using stonewalling", format!(" {} second(s)", it.stonewall.deadline_s)));
    }
    all
}

/// A row of the table of repetitions.
pub(super) fn row(parameters: &Parameters, measured: &Measured) -> String {
    let columns = [measured.bandwidth() / MIB].into_iter();
    let columns = columns.chain(sizes_and_times(parameters, measured));
    let columns: String = columns.map(|value| number(value) + " ").collect();
    format!("{:<10}{}{:<4} XXCEL\n", measured.access.name(), columns, measured.repetition)
}

/// What is said when a test is over.
pub(super) fn summary(it: &Parameters, rows: &[Row<'_>]) -> String {
    let mut text = String::from(
        "Operation  Max (MiB)  Min (MiB)  Mean (MiB)   Std Dev  Max (OPs)  Min (OPs)  Mean (OPs)   \
         Std Dev  Mean (s)  ",
    );
    if it.verbose >= 1 {
        text.push_str(
            "Op grep #Tasks tPN reps  fPP reord reordoff reordrand seed segcnt blksiz xsize \
             aggsize\n",
        );
    }
    text.push_str(
        "\n---------  ---------  ---------  ----------   -------  ---------  ---------  ----------   \
         -------  --------\n",
    );
    for row in rows {
        let (bandwidth, calls) = (&row.bandwidth, &row.operations);
        let _ = write!(
            text,
            "{:<10}{:10.2} {:10.2}  {:10.2}{:10.2} {:10.2} {:10.2}  {:10.2}{:10.2}{:10.5}   ",
            row.access.name(),
            bandwidth.max,
            bandwidth.min,
            bandwidth.mean,
            bandwidth.deviation,
            calls.max,
            calls.min,
            calls.mean,
            calls.deviation,
            row.seconds_mean
        );
        if it.verbose >= 1 {
            let settings = row_settings(it).join(" ");
            let _ = write!(text, "{settings} {} {} {} ", row.bytes, it.number, it.api.name());
        }
        text.push_str("EXCEL\n");
    }
    text.push('\n');
    for row in rows {
        text.push_str(&max(row));
    }
    text.push('\n');
    text
}
