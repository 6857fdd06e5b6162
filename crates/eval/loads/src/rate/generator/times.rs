//! What a job saw of its requests, in histograms of fixed size.

use crate::threads::ThreadError;
use hdrhistogram::Histogram;
use reactor::time::Instant;

/// Longest time that is told apart, in ns.
const TIME_NS_MAX: u64 = 600_000_000_000;

/// Times of requests that were due while measuring.
pub(super) struct Times {
    /// First measured moment, and the first that is not any more.
    window: [Instant; 2],
    /// From when they were due.
    pub(super) latency_ns: Histogram<u64>,
    /// From when they were submitted.
    pub(super) service_ns: Histogram<u64>,
    /// From when they were due until they were submitted.
    pub(super) lateness_ns: Histogram<u64>,
}

/// When a request was due, and sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) due: Instant,
    pub(super) sent: Instant,
}

impl Times {
    /// Of requests due from `start` until before `end`.
    pub(super) fn new(start: Instant, end: Instant) -> Result<Self, ThreadError> {
        let histogram = || Histogram::new_with_bounds(1, TIME_NS_MAX, 3);
        Ok(Self {
            window: [start, end],
            latency_ns: histogram()?,
            service_ns: histogram()?,
            lateness_ns: histogram()?,
        })
    }

    /// When the load ends.
    pub(super) fn end(&self) -> Instant {
        self.window[1]
    }

    fn is_measured(&self, due: Instant) -> bool {
        let [start, end] = self.window;
        (start..end).contains(&due)
    }

    /// So many requests that were due together have been sent.
    pub(super) fn sent(&mut self, begun: Begun, requests: u32) {
        if self.is_measured(begun.due) {
            let late_ns = begun.sent.since(begun.due).as_nanos() as u64;
            let late_ns = late_ns.clamp(1, TIME_NS_MAX);
            // The value is within the bounds.
            let _ = self.lateness_ns.record_n(late_ns, requests.into());
        }
    }

    /// A request has been seen to be done.
    pub(super) fn done(&mut self, begun: Begun, done: Instant) {
        if self.is_measured(begun.due) {
            self.latency_ns.saturating_record(done.since(begun.due).as_nanos() as u64);
            self.service_ns.saturating_record(done.since(begun.sent).as_nanos() as u64);
        }
    }
}
