//! Experiments as their files say: factors with levels, workloads, comparisons, limits.
//!
//! A file is TOML. Reading has two steps: [`raw`] takes the keys with their places in the file and
//! refuses unknown ones; [`check`] turns them into the types here, and names line and key of what it
//! cannot accept. A `[quick]` table overrides lengths and workloads for a first look.

mod check;
mod raw;

use crate::error::Error;
use base::messages::Language;
use base::statistics::LookRule;
use loads::engines::EngineKind;
use loads::level::Level;
use loads::metric::Metric;
use loads::workload::Workload;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Most condition-cells of a quick form.
pub const QUICK_CONDITION_CELLS_MAX: usize = 20;
/// Most condition-cells of an experiment.
pub const CONDITION_CELLS_MAX: usize = 4096;
/// Most rounds.
pub const ROUNDS_MAX: u32 = 1000;

/// Full length, or a first look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Mode {
    /// As long as the questions need.
    Full,
    /// Few cells, short runs; may well say "inconclusive".
    Quick,
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name, as in file names.
    pub name: String,
    /// Title of the report.
    pub title: String,
    /// What is asked, in a sentence.
    pub question: String,
    /// Where the idea comes from, to be shown beside our own figures.
    pub source: Option<String>,
    /// The language that its page is in unless another is asked for.
    pub language: Language,
    /// What makes the load.
    pub engine: EngineKind,
    /// Seed of orders and offsets.
    pub seed: u64,
    /// Full or quick.
    pub mode: Mode,
    /// Bytes of the file or range that is worked on.
    pub file_bytes: u64,
    /// How long.
    pub timing: Timing,
    /// When to stop.
    pub limits: Limits,
    /// What counts as the same.
    pub margins: Margins,
    /// Other machines whose CPU time is looked at, as ssh calls them.
    pub cpu_hosts: Vec<String>,
    /// The factors with their levels; a condition has one level of each.
    pub factors: BTreeMap<String, BTreeMap<String, Level>>,
    /// The loads.
    pub workloads: Vec<Workload>,
    /// What is compared with what.
    pub comparisons: Vec<Comparison>,
    /// The file as it was read.
    pub text: String,
}

/// How long runs are, and how many.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Measured part of a run.
    pub run: Duration,
    /// Load before measuring begins, in each run.
    pub ramp: Duration,
    /// Rounds at the start that are not counted.
    pub warm_up_rounds: u32,
    /// After how many rounds verdicts are asked; the last is the most rounds there are.
    pub looks: LookRule,
}

/// Where an experiment ends in any case.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Time.
    pub time: Option<Duration>,
    /// Bytes written by runs.
    pub written_bytes: Option<u64>,
    /// Bytes per second that the link between load and storage carries: what no run can exceed.
    pub link_bytes_per_s: Option<u64>,
    /// Operations per second that each container is to have at least.
    pub container_rate: Option<f64>,
}

/// Largest ratios that do not matter, as log-ratios.
#[derive(Clone, Copy, Debug)]
pub struct Margins {
    /// Of bandwidth, IOPS and the like.
    pub throughput: f64,
    /// Of latencies, and of CPU per operation.
    pub latency: f64,
}

/// A comparison of two conditions.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Short name, e.g. "R/L native".
    pub name: String,
    /// What kind of question, so that advice rules find it: e.g. "remote-local".
    pub role: Option<String>,
    /// Levels of the baseline.
    pub baseline: BTreeMap<String, String>,
    /// Levels of the other.
    pub other: BTreeMap<String, String>,
    /// What was published before, by workload.
    pub published: BTreeMap<String, String>,
}

impl Margins {
    /// The margin for a metric.
    pub fn of(&self, metric: Metric) -> f64 {
        if metric.is_rough() { self.latency } else { self.throughput }
    }
}

impl Experiment {
    /// Reads an experiment from the text of its file.
    pub fn parse(text: &str, mode: Mode) -> Result<Self, Error> {
        let raw = raw::parse(text)?;
        check::check(raw, text, mode)
    }

    /// Reads an experiment file.
    pub fn read(path: &Path, mode: Mode) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
        Self::parse(&text, mode)
    }
}

#[cfg(test)]
mod tests;
