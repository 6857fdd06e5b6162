//! The costs of a run: bytes in the upper directories, and writes and flushes of the disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;

use super::condition::Condition;
use super::file_system::FileSystem;
use super::files::BenchDirectory;

/// Counters of the disk below a directory, since the disk was started.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Disk {
    pub(super) written_bytes: u64,
    pub(super) flushes: u64,
}

impl Disk {
    /// Reads the counters; `None` if the file system's device has none (tmpfs, btrfs, overlay).
    /// Fields 7 and 16 of Documentation/block/stat.rst.
    pub(super) fn below(directory: &Path) -> Option<Self> {
        let device = std::fs::metadata(directory).ok()?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
        let text = std::fs::read_to_string(block.join("stat")).ok()?;
        let fields: Vec<u64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let written_bytes = fields.get(6)? * 512;
        let mut flushes = fields.get(15).copied();
        if block.join("partition").exists() {
            // The kernel counts flushes for the whole disk.
            let whole = std::fs::read_to_string(block.join("../stat")).ok()?;
            flushes = whole.split_whitespace().nth(15).and_then(|field| field.parse().ok());
        }
        Some(Self { written_bytes, flushes: flushes? })
    }

    /// Returns what was added since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// How to count the bytes that a run has added.
#[derive(Debug, Clone, Copy)]
pub(super) enum Room {
    /// By the blocks of the files in the containers' directories.
    Files,
    /// By the growth of the file system's used bytes: the blocks of files that share blocks would
    /// count more than once.
    Used(u64),
}

impl Room {
    /// Returns the state before a run.
    pub(super) fn of(condition: Condition, directory: &BenchDirectory) -> anyhow::Result<Self> {
        match condition.file_system() {
            FileSystem::Here => Ok(Self::Files),
            FileSystem::Xfs | FileSystem::Btrfs => used_bytes(directory.root()).map(Self::Used),
        }
    }

    /// Returns the bytes that the run has added.
    pub(super) fn taken(self, directory: &BenchDirectory) -> anyhow::Result<u64> {
        match self {
            Self::Files => allocated_bytes(&directory.containers()),
            Self::Used(before) => Ok(used_bytes(directory.root())?.saturating_sub(before)),
        }
    }
}

/// Returns the used bytes of a file system.
fn used_bytes(directory: &Path) -> anyhow::Result<u64> {
    let found = rustix::fs::statvfs(directory);
    let found = found.with_context(|| format!("cannot examine {}", directory.display()))?;
    Ok((found.f_blocks - found.f_bfree) * found.f_frsize)
}

/// Returns the allocated bytes of the files below a directory.
pub(super) fn allocated_bytes(directory: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let entries = std::fs::read_dir(&path);
        for entry in entries.with_context(|| format!("cannot list {}", path.display()))? {
            let entry = entry?;
            let found = entry.metadata()?;
            if found.is_dir() {
                left.push(entry.path());
            } else {
                bytes += found.blocks() * 512;
            }
        }
    }
    Ok(bytes)
}
