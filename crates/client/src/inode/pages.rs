//! What the kernel's page cache may hold of one inode.

use reactor::local::WaitGroup;
use reactor::time::{Instant, now};
use std::cell::Cell;
use std::time::Duration;

/// A request that the kernel has sent has arrived after so long.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// What the kernel's page cache may have of an inode.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Something was read or written since pages were last marked stale.
    is_filled: Cell<bool>,
    /// Counts the times that pages may have become stale.
    pub(crate) stale: Cell<u64>,
    /// All pages that were stale by this count are dropped.
    pub(crate) dropped: Cell<u64>,
    /// When the kernel was last told to drop pages.
    pub(crate) drop_requested: Cell<Option<Instant>>,
    /// When something was last read that the kernel may keep.
    read: Cell<Option<Instant>>,
    /// When the kernel last asked for bytes of its pages.
    pub(crate) read_through: Cell<Option<Instant>>,
    /// Something was written past the cache since the kernel dropped all pages.
    pub(crate) is_passed_by: Cell<bool>,
    /// Writes past the cache that are under way.
    pub(crate) passing: WaitGroup,
    /// Who has the file open to write it through the cache.
    pub(crate) writers: WaitGroup,
    /// Others may have changed the file since these opened it.
    pub(crate) is_shared: Cell<bool>,
}

impl Pages {
    /// Bytes are read or written that the kernel may keep.
    pub(crate) fn fill(&self) {
        self.is_filled.set(true);
    }

    /// Bytes are read that the kernel may keep.
    pub(crate) fn note_read(&self) {
        self.read.set(Some(now()));
        self.fill();
    }

    /// Others may change the data from now on, without a word.
    pub(crate) fn expire(&self) {
        if self.have_writers() && !reactor::mutant!("sharing-unnoticed") {
            self.is_shared.set(true);
        }
        self.mark_stale();
    }

    pub(crate) fn mark_stale(&self) {
        if self.is_filled.replace(false) {
            self.stale.set(self.stale.get() + 1);
        }
    }

    /// Whether the kernel may have pages that are stale.
    pub(crate) fn are_stale(&self) -> bool {
        self.dropped.get() < self.stale.get()
    }

    /// Whether somebody has the file open to write it through the cache.
    pub(crate) fn have_writers(&self) -> bool {
        self.writers.count() > 0
    }

    /// Whether a page may have been read anew, without its bytes, while a write through the cache, which came
    /// then, was on its way: it was dropped after the kernel had written to it.
    pub(crate) fn may_lack_write(&self, came: Instant) -> bool {
        let is_near = |requested: &Instant| *requested + ON_ITS_WAY > came;
        let Some(requested) = self.drop_requested.get().filter(is_near) else { return false };
        self.read.get().is_some_and(|read| read >= requested)
    }
}
