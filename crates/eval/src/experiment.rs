//! Experiments as their files say: factors with levels, workloads, comparisons, limits.
//!
//! A file is TOML. Reading has two steps: [`raw`] takes the keys with their places in the file and
//! refuses unknown ones; [`check`] turns them into the types here, and names line and key of what it
//! cannot accept. A `[quick]` table overrides lengths and workloads for a first look.

mod check;
mod raw;

use crate::error::Error;
use crate::statistics::LookRule;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
    /// The factors with their levels; a condition has one level of each.
    pub factors: BTreeMap<String, BTreeMap<String, Level>>,
    /// The loads.
    pub workloads: Vec<Workload>,
    /// What is compared with what.
    pub comparisons: Vec<Comparison>,
    /// The file as it was read.
    pub text: String,
}

/// Kinds of engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EngineKind {
    /// The program fio.
    Fio,
    /// No storage at all: numbers drawn from a known truth, to test the way from plan to report.
    Synthetic,
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
}

/// Largest ratios that do not matter, as log-ratios.
#[derive(Clone, Copy, Debug)]
pub struct Margins {
    /// Of bandwidth and IOPS.
    pub throughput: f64,
    /// Of latencies.
    pub latency: f64,
}

/// A level of a factor: how to enter and leave it.
#[derive(Clone, Debug)]
pub struct Level {
    /// How it is called in reports.
    pub label: String,
    /// What it is.
    pub kind: LevelKind,
    /// A file system of its own on it, for storages that are files.
    pub file_system: Option<FileSystem>,
}

/// File systems that can be put on a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// The kernel's ext4.
    Ext4,
}

impl FileSystem {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 1] = [("ext4", Self::Ext4)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Kinds of level.
#[derive(Clone, Debug)]
pub enum LevelKind {
    /// A storage to work on.
    Storage(Storage),
    /// A way to run the load.
    Runtime(Runtime),
    /// A known effect, for the synthetic engine.
    Synthetic(Synthetic),
}

/// Storages.
#[derive(Clone, Debug)]
pub enum Storage {
    /// A file in a directory of ours below this one (default: the one that `--data` names).
    Directory(Option<PathBuf>),
    /// A block device. Writing needs its serial number.
    BlockDevice {
        /// The device.
        path: PathBuf,
        /// Serial number, as consent to lose what is on it.
        destroy: Option<String>,
    },
    /// A file exported by our own target, reached over NVMe/TCP and seen as a file through
    /// `tsumugi nvme attach`.
    Target {
        /// Where the target's file is made (default: as for a directory).
        directory: Option<PathBuf>,
        /// What lies between host and target.
        network: Network,
    },
    /// Whatever commands mount at `{directory}`, which is made for it.
    Command {
        /// Shell command that mounts.
        enter: String,
        /// Shell command that unmounts.
        leave: String,
    },
}

/// What lies between host and target on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The loopback device.
    Loopback,
    /// A network namespace for the target, joined by a veth pair (root only).
    Namespace,
}

/// Ways to run the load.
#[derive(Clone, Debug)]
pub enum Runtime {
    /// As a plain process.
    Native,
    /// In a container, by the first of these that works here.
    Container(Vec<ContainerKind>),
}

/// Container runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ContainerKind {
    /// `ch-run`
    Charliecloud,
    /// `podman`
    Podman,
    /// `apptainer` or `singularity`
    Apptainer,
    /// `unshare` and `chroot`
    Namespaces,
}

impl ContainerKind {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 4] = [
        ("charliecloud", Self::Charliecloud),
        ("podman", Self::Podman),
        ("apptainer", Self::Apptainer),
        ("namespaces", Self::Namespaces),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// What a level of the synthetic engine does.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// Factor on throughput.
    pub ratio: f64,
    /// Deviation of the logarithm of each run.
    pub noise: f64,
    /// Deviation of the logarithm of what the runs of a pair share.
    pub common: f64,
    /// Share by which the machine slows down per 100 runs.
    pub drift: f64,
}

/// A load at one or more points.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name.
    pub name: String,
    /// fio's pattern: read, write, randread, randwrite, randrw …
    pub pattern: Pattern,
    /// Bytes per operation.
    pub block_sizes: Vec<u64>,
    /// Jobs.
    pub jobs: Vec<u32>,
    /// Operations under way per job.
    pub depths: Vec<u32>,
    /// What is compared.
    pub metrics: Vec<Metric>,
    /// Whether pages are bypassed (O_DIRECT).
    pub is_direct: bool,
}

/// Patterns, as fio names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandomRead,
    /// Random writes.
    RandomWrite,
}

impl Pattern {
    /// All of them, with fio's names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("read", Self::Read),
        ("write", Self::Write),
        ("randread", Self::RandomRead),
        ("randwrite", Self::RandomWrite),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, pattern)| *pattern == self).map_or("", |(name, _)| name)
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite)
    }
}

/// What is measured and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Metric {
    /// Bytes per second.
    Bandwidth,
    /// Operations per second.
    Iops,
    /// Mean latency, µs.
    Latency,
    /// 99th percentile of latency, µs.
    LatencyP99,
}

impl Metric {
    /// All of them, with the names they have in files and in the database.
    pub const ALL: [(&'static str, Self); 4] = [
        ("bandwidth", Self::Bandwidth),
        ("iops", Self::Iops),
        ("latency", Self::Latency),
        ("latency-p99", Self::LatencyP99),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, metric)| *metric == self).map_or("", |(name, _)| name)
    }

    /// How reports call it in a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Iops => "IOPS",
            Self::Latency => "mean latency",
            Self::LatencyP99 => "p99 latency",
        }
    }

    /// How reports call it, with its unit.
    pub fn label(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth (MiB/s)",
            Self::Iops => "IOPS",
            Self::Latency => "mean latency (µs)",
            Self::LatencyP99 => "p99 latency (µs)",
        }
    }

    /// Whether more is better.
    pub fn is_throughput(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Iops)
    }

    /// What one of the report's units is in the database's.
    pub fn unit(self) -> f64 {
        if self == Self::Bandwidth { (1 << 20) as f64 } else { 1.0 }
    }
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
        if metric.is_throughput() { self.throughput } else { self.latency }
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
