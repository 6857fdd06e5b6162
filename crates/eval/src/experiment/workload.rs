//! Workloads: what the load does, at which points, and what of it is compared.

use super::Metric;
use crate::engine::ffsb::ProfileLoad;
use crate::messages::{Language, Message};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// A load at one or more points.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name.
    pub name: String,
    /// What it does.
    pub task: Task,
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

/// What a load does.
#[derive(Clone, Debug)]
pub enum Task {
    /// Reads or writes blocks.
    Blocks(Pattern),
    /// The same at a fixed rate.
    Rate(Rate),
    /// Runs a command.
    Program(Program),
    /// Makes and removes files.
    Files(Files),
    /// What IOR does.
    Ior(super::ior::IorLoad),
    /// What an FFSB profile says.
    Ffsb(ProfileLoad),
    /// First and second writes of containers.
    CopyUp(CopyUp),
    /// What another program did.
    Imported(Imported),
}

/// First and second writes of containers to files that all of them see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyUp {
    /// Files that each container writes to, 4 KiB each, at random aligned offsets.
    pub files: u32,
}

/// A load of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What it does, if that has a name here.
    pub pattern: Option<Pattern>,
    /// Whether each job had files of its own, if that is known.
    pub has_own_files: Option<bool>,
}

/// A load at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What each operation does.
    pub pattern: Pattern,
    /// Logical units that the operations go over in turn.
    pub units: u32,
}

/// A command with what is read from its output.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments, with placeholders like `{directory}`.
    pub command: Vec<String>,
    /// Where its values are.
    pub extracts: BTreeMap<Metric, Extract>,
    /// How long it may take.
    pub timeout: Duration,
    /// The exit code of a good run.
    pub exit_code: i32,
    /// Whether it writes, for the checks of devices.
    pub writes: bool,
}

/// How a value is found in a program's output.
#[derive(Clone, Debug)]
pub struct Extract {
    /// Where.
    pub source: Source,
    /// What the found number is multiplied by, to give the metric's unit.
    pub scale: f64,
}

/// Where a value is.
#[derive(Clone, Debug)]
pub enum Source {
    /// The first group of this expression's last match in standard output, else in standard error.
    Expression(regex::Regex),
    /// What a JSON pointer (RFC 6901) names in standard output.
    Pointer(String),
}

/// A load of metadata operations, as mdtest makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// Files per process.
    pub items: u32,
    /// Bytes written to each after it was made.
    pub write_bytes: u32,
    /// Whether each process has a directory of its own.
    pub has_own_directories: bool,
    /// Whether each process looks at, reads and removes the files of its neighbour.
    pub shifts: bool,
    /// Whether each file is made durable when it is written.
    pub syncs: bool,
}

impl Workload {
    /// The pattern of blocks, if it is of blocks.
    pub fn pattern(&self) -> Option<Pattern> {
        match &self.task {
            Task::Blocks(pattern) => Some(*pattern),
            Task::Rate(rate) => Some(rate.pattern),
            Task::Imported(load) => load.pattern,
            _ => None,
        }
    }

    /// Whether it writes.
    pub fn writes(&self) -> bool {
        match &self.task {
            Task::Blocks(pattern) => pattern.writes(),
            Task::Rate(rate) => rate.pattern.writes(),
            Task::Program(program) => program.writes,
            // Profiles make their files in any case.
            Task::Files(_) | Task::Ffsb(_) | Task::CopyUp(_) => true,
            Task::Ior(load) => load.writes,
            Task::Imported(load) => load.pattern.is_some_and(Pattern::writes),
        }
    }

    /// What it does, for people.
    pub fn describe(&self, language: Language) -> String {
        match &self.task {
            Task::Blocks(pattern) => {
                let message = if self.is_direct {
                    Message::LoadBlocksDirect
                } else {
                    Message::LoadBlocksCached
                };
                language.say(message, &[("pattern", &pattern.name())])
            }
            Task::Rate(rate) => {
                let values: [(&str, &dyn Display); 2] =
                    [("pattern", &rate.pattern.name()), ("units", &rate.units)];
                language.say(Message::LoadRate, &values)
            }
            Task::Program(program) => {
                language.say(Message::LoadProgram, &[("command", &program.command.join(" "))])
            }
            Task::Ffsb(load) => language.say(Message::LoadFfsb, &[("groups", &load.describe())]),
            Task::Ior(load) => {
                let options = load.options.iter().map(|(key, value)| format!(", {key}={value}"));
                let message =
                    if load.writes { Message::LoadIorWrite } else { Message::LoadIorRead };
                language.say(message, &[("options", &options.collect::<String>())])
            }
            Task::CopyUp(load) => language.say(Message::LoadCopyUp, &[("files", &load.files)]),
            Task::Imported(load) => {
                let message = match load.has_own_files {
                    Some(true) => Message::LoadImportedOwn,
                    Some(false) => Message::LoadImportedShared,
                    None => Message::LoadImported,
                };
                language.say(message, &[("pattern", &load.pattern.map_or("–", Pattern::name))])
            }
            Task::Files(files) => files.describe(language),
        }
    }
}

impl Files {
    fn describe(&self, language: Language) -> String {
        let message =
            if self.has_own_directories { Message::LoadFilesOwn } else { Message::LoadFilesShared };
        let mut said =
            language.say(message, &[("items", &self.items), ("bytes", &self.write_bytes)]);
        for (is_so, message) in
            [(self.syncs, Message::LoadFilesSynced), (self.shifts, Message::LoadFilesShifted)]
        {
            said.push_str(if is_so { language.text(message) } else { "" });
        }
        said
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
}
