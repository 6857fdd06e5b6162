//! FFSB's profiles, of versions 5 and 6: what they say, in one form.
//!
//! The grammar that is read is the union of both versions', so that published profiles run as they are:
//! 6.0-RC2 ends with an error at keys of its own README (`num_filesystems`, `fsync_file`), and 5.2.1 passes
//! over all that it does not know. Which version's *meaning* counts is said ([`Compat`]) or found from the
//! keys, and each place where the other one would do something else is noted. Unknown keys are errors.

mod keys;
mod lines;
mod read;
#[cfg(test)]
pub(super) mod tests;

use super::operation::{Call, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

/// Whose meaning a profile gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compat {
    /// FFSB 5 (5.2.1): clauses inherit from the one before; sizes have no units.
    V5,
    /// FFSB 6 (6.0-RC2): `clone` instead of inheritance; sizes with units.
    V6,
}

/// What is wrong with a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key}: {message}")]
pub struct ProfileError {
    /// Line, from 1.
    pub line: usize,
    /// The key, or the clause.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// A profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Whose meaning it has.
    pub compat: Compat,
    /// Seconds of load; 0 makes the files only.
    pub time_s: u32,
    /// O_DIRECT for operations, not for making files.
    pub is_direct: bool,
    /// Random offsets are multiples of 4096 (`directio` implies it).
    pub is_aligned: bool,
    /// Command between making files and load.
    pub callout: Option<String>,
    /// Sets of files.
    pub file_systems: Vec<FileSystem>,
    /// Groups of threads.
    pub groups: Vec<ThreadGroup>,
    /// What another version would do otherwise, and what is done here.
    pub notes: Vec<String>,
}

/// A set of files.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSystem {
    /// Directory that the profile names.
    pub location: String,
    /// Files to begin with.
    pub files: u32,
    /// Directories, beside the one that all are in.
    pub directories: u32,
    /// Smallest size of a file, bytes.
    pub min_bytes: u64,
    /// Sizes are below this, or equal to `min_bytes`.
    pub max_bytes: u64,
    /// Sizes with weights, instead of a range.
    pub weights: Vec<SizeWeight>,
    /// Bytes per write when files are made.
    pub create_block_bytes: u32,
    /// The same when they are made to age the file system.
    pub age_block_bytes: u32,
    /// Files are made until they have so many bytes; 0 is not.
    pub init_bytes: u64,
    /// Files are made until the file system is so full, 0 to 1; 0 is not.
    pub init_share: f64,
    /// Use a set that is there, if it is as it has to be.
    pub reuses: bool,
    /// Load until the file system is so full, before the files are made.
    pub aging: Option<Aging>,
}

/// A size of files with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeWeight {
    /// Bytes.
    pub bytes: u64,
    /// Weight.
    pub weight: u32,
}

/// How a file system is aged.
#[derive(Clone, Debug, PartialEq)]
pub struct Aging {
    /// By which load.
    pub group: ThreadGroup,
    /// Until it is so full, 0 to 1.
    pub share: f64,
}

/// A group of threads that do the same mix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadGroup {
    /// Threads.
    pub threads: u32,
    /// Weights by [`Operation::index`].
    pub weights: [u32; Operation::COUNT],
    /// Reads.
    pub read: Access,
    /// Bytes that are passed over after each block of a sequential read; 0 is none.
    pub read_skip_bytes: u32,
    /// Writes.
    pub write: Access,
    /// Pause after each operation, ms.
    pub delay_ms: u32,
    /// Index of the only file system that it works on.
    pub bound: Option<usize>,
    /// Times of system calls.
    pub statistics: Option<Statistics>,
}

/// How data is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Blocks at random places, not one after the other.
    pub is_random: bool,
    /// Bytes per operation.
    pub size_bytes: u64,
    /// Bytes per system call.
    pub block_bytes: u32,
}

/// Which times of system calls are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Those that are not.
    pub ignored: BTreeSet<Call>,
    /// Ranges, from and to in µs, both inclusive, in which calls are counted.
    pub ranges_us: Vec<(u32, u32)>,
}

impl FileSystem {
    /// No file that is made to begin with is larger.
    pub fn largest_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes).max().unwrap_or(self.max_bytes)
    }
}

impl ThreadGroup {
    /// Operations with their weights, those without one left out.
    pub fn mix(&self) -> impl Iterator<Item = (Operation, u32)> {
        let weights = Operation::ALL.into_iter().zip(self.weights);
        weights
            .filter(|(_, weight)| *weight > 0)
            .map(|((_, operation), weight)| (operation, weight))
    }
}

impl Profile {
    /// Reads a profile; without a version, as the one whose keys it has.
    pub fn parse(text: &str, compat: Option<Compat>) -> Result<Self, ProfileError> {
        read::profile(text, compat)
    }

    /// Whether no operation changes files that are there.
    pub fn only_reads(&self) -> bool {
        self.groups.iter().flat_map(ThreadGroup::mix).all(|(operation, _)| !operation.changes())
    }

    /// All threads of the load.
    pub fn threads(&self) -> u32 {
        self.groups.iter().map(|group| group.threads).sum()
    }
}

/// As a profile of the same meaning, with all keys and without units: what the same version reads as
/// equal.
impl Display for Profile {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        if self.compat == Compat::V5 {
            writeln!(to, "num_filesystems={}", self.file_systems.len())?;
            writeln!(to, "num_threadgroups={}", self.groups.len())?;
        }
        writeln!(to, "directio={}", u8::from(self.is_direct))?;
        writeln!(to, "alignio={}", u8::from(self.is_aligned))?;
        writeln!(to, "time={}", self.time_s)?;
        if let Some(command) = &self.callout {
            writeln!(to, "callout={command}")?;
        }
        for (number, it) in self.file_systems.iter().enumerate() {
            writeln!(to, "[filesystem{number}]\n{it}[end{number}]")?;
        }
        for (number, it) in self.groups.iter().enumerate() {
            writeln!(to, "[threadgroup{number}]\n{it}[end{number}]")?;
        }
        Ok(())
    }
}

impl Display for FileSystem {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        writeln!(to, "location={}", self.location)?;
        writeln!(to, "num_files={}\nnum_dirs={}", self.files, self.directories)?;
        writeln!(to, "min_filesize={}\nmax_filesize={}", self.min_bytes, self.max_bytes)?;
        for SizeWeight { bytes, weight } in &self.weights {
            writeln!(to, "size_weight {bytes} {weight}")?;
        }
        writeln!(to, "create_blocksize={}", self.create_block_bytes)?;
        writeln!(to, "age_blocksize={}", self.age_block_bytes)?;
        writeln!(to, "init_size={}\ninit_util={}", self.init_bytes, self.init_share)?;
        writeln!(to, "reuse={}\nagefs={}", u8::from(self.reuses), u8::from(self.aging.is_some()))?;
        if let Some(Aging { group, share }) = &self.aging {
            writeln!(to, "[threadgroup0]\n{group}[end0]\ndesired_util={share}")?;
        }
        Ok(())
    }
}

impl Display for ThreadGroup {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        writeln!(to, "num_threads={}", self.threads)?;
        for (operation, weight) in self.mix() {
            writeln!(to, "{}_weight={weight}", operation.name())?;
        }
        for (name, it) in [("read", &self.read), ("write", &self.write)] {
            writeln!(to, "{name}_random={}", u8::from(it.is_random))?;
            writeln!(to, "{name}_size={}", it.size_bytes)?;
            writeln!(to, "{name}_blocksize={}", it.block_bytes)?;
        }
        writeln!(to, "read_skip={}", u8::from(self.read_skip_bytes > 0))?;
        writeln!(to, "read_skipsize={}\nop_delay={}", self.read_skip_bytes, self.delay_ms)?;
        if let Some(bound) = self.bound {
            writeln!(to, "bindfs={bound}")?;
        }
        if let Some(Statistics { ignored, ranges_us }) = &self.statistics {
            writeln!(
                to,
                "[stats]\nenable_stats=1\nenable_range={}",
                u8::from(!ranges_us.is_empty())
            )?;
            for call in ignored {
                writeln!(to, "ignore={}", call.name())?;
            }
            for (from, until) in ranges_us {
                let ms = |us: &u32| f64::from(*us) / 1000.0;
                writeln!(to, "msec_range {} {}", ms(from), ms(until))?;
            }
            writeln!(to, "[end]")?;
        }
        Ok(())
    }
}
