//! A count of operations in flight, and the wait until it is zero.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default)]
struct State {
    count: Cell<usize>,
    waiters: RefCell<Vec<Waker>>,
}

/// A count of operations in flight; clones share it.
#[derive(Clone, Default)]
pub struct WaitGroup {
    state: Rc<State>,
}

impl WaitGroup {
    /// Makes a count of zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of operations in flight.
    pub fn count(&self) -> usize {
        self.state.count.get()
    }

    /// Counts one more operation until the result is dropped.
    pub fn enter(&self) -> InFlight {
        self.state.count.set(self.state.count.get() + 1);
        InFlight { state: Rc::clone(&self.state) }
    }

    /// Waits until nothing is in flight.
    pub async fn wait_zero(&self) {
        poll_fn(|cx| {
            if self.state.count.get() == 0 {
                return Poll::Ready(());
            }
            let mut waiters = self.state.waiters.borrow_mut();
            if !waiters.iter().any(|known| known.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitGroup").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// An operation in flight; dropping it ends it.
#[must_use = "dropping ends what is counted"]
pub struct InFlight {
    state: Rc<State>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let count = self.state.count.get() - 1;
        self.state.count.set(count);
        if count == 0 {
            let waiters = std::mem::take(&mut *self.state.waiters.borrow_mut());
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}
