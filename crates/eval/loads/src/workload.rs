//! Workloads: what the load does, at which points, and what of it is compared.

use crate::metric::Metric;
use base::messages::{Language, Message};
use base::{Error, units};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt::{Debug, Display};
use std::path::Path;
use std::sync::Arc;

/// A load at one or more points.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name.
    pub name: String,
    /// What it does.
    pub task: Arc<dyn Load>,
    /// Bytes per operation; 0 where sizes mean nothing.
    pub block_sizes: Vec<u64>,
    /// Jobs.
    pub jobs: Vec<u32>,
    /// Operations under way per job.
    pub depths: Vec<u32>,
    /// Operations per second, of loads at a fixed rate; else 0.
    pub rates: Vec<u64>,
    /// Operations that are submitted together, of loads at a fixed rate.
    pub batches: Vec<u32>,
    /// What is compared.
    pub metrics: Vec<Metric>,
    /// Whether pages are bypassed (O_DIRECT).
    pub is_direct: bool,
}

impl Workload {
    /// Returns the pattern of blocks, if it is of blocks.
    pub fn pattern(&self) -> Option<Pattern> {
        self.task.pattern()
    }

    /// Returns whether it writes.
    pub fn writes(&self) -> bool {
        self.task.writes()
    }

    /// Returns what it does, for people.
    pub fn describe(&self, language: Language) -> String {
        self.task.describe(language, self.is_direct)
    }

    /// Returns its task as one of an engine's own.
    pub fn task<T: Load>(&self) -> Option<&T> {
        (self.task.as_ref() as &dyn Any).downcast_ref()
    }
}

/// What a load does: each engine has a type of its own.
pub trait Load: Any + Debug + Send + Sync {
    /// Returns the pattern of blocks, if it is of blocks.
    fn pattern(&self) -> Option<Pattern> {
        None
    }

    /// Returns whether it writes.
    fn writes(&self) -> bool;

    /// Returns what it does, for people.
    fn describe(&self, language: Language, is_direct: bool) -> String;

    /// Returns the number of parts that it divides the data into, where `jobs` is the largest number of jobs.
    fn parts(&self, jobs: u32) -> u32 {
        jobs
    }

    /// Returns what is known of its access path.
    fn access(&self) -> Access {
        Access { pattern: self.pattern(), ..Access::default() }
    }

    /// Returns what many containers begin with, if its workers are containers.
    fn copies(&self) -> Option<&dyn Copies> {
        None
    }
}

/// How a load comes to its data. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Reads or writes, in order or at random.
    pub pattern: Option<Pattern>,
    /// Whether each job has files of its own, or all share.
    pub has_own_files: Option<bool>,
    /// Whether MPI-IO is collective.
    pub is_collective: Option<bool>,
}

/// The files that many containers begin with, each with a copy of its own to change.
pub trait Copies {
    /// Makes the files below a directory, in one of their own, unless they are there.
    fn make(&self, below: &Path, data: DataSet) -> Result<(), Error>;

    /// Returns the bytes of the files, at most; `None` if they are as many as the experiment says.
    fn bytes(&self) -> Option<u64>;

    /// Returns the bytes that a container may change, at most, where each change takes `around` more.
    fn changed_bytes(&self, around: u64) -> u64;

    /// Returns the number of files that each container writes to twice, if that is all it does.
    fn files_written(&self) -> Option<u32>;

    /// Returns what the files are, for the report.
    fn describe(&self, data: DataSet) -> String;
}

/// The data of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// Bytes of the file or range that is worked on.
    pub bytes: u64,
    /// Seed of its contents.
    pub seed: u64,
}

/// A workload at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name in the database.
    pub id: String,
    /// Index of its workload.
    pub workload: usize,
    /// Bytes per operation.
    pub block_size: u64,
    /// Jobs, ranks or processes.
    pub jobs: u32,
    /// Which of these they are.
    pub worker: Message,
    /// Operations under way per job.
    pub depth: u32,
    /// Operations per second that are asked for; 0 is as many as go.
    pub rate: u64,
    /// Operations that are submitted together.
    pub batch: u32,
}

impl Cell {
    /// The point for people, in English.
    pub fn label(&self) -> String {
        self.label_in(Language::English)
    }

    /// The point for people.
    pub fn label_in(&self, language: Language) -> String {
        let jobs = language.several(self.jobs, self.worker);
        let size = match self.block_size {
            0 => String::new(),
            size => units::bytes(size) + ", ",
        };
        let part = |is_told: bool, message, name, value: &dyn Display| {
            if is_told { language.say(message, &[(name, value)]) } else { String::new() }
        };
        let depth = part(self.depth != 1, Message::CellDepth, "depth", &self.depth);
        let rate = part(self.rate != 0, Message::CellRate, "rate", &self.rate);
        let batch = part(self.batch > 1, Message::CellBatch, "batch", &self.batch);
        format!("{size}{jobs}{depth}{rate}{batch}")
    }
}

/// Patterns, as fio names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandomRead,
    /// Random writes.
    RandomWrite,
    /// Random reads and writes, half of each.
    RandomMixed,
}

impl Pattern {
    /// All of them, with fio's names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("read", Self::Read),
        ("write", Self::Write),
        ("randread", Self::RandomRead),
        ("randwrite", Self::RandomWrite),
        ("randrw", Self::RandomMixed),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, pattern)| *pattern == self).map_or("", |(name, _)| name)
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite | Self::RandomMixed)
    }

    /// Whether its offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite | Self::RandomMixed)
    }
}
