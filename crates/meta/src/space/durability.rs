//! The part of a device's data that a loss of power may destroy.
//!
//! A device has acknowledged the data that a commit names, but the data may still be in the
//! device's cache. So the service numbers *flush epochs*: a new one begins whenever it asks devices
//! to flush. An allocation carries the epoch of its commit, or none if the client had flushed it
//! before. A device's answer to the flush at the end of epoch *e* makes all its commits through *e*
//! durable: one number per device, for any number of files.
//!
//! When a device comes back with another incarnation, or fails a flush, the epochs after its last
//! flushed one are *lost* there: an interval that is stored for good. Data that was committed in
//! them reads as EIO, never as the earlier content of the blocks, until it is overwritten, cut off
//! or deleted.

use serde::{Deserialize, Serialize};

/// The first epoch. An allocation with epoch zero was durable when it was committed.
pub(crate) const FIRST_FLUSH_EPOCH: u64 = 1;

/// A device's flush epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Durability {
    /// All commits through this epoch are durable, or lost.
    pub(crate) flushed_through: u64,
    /// The epoch of the last unflushed commit. It is not known after a restart of the service, and
    /// then set to the present epoch.
    #[serde(skip)]
    pub(crate) newest: u64,
    /// The lost epochs: first and last, ascending.
    lost: Vec<(u64, u64)>,
}

impl Durability {
    /// Returns whether a stored record makes sense: lost epochs are ascending and apart, and
    /// counted as flushed.
    pub(crate) fn is_sound(&self) -> bool {
        let is_range = |(first, last): &(u64, u64)| first <= last;
        self.lost.iter().all(is_range)
            && self.lost.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && self.lost.last().is_none_or(|(_, last)| *last <= self.flushed_through)
    }

    /// Returns whether there may be commits that no flush covers.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.newest > self.flushed_through
    }

    /// Returns whether commits of an epoch wait for a flush.
    pub(crate) fn awaits(&self, epoch: u64) -> bool {
        epoch > self.flushed_through
    }

    /// Returns whether the commits of an epoch are lost.
    pub(crate) fn is_lost(&self, epoch: u64) -> bool {
        self.lost.iter().any(|(first, last)| (*first..=*last).contains(&epoch))
    }

    /// Returns whether commits of one of these epochs were lost.
    pub(crate) fn has_lost_in(&self, epochs: std::ops::RangeInclusive<u64>) -> bool {
        self.lost.iter().any(|(first, last)| first <= epochs.end() && last >= epochs.start())
    }

    /// Returns whether any commits were ever lost.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Marks all commits through an epoch as durable.
    pub(crate) fn flush(&mut self, through: u64) {
        self.flushed_through = self.flushed_through.max(through);
    }

    /// Marks all commits after the last flush, through an epoch, as lost.
    pub(crate) fn lose(&mut self, through: u64) {
        let first = self.flushed_through + 1;
        if first > through {
            return;
        }
        self.flushed_through = through;
        assert!(
            self.lost.last().is_none_or(|(_, last)| *last < first),
            "epochs {first} to {through} would be lost after {:?}",
            self.lost
        );
        match self.lost.last_mut() {
            Some((_, last)) if *last + 1 == first => *last = through,
            _ => self.lost.push((first, through)),
        }
    }

    /// Marks all commits through an epoch as lost: the device is memory.
    pub(crate) fn lose_all(&mut self, through: u64) {
        self.lost = vec![(FIRST_FLUSH_EPOCH, through)];
        self.flushed_through = through;
    }
}

#[cfg(test)]
mod tests {
    use super::Durability;

    /// Goal: flushed epochs are never lost, unflushed ones are, and later epochs are neither.
    #[test]
    fn only_unflushed_epochs_are_lost() {
        let mut device = Durability::default();
        device.flush(3);
        device.lose(5);
        let lost: Vec<u64> = (0..8).filter(|epoch| device.is_lost(*epoch)).collect();
        assert_eq!(lost, [4, 5]);
        device.lose(5);
        device.lose(6);
        device.flush(8);
        device.lose(9);
        let lost: Vec<u64> = (0..12).filter(|epoch| device.is_lost(*epoch)).collect();
        assert_eq!(lost, [4, 5, 6, 9]);
        assert!(device.has_lost_in(0..=4) && !device.has_lost_in(0..=3));
        assert!(device.has_lost_in(9..=9) && !device.has_lost_in(7..=8));
        // A late answer about an earlier flush changes nothing.
        device.flush(4);
        assert!(device.is_lost(4) && !device.awaits(9) && device.awaits(10));
    }
}
