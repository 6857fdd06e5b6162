//! The ordered key-value store under the metadata service, and the errors of this crate's core.
//!
//! A [`Store`] does little: point reads, ordered scans, an atomic batch, and a flush. All typing,
//! transactions and group commit are above it, so that a store can be a few dozen lines: an embedded
//! LSM tree ([`FjallStore`]), plain memory with simulated crashes ([`MemoryStore`]), later etcd.
//! [`Indexed`] goes over either.

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

/// Why the core could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation is refused: the caller gets this errno, nothing has changed.
    #[error("refused: {0}")]
    Refused(Errno),
    /// The store failed. What it holds is unknown: end the process and open it again.
    #[error("metadata store: cannot {operation}: {source}")]
    Store {
        /// What was tried.
        operation: &'static str,
        /// What the engine said.
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
    /// The store is of a version of this program that kept its records in another form.
    #[error(
        "the metadata store is of another version of tsumugi, which kept space in another form; go on \
         with that version, or copy the files out with it and begin with an empty store"
    )]
    OtherForm,
    /// Commits that were acknowledged are missing, or files that hold some are damaged.
    #[error("{0}")]
    Lost(Box<Loss>),
    /// The file system under the store is full. Nothing has changed; the same can be tried again.
    #[error("the file system of the metadata store {} is full", .0.display())]
    Full(PathBuf),
    /// Another process has the store open.
    #[error("the metadata store {} is in use by another metadata service", .0.display())]
    InUse(PathBuf),
    /// There is no store in the directory.
    #[error("{} is no metadata store", .0.display())]
    NoStore(PathBuf),
    /// A look at the records as of one moment had to end before it was through.
    #[error(
        "the metadata store opened its engine anew while it was looked at, as it does when its disk is full: try again"
    )]
    LookEnded,
    /// An earlier batch failed: nothing is accepted any more.
    #[error("the metadata store failed earlier; restart the metadata service")]
    Poisoned,
}

impl Error {
    /// The errno for a caller: [`Errno::EIO`] unless the operation was refused.
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

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Keys ascend.
    Forward,
    /// Keys descend.
    Backward,
}

/// Which records a scan gives.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// Only keys that begin with this.
    pub prefix: &'a [u8],
    /// First key, inclusive: forward, none below it; backward, none above it. `None` is the end of
    /// the prefix's range at which the direction starts.
    pub from: Option<&'a [u8]>,
    /// Which way.
    pub direction: Direction,
    /// At most so many records; at least 1.
    pub limit: usize,
}

/// Writes that happen together or not at all; each key at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Keys with their new values, or `None` to remove them, in the order of the keys.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        let bytes = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| {
            key.len() + value.as_ref().map_or(0, Vec::len)
        };
        self.writes.iter().map(bytes).sum()
    }
}

/// The machine's boot identifier, which is another after each boot.
///
/// # Errors
/// If the kernel's file cannot be read.
pub fn boot_id() -> std::io::Result<Uuid> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim().parse().map_err(std::io::Error::other)
}

/// An ordered key-value store.
pub trait Store: Send {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// The records that a scan asks for, in its order.
    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error>;

    /// Does all writes of a batch. Once this returns they survive the sudden death of the process
    /// (not of the machine). After [`Error::Full`] nothing has changed; another error means that the
    /// store's state is unknown.
    fn commit(&mut self, batch: &Batch) -> Result<(), Error>;

    /// Returns the records as of the last commit, to be read on any thread beside later commits; `None` if
    /// the store cannot give them. Nothing can be committed to what is returned.
    fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        Ok(None)
    }

    /// A handle that makes durable, from any thread, what was committed before the call.
    fn syncer(&self) -> Box<dyn Syncer>;

    /// Whether changes should be taken: false if the disk is nearly full. Cheap enough to be asked before
    /// each change.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Whether data of files may be stored, too: false once three quarters of the file system are in use.
    fn has_plenty(&self) -> bool {
        true
    }

    /// Whether commits were missing when the store was opened, and were given up: what was acknowledged
    /// may not be there.
    fn has_lost(&self) -> bool {
        false
    }

    /// Makes all that was committed survive power loss. Blocks until the disk has it.
    fn sync(&mut self) -> Result<(), Error> {
        let syncer = self.syncer();
        syncer.sync()?;
        syncer.remember();
        Ok(())
    }
}

/// Makes a store durable from a thread of its own, as a flush may take milliseconds.
pub trait Syncer: Send + Sync {
    /// All that was committed before this call survives power loss when it returns.
    fn sync(&self) -> Result<(), Error>;

    /// Remembers, durably and outside of the store's journal, what the last [`Syncer::sync`] covered. It
    /// costs another flush, which nobody has to wait for.
    fn remember(&self) {}
}

/// The first key after all keys that begin with `prefix`, if there is one.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
