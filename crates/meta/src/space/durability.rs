//! What of a device's data may be lost with its power.
//!
//! Data that a commit names has been acknowledged by its device, but need not have left the device's
//! cache. So the service numbers *flush epochs*: a new one begins whenever it asks devices to flush.
//! An allocation carries the epoch in which it was committed, or none if the client had flushed it
//! before. Once a device has answered a flush that was asked for at the end of epoch *e*, all that
//! was committed to it through *e* is durable: one number per device, however many files.
//!
//! When a device comes back with another incarnation, or fails a flush, the epochs after the last
//! that was flushed are *lost* there: an interval, kept for good. What was committed in them reads
//! as EIO, never as what the blocks held before, until it is overwritten, cut off or deleted.

use serde::{Deserialize, Serialize};

/// The first epoch. Zero, on an allocation, says that it was durable when it was committed.
pub(crate) const FIRST_FLUSH_EPOCH: u64 = 1;

/// A device's flush epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Durability {
    /// All that was committed through this epoch is durable, or lost.
    pub(crate) flushed_through: u64,
    /// The epoch of the last commit that was not flushed. After a restart of the service it is not
    /// known, and taken to be the present one.
    #[serde(skip)]
    pub(crate) newest: u64,
    /// Epochs that are lost: first and last, ascending.
    lost: Vec<(u64, u64)>,
}

impl Durability {
    /// Whether a stored record makes sense: lost epochs are ascending and apart, and counted as flushed.
    pub(crate) fn is_sound(&self) -> bool {
        let is_range = |(first, last): &(u64, u64)| first <= last;
        self.lost.iter().all(is_range)
            && self.lost.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && self.lost.last().is_none_or(|(_, last)| *last <= self.flushed_through)
    }

    /// Whether there may be commits that no flush covers.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.newest > self.flushed_through
    }

    /// Whether what was committed in an epoch waits for a flush.
    pub(crate) fn awaits(&self, epoch: u64) -> bool {
        epoch > self.flushed_through
    }

    /// Whether what was committed in an epoch is lost.
    pub(crate) fn is_lost(&self, epoch: u64) -> bool {
        self.lost.iter().any(|(first, last)| (*first..=*last).contains(&epoch))
    }

    /// Whether something was lost that was committed in this epoch or before.
    pub(crate) fn has_lost_by(&self, epoch: u64) -> bool {
        self.lost.first().is_some_and(|(first, _)| *first <= epoch)
    }

    /// Whether anything was ever lost.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// All that was committed through an epoch is durable.
    pub(crate) fn flush(&mut self, through: u64) {
        self.flushed_through = self.flushed_through.max(through);
    }

    /// All that was committed after the last flush, through an epoch, is lost.
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

    /// Everything is lost: the device is memory.
    pub(crate) fn lose_all(&mut self, through: u64) {
        self.lost = vec![(FIRST_FLUSH_EPOCH, through)];
        self.flushed_through = through;
    }
}

#[cfg(test)]
mod tests {
    use super::Durability;

    /// Goal: what a flush covered is never lost, what none covered is, and later epochs are neither.
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
        assert!(device.has_lost_by(4) && !device.has_lost_by(3));
        // A late answer about an earlier flush changes nothing.
        device.flush(4);
        assert!(device.is_lost(4) && !device.awaits(9) && device.awaits(10));
    }
}
