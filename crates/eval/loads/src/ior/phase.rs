//! One phase of a test, with everything decided: what a rank needs to do its part, and what it
//! answers. Ranks that are processes of ours get it as JSON, ranks under MPI as lines that the shim
//! reads.

use super::pattern::Pattern;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::PathBuf;

/// What a phase does. The numbers are those of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Writes.
    Write = 0,
    /// Reads.
    Read = 1,
    /// Reads and compares.
    Check = 2,
}

impl Access {
    /// As IOR names it in its tables.
    pub fn name(self) -> &'static str {
        if self == Self::Write { "write" } else { "read" }
    }
}

/// Order of a rank's offsets. The numbers are those of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// One after the other.
    Sequential = 0,
    /// At random within each segment (version 4).
    RandomInBlock = 1,
    /// At random within the whole file (2.10.3).
    RandomInFile = 2,
}

/// A phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What is done.
    pub access: Access,
    /// Number of ranks.
    pub ranks: usize,
    /// By MPI-IO, not by POSIX calls.
    pub is_mpiio: bool,
    /// The part that each rank works on.
    pub parts: Vec<usize>,
    /// One file for all, or that of each rank.
    pub files: Vec<PathBuf>,
    /// A file per part.
    pub has_own_files: bool,
    /// The files are made by this phase.
    pub is_new: bool,
    /// Bytes of a part per segment.
    pub block_bytes: u64,
    /// Bytes per call.
    pub transfer_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Order of offsets.
    pub order: Order,
    /// Seed of random orders.
    pub seed: u32,
    /// What is written.
    pub pattern: Pattern,
    /// Bypass the page cache (POSIX).
    pub is_direct: bool,
    /// Flush at the end.
    pub has_fsync: bool,
    /// Flush after each write.
    pub has_fsync_per_write: bool,
    /// Barriers between opening, transferring and closing.
    pub has_barriers: bool,
    /// A short transfer is an error.
    pub is_single_attempt: bool,
    /// Collective calls (MPI-IO).
    pub is_collective: bool,
    /// Through a view of the file (MPI-IO).
    pub has_view: bool,
    /// Open files to be written for reading too (MPI-IO).
    pub opens_read_write: bool,
    /// Bytes to preallocate (MPI-IO).
    pub preallocate_bytes: u64,
    /// Hints (MPI-IO).
    pub hints: Vec<(String, String)>,
    /// Report the hints of the open file (MPI-IO).
    pub wants_info: bool,
    /// After these seconds a rank begins no other transfer; 0: never.
    pub deadline_s: f64,
    /// After the deadline, all ranks write as much as the quickest.
    pub wears_out: bool,
    /// Begin again until these seconds are over.
    pub duration_min_s: f64,
    /// Most transfers of each rank; 0: no bound.
    pub caps: Vec<u64>,
    /// Pause after each transfer.
    pub delay_us: u64,
    /// Memory that each rank keeps in use.
    pub memory_bytes: u64,
}

/// What a rank did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Seconds of one clock: open from `t[0]` to `t[1]`, transfers from `t[2]` to `t[3]`, close from
    /// `t[4]` to `t[5]`.
    pub t: [f64; 6],
    /// Bytes moved.
    pub bytes: u64,
    /// Transfers.
    pub calls: u64,
    /// Wrong words.
    pub errors: u64,
    /// Where the first wrong word is, if there is one.
    pub wrong_at: u64,
}

impl Phase {
    /// Bytes from the begin of a part's block in one segment to that in the next.
    pub(super) fn span_bytes(&self) -> u64 {
        self.block_bytes * if self.has_own_files { 1 } else { self.ranks as u64 }
    }

    /// Where the first block of a part begins.
    pub(super) fn start(&self, part: usize) -> u64 {
        if self.has_own_files { 0 } else { part as u64 * self.block_bytes }
    }

    /// The lines for the shim.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(" ");
        for (key, value) in [
            ("access", self.access as u64),
            ("ranks", self.ranks as u64),
            ("mpiio", self.is_mpiio.into()),
            ("own-files", self.has_own_files.into()),
            ("new", self.is_new.into()),
            ("block", self.block_bytes),
            ("transfer", self.transfer_bytes),
            ("segments", self.segments),
            ("order", self.order as u64),
            ("seed", self.seed.into()),
            ("pattern", self.pattern.kind as u64),
            ("stamp", self.pattern.stamp.into()),
            ("direct", self.is_direct.into()),
            ("fsync", self.has_fsync.into()),
            ("fsync-per-write", self.has_fsync_per_write.into()),
            ("barriers", self.has_barriers.into()),
            ("single-attempt", self.is_single_attempt.into()),
            ("collective", self.is_collective.into()),
            ("view", self.has_view.into()),
            ("read-write", self.opens_read_write.into()),
            ("preallocate", self.preallocate_bytes),
            ("info", self.wants_info.into()),
            ("wears-out", self.wears_out.into()),
            ("delay-us", self.delay_us),
            ("memory", self.memory_bytes),
        ] {
            let _ = writeln!(text, "{key} {value}");
        }
        let _ = writeln!(text, "deadline {}", self.deadline_s);
        let _ = writeln!(text, "duration-min {}", self.duration_min_s);
        let _ = writeln!(text, "parts {}", list(&mut self.parts.iter().map(usize::to_string)));
        let _ = writeln!(text, "caps {}", list(&mut self.caps.iter().map(u64::to_string)));
        for file in &self.files {
            let _ = writeln!(text, "file {}", file.display());
        }
        for (key, value) in &self.hints {
            let _ = writeln!(text, "hint {key} {value}");
        }
        text.push_str("go\n");
        text
    }
}
