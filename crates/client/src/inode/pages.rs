//! What the kernel's page cache may hold of one inode.

use reactor::local::WaitGroup;
use reactor::time::{Instant, now};
use std::cell::Cell;
use std::time::Duration;

/// After this time a request that the kernel has sent has arrived.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// What the kernel's page cache may hold of an inode.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Whether something was read or written since pages were last marked stale.
    is_filled: Cell<bool>,
    /// Number of times that pages may have become stale.
    pub(crate) stale: Cell<u64>,
    /// All pages that were stale by this number are dropped.
    pub(crate) dropped: Cell<u64>,
    /// The kernel is asked to drop all pages that were stale by this number, and reports the end.
    pub(crate) asked: Cell<u64>,
    /// Drops that take so long that something else did not wait for them.
    pub(crate) late_drops: WaitGroup,
    /// When the last of them ended.
    pub(crate) late_drop_ended: Cell<Option<Instant>>,
    /// When the kernel was last asked to drop pages.
    pub(crate) drop_requested: Cell<Option<Instant>>,
    /// Requests of the kernel for which it may have locked pages.
    pub(crate) users: WaitGroup,
    /// When something was last read that the kernel may keep.
    read: Cell<Option<Instant>>,
    /// When the kernel last asked for bytes of its pages.
    pub(crate) read_through: Cell<Option<Instant>>,
    /// Whether something was written past the cache since the kernel dropped all pages.
    pub(crate) is_passed_by: Cell<bool>,
    /// Running writes past the cache.
    pub(crate) passing: WaitGroup,
    /// Opens of the file for writing through the cache.
    pub(crate) writers: WaitGroup,
    /// Whether others may have changed the file since these opens.
    pub(crate) is_shared: Cell<bool>,
}

impl Pages {
    /// Notes that bytes are read or written that the kernel may keep.
    pub(crate) fn fill(&self) {
        self.is_filled.set(true);
    }

    /// Notes that bytes are read that the kernel may keep.
    pub(crate) fn note_read(&self) {
        self.read.set(Some(now()));
        self.fill();
    }

    /// Notes that others may change the data from now on, unnoticed.
    pub(crate) fn expire(&self) {
        if self.have_writers() && !reactor::mutant!("sharing-unnoticed") {
            self.is_shared.set(true);
        }
        self.mark_stale();
    }

    /// Marks the pages stale, if anything was read or written since the last time.
    pub(crate) fn mark_stale(&self) {
        if self.is_filled.replace(false) {
            self.stale.set(self.stale.get() + 1);
        }
    }

    /// Notes that the kernel has dropped all pages that were stale by this number.
    pub(crate) fn note_dropped(&self, stale: u64) {
        self.dropped.set(self.dropped.get().max(stale));
    }

    /// Returns whether the kernel may have stale pages.
    pub(crate) fn are_stale(&self) -> bool {
        self.dropped.get() < self.stale.get()
    }

    /// Returns whether the kernel is asked to drop all stale pages, or has dropped them.
    pub(crate) fn are_asked(&self) -> bool {
        self.asked.get().max(self.dropped.get()) >= self.stale.get()
    }

    /// Returns whether the file is open for writing through the cache.
    pub(crate) fn have_writers(&self) -> bool {
        self.writers.count() > 0
    }

    /// Returns whether the kernel may have read a page anew without the bytes of a write through
    /// the cache that arrived at `came`. It can if the page was dropped after the kernel had
    /// written to it, while the write was on its way.
    pub(crate) fn may_lack_write(&self, came: Instant) -> bool {
        let Some(requested) = self.drop_requested.get() else { return false };
        let last = self.late_drop_ended.get().map_or(requested, |ended| ended.max(requested));
        let is_near = last + ON_ITS_WAY > came || self.late_drops.count() > 0;
        is_near && self.read.get().is_some_and(|read| read >= requested)
    }
}
