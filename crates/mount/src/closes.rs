//! Which closes the kernel has to report (FLUSH), and which it need not.
//!
//! A close of a file that was opened only for reading publishes nothing. All that it can do is release the
//! record locks that its process holds on the file, and few programs lock through such a descriptor. So the
//! kernel is asked to keep such closes to itself (`FOPEN_NOFLUSH`) until a program takes the first lock in
//! that way. The flag is fixed at OPEN: the locks of files that are open by then go with their RELEASE.

use fuse::FileHandle;
use protocol::InodeId;
use std::cell::Cell;
use std::collections::BTreeMap;

/// The owners of record locks, with the open files through which they took them.
pub(crate) type PosixOwners = BTreeMap<(InodeId, u64), Vec<FileHandle>>;

/// Decides about closes of files that are open only for reading.
#[derive(Debug, Default)]
pub(crate) struct Closes {
    /// A program has taken a record lock through a descriptor that cannot write.
    locks_readers: Cell<bool>,
}

impl Closes {
    /// Notes that a record lock is taken through an open file.
    pub(crate) fn note_lock(&self, is_writer: bool) {
        if !is_writer && !reactor::mutant!("reader-lock-unnoted") {
            self.locks_readers.set(true);
        }
    }

    /// Returns whether closes of a reader that opens the file now need no FLUSH.
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

    /// Goal: a file that this mount has locked reports its closes, others do not (R25).
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

    /// Goal: once a program has locked through a descriptor that only reads, all closes are reported; a lock
    /// through one that writes changes nothing (R25).
    #[test]
    fn closes_are_reported_once_readers_lock() {
        let closes = Closes::default();
        closes.note_lock(true);
        assert!(closes.go_unreported(FILE, &PosixOwners::default()));
        closes.note_lock(false);
        assert!(!closes.go_unreported(FILE, &PosixOwners::default()));
    }
}
