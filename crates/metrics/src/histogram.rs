//! Buckets of latencies. A bucket's width is a quarter of a power of two: an error of at most an
//! eighth.

use serde::{Deserialize, Serialize};

/// Latencies below this are in the first bucket, in powers of two of a nanosecond.
const FIRST: u32 = 8;
/// Latencies from this on are in the last bucket (69 s).
const LAST: u32 = 36;
/// Number of buckets for each power of two, as a power of two.
const PARTS: u32 = 2;

/// Number of buckets.
pub(crate) const BUCKETS: usize = ((LAST - FIRST) << PARTS) as usize + 1;

/// Returns the bucket of a latency.
pub(crate) fn bucket(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST);
    let power = ns.ilog2();
    if power >= LAST {
        return BUCKETS - 1;
    }
    let part = (ns >> (power - PARTS)) & ((1 << PARTS) - 1);
    (((power - FIRST) << PARTS) as u64 + part) as usize
}

/// Returns the first latency, in nanoseconds, that is beyond a bucket.
pub(crate) fn end_ns(bucket: usize) -> u64 {
    let next = bucket as u32 + 1;
    let (power, part) = (FIRST + (next >> PARTS), u64::from(next & ((1 << PARTS) - 1)));
    ((1 << PARTS) + part) << (power - PARTS)
}

/// Latencies of an operation: for each bucket that is not empty, its number and count, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(pub(crate) Vec<(u8, u64)>);

impl Histogram {
    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Returns the latency in nanoseconds that a share of them (0 to 1) does not exceed: the end of
    /// its bucket. 0 if there are none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for &(bucket, count) in &self.0 {
            seen += count;
            if seen >= wanted {
                return end_ns(bucket.into());
            }
        }
        0
    }

    /// Returns the latencies that were added since `before`.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let old = |bucket| before.0.iter().find(|(it, _)| *it == bucket).map_or(0, |(_, n)| *n);
        let left = self.0.iter().map(|&(bucket, n)| (bucket, n.saturating_sub(old(bucket))));
        Histogram(left.filter(|(_, n)| *n > 0).collect())
    }

    /// Adds the latencies of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for &(bucket, count) in &other.0 {
            match self.0.binary_search_by_key(&bucket, |(it, _)| *it) {
                Ok(at) => self.0[at].1 += count,
                Err(at) => self.0.insert(at, (bucket, count)),
            }
        }
    }

    /// Returns the ends of the powers of two from 1 µs on in seconds, each with the count since the
    /// previous one, as Prometheus requires; the last end is infinite.
    pub fn powers(&self) -> Vec<(f64, u64)> {
        let mut powers = Vec::new();
        let mut rest = self.0.iter().peekable();
        for power in FIRST + 2..=LAST {
            let mut count = 0;
            while let Some((_, n)) =
                rest.next_if(|(bucket, _)| end_ns((*bucket).into()) <= 1 << power)
            {
                count += n;
            }
            powers.push(((1_u64 << power) as f64 / 1e9, count));
        }
        powers.push((f64::INFINITY, rest.map(|(_, n)| n).sum()));
        powers
    }
}
