//! Decides which closes the kernel has to report (FLUSH).
//!
//! A close of a file that was opened only for reading publishes nothing. It can only release the
//! record locks that its process holds on the file, and few programs lock through such a
//! descriptor. So the mount asks the kernel not to report such closes (`FOPEN_NOFLUSH`) until a
//! program takes the first lock in that way. The flag is fixed at OPEN: locks through files that
//! are already open by then are released with their RELEASE.

use crate::lock_owners::LockOwners;
use protocol::InodeId;
use std::cell::Cell;

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
    pub(crate) fn go_unreported(&self, id: InodeId, owners: &LockOwners) -> bool {
        let is_locked = owners.has_records(id) && !reactor::mutant!("locked-file-unflushed");
        !self.locks_readers.get() && !is_locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_owners::Owned;
    use fuse::FileHandle;

    const FILE: InodeId = InodeId(7);

    /// Goal: the kernel reports closes of a file that this mount has locked, and not those of
    /// others (R25).
    #[test]
    fn closes_of_a_locked_file_are_reported() {
        let closes = Closes::default();
        let owners = LockOwners::default();
        let record = Owned { inode: FILE, is_flock: false, owner: 5 };
        owners.enter(Owned { inode: InodeId(6), owner: u64::MAX, ..record }, FileHandle(1));
        owners.enter(Owned { inode: InodeId(8), owner: 0, ..record }, FileHandle(2));
        owners.enter(Owned { is_flock: true, ..record }, FileHandle(3));
        assert!(closes.go_unreported(FILE, &owners));
        owners.enter(record, FileHandle(3));
        assert!(!closes.go_unreported(FILE, &owners));
    }

    /// Goal: once a program has locked through a descriptor that only reads, the kernel reports all
    /// closes; a lock through a descriptor that writes changes nothing (R25).
    #[test]
    fn closes_are_reported_once_readers_lock() {
        let closes = Closes::default();
        closes.note_lock(true);
        assert!(closes.go_unreported(FILE, &LockOwners::default()));
        closes.note_lock(false);
        assert!(!closes.go_unreported(FILE, &LockOwners::default()));
    }
}
