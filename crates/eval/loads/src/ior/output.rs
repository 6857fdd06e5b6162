//! Results in IOR's own forms: that of 2.10.3 and that of 4 for people and for the scripts that
//! search them, JSON and CSV of 4.

mod json;
mod text;
mod v2;
mod v4;

use super::conductor::{Event, Measured};
use super::parameters::{Format, Parameters};
use super::phase::Access;
use super::script::Compat;
use stats::mean;
use std::path::PathBuf;

pub(super) const MIB: f64 = (1 << 20) as f64;
pub(super) const KIB: f64 = 1024.0;
pub(super) const MB: f64 = 1e6;

/// A finished test.
#[derive(Clone, Debug)]
struct Test {
    parameters: Parameters,
    measured: Vec<Measured>,
}

/// Shows tests as they go, and all of them at the end. Each method gives what is to be printed.
#[derive(Debug)]
pub struct Output {
    compat: Compat,
    format: Format,
    /// The command line.
    command: String,
    began: String,
    tests: Vec<Test>,
    /// Tests as JSON shows them.
    shown: Vec<json::Object>,
    /// Results of the test that runs, as JSON shows them.
    results: Vec<json::Object>,
    started: String,
    /// 2.10.3 shows the head of its table of repetitions once.
    has_table: bool,
}

/// Operations per second of a repetition, for the summary. 2.10.3 forgets the segments.
fn operations(parameters: &Parameters, measured: &Measured) -> f64 {
    let shown = match parameters.compat {
        Compat::V2 => {
            let calls = parameters.block_bytes / parameters.transfer_bytes;
            (calls * parameters.ranks as u64) as f64
        }
        Compat::V4 => measured.bytes as f64 / parameters.transfer_bytes as f64,
    };
    shown / measured.total_s
}

/// Maximum, minimum, mean and standard deviation as IOR has them: that of the values themselves,
/// divided by n.
pub(super) struct Statistics {
    pub(super) max: f64,
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Statistics {
    fn of(values: &[f64]) -> Self {
        let mean = mean(values);
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Self {
            max: values.iter().copied().fold(f64::MIN, f64::max),
            min: values.iter().copied().fold(f64::MAX, f64::min),
            mean,
            deviation: (squares / values.len() as f64).sqrt(),
        }
    }
}

/// One line of a summary.
pub(super) struct Row<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) access: Access,
    /// MiB/s.
    pub(super) bandwidth: Statistics,
    pub(super) operations: Statistics,
    pub(super) seconds_mean: f64,
    pub(super) bytes: u64,
    /// Mean time and mean bandwidth (MiB/s) to the deadline, if the test wore out after one.
    pub(super) stonewall: Option<(f64, f64)>,
}

fn rows<'a>(parameters: &'a Parameters, measured: &[Measured]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for access in [Access::Write, Access::Read] {
        let all: Vec<&Measured> = measured.iter().filter(|it| it.access == access).collect();
        let Some(first) = all.first() else { continue };
        let bandwidths: Vec<f64> = all.iter().map(|it| it.bandwidth() / MIB).collect();
        let calls: Vec<f64> = all.iter().map(|it| operations(parameters, it)).collect();
        let times: Vec<f64> = all.iter().map(|it| it.total_s).collect();
        let transfers: Vec<f64> = all.iter().map(|it| it.transfer_s).collect();
        let rate = first.bytes as f64 / MIB / mean(&transfers);
        rows.push(Row {
            parameters,
            access,
            bandwidth: Statistics::of(&bandwidths),
            operations: Statistics::of(&calls),
            seconds_mean: mean(&times),
            bytes: first.bytes,
            stonewall: parameters.stonewall.wears_out.then(|| (mean(&transfers), rate)),
        });
    }
    rows
}

/// What both versions append to a line of their summaries: tasks, tasks per node, repetitions, own
/// files, reordering (constant, offset, random, seed), segments, sizes of block and transfer.
fn row_settings(it: &Parameters) -> [String; 11] {
    [
        it.ranks.to_string(),
        it.per_node.to_string(),
        it.repetitions.to_string(),
        u8::from(it.is_file_per_process).to_string(),
        u8::from(it.reorders_constant).to_string(),
        it.task_offset.to_string(),
        it.reorders_random.to_string(),
        it.reorder_seed.to_string(),
        it.segments.to_string(),
        it.block_bytes.to_string(),
        it.transfer_bytes.to_string(),
    ]
}

/// What the tables of both versions have of a repetition beside its speed: sizes of block and transfer
/// (KiB), seconds to open, to transfer, to close, and in all.
fn sizes_and_times(parameters: &Parameters, measured: &Measured) -> [f64; 6] {
    [
        parameters.block_bytes as f64 / KIB,
        parameters.transfer_bytes as f64 / KIB,
        measured.open_s,
        measured.transfer_s,
        measured.close_s,
        measured.total_s,
    ]
}

/// The names of a test's files.
fn names(it: &Parameters) -> String {
    it.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join("@")
}

/// The line that is quoted most.
fn max(row: &Row<'_>) -> String {
    let name = if row.access == Access::Write { "Max Write:" } else { "Max Read: " };
    let max = row.bandwidth.max;
    format!("{name} {max:.2} MiB/sec ({:.2} MB/sec)\n", max * MIB / MB)
}

impl Output {
    /// Begins, for all tests of a script.
    pub fn new(compat: Compat, format: Format, command: String) -> Self {
        Self {
            compat,
            format,
            command,
            began: text::now(),
            tests: Vec::new(),
            shown: Vec::new(),
            results: Vec::new(),
            started: String::new(),
            has_table: false,
        }
    }

    /// Whether what is printed is read by programs: then nothing else may be printed.
    pub fn is_for_programs(&self) -> bool {
        self.format != Format::Default
    }

    /// A test begins. `about` is what carries it out: the version of MPI.
    pub fn begin(&mut self, parameters: &Parameters, about: &str) -> String {
        self.results.clear();
        self.started = text::now();
        match (self.format, self.compat) {
            (Format::Csv, _) if self.tests.is_empty() => v4::csv_head(),
            (Format::Json | Format::Csv, _) => String::new(),
            (Format::Default, Compat::V2) => v2::begin(&self.command, parameters, about),
            (Format::Default, Compat::V4) => {
                let mut said = String::new();
                if self.tests.is_empty() {
                    said = v4::head(&self.began, &self.command);
                }
                said + &v4::begin(self.tests.len(), &self.started, parameters, about)
            }
        }
    }

    /// Something happened in it.
    pub fn event(&mut self, parameters: &Parameters, event: &Event<'_>) -> String {
        if self.format == Format::Json {
            self.results.extend(json::result(parameters, event));
            return String::new();
        }
        if self.format == Format::Csv {
            return match event {
                Event::Measured(measured) => v4::csv_row(parameters, measured),
                _ => String::new(),
            };
        }
        match (event, self.compat) {
            (Event::Measured(measured), Compat::V2) if parameters.verbose >= 2 => {
                let head = if self.has_table { "" } else { v2::TABLE_HEAD };
                self.has_table = true;
                head.to_string() + &v2::row(parameters, measured)
            }
            (Event::Measured(measured), Compat::V4) => v4::row(parameters, measured),
            (Event::Removed { repetition, seconds }, Compat::V4) if parameters.verbose >= 1 => {
                v4::removed(*repetition, *seconds)
            }
            (Event::Checked { access, errors }, _) if *errors > 0 => {
                format!("WARNING: incorrect data on {} ({errors} errors found).\n", access.name())
            }
            (Event::Note(note), _) => format!("note: {note}\n"),
            _ => String::new(),
        }
    }

    /// A test is over.
    pub fn end(&mut self, parameters: &Parameters, measured: &[Measured], about: &str) -> String {
        let rows = rows(parameters, measured);
        let said = match (self.format, self.compat) {
            (Format::Json, _) => {
                let results = std::mem::take(&mut self.results);
                let index = self.tests.len();
                let test = json::test(index, &self.started, parameters, about, results, &rows);
                self.shown.push(test);
                String::new()
            }
            (Format::Csv, _) => String::new(),
            (Format::Default, Compat::V2) => v2::summary(parameters, &rows),
            (Format::Default, Compat::V4) => v4::short_summary(parameters, &rows, self.tests.len()),
        };
        self.tests.push(Test { parameters: parameters.clone(), measured: measured.to_vec() });
        said
    }

    /// All are over.
    pub fn finish(&mut self) -> String {
        let rows: Vec<(usize, Row<'_>)> = self
            .tests
            .iter()
            .enumerate()
            .flat_map(|(index, test)| {
                rows(&test.parameters, &test.measured).into_iter().map(move |row| (index, row))
            })
            .collect();
        match (self.format, self.compat) {
            (Format::Json, _) => {
                let tests = std::mem::take(&mut self.shown);
                json::all(&self.began, &self.command, tests, &rows)
            }
            (Format::Csv, _) => String::new(),
            (Format::Default, Compat::V2) => format!("Run finished: {}\n", text::now()),
            (Format::Default, Compat::V4) => v4::summary(&rows),
        }
    }

    /// Where the output of a test's results goes, if not to standard output.
    pub fn file(parameters: &Parameters) -> Option<PathBuf> {
        parameters.summary_file.clone()
    }
}

/// Each rank's figures, as version 4 appends them to `saveRankPerformanceDetailsCSV`.
pub fn rank_rows(measured: &Measured) -> String {
    let share = measured.bytes as f64 / measured.answers.len() as f64;
    let row = |(rank, answer): (usize, &super::phase::Answer)| {
        let total = answer.t[5] - answer.t[0];
        let access = answer.t[3] - answer.t[2];
        let name = measured.access.name();
        format!("{name},{rank},{total:e},{access:e},{:e},{:e}\n", share / total, share / access)
    };
    measured.answers.iter().enumerate().map(row).collect()
}

/// The head of that file.
pub const RANK_HEAD: &str =
    "access,rank,runtime-with-openclose,runtime,throughput-withopenclose,throughput\n";

/// Ranks whose times are far from the mean (`outlierThreshold`).
pub fn outliers(parameters: &Parameters, measured: &Measured) -> Vec<String> {
    let mut said = Vec::new();
    if parameters.outlier_s == 0 {
        return said;
    }
    for (what, from) in [("open", 0), ("transfer", 2), ("close", 4)] {
        let times: Vec<f64> =
            measured.answers.iter().map(|it| it.t[from + 1] - it.t[from]).collect();
        let mean = mean(&times);
        for (rank, time) in times.iter().enumerate() {
            if (time - mean).abs() > parameters.outlier_s as f64 {
                said.push(format!(
                    "task {rank}: {} {what} took {time:.3} s, the mean is {mean:.3} s",
                    measured.access.name()
                ));
            }
        }
    }
    said
}

#[cfg(test)]
mod tests;
