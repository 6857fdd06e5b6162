//! When a step may start: no request is in flight, the rate is within its bound, and there is room.

use std::cell::Cell;
use std::time::Duration;

use reactor::time::Instant;

use super::{Filler, Stop, is_partial};
use crate::tree::Tree;

/// Largest step: an application may have to wait for one at the device.
const STEP_BYTES_MAX: u64 = 1 << 20;
/// Smallest step of a low rate.
const STEP_BYTES_MIN: u64 = 64 << 10;
/// Steps a second at a low rate, so that it is one.
const STEPS_PER_SECOND: u64 = 8;

/// The bounds, and what counts against them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Requests in flight.
    pub(super) requests: Cell<usize>,
    /// A request had no space.
    pub(super) is_room_wanted: Cell<bool>,
    /// Bytes a second; 0 for no bound.
    rate_bytes: Cell<u64>,
    /// The percentage of the file system that stays free.
    free_percent: Cell<u8>,
    next: Cell<Option<Instant>>,
}

impl Pace {
    /// Sets the bounds.
    pub(super) fn bound(&self, rate_bytes: u64, free_percent: u8) {
        self.rate_bytes.set(rate_bytes);
        self.free_percent.set(free_percent);
    }

    /// Returns the bytes of a step.
    pub(super) fn step_bytes(&self) -> u64 {
        match self.rate_bytes.get() {
            0 => STEP_BYTES_MAX,
            rate => (rate / STEPS_PER_SECOND).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX),
        }
    }

    /// Counts bytes that were copied, which puts the next step off.
    pub(super) fn count(&self, bytes: u64) {
        let rate = self.rate_bytes.get();
        if rate > 0 {
            let now = reactor::time::now();
            let from = self.next.get().map_or(now, |next| next.max(now));
            self.next.set(Some(from + Duration::from_secs_f64(bytes as f64 / rate as f64)));
        }
    }

    /// Returns whether `bytes` more leave enough of `total` free, when `available` are.
    fn has_room(&self, bytes: u64, available: u64, total: u64) -> bool {
        let reserve = u128::from(total) * u128::from(self.free_percent.get()) / 100;
        u128::from(available.saturating_sub(bytes)) > reserve && available > bytes
    }
}

impl Filler {
    /// Waits until no request is in flight.
    pub(super) async fn quiet(&self) {
        while self.pace.requests.get() > 0 && !self.is_ending.get() {
            self.changed.notified().await;
        }
    }

    /// Waits until the next step of a file may be taken.
    pub(super) async fn turn(
        &self,
        tree: &Tree,
        file: &super::work::Filling<'_>,
        bytes: u64,
    ) -> Result<(), Stop> {
        loop {
            self.quiet().await;
            if self.is_ending.get() {
                return Err(Stop::Ending);
            }
            if !is_partial(file.node, file.partial) {
                return Err(Stop::Gone);
            }
            if self.pace.is_room_wanted.replace(false) {
                return Err(Stop::NoRoom);
            }
            match self.pace.next.get() {
                Some(next) if next > reactor::time::now() => {
                    let changed = std::pin::pin!(self.changed.notified());
                    let _ = reactor::race(changed, reactor::time::sleep_until(next)).await;
                }
                _ => return self.check_room(tree, bytes),
            }
        }
    }

    /// Refuses what would leave too little free.
    pub(super) fn check_room(&self, tree: &Tree, bytes: u64) -> Result<(), Stop> {
        let upper = tree.upper()?;
        let found = rustix::fs::fstatvfs(&upper.work).map_err(Stop::from)?;
        let (available, total) = (found.f_bavail, found.f_blocks);
        let unit = found.f_frsize.max(1);
        if self.pace.has_room(bytes, available.saturating_mul(unit), total.saturating_mul(unit)) {
            Ok(())
        } else {
            Err(Stop::NoRoom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the last tenth stays free to the byte, and with a share of nothing the last byte.
    #[test]
    fn a_share_of_the_room_stays_free() {
        let pace = Pace::default();
        pace.bound(0, 10);
        assert!(pace.has_room(99, 200, 1000));
        assert!(!pace.has_room(100, 200, 1000));
        assert!(!pace.has_room(1, 50, 1000));
        pace.bound(0, 0);
        assert!(pace.has_room(199, 200, 1000));
        assert!(!pace.has_room(200, 200, 1000));
        assert!(!pace.has_room(1, 0, u64::MAX));
    }

    // Goal: a low rate goes in small steps, several a second; none is larger than the largest.
    #[test]
    fn steps_follow_the_rate() {
        let pace = Pace::default();
        for (rate, step) in [(0, 1 << 20), (1, 64 << 10), (4 << 20, 512 << 10), (1 << 40, 1 << 20)]
        {
            pace.bound(rate, 10);
            assert_eq!(pace.step_bytes(), step, "{rate}");
        }
    }
}
