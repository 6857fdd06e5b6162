//! Entries for queues whose entries all wait.
//!
//! A request holds its entry until it is answered, and its payload area as long. The kernel takes
//! no area back, so what is given to a queue stays there. Address space for ordinary use can
//! therefore run out: with many CPUs, the entries at the start take all of it, and reads that wait
//! for a device for a moment make queues grow. Then a few requests that wait for long, such as
//! locks, would stop all requests of their CPU, among them the unlock that they wait for. So a part
//! of the address space is a reserve. A queue gets an entry of it only if it had no free entry for
//! [`STUCK`], so requests that end soon never use it.

use std::cell::Cell;
use std::time::Duration;

/// A queue without a free entry for this long gets one of the reserve. Reads and writes of devices
/// that answer take less.
const STUCK: Duration = Duration::from_millis(20);

/// The reason for one more entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The queue has none yet.
    First,
    /// The queue starts, or all its entries are in use.
    Ordinary,
    /// All its entries have been in use for [`STUCK`].
    Stuck,
}

/// Address space for payload, shared by all queues.
#[derive(Debug)]
pub(super) struct Supply {
    ordinary_bytes: Cell<usize>,
    reserve_bytes: Cell<usize>,
    has_run_out: Cell<bool>,
}

impl Supply {
    pub(super) fn new(ordinary_bytes: usize, reserve_bytes: usize) -> Supply {
        Supply {
            ordinary_bytes: Cell::new(ordinary_bytes),
            reserve_bytes: Cell::new(reserve_bytes),
            has_run_out: Cell::new(false),
        }
    }

    /// Takes the address space of one entry. Returns whether there was enough; a first entry always
    /// gets it.
    pub(super) fn take(&self, bytes: usize, need: Need) -> bool {
        let left = match need {
            Need::First | Need::Ordinary => &self.ordinary_bytes,
            Need::Stuck => &self.reserve_bytes,
        };
        let is_enough = left.get() >= bytes || need == Need::First;
        if is_enough {
            left.set(left.get().saturating_sub(bytes));
        }
        is_enough
    }

    /// Returns true once: the caller reports that the reserve is used up.
    pub(super) fn runs_out(&self) -> bool {
        !self.has_run_out.replace(true)
    }
}

/// The entries of a queue that the kernel holds.
#[derive(Debug, Default)]
pub(super) struct Free {
    entries: Cell<usize>,
    /// Counts the entries that went to the kernel.
    given: Cell<u64>,
    is_watched: Cell<bool>,
}

impl Free {
    /// Returns whether no further request of this CPU can come.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.get() == 0
    }

    /// Notes an entry that goes to the kernel.
    pub(super) fn give(&self) {
        self.entries.set(self.entries.get() + 1);
        self.given.set(self.given.get() + 1);
    }

    /// Notes an entry that came back with a request.
    pub(super) fn take(&self) {
        self.entries.set(self.entries.get() - 1);
    }

    /// Returns whether the caller shall watch the queue with [`Free::is_stuck`]: no other task does.
    pub(super) fn begin_watch(&self) -> bool {
        !self.is_watched.replace(true)
    }

    /// Waits until an entry is free, which ends the watch, or until none has been for [`STUCK`]. In
    /// the latter case returns true.
    pub(super) async fn is_stuck(&self, has_ended: impl Fn() -> bool) -> bool {
        while self.is_empty() && !has_ended() {
            let before = self.given.get();
            reactor::time::sleep(STUCK).await;
            if self.is_empty() && self.given.get() == before && !has_ended() {
                return true;
            }
        }
        self.end_watch();
        false
    }

    /// Ends the watch.
    pub(super) fn end_watch(&self) {
        self.is_watched.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Goal: a queue whose entries all wait gets one of the reserve, also when entries at the start
    /// and growth have used up all address space for ordinary use, as they do on many CPUs.
    #[test]
    fn queues_that_are_stuck_get_the_reserve() {
        let supply = Supply::new(2, 1);
        assert!(supply.take(1, Need::First) && supply.take(1, Need::Ordinary));
        assert!(!supply.take(1, Need::Ordinary), "reads would use up the reserve");
        assert!(supply.take(1, Need::First), "each queue has an entry");
        assert!(supply.take(1, Need::Stuck));
        assert!(!supply.take(1, Need::Stuck), "the reserve is bounded");
    }

    /// Goal: a queue counts as stuck if no entry is given back, and not while requests are answered
    /// in between, however seldom one is free.
    #[test]
    fn queues_are_stuck_if_no_request_is_answered() {
        let scene = async {
            let free = Rc::new(Free::default());
            assert!(free.begin_watch() && !free.begin_watch());
            assert!(free.is_stuck(|| false).await, "nothing is answered");
            let busy = Rc::clone(&free);
            let answers = reactor::spawn(async move {
                for _ in 0..10 {
                    reactor::time::sleep(STUCK / 2).await;
                    // The next request waits already.
                    busy.give();
                    busy.take();
                }
                busy.give();
            });
            assert!(!free.is_stuck(|| false).await, "requests are answered");
            answers.await.expect("it ends");
            assert!(free.begin_watch(), "the watch has ended");
            free.take();
            assert!(!free.is_stuck(|| true).await, "the connection has ended");
        };
        reactor::sim::Simulation::new(1).run(scene).expect("it ends");
    }
}
