//! Limits of a namespace's rate: commands and bytes per second, for all hosts together.
//!
//! Each limit is a token bucket, stored as the time at which it is full again. A command moves that
//! time by its cost, and may run once the former time is at most [`BURST`] away. So commands wait
//! in the order of their arrival, each knows its waiting time, and a limit costs one atomic
//! operation per command. A namespace without limits costs two loads of memory that is never
//! written.

use reactor::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Size of a bucket: the commands or bytes of this time may run at once after a pause.
const BURST: Duration = Duration::from_millis(20);
/// Maximum time before a waiting command checks again whether its limit has changed.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Limits of a rate; [`None`] means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Commands per second, at least 1.
    pub commands: Option<u64>,
    /// Bytes of data per second, at least 1.
    pub bytes: Option<u64>,
}

/// One token bucket.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket {
    /// The time at which it is full again, in nanoseconds of the reactor's clock.
    full_ns: AtomicU64,
}

impl Bucket {
    /// Takes tokens that need `cost_ns` to return. Returns the time at which the command may run.
    fn take(&self, cost_ns: u64, now_ns: u64) -> u64 {
        let order = Ordering::Relaxed;
        let take = |full: u64| Some(full.max(now_ns).saturating_add(cost_ns));
        let before = self.full_ns.fetch_update(order, order, take).unwrap_or_default();
        before.saturating_sub(BURST.as_nanos() as u64)
    }

    fn give_back(&self, cost_ns: u64) {
        let order = Ordering::Relaxed;
        let give = |full: u64| Some(full.saturating_sub(cost_ns));
        // This cannot fail, because `give` always returns a value.
        let _ = self.full_ns.fetch_update(order, order, give);
    }
}

/// The limits of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// Commands per second; 0 means no limit.
    commands: AtomicU64,
    /// Bytes per second; 0 means no limit.
    bytes: AtomicU64,
    /// Number of changes of the limits.
    epoch: AtomicU64,
    command_bucket: Bucket,
    byte_bucket: Bucket,
}

/// The wait of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) until: Instant,
    /// The epoch of the limits that cause the wait.
    epoch: u64,
    /// The costs of the command in the buckets for commands and for bytes, in nanoseconds.
    costs: [u64; 2],
}

impl Rate {
    /// Returns the limits.
    pub(crate) fn limits(&self) -> RateLimits {
        let of = |limit: &AtomicU64| Some(limit.load(Ordering::Relaxed)).filter(|it| *it != 0);
        RateLimits { commands: of(&self.commands), bytes: of(&self.bytes) }
    }

    /// Replaces the limits. Waiting commands follow the new ones within [`LOOK`].
    pub(crate) fn set(&self, limits: RateLimits) {
        self.commands.store(limits.commands.unwrap_or(0), Ordering::Relaxed);
        self.bytes.store(limits.bytes.unwrap_or(0), Ordering::Relaxed);
        for bucket in [&self.command_bucket, &self.byte_bucket] {
            bucket.full_ns.store(0, Ordering::Relaxed);
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Counts a command with `bytes` of data. Returns its wait, if it has to wait.
    pub(crate) fn take(&self, bytes: u64, now: Instant) -> Option<Wait> {
        let epoch = self.epoch.load(Ordering::Acquire);
        let (per_second, now_ns) = (1_000_000_000_u128, now.as_ns());
        let (mut until_ns, mut costs) = (0, [0; 2]);
        let buckets =
            [(&self.commands, &self.command_bucket, 1), (&self.bytes, &self.byte_bucket, bytes)];
        for ((limit, bucket, amount), taken) in buckets.into_iter().zip(&mut costs) {
            let limit = limit.load(Ordering::Relaxed);
            if limit != 0 && amount != 0 {
                let cost = u128::from(amount) * per_second / u128::from(limit);
                *taken = u64::try_from(cost).unwrap_or(u64::MAX);
                until_ns = until_ns.max(bucket.take(*taken, now_ns));
            }
        }
        (until_ns > now_ns).then(|| Wait { until: Instant::from_ns(until_ns), epoch, costs })
    }

    /// Returns the tokens of a waiting command that does not run because its connection has ended.
    /// Otherwise commands that hosts send, abandon and send again would count each time, and in the
    /// end no command would run.
    pub(crate) fn give_back(&self, wait: &Wait) {
        if self.has_changed(wait) {
            return;
        }
        for (bucket, cost) in [&self.command_bucket, &self.byte_bucket].into_iter().zip(wait.costs)
        {
            bucket.give_back(cost);
        }
    }

    /// Returns whether the limits have changed since a command began to wait.
    pub(crate) fn has_changed(&self, wait: &Wait) -> bool {
        self.epoch.load(Ordering::Relaxed) != wait.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(1_000_000_000_000 + ms * 1_000_000)
    }

    /// Returns the times in milliseconds at which commands may run that all arrive at `now`.
    fn waits(rate: &Rate, count: usize, bytes: u64, now: Instant) -> Vec<u64> {
        let wait =
            |_| rate.take(bytes, now).map_or(0, |wait| (wait.until.since(now)).as_millis() as u64);
        (0..count).map(wait).collect()
    }

    /// Goal: after a burst of 20 ms, commands are as far apart as the tighter limit requires; a
    /// pause returns no more than that burst, and without limits no command waits.
    #[test]
    fn commands_keep_their_distance() {
        let rate = Rate::default();
        assert_eq!(waits(&rate, 3, 1 << 30, at(0)), [0, 0, 0]);
        let limits = RateLimits { commands: Some(100), bytes: None };
        rate.set(limits);
        assert_eq!(rate.limits(), limits);
        assert_eq!(waits(&rate, 5, 1 << 20, at(0)), [0, 0, 0, 10, 20]);
        assert_eq!(waits(&rate, 1, 0, at(10)), [20]);
        assert_eq!(waits(&rate, 4, 0, at(1000)), [0, 0, 0, 10]);
        rate.set(RateLimits { commands: Some(100), bytes: Some(1_000_000) });
        assert_eq!(waits(&rate, 3, 100_000, at(2000)), [0, 80, 180]);
        assert_eq!(
            waits(&rate, 3, 0, at(2000)),
            [10, 20, 30],
            "a command without bytes does not wait for the limit of bytes"
        );
        rate.set(RateLimits { commands: None, bytes: Some(1) });
        assert_eq!(waits(&rate, 1, u64::MAX, at(3000)), [0], "a large command passes once");
        assert!(rate.take(1, at(3000)).is_some_and(|wait| wait.until > at(1 << 30)));
    }

    /// Goal: commands that never ran do not delay later ones.
    #[test]
    fn what_is_not_executed_is_given_back() {
        let rate = Rate::default();
        rate.set(RateLimits { commands: Some(1000), bytes: Some(1_000_000) });
        let waiting: Vec<Wait> = (0..100).filter_map(|_| rate.take(100_000, at(0))).collect();
        assert!(waiting.last().unwrap().until > at(9_000));
        for wait in &waiting {
            rate.give_back(wait);
        }
        assert!(rate.take(0, at(200)).is_none());
        assert!(rate.take(100_000, at(200)).is_none());
    }

    /// Goal: a change of limits invalidates the waits that follow from the former limits.
    #[test]
    fn a_change_is_noticed() {
        let rate = Rate::default();
        rate.set(RateLimits { commands: Some(1), bytes: None });
        let waiting = (0..3).filter_map(|_| rate.take(1, at(0))).last().unwrap();
        assert!(!rate.has_changed(&waiting));
        rate.set(RateLimits::default());
        assert!(rate.has_changed(&waiting) && rate.take(1, at(0)).is_none());
    }
}
