//! The counts and the running operations of all threads at a moment.

use crate::family::Family;
use crate::histogram::Histogram;
use crate::slots::Slot;
use crate::slow::Ended;
use crate::thread::{Block, blocks};
use crate::values::{self, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Most slow operations in a snapshot.
const SLOW_MAX: usize = 10;

/// Counts of an operation since the process started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Number of operations that failed or were given up.
    pub errors: u64,
    /// Bytes of data that the operations carried.
    pub bytes: u64,
    /// Sum of their latencies.
    pub sum_ns: u64,
    /// Their latencies.
    pub latencies: Histogram,
}

/// A wait of an operation, running or past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its subject; 0 if it has none.
    pub subject: u64,
    /// Its duration in nanoseconds.
    pub ns: u64,
}

/// A running operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its subject; 0 if it has none.
    pub subject: u64,
    /// The thread that it is for, by the kernel's number in FUSE; 0 if that is not known.
    pub pid: u32,
    /// How long it has run, in nanoseconds.
    pub ns: u64,
    /// Whether it is a wait of another operation.
    pub is_inner: bool,
    /// Its current wait.
    pub waits_for: Option<Wait>,
}

/// An operation that was slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its subject; 0 if it has none.
    pub subject: u64,
    /// The thread that it was for, by the kernel's number in FUSE; 0 if that is not known.
    pub pid: u32,
    /// Its duration in nanoseconds.
    pub ns: u64,
    /// Nanoseconds since its end.
    pub ended_ns_ago: u64,
    /// Its longest wait.
    pub longest: Option<Wait>,
}

/// The operations of a process at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment, in nanoseconds since the boot of the machine.
    pub at_ns: u64,
    /// The counts, by family and name.
    pub operations: Vec<Counts>,
    /// The running operations, the oldest first.
    pub running: Vec<Running>,
    /// The slowest operations of the last minute, the slowest first.
    pub slow: Vec<Slow>,
    /// Numbers from other sources.
    pub values: Vec<Value>,
    /// Sentences about problems.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Adds up the counts of all threads.
pub fn snapshot() -> Snapshot {
    let at_ns = reactor::time::boot_time();
    let mut operations = BTreeMap::new();
    let mut running = Vec::new();
    let mut slow = Vec::new();
    for block in blocks() {
        for (family, _, cells) in block.counted() {
            let counts = operations
                .entry((family, cells.name))
                .or_insert_with(|| Counts::none(family, cells.name));
            cells.add_to(counts);
        }
        running.extend(block.running().filter_map(|slot| Running::of(&block, slot, at_ns)));
        let ended = block.slowest.since_minute(at_ns);
        slow.extend(ended.iter().filter_map(|ended| Slow::of(&block, ended, at_ns)));
    }
    running.sort_by_key(|one| std::cmp::Reverse(one.ns));
    slow.sort_by_key(|one: &Slow| std::cmp::Reverse(one.ns));
    slow.truncate(SLOW_MAX);
    let operations = operations.into_values().filter(|counts| counts.latencies.count() > 0);
    let (values, notes) = (values::read(), values::read_notes());
    Snapshot { at_ns, operations: operations.collect(), running, slow, values, notes }
}

impl Wait {
    pub(crate) fn of(block: &Block, (code, subject, ns): (u32, u64, u64)) -> Option<Wait> {
        let point = block.point(code)?;
        Some(Wait { family: point.family, name: point.name.into(), subject, ns })
    }
}

impl Running {
    fn of(block: &Block, slot: &Slot, at_ns: u64) -> Option<Running> {
        let point = block.point(slot.code.load(Relaxed))?;
        let since = |ns: u64| at_ns.saturating_sub(ns);
        let wait = slot.wait_code.load(Relaxed);
        let wait =
            (wait, slot.wait_subject.load(Relaxed), since(slot.wait_started_ns.load(Relaxed)));
        Some(Running {
            family: point.family,
            name: point.name.into(),
            subject: slot.subject.load(Relaxed),
            pid: slot.pid.load(Relaxed),
            ns: since(slot.started_ns.load(Relaxed)),
            is_inner: slot.is_inner.load(Relaxed) != 0,
            waits_for: Wait::of(block, wait),
        })
    }
}

impl Slow {
    fn of(block: &Block, ended: &Ended, at_ns: u64) -> Option<Slow> {
        let point = block.point(ended.code)?;
        Some(Slow {
            family: point.family,
            name: point.name.into(),
            subject: ended.subject,
            pid: ended.pid,
            ns: ended.ns,
            ended_ns_ago: at_ns.saturating_sub(ended.at_ns),
            longest: ended.longest.and_then(|longest| Wait::of(block, longest)),
        })
    }
}

impl Counts {
    /// Returns counts of 0.
    pub fn none(family: Family, name: &str) -> Counts {
        let (name, latencies) = (name.into(), Histogram::default());
        Counts { family, name, errors: 0, bytes: 0, sum_ns: 0, latencies }
    }

    /// Returns the number of operations that ended.
    pub fn count(&self) -> u64 {
        self.latencies.count()
    }

    /// Returns what was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            family: self.family,
            name: self.name.clone(),
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            latencies: self.latencies.since(&before.latencies),
        }
    }

    /// Adds the counts of another process.
    pub fn add(&mut self, other: &Counts) {
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.sum_ns += other.sum_ns;
        self.latencies.add(&other.latencies);
    }
}

impl Snapshot {
    /// Returns the counts since `before`, a snapshot of the same process, by operation. Operations
    /// without a change are left out.
    pub fn operations_since(&self, before: &Snapshot) -> Vec<Counts> {
        let old = |one: &Counts| {
            before.operations.iter().find(|it| (it.family, &it.name) == (one.family, &one.name))
        };
        let done = self.operations.iter().map(|one| match old(one) {
            Some(old) => one.since(old),
            None => one.clone(),
        });
        done.filter(|counts| counts.count() > 0).collect()
    }
}
