//! Decides which closes the kernel has to report (FLUSH).
//!
//! A close of a file that was opened only for reading publishes nothing. It can only release the
//! record locks that its process holds on the file, and few programs lock through such a
//! descriptor. So the mount asks the kernel not to report such closes (`FOPEN_NOFLUSH`) until a
//! program takes the first lock in that way. The flag is fixed at OPEN: locks through files that
//! are already open by then are released with their RELEASE.

use fuse::FileHandle;
use protocol::InodeId;
use std::cell::Cell;
use std::collections::BTreeMap;

/// The owners of record locks, with the open files through which they took the locks.
pub(crate) type PosixOwners = BTreeMap<(InodeId, u64), Vec<FileHandle>>;

/// The decision about closes of files that are open only for reading.
#[derive(Debug, Default)]
pub(crate) struct Closes {
    /// A program has taken a record lock through a descriptor that cannot write.
    locks_readers: Cell<bool>,
}

impl Closes {
    /// Records that a program takes a record lock through an open file.
    pub(crate) fn note_lock(&self, is_writer: bool) {
        if !is_writer && !reactor::mutant!("reader-lock-unnoted") {
            self.locks_readers.set(true);
        }
    }

    /// Returns whether a reader that opens the file now needs no FLUSH at its closes.
    pub(crate) fn go_unreported(&self, id: InodeId, owners: &PosixOwners) -> bool {
        let mut of_file = owners.range((id, 0)..=(id, u64::MAX));
        let is_locked = of_file.next().is_some() && !reactor::mutant!("locked-file-unflushed");
        !self.locks_readers.get() && !is_locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    /// Goal: the kernel reports closes of a file that this mount has locked, and not those of
    /// others (R25).
    #[test]
    fn closes_of_a_locked_file_are_reported() {
        let closes = Closes::default();
        let mut owners = PosixOwners::default();
        owners.insert((InodeId(6), u64::MAX), vec![FileHandle(1)]);
        owners.insert((InodeId(8), 0), vec![FileHandle(2)]);
        assert!(closes.go_unreported(FILE, &owners));
        owners.insert((FILE, 5), vec![FileHandle(3)]);
        assert!(!closes.go_unreported(FILE, &owners));
    }

    /// Goal: once a program has locked through a descriptor that only reads, the kernel reports all
    /// closes; a lock through a descriptor that writes changes nothing (R25).
    #[test]
    fn closes_are_reported_once_readers_lock() {
        let closes = Closes::default();
        closes.note_lock(true);
        assert!(closes.go_unreported(FILE, &PosixOwners::default()));
        closes.note_lock(false);
        assert!(!closes.go_unreported(FILE, &PosixOwners::default()));
    }
}
