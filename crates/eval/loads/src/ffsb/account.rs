//! What FFSB counts, as it counts it, and what it does not.
//!
//! A *transaction* is a block of `read`, `readall`, `write`, `create` and `append` (with fsync too), and the
//! operation itself for all others. The last block of a sequential read that is smaller than the others is
//! not counted, that of a write is: so does FFSB. Beside it, operations, their latencies, and which were the
//! first to write to their file are counted here.

use super::operation::{Call, Direction, Operation};
use super::profile::Statistics;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest latency with a bucket of its own, ns: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;
/// Significant digits of latencies.
const LATENCY_DIGITS: u8 = 3;

/// Counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// FFSB's transactions.
    pub transactions: u64,
    /// Operations.
    pub operations: u64,
    /// Bytes that were moved.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// Counts by operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally(pub BTreeMap<Operation, Count>);

impl Tally {
    /// Counts an operation.
    pub fn count(&mut self, operation: Operation, transactions: u64, bytes: u64) {
        let count = Count { transactions, operations: 1, bytes };
        self.0.entry(operation).or_default().add(count);
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for (operation, count) in &other.0 {
            self.0.entry(*operation).or_default().add(*count);
        }
    }

    /// Of all operations.
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        self.0.values().for_each(|count| total.add(*count));
        total
    }

    /// Bytes of all operations that go this way.
    pub fn bytes(&self, direction: Direction) -> u64 {
        let of = self.0.iter().filter(|(operation, _)| operation.direction() == direction);
        of.map(|(_, count)| count.bytes).sum()
    }
}

/// Times of one system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimes {
    /// Calls.
    pub calls: u64,
    /// All of them, µs.
    pub total_us: u64,
    /// Shortest, µs.
    pub min_us: u64,
    /// Longest, µs.
    pub max_us: u64,
    /// Calls in each of the profile's ranges; one is counted in the first that it lies in.
    pub ranges: Vec<u64>,
}

/// Times by system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls(pub BTreeMap<Call, CallTimes>);

impl Calls {
    /// Keeps the time of a call, in whole µs as FFSB has it.
    pub fn count(&mut self, statistics: &Statistics, call: Call, time: Duration) {
        if statistics.ignored.contains(&call) {
            return;
        }
        let us = time.as_micros() as u64;
        let times = self.0.entry(call).or_default();
        times.ranges.resize(statistics.ranges_us.len(), 0);
        times.min_us = if times.calls == 0 { us } else { times.min_us.min(us) };
        times.max_us = times.max_us.max(us);
        times.calls += 1;
        times.total_us += us;
        let lies_in =
            |(from, until): &(u32, u32)| (u64::from(*from)..=u64::from(*until)).contains(&us);
        if let Some(range) = statistics.ranges_us.iter().position(lies_in) {
            times.ranges[range] += 1;
        }
    }

    /// Adds those of another thread of the same group.
    pub fn add(&mut self, other: &Self) {
        for (call, from) in &other.0 {
            let to = self.0.entry(*call).or_default();
            to.min_us = if to.calls == 0 { from.min_us } else { to.min_us.min(from.min_us) };
            to.max_us = to.max_us.max(from.max_us);
            to.calls += from.calls;
            to.total_us += from.total_us;
            to.ranges.resize(from.ranges.len().max(to.ranges.len()), 0);
            for (to, from) in to.ranges.iter_mut().zip(&from.ranges) {
                *to += from;
            }
        }
    }
}

/// Latencies of operations, in ns; kept as pairs of latency and count where they go from process to process.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_max(LATENCY_NS_MAX, LATENCY_DIGITS);
        Self(histogram.unwrap_or_else(|_| unreachable!("the bounds are constants that fit")))
    }
}

impl Latencies {
    /// Keeps one.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        for value in other.0.iter_recorded() {
            self.0.saturating_record_n(value.value_iterated_to(), value.count_at_value());
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean, µs.
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// The latency that this share of them does not exceed, µs.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1000.0
    }
}

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(
            self.0.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value())),
        )
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut latencies = Self::default();
        for (ns, count) in Vec::<(u64, u64)>::deserialize(from)? {
            latencies.0.saturating_record_n(ns, count);
        }
        Ok(latencies)
    }
}

/// What a thread counts, and sums of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// By operation.
    pub tally: Tally,
    /// By system call, if the profile asks for it.
    pub calls: Calls,
    /// Of all operations.
    pub latencies: Latencies,
    /// Of operations that were the first of the run to write to a file that was there before: those that a
    /// union has to copy up for.
    pub first_writes: Latencies,
}

impl Part {
    /// Adds another thread's.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.calls.add(&other.calls);
        self.latencies.add(&other.latencies);
        self.first_writes.add(&other.first_writes);
    }
}

/// What one instance of a profile did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// By group of threads.
    pub groups: Vec<Part>,
    /// Seconds that making the files took.
    pub setup_s: f64,
    /// Before the first operation, in ns of the monotonic clock.
    pub begun_ns: u64,
    /// After the last operation.
    pub done_ns: u64,
    /// When what was written had been flushed.
    pub flushed_ns: u64,
    /// CPU seconds of the process meanwhile, user's and system's.
    pub cpu_s: (f64, f64),
    /// Operations by second from `begun_ns` on, the last one not a whole one.
    pub series: Vec<u64>,
    /// What is worth knowing.
    pub notes: Vec<String>,
}

impl Measured {
    /// FFSB's time: from the start until what was written is flushed, seconds.
    pub fn seconds(&self) -> f64 {
        self.flushed_ns.saturating_sub(self.begun_ns).max(1) as f64 / 1e9
    }

    /// The same without flushing.
    pub fn load_seconds(&self) -> f64 {
        self.done_ns.saturating_sub(self.begun_ns).max(1) as f64 / 1e9
    }

    /// All groups together.
    pub fn total(&self) -> Part {
        let mut total = Part::default();
        self.groups.iter().for_each(|part| total.add(part));
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Goal: blocks are transactions, operations are counted beside them, bytes go by direction.
    #[test]
    fn operations_and_transactions_are_apart() {
        let mut tally = Tally::default();
        tally.count(Operation::Read, 10, 40960);
        tally.count(Operation::Read, 10, 40960);
        tally.count(Operation::Stat, 1, 0);
        let mut sum = Tally::default();
        sum.count(Operation::AppendFsync, 2, 100);
        sum.add(&tally);
        assert_eq!(
            sum.0[&Operation::Read],
            Count { transactions: 20, operations: 2, bytes: 81920 }
        );
        assert_eq!(sum.total(), Count { transactions: 23, operations: 4, bytes: 82020 });
        assert_eq!((sum.bytes(Direction::Read), sum.bytes(Direction::Write)), (81920, 100));
    }

    /// Goal: ranges have both ends, the first that fits counts, ignored calls do not; sums of threads hold
    /// minimum and maximum of both.
    #[test]
    fn times_of_calls_are_kept_as_asked() {
        let statistics =
            Statistics { ignored: [Call::Close].into(), ranges_us: vec![(0, 10), (10, 20)] };
        let (mut one, mut other) = (Calls::default(), Calls::default());
        for time in [us(10), Duration::from_nanos(11_999), us(500)] {
            one.count(&statistics, Call::Read, time);
        }
        one.count(&statistics, Call::Close, us(1));
        other.count(&statistics, Call::Read, us(3));
        other.count(&statistics, Call::Open, us(7));
        one.add(&other);
        let read = &one.0[&Call::Read];
        assert_eq!((read.calls, read.total_us, read.min_us, read.max_us), (4, 524, 3, 500));
        assert_eq!(read.ranges, [2, 1]);
        assert_eq!((one.0[&Call::Open].min_us, one.0.contains_key(&Call::Close)), (7, false));
    }

    /// Goal: latencies are the same after a way from process to process.
    #[test]
    fn latencies_travel() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|time| latencies.record(us(time)));
        let text = serde_json::to_string(&latencies).unwrap();
        let mut back: Latencies = serde_json::from_str(&text).unwrap();
        let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.002;
        assert_eq!(back.count(), 1000);
        assert!(close(back.quantile_us(0.5), 500.0) && close(back.quantile_us(0.99), 990.0));
        assert!(close(back.mean_us(), 500.5));
        back.add(&latencies);
        assert_eq!(back.count(), 2000);
    }
}
