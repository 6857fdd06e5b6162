//! Counts of commands that may touch the pool's clusters, for each thread's device in memory of its own.
//!
//! A command enters before it looks at the table, and is counted under one of two indices, the pool's
//! *epoch* modulo 2. Whoever changes a table (under the pool's lock) afterwards knows that no earlier command
//! touches the old cluster once each count of each lane has been zero. The epoch is there so that counts
//! become zero under steady load: it moves on when all counts of the other index are zero, and new commands
//! are then counted there. After two moves both have been zero since the change.
//!
//! Entering and loads of table words are sequentially consistent, as are changes of words and looks at
//! counts: either the look sees the count, or the command sees the changed word. A look that sees the end of
//! a command comes after all that the command did.

use block::Watch;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The pool's epoch.
#[derive(Debug, Default)]
pub(crate) struct Epoch(AtomicU64);

/// The counts of one device. Padded: threads do not share a cache line.
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

    /// Moves on if it can; under the pool's lock.
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

    /// The epoch from which on no command runs that began before now.
    pub(crate) fn grace(&self) -> u64 {
        self.now() + 2
    }
}

impl Lane {
    /// Whether the list of lanes alone has it, and no command is counted.
    pub(crate) fn is_over(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
            && self.active.iter().all(|count| count.load(Ordering::SeqCst) == 0)
    }
}

impl Entrance {
    pub(crate) fn new(epoch: Arc<Epoch>, lane: Arc<Lane>) -> Rc<Self> {
        Rc::new(Self { epoch, lane })
    }

    /// Counts a command; [`Watch::ended`] with the answer ends it. A command that is never ended keeps
    /// clusters from being used again until the pool is opened anew, which is safe.
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
        // One thread alone changes the counts of a lane.
        let count = &self.lane.active[token];
        let before = count.load(Ordering::Relaxed);
        debug_assert!(before > 0, "a command ends once");
        count.store(before - 1, Ordering::Release);
    }
}
