//! One file or block device for several processes, e.g. targets that provide paths to the same
//! namespace.
//!
//! *Data*: with direct I/O every write goes to the file itself, and every read comes from there, so
//! each process sees the writes of the others. With a page cache on each of several machines this
//! would not hold, so a shared device is always opened for direct I/O. Nothing here orders
//! overlapping writes of two processes.
//!
//! *Locks*: all take a shared lock. A process that opens the file alone is refused while others
//! share it, and they are refused while it has the file.
//!
//! *Size*: each process reads it once, when it opens the file. Do not change it while the file is shared.

use super::{FileBacking, FileOptions, lock, locked, unless_busy};
use crate::error::Error;
use reactor::{File, OpenOptions};
use std::path::Path;

/// The other processes that may use the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// No other process.
    Alone,
    /// Other processes that share it too.
    Shared,
}

impl Sharing {
    pub(super) fn lock(self, file: &File, path: &Path) -> Result<(), Error> {
        match self {
            Self::Alone => lock(file, path),
            Self::Shared => locked(path, file.try_lock_shared()),
        }
    }

    /// Opens and locks a block device that the system does not use. If it is shared, the system can
    /// still mount it later: an exclusive open would make the kernel refuse the other processes
    /// too.
    pub(super) fn open_device(self, path: &Path, open: OpenOptions) -> Result<File, Error> {
        let busy = |source| unless_busy(path, source);
        let exclusive = File::open(path, OpenOptions { exclusive: true, ..open }).map_err(busy)?;
        let file = match self {
            Self::Alone => exclusive,
            Self::Shared => File::open(path, open).map_err(busy)?,
        };
        self.lock(&file, path)?;
        Ok(file)
    }
}

impl FileBacking {
    /// Like [`FileBacking::open_patiently`], together with other processes that share the file.
    ///
    /// # Errors
    /// As [`FileBacking::open`], and [`Error::Geometry`] without direct I/O: a page cache on each
    /// of several machines would hide writes of the others.
    pub async fn open_shared(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, Error> {
        if !options.direct {
            let expected = "is not possible for a shared file: it needs direct I/O";
            return Err(Error::Geometry { what: "direct I/O", value: 0, expected });
        }
        Self::open_with_patiently(path.as_ref(), options, Sharing::Shared).await
    }
}
