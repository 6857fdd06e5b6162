//! Counts of wrong checksums, and the record of those that the log has named.

use protocol::{DeviceId, InodeId};
use reactor::time::{Instant, now};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most wrong blocks that are remembered as named in the log.
const NAMED_MAX: usize = 1024;

/// Shortest time between two lines in the log about bytes that were changed on the way.
const REPAIRED_EVERY: Duration = Duration::from_secs(1);

/// A block whose bytes did not have their checksum, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongBlock {
    pub(crate) device: DeviceId,
    pub(crate) block: u64,
}

/// A damaged block, as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The device.
    pub device: DeviceId,
    /// The block, counted from the device's start.
    pub block: u64,
    /// The file that was read.
    pub inode: InodeId,
}

/// Counts of the wrong checksums that one client has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumCounts {
    /// Blocks, or inline bytes, that were wrong at first and right when read again: they were
    /// changed on the way.
    pub checksum_repaired: u64,
    /// Reads that failed because of a wrong checksum.
    pub checksum_wrong: u64,
    /// The last block that such a read failed for.
    pub checksum_last: Option<Damage>,
}

/// A view of one client's counts, for other threads.
#[derive(Clone, Debug, Default)]
pub struct ChecksumView(Arc<Mutex<ChecksumCounts>>);

impl ChecksumView {
    /// Returns what was counted so far.
    pub fn counts(&self) -> ChecksumCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's record of wrong checksums.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    pub(crate) counts: ChecksumView,
    named: RefCell<BTreeSet<(DeviceId, u64, InodeId)>>,
    repaired_logged: Cell<Option<Instant>>,
}

impl Mismatches {
    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> ChecksumCounts {
        self.counts.counts()
    }

    /// Changes the counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut ChecksumCounts)) {
        change(&mut self.counts.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns whether the log may report that bytes were changed on the way. It reports only some
    /// of many.
    pub(crate) fn may_log_repair(&self) -> bool {
        let last = self.repaired_logged.get();
        let is_due = last.is_none_or(|last| now() - last >= REPAIRED_EVERY);
        if is_due {
            self.repaired_logged.set(Some(now()));
        }
        is_due
    }

    /// Returns whether the log has not named a block of a file yet, and notes that it does now.
    pub(crate) fn may_name(&self, damage: (DeviceId, u64, InodeId)) -> bool {
        let mut named = self.named.borrow_mut();
        if named.len() >= NAMED_MAX {
            named.clear();
        }
        named.insert(damage)
    }
}
