//! The running operations of one thread. The thread writes, others read. If an operation ends while
//! it is read, the reader may see a mixture of it and the next one, which is good enough for
//! display.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Most running operations of one thread that are shown; further ones are only counted.
pub(crate) const SLOTS: usize = 512;

/// A slot and the generation of the operation in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A running operation.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The [`crate::Point::code`]; 0 if there is none.
    pub(crate) code: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) started_ns: AtomicU64,
    pub(crate) subject: AtomicU64,
    pub(crate) pid: AtomicU32,
    /// Number of running waits.
    pub(crate) waits: AtomicU32,
    /// The wait that started last, if one runs.
    pub(crate) wait_code: AtomicU32,
    pub(crate) wait_subject: AtomicU64,
    pub(crate) wait_started_ns: AtomicU64,
    /// The longest wait that has ended.
    pub(crate) longest_code: AtomicU32,
    pub(crate) longest_subject: AtomicU64,
    pub(crate) longest_ns: AtomicU64,
    /// Whether it is itself a wait of another operation.
    pub(crate) is_inner: AtomicU32,
}

impl Slot {
    /// Starts an operation in this slot.
    pub(crate) fn begin(&self, code: u32, started_ns: u64, subject: u64, pid: u32, is_inner: bool) {
        self.generation.store(self.generation.load(Relaxed).wrapping_add(1), Relaxed);
        self.started_ns.store(started_ns, Relaxed);
        self.subject.store(subject, Relaxed);
        self.pid.store(pid, Relaxed);
        self.is_inner.store(is_inner.into(), Relaxed);
        for cell in [&self.waits, &self.wait_code, &self.longest_code] {
            cell.store(0, Relaxed);
        }
        self.longest_ns.store(0, Relaxed);
        self.code.store(code, Relaxed);
    }

    /// Records the start of a wait.
    pub(crate) fn wait(&self, code: u32, subject: u64, started_ns: u64) {
        self.waits.store(self.waits.load(Relaxed) + 1, Relaxed);
        self.wait_code.store(code, Relaxed);
        self.wait_subject.store(subject, Relaxed);
        self.wait_started_ns.store(started_ns, Relaxed);
    }

    /// Records the end of a wait.
    pub(crate) fn wait_ends(&self, code: u32, subject: u64, ns: u64) {
        let left = self.waits.load(Relaxed).saturating_sub(1);
        self.waits.store(left, Relaxed);
        if left == 0 {
            self.wait_code.store(0, Relaxed);
        }
        if ns >= self.longest_ns.load(Relaxed) {
            self.longest_ns.store(ns, Relaxed);
            self.longest_code.store(code, Relaxed);
            self.longest_subject.store(subject, Relaxed);
        }
    }

    /// Returns the longest wait so far: code, subject and nanoseconds.
    pub(crate) fn longest(&self) -> Option<(u32, u64, u64)> {
        let code = self.longest_code.load(Relaxed);
        (code != 0)
            .then(|| (code, self.longest_subject.load(Relaxed), self.longest_ns.load(Relaxed)))
    }
}
