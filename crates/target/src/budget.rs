//! Buffer memory for the data of commands: one budget for all connections of a target.
//!
//! A connection may use memory up to its own limit. The budget also bounds the sum, because a peer
//! that requests data without reading it, or announces data without sending it, holds the memory
//! until its deadline. Half of the budget is reserved for connections that have none yet, so that
//! connections with much memory cannot stop the others; each can go on with one command at a time.
//! Commands that find no room wait, and their connections are woken when memory becomes free.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Minimum number of bytes that a connection takes at a time.
const STEP_BYTES: usize = 256 << 10;

/// The budget of buffer memory of a target.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    used_bytes: AtomicUsize,
    /// Whether `waiting` has an entry or is about to get one.
    is_short: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Budget {
    /// Creates a budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            used_bytes: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Returns the bytes in use.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether connections wait for memory.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Returns whether at most a quarter of the budget is in use, including the memory of idle
    /// connections. So idle connections together never hold more than a quarter, and the longest
    /// transfer, which is at most a quarter too, always finds room.
    fn has_plenty(&self) -> bool {
        self.used_bytes() <= self.bytes_max / 4 && !self.is_short()
    }

    /// Takes `bytes` if there is room. The bound is the whole budget for a connection that has no
    /// memory yet (`is_first`), and half of it otherwise.
    pub(crate) fn take(&self, bytes: usize, is_first: bool) -> bool {
        let most = if is_first { self.bytes_max } else { self.bytes_max / 2 };
        let order = Ordering::SeqCst;
        self.used_bytes
            .fetch_update(order, order, |used| used.checked_add(bytes).filter(|sum| *sum <= most))
            .is_ok()
    }

    /// Returns bytes to the budget and wakes all waiting connections.
    pub(crate) fn give(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "{bytes} bytes are returned to a budget that lent {before}");
        if self.is_short.load(Ordering::SeqCst) {
            let waiting = {
                let mut waiting = self.waiting();
                self.is_short.store(false, Ordering::SeqCst);
                std::mem::take(&mut *waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes `waker` when memory becomes free. The caller has to try again after this call, because
    /// memory may have become free just before it.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting();
        self.is_short.store(true, Ordering::SeqCst);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's part of the budget: the memory in use, and a little more. An idle connection
/// keeps a little too, so that connections on different cores seldom write to the budget's counter.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
    /// The bytes of the share that commands use.
    used: usize,
}

impl Share {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0, used: 0 }
    }

    /// Grows the share to cover `used` bytes, if there is room.
    pub(crate) fn cover(&mut self, used: usize) -> bool {
        let Some(missing) = used.checked_sub(self.bytes).filter(|missing| *missing > 0) else {
            self.used = used;
            return true;
        };
        // Memory that an idle connection keeps does not count: its next command ranks like the
        // first command of a connection without memory.
        let is_first = self.used == 0;
        for more in [missing.max(STEP_BYTES), missing] {
            if self.budget.take(more, is_first) {
                self.bytes += more;
                self.used = used;
                return true;
            }
        }
        false
    }

    /// Returns memory far beyond `used` bytes to the budget, and all of it if `used` is zero and
    /// much of the budget is taken. Otherwise an idle share keeps one step: without it, each
    /// command of a queue pair with one command at a time would write to the counter that all cores
    /// share.
    pub(crate) fn shrink(&mut self, used: usize) {
        assert!(self.bytes >= used, "{used} bytes are used, of {} that are covered", self.bytes);
        self.used = used;
        if used == 0 && self.bytes <= STEP_BYTES && self.budget.has_plenty() {
            return;
        }
        self.give_back(used);
    }

    fn give_back(&mut self, used: usize) {
        let kept = if used == 0 { 0 } else { used + STEP_BYTES };
        if used == 0 || self.bytes > kept + STEP_BYTES {
            self.budget.give(self.bytes - kept.min(self.bytes));
            self.bytes = kept.min(self.bytes);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goal: connections with memory leave half of it to others, the sum never exceeds the budget,
    /// and a waiting connection is woken once when memory is returned.
    #[test]
    fn memory_is_shared_out() {
        let budget = Budget::new(100);
        assert!(budget.take(40, true) && budget.take(10, false));
        assert!(!budget.take(1, false) && budget.take(50, true));
        assert!(!budget.take(1, true));
        let count = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        budget.wait(&waker);
        budget.wait(&waker);
        assert!(budget.is_short());
        budget.give(60);
        budget.give(1);
        assert_eq!((count.0.load(Ordering::Relaxed), budget.used_bytes()), (1, 39));
        assert!(!budget.is_short() && budget.take(11, false));
    }

    /// Goal: a share covers the used memory, takes and returns it in steps, does without the extra
    /// step if there is no room for it, and returns all of it when nothing is used.
    #[test]
    fn shares_grow_and_shrink_in_steps() {
        let budget = Arc::new(Budget::new(4 * STEP_BYTES));
        let mut share = Share::new(&budget);
        assert!(share.cover(10) && budget.used_bytes() == STEP_BYTES);
        assert!(share.cover(STEP_BYTES) && budget.used_bytes() == STEP_BYTES);
        assert!(share.cover(2 * STEP_BYTES) && budget.used_bytes() == 2 * STEP_BYTES);
        assert!(!share.cover(2 * STEP_BYTES + 1));
        let mut other = Share::new(&budget);
        assert!(other.cover(2 * STEP_BYTES - 1) && !other.cover(2 * STEP_BYTES + 1));
        share.shrink(STEP_BYTES);
        assert_eq!(budget.used_bytes(), 4 * STEP_BYTES - 1);
        share.shrink(0);
        drop(other);
        assert_eq!(budget.used_bytes(), 0);
    }

    /// Goal: commands one after the other do not touch the common counter; idle shares together
    /// hold at most a quarter of the budget, and nothing while memory is short.
    #[test]
    fn idle_shares_keep_little() {
        let budget = Arc::new(Budget::new(16 * STEP_BYTES));
        let mut shares: Vec<Share> = (0..10).map(|_| Share::new(&budget)).collect();
        for round in 0..3 {
            for share in &mut shares {
                assert!(share.cover(4096));
                share.shrink(0);
            }
            assert_eq!(budget.used_bytes(), 4 * STEP_BYTES, "round {round}");
        }
        for _ in 0..100 {
            assert!(shares[0].cover(STEP_BYTES) && budget.used_bytes() == 4 * STEP_BYTES);
            shares[0].shrink(0);
            assert_eq!(budget.used_bytes(), 4 * STEP_BYTES);
        }
        let waker = Waker::from(Arc::new(Count(AtomicU32::new(0))));
        budget.wait(&waker);
        shares[0].shrink(0);
        assert_eq!(budget.used_bytes(), 3 * STEP_BYTES, "others wait");
        let mut large = Share::new(&budget);
        assert!(large.cover(13 * STEP_BYTES), "idle shares leave room for the longest transfers");
        assert!(!shares[1].cover(2 * STEP_BYTES));
        large.shrink(0);
        assert!(
            large.cover(11 * STEP_BYTES) && shares[1].cover(3 * STEP_BYTES),
            "the connection uses no memory yet"
        );
        assert!(!shares[1].cover(4 * STEP_BYTES), "the connection has memory now");
        drop((large, shares));
        assert_eq!(budget.used_bytes(), 0);
    }
}
