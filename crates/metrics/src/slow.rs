//! The slowest operations of one thread in the last minute.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Length of a window, as a power of two of a nanosecond (8.6 s).
const WINDOW: u32 = 33;
/// Number of windows that are kept: a minute.
const WINDOWS: usize = 7;
/// Number of operations that are kept of each window.
const KEPT: usize = 8;

/// An operation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: u32,
    pub(crate) subject: u64,
    pub(crate) pid: u32,
    pub(crate) at_ns: u64,
    pub(crate) ns: u64,
    /// Code, subject and nanoseconds of its longest wait.
    pub(crate) longest: Option<(u32, u64, u64)>,
}

#[derive(Debug, Default)]
struct Window {
    number: u64,
    /// The operations that are kept, the slowest first.
    kept: Vec<Ended>,
}

/// The slowest operations of one thread.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    /// The window that `least_ns` is for, and the time that an operation has to exceed to be kept
    /// in it.
    number: AtomicU64,
    least_ns: AtomicU64,
    windows: Mutex<[Window; WINDOWS]>,
}

impl Slowest {
    /// Returns whether an operation is slow enough to be kept. Called for each operation.
    pub(crate) fn wants(&self, at_ns: u64, ns: u64) -> bool {
        ns > self.least_ns.load(Relaxed) || at_ns >> WINDOW != self.number.load(Relaxed)
    }

    /// Keeps an operation.
    pub(crate) fn keep(&self, ended: Ended) {
        let number = ended.at_ns >> WINDOW;
        let mut windows = self.lock();
        let window = &mut windows[number as usize % WINDOWS];
        if window.number != number {
            window.number = number;
            window.kept.clear();
        }
        let at = window.kept.partition_point(|other| other.ns >= ended.ns);
        window.kept.insert(at, ended);
        window.kept.truncate(KEPT);
        let is_full = window.kept.len() == KEPT;
        let least = if is_full { window.kept[KEPT - 1].ns } else { 0 };
        self.least_ns.store(least, Relaxed);
        self.number.store(number, Relaxed);
    }

    /// Returns the slowest of the last minute, in no order.
    pub(crate) fn since_minute(&self, now_ns: u64) -> Vec<Ended> {
        let oldest = (now_ns >> WINDOW).saturating_sub(WINDOWS as u64 - 1);
        let windows = self.lock();
        let recent = windows.iter().filter(|window| window.number >= oldest);
        recent.flat_map(|window| window.kept.iter().copied()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, [Window; WINDOWS]> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
