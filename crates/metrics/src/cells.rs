//! The counts of one operation on one thread. Only that thread writes, so adding needs no locked
//! instruction.

use crate::histogram::{BUCKETS, Histogram, bucket};
use crate::snapshot::Counts;
use std::sync::atomic::{AtomicU64, Ordering};

/// Adds to a cell that only this thread writes.
pub(crate) fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The counts of one operation.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) name: &'static str,
    errors: AtomicU64,
    bytes: AtomicU64,
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Cells {
    pub(crate) fn new(name: &'static str) -> Cells {
        Cells {
            name,
            errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    /// Counts an operation that ended.
    pub(crate) fn count(&self, ns: u64, bytes: u64, has_failed: bool) {
        add(&self.buckets[bucket(ns)], 1);
        add(&self.sum_ns, ns);
        if bytes > 0 {
            add(&self.bytes, bytes);
        }
        if has_failed {
            add(&self.errors, 1);
        }
    }

    /// Adds the counts of a thread that has ended. (The caller excludes other writers.)
    pub(crate) fn merge(&self, other: &Cells) {
        let pairs = [
            (&self.errors, &other.errors),
            (&self.bytes, &other.bytes),
            (&self.sum_ns, &other.sum_ns),
        ];
        for (own, other) in pairs.into_iter().chain(self.buckets.iter().zip(&other.buckets)) {
            add(own, other.load(Ordering::Relaxed));
        }
    }

    /// Adds these counts to `counts`.
    pub(crate) fn add_to(&self, counts: &mut Counts) {
        counts.errors += self.errors.load(Ordering::Relaxed);
        counts.bytes += self.bytes.load(Ordering::Relaxed);
        counts.sum_ns += self.sum_ns.load(Ordering::Relaxed);
        let filled = self.buckets.iter().enumerate().filter_map(|(bucket, count)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then_some((bucket as u8, count))
        });
        counts.latencies.add(&Histogram(filled.collect()));
    }
}
