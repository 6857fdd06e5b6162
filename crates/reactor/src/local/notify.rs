//! A wake-up call between tasks.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Wakes tasks that wait for a change. A call without a waiting task is kept, so a task that checks
/// first and then waits does not miss it.
#[derive(Default)]
pub struct Notify {
    waiters: RefCell<Vec<Waker>>,
    calls: Cell<u64>,
    is_pending: Cell<bool>,
}

impl Notify {
    /// Makes one without waiting tasks and without a kept call.
    pub const fn new() -> Self {
        Self {
            waiters: RefCell::new(Vec::new()),
            calls: Cell::new(0),
            is_pending: Cell::new(false),
        }
    }

    /// Wakes all waiting tasks. If there are none, the next task to wait continues at once.
    pub fn notify(&self) {
        self.calls.set(self.calls.get() + 1);
        self.is_pending.set(true);
        let mut waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.drain(..).for_each(Waker::wake);
        // Keep the memory unless a task waits anew already.
        let mut current = self.waiters.borrow_mut();
        if current.is_empty() {
            *current = waiters;
        }
    }

    /// Waits for the next call.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, seen: self.calls.get() }
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").field("is_pending", &self.is_pending.get()).finish_non_exhaustive()
    }
}

/// The future of [`Notify::notified`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Notified<'a> {
    notify: &'a Notify,
    seen: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.is_pending.replace(false) || self.seen != self.notify.calls.get() {
            return Poll::Ready(());
        }
        let mut waiters = self.notify.waiters.borrow_mut();
        if !waiters.iter().any(|known| known.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
