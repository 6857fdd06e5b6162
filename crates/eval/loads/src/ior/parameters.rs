//! What a test does, with all its settings checked as IOR checks them.

mod read;

use super::hints::Hint;
use super::order::Reorder;
use super::pattern::Pattern;
use super::phase::Order;
use super::script::{Compat, Phases};
use std::path::PathBuf;
use std::time::Duration;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// System calls.
    Posix,
    /// MPI-IO.
    Mpiio,
}

impl Api {
    /// IOR's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "POSIX",
            Self::Mpiio => "MPIIO",
        }
    }
}

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As people read them.
    Default,
    /// JSON.
    Json,
    /// CSV.
    Csv,
}

/// Striping that a script asks for, on Lustre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Striping {
    /// Objects per file; -1 for all.
    pub count: Option<i64>,
    /// Bytes per stripe.
    pub bytes: Option<u64>,
    /// First object storage target.
    pub start: Option<i64>,
}

/// What ends a phase early, or keeps it going.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stonewall {
    /// After these seconds a rank begins no other transfer; 0: never.
    pub deadline_s: u64,
    /// Then all ranks do as much as the quickest.
    pub wears_out: bool,
    /// Most transfers of a rank; 0: no bound.
    pub iterations: u64,
    /// File that keeps that number from a run that wrote to one that reads.
    pub status_file: Option<PathBuf>,
    /// Begin again until these seconds are over.
    pub duration_min_s: u64,
}

/// A test.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Whose meaning it has.
    pub compat: Compat,
    /// What is called.
    pub api: Api,
    /// Names of the file; several are given to ranks in turn (file per process only).
    pub files: Vec<PathBuf>,
    /// Number of ranks.
    pub ranks: usize,
    /// Nodes that they are on.
    pub nodes: usize,
    /// Ranks per node.
    pub per_node: usize,
    /// Bytes that a rank owns per segment.
    pub block_bytes: u64,
    /// Bytes per call.
    pub transfer_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// How often it is done.
    pub repetitions: u32,
    /// A file per rank instead of one for all.
    pub is_file_per_process: bool,
    /// Each repetition has files of its own.
    pub is_multi_file: bool,
    /// A directory per rank.
    pub is_unique_directory: bool,
    /// Bypass the page cache (POSIX).
    pub is_direct: bool,
    /// Flush before closing what was written.
    pub has_fsync: bool,
    /// Flush after each write.
    pub has_fsync_per_write: bool,
    /// Barriers between opening, transferring and closing.
    pub has_barriers: bool,
    /// A short transfer is an error.
    pub is_single_attempt: bool,
    /// Leave the files.
    pub is_kept: bool,
    /// Leave the files if their data is wrong.
    pub is_kept_with_error: bool,
    /// Work on what is there.
    pub uses_existing: bool,
    /// Wrong data ends the test.
    pub quits_on_error: bool,
    /// Order within each rank's part.
    pub order: Order,
    /// Its seed.
    pub seed: u32,
    /// What is written.
    pub pattern: Pattern,
    /// Collective calls (MPI-IO).
    pub is_collective: bool,
    /// Through a view of the file (MPI-IO).
    pub has_view: bool,
    /// Preallocate (MPI-IO).
    pub preallocates: bool,
    /// Show hints (MPI-IO).
    pub shows_hints: bool,
    /// Hints (MPI-IO).
    pub hints: Vec<Hint>,
    /// Striping (Lustre).
    pub striping: Striping,
    /// What ends a phase early.
    pub stonewall: Stonewall,
    /// Pause after each transfer.
    pub io_delay_us: u64,
    /// Memory that each rank keeps in use.
    pub memory_bytes: u64,
    /// Pause before each phase, outside of the clock.
    pub delay: Duration,
    /// No phase begins after this.
    pub time_max: Option<Duration>,
    /// Seconds off the mean from which a rank's time is reported.
    pub outlier_s: u64,
    /// What is done.
    pub phases: Phases,
    /// How much is printed.
    pub verbose: i64,
    /// Number that the user gave the test (`testNum`, `refNum`).
    pub number: i64,
    /// As the tables show it.
    pub reorders_constant: bool,
    /// As the tables show it.
    pub reorders_random: i64,
    /// As the tables show it.
    pub reorder_seed: i64,
    /// As the tables show it.
    pub task_offset: i64,
    /// A summary after each test.
    pub has_summary_always: bool,
    /// How results are shown.
    pub format: Format,
    /// Where results are shown, instead of standard output.
    pub summary_file: Option<PathBuf>,
    /// Where each rank's figures go.
    pub rank_file: Option<PathBuf>,
    pub(super) reorder: Reorder,
}

impl Parameters {
    /// Bytes that all ranks move in a phase.
    pub fn aggregate_bytes(&self) -> u64 {
        self.block_bytes * self.segments * self.ranks as u64
    }

    /// Calls that a rank makes in a phase, in order.
    pub fn transfers(&self) -> u64 {
        self.segments * (self.block_bytes / self.transfer_bytes)
    }

    /// The file of a part in a repetition.
    pub fn file(&self, part: usize, repetition: u32) -> PathBuf {
        if !self.is_file_per_process {
            return self.suffixed(self.files[0].clone(), repetition);
        }
        // There is at least one; an empty list is refused.
        let mut path = self.files[part % self.files.len()].clone();
        if self.is_unique_directory {
            let name = path.file_name().map(PathBuf::from).unwrap_or_default();
            path.pop();
            path.push(part.to_string());
            path.push(name);
        }
        let mut name = path.into_os_string();
        name.push(format!(".{part:08}"));
        self.suffixed(name.into(), repetition)
    }

    fn suffixed(&self, path: PathBuf, repetition: u32) -> PathBuf {
        let mut name = path.into_os_string();
        if self.is_multi_file {
            name.push(format!(".{repetition}"));
        }
        name.into()
    }

    /// All files of a repetition.
    pub fn all_files(&self, repetition: u32) -> Vec<PathBuf> {
        let parts = if self.is_file_per_process { self.ranks } else { 1 };
        (0..parts).map(|part| self.file(part, repetition)).collect()
    }
}
