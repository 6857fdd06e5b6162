//! A thread's task, its result, and what it shares with the thread that waits for it.

use super::load::Load;
use super::times::Times;
use crate::threads::Done;
use reactor::time::Instant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long requests may still run when the load ends.
pub(super) const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How long after the end requests that were due before it are still sent. A stall at the end would else
/// hide the longest latencies; a device that cannot keep up is never caught up with.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// How often a job looks whether it has to end while it waits.
pub(super) const STOP_PERIOD: Duration = Duration::from_millis(100);

/// The state that jobs and the main thread share.
#[derive(Debug, Default)]
pub(super) struct Control {
    ready: AtomicU32,
    /// In ns: first request, first measured one, end; 0 until they are known.
    times: [AtomicU64; 3],
    /// Completed requests of each job.
    done: Done,
    is_stopping: AtomicBool,
}

impl Control {
    /// For so many jobs.
    pub(super) fn new(jobs: u32) -> Self {
        Self { done: Done::new(jobs as usize), ..Self::default() }
    }

    pub(super) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, begin: Instant, start: Instant, end: Instant) {
        for (time, instant) in self.times.iter().zip([begin, start, end]).rev() {
            time.store(instant.as_ns(), Ordering::Release);
        }
    }

    /// Notes that one more job is ready.
    pub(super) fn add_ready(&self) {
        self.ready.fetch_add(1, Ordering::Release);
    }

    /// Returns when to begin, measure and end, once that is known.
    pub(super) fn times(&self) -> Option<[Instant; 3]> {
        let [begin, start, end] = &self.times;
        let begin = begin.load(Ordering::Acquire);
        let read = |time: &AtomicU64| Instant::from_ns(time.load(Ordering::Acquire));
        (begin > 0).then(|| [Instant::from_ns(begin), read(start), read(end)])
    }

    /// So many requests of this job have completed.
    pub(super) fn set_done(&self, job: u32, ios: u64) {
        self.done.set(job as usize, ios);
    }

    /// Requests of all jobs that completed.
    pub(super) fn done(&self) -> u64 {
        self.done.sum()
    }

    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}

/// A thread's task.
pub(super) struct Job {
    pub(super) index: u32,
    pub(super) load: Arc<Load>,
    pub(super) control: Arc<Control>,
}

/// What came of a job's requests.
pub(super) struct Ended {
    pub(super) times: Times,
    /// Number of submitting system calls, by the number of requests that each submitted.
    pub(super) submissions: Vec<(usize, u64)>,
    /// All requests, those before measuring too.
    pub(super) ios: u64,
    /// Requests that were not answered in time at the end.
    pub(super) unfinished: u32,
    /// Whether the kernel knew the memory of requests beforehand.
    pub(super) has_registered_memory: bool,
}
