//! The ordered key-value store under the metadata service, and the errors of this crate's core.
//!
//! A [`Store`] has few operations: point reads, ordered scans, an atomic batch, and a flush. All
//! typing, transactions and group commit are above it, so a store can be a few dozen lines: an
//! embedded LSM tree ([`FjallStore`]), plain memory with simulated crashes ([`MemoryStore`]), later
//! etcd. [`Indexed`] wraps either.

mod chain;
mod fjall_store;
mod indexed;
mod inspect;
mod journal;
mod memory;
pub(crate) mod overlay;
mod privacy;
mod room;
mod tables;
mod watermark;

pub use chain::Head;
pub use fjall_store::{Checked, FjallStore, Opening};
pub use indexed::Indexed;
pub use inspect::Loss;
pub use memory::{CrashPoint, MemoryStore, StoreFault};

use protocol::Errno;
use std::path::PathBuf;
use uuid::Uuid;

/// The reason why an operation of the core failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation is refused: the caller gets this errno, and nothing has changed.
    #[error("refused: {0}")]
    Refused(Errno),
    /// The store failed. Its content is unknown: end the process and open it again.
    #[error("metadata store: cannot {operation}: {source}")]
    Store {
        /// The operation that failed.
        operation: &'static str,
        /// The engine's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stored record cannot be understood, or contradicts others.
    #[error("metadata store is corrupt at key {key}: {reason}")]
    Corrupt {
        /// The record's key, in hexadecimal.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A version of this program with another form of records made the store.
    #[error(
        "the metadata store is of another version of tsumugi, which kept space in another form; go on \
         with that version, or copy the files out with it and begin with an empty store"
    )]
    OtherForm,
    /// Acknowledged commits are missing, or files that contain some are damaged.
    #[error("{0}")]
    Lost(Box<Loss>),
    /// The file system under the store is full. Nothing has changed; the operation can be tried
    /// again.
    #[error("the file system of the metadata store {} is full", .0.display())]
    Full(PathBuf),
    /// Another process has the store open.
    #[error("the metadata store {} is in use by another metadata service", .0.display())]
    InUse(PathBuf),
    /// The directory contains no store.
    #[error("{} is no metadata store", .0.display())]
    NoStore(PathBuf),
    /// A snapshot of the records ended before its reader had finished.
    #[error(
        "the metadata store reopened its engine during this read, as it does when its disk is full: try again"
    )]
    LookEnded,
    /// An earlier batch failed: nothing is accepted any more.
    #[error("the metadata store failed earlier; restart the metadata service")]
    Poisoned,
}

impl Error {
    /// Returns the errno for a caller: [`Errno::EIO`] unless the operation was refused.
    pub fn to_errno(&self) -> Errno {
        match self {
            Error::Refused(errno) => *errno,
            Error::Full(_) => Errno::ENOSPC,
            _ => Errno::EIO,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Refused(errno)
    }
}

/// Key and value of a record.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Keys ascend.
    Forward,
    /// Keys descend.
    Backward,
}

/// The records that a scan returns.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a [u8],
    /// First key, inclusive: forward, none below it; backward, none above it. `None` is the end of
    /// the prefix's range at which the direction starts.
    pub from: Option<&'a [u8]>,
    /// The direction.
    pub direction: Direction,
    /// Most records that it returns; at least 1.
    pub limit: usize,
}

/// Writes that take effect together or not at all; each key at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Keys with their new values, or `None` to remove them, in the order of the keys.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Returns the bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        let bytes = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| {
            key.len() + value.as_ref().map_or(0, Vec::len)
        };
        self.writes.iter().map(bytes).sum()
    }
}

/// Returns the machine's boot identifier, which differs between boots.
///
/// # Errors
/// If the kernel's file cannot be read.
pub fn boot_id() -> std::io::Result<Uuid> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim().parse().map_err(std::io::Error::other)
}

/// An ordered key-value store.
pub trait Store: Send {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Returns the records of a scan, in its order.
    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error>;

    /// Applies all writes of a batch. When this returns, they survive the sudden death of the
    /// process (not of the machine). After [`Error::Full`] nothing has changed; after another error
    /// the store's state is unknown.
    fn commit(&mut self, batch: &Batch) -> Result<(), Error>;

    /// Returns the records as of the last commit, for reading on any thread beside later commits;
    /// `None` if the store has no snapshots. The returned store accepts no commits.
    fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        Ok(None)
    }

    /// Returns a handle that makes earlier commits durable, from any thread.
    fn syncer(&self) -> Box<dyn Syncer>;

    /// Returns whether the store should get more changes: false if the disk is nearly full. Cheap
    /// enough for a check before each change.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Returns whether the store should get data of files, too: false once three quarters of the
    /// file system are in use.
    fn has_plenty(&self) -> bool {
        true
    }

    /// Returns whether commits were missing when the store was opened, and were given up:
    /// acknowledged changes may be absent.
    fn has_lost(&self) -> bool {
        false
    }

    /// Makes all commits survive a loss of power. Blocks until the disk has them.
    fn sync(&mut self) -> Result<(), Error> {
        let syncer = self.syncer();
        syncer.sync()?;
        syncer.remember();
        Ok(())
    }
}

/// Makes a store durable from a thread of its own, as a flush may take milliseconds.
pub trait Syncer: Send + Sync {
    /// Makes all earlier commits survive a loss of power.
    fn sync(&self) -> Result<(), Error>;

    /// Records, durably and outside of the store's journal, the commits that the last
    /// [`Syncer::sync`] covered. It costs another flush, but no caller has to wait for it.
    fn remember(&self) {}
}

/// Returns the first key after all keys that begin with `prefix`, if there is one.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
