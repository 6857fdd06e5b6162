//! Counts of wrong checksums, and the memory of what the log has named.

use protocol::{DeviceId, InodeId};
use reactor::time::{Instant, now};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Wrong blocks that the log has named and does not name again.
const NAMED_MAX: usize = 1024;

/// Shortest time between two lines in the log about bytes that were changed on the way.
const REPAIRED_EVERY: Duration = Duration::from_secs(1);

/// A block whose bytes twice did not have their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongBlock {
    pub(crate) device: DeviceId,
    pub(crate) block: u64,
}

/// A block that was found damaged, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The device.
    pub device: DeviceId,
    /// The block, counted from the device's start.
    pub block: u64,
    /// The file that was read.
    pub inode: InodeId,
}

/// What one client has found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumCounts {
    /// Blocks, or inline bytes, that were wrong, and right when they were read again: changed on the way.
    pub checksum_repaired: u64,
    /// Reads that failed because of a wrong checksum.
    pub checksum_wrong: u64,
    /// The last block that one of them failed for.
    pub checksum_last: Option<Damage>,
}

/// What one client has found wrong, for other threads to look at.
#[derive(Clone, Debug, Default)]
pub struct ChecksumView(Arc<Mutex<ChecksumCounts>>);

impl ChecksumView {
    /// What was counted so far.
    pub fn counts(&self) -> ChecksumCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client remembers of checksums that were wrong.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    pub(crate) counts: ChecksumView,
    named: RefCell<BTreeSet<(DeviceId, u64, InodeId)>>,
    repaired_logged: Cell<Option<Instant>>,
}

impl Mismatches {
    /// What was counted so far.
    pub(crate) fn counts(&self) -> ChecksumCounts {
        self.counts.counts()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut ChecksumCounts)) {
        change(&mut self.counts.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns whether the log is to say that bytes were changed on the way, which it does not for each of many.
    pub(crate) fn may_tell_of_repair(&self) -> bool {
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
