//! Errors of the store of copy-ups. Each states what failed, where, and what to do.

use std::io;

use super::damage::{self, Damage};
use super::types::FileId;

/// Why an operation on the journal failed. Nothing that was acknowledged before is lost by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The upper file system has no room for another segment; the operation was not recorded, and
    /// works again when there is room.
    #[error("no space for copy-ups in the work directory: {0}")]
    NoSpace(#[source] io::Error),
    /// A read or write of the store failed.
    #[error("{what} failed in the work directory: {source}")]
    Io {
        /// What was done to which file.
        what: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A flush failed before, so what was written since the flush before it may be lost. A failed
    /// flush is never retried into success: mount again to recover what is there.
    #[error("an earlier flush of the copy-up store failed; unmount and mount again")]
    Poisoned,
    /// Another process has this work directory open.
    #[error("the work directory is in use by another union")]
    Locked,
    /// No file of this number is in the store.
    #[error("copy-up {0} is not in the store")]
    NoSuchFile(FileId),
    /// The file is being published: writes would be lost, so they wait for its end.
    #[error("copy-up {0} is being published")]
    Frozen(FileId),
    /// The operation fits only the other kind of copy-up.
    #[error("copy-up {0} keeps its data in {1}")]
    WrongKind(FileId, &'static str),
    /// The name is taken by another copy-up.
    #[error("the name is held by copy-up {0}")]
    NameTaken(FileId),
    /// A field is longer than the format allows, or an offset beyond the largest file.
    #[error("{what} of {found} exceeds {limit}")]
    TooLarge {
        /// The field.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// The maps of all copy-ups together would exceed their bound: complete a file first, best the
    /// one named here.
    #[error("the maps of partial files are full; complete copy-up {0} first")]
    MapsFull(FileId),
    /// Stored bytes of a file cannot be read back.
    #[error("the store lost bytes of copy-up {file} at offset {offset}")]
    Damaged {
        /// The copy-up.
        file: FileId,
        /// The first of the lost bytes.
        offset: u64,
    },
    /// Durable records are missing, so the content of files is unknown. Nothing was changed.
    #[error(
        "durable records are missing: {}. Nothing was changed. Restore upper and work directory from a backup. \
         `tsumugi union check UPPERDIR` says which files are concerned; with -o accept_damage these give \
         errors, and changes of which only the missing records told are gone", damage::in_words(.0)
    )]
    Lost(Vec<Damage>),
    /// An option is out of range.
    #[error("option {name}: {reason}")]
    Option {
        /// Its name.
        name: &'static str,
        /// What is allowed.
        reason: String,
    },
}

impl JournalError {
    /// Returns the errno that a caller of the mount sees.
    pub fn errno(&self) -> rustix::io::Errno {
        use rustix::io::Errno;
        match self {
            Self::NoSpace(_) => Errno::NOSPC,
            Self::Locked | Self::Frozen(_) => Errno::BUSY,
            Self::NoSuchFile(_) => Errno::NOENT,
            Self::WrongKind(..) | Self::Option { .. } => Errno::INVAL,
            Self::NameTaken(_) => Errno::EXIST,
            Self::TooLarge { .. } => Errno::FBIG,
            Self::MapsFull(_) => Errno::NOMEM,
            Self::Io { .. } | Self::Poisoned | Self::Damaged { .. } | Self::Lost(_) => Errno::IO,
        }
    }

    /// An I/O error with what was done; one for lack of room becomes [`Self::NoSpace`].
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace(source),
            _ => Self::Io { what: what.into(), source },
        }
    }
}
