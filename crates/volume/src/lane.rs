//! Counters of the commands that may access the pool's clusters. Each thread's device has its own,
//! in memory of its own.
//!
//! A command is counted before it reads the table, under one of two indices: the pool's *epoch*
//! modulo 2. After a task has changed a table (under the pool's lock), no earlier command accesses
//! the old cluster once each counter of each lane has been zero. The epoch exists so that counters
//! become zero under steady load: it advances when all counters of the other index are zero, and
//! new commands are then counted there. After two advances both counters have been zero since the
//! change.
//!
//! Increments of counters, loads of table words, changes of words and checks of counters are
//! sequentially consistent: either the check sees the count, or the command sees the changed word.
//! When a check sees the end of a command, it also sees all effects of the command.

use block::Watch;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The pool's epoch.
#[derive(Debug, Default)]
pub(crate) struct Epoch(AtomicU64);

/// The counters of one device. Padded, so that threads do not share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    active: [AtomicU64; 2],
}

/// A thread's lane.
#[derive(Debug)]
pub(crate) struct Entrance {
    epoch: Arc<Epoch>,
    lane: Arc<Lane>,
}

impl Epoch {
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Advances the epoch if possible; under the pool's lock.
    pub(crate) fn advance(&self, lanes: &[Arc<Lane>]) {
        for _ in 0..2 {
            let epoch = self.now();
            let other = (epoch + 1) as usize % 2;
            if lanes.iter().any(|lane| lane.active[other].load(Ordering::SeqCst) > 0) {
                return;
            }
            self.0.store(epoch + 1, Ordering::SeqCst);
        }
    }

    /// Returns the epoch from which on no command runs that began before now.
    pub(crate) fn grace(&self) -> u64 {
        self.now() + 2
    }
}

impl Lane {
    /// Whether only the list of lanes refers to it, and no command is counted.
    pub(crate) fn is_over(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
            && self.active.iter().all(|count| count.load(Ordering::SeqCst) == 0)
    }
}

impl Entrance {
    pub(crate) fn new(epoch: Arc<Epoch>, lane: Arc<Lane>) -> Rc<Self> {
        Rc::new(Self { epoch, lane })
    }

    /// Counts a command. [`Watch::ended`] with the returned index ends it. If that call never
    /// comes, clusters are not used again until the pool is opened again, which is safe.
    #[inline]
    pub(crate) fn enter(&self) -> usize {
        let index = self.epoch.now() as usize % 2;
        self.lane.active[index].fetch_add(1, Ordering::SeqCst);
        index
    }
}

impl Watch for Entrance {
    #[inline]
    fn ended(&self, token: usize) {
        // Only one thread changes the counters of a lane.
        let count = &self.lane.active[token];
        let before = count.load(Ordering::Relaxed);
        debug_assert!(before > 0, "a command ends once");
        count.store(before - 1, Ordering::Release);
    }
}
