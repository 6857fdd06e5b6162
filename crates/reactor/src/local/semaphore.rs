//! A counted bound on the work that tasks do at once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Waiter {
    wanted: usize,
    is_granted: Cell<bool>,
    waker: RefCell<Waker>,
}

struct State {
    available: Cell<usize>,
    /// Served in the order of arrival.
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

impl State {
    /// Adds `count` permits and serves the tasks for which they suffice.
    fn release(&self, count: usize) {
        self.available.set(self.available.get() + count);
        self.serve();
    }

    fn serve(&self) {
        loop {
            let served = {
                let mut waiters = self.waiters.borrow_mut();
                match waiters.front() {
                    Some(waiter) if waiter.wanted <= self.available.get() => waiters.pop_front(),
                    _ => None,
                }
            };
            let Some(waiter) = served else { return };
            self.available.set(self.available.get() - waiter.wanted);
            waiter.is_granted.set(true);
            waiter.waker.borrow().wake_by_ref();
        }
    }
}

/// A pool of permits; clones share it. Waiting tasks are served in order.
#[derive(Clone)]
pub struct Semaphore {
    state: Rc<State>,
}

impl Semaphore {
    /// Makes a pool of `permits`.
    pub fn new(permits: usize) -> Self {
        let state = State { available: Cell::new(permits), waiters: RefCell::default() };
        Self { state: Rc::new(state) }
    }

    /// Returns the number of free permits.
    pub fn available(&self) -> usize {
        self.state.available.get()
    }

    /// Adds permits.
    pub fn add(&self, permits: usize) {
        self.state.release(permits);
    }

    /// Takes `count` permits if they are free and no task waits.
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        let available = self.state.available.get();
        if count > available || !self.state.waiters.borrow().is_empty() {
            return None;
        }
        self.state.available.set(available - count);
        Some(Permit { state: Rc::clone(&self.state), count })
    }

    /// Waits for `count` permits. Dropping the future leaves the queue.
    pub fn acquire(&self, count: usize) -> Acquire {
        Acquire { semaphore: self.clone(), count, waiter: None }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish_non_exhaustive()
    }
}

/// Permits taken; dropping gives them back.
#[must_use = "dropping a permit gives it back"]
pub struct Permit {
    state: Rc<State>,
    count: usize,
}

impl Permit {
    /// Keeps the permits for ever: they are not returned.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.state.release(self.count);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish_non_exhaustive()
    }
}

/// The future of [`Semaphore::acquire`].
#[must_use = "futures do nothing unless polled"]
pub struct Acquire {
    semaphore: Semaphore,
    count: usize,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Some(waiter) = &self.waiter {
            if !waiter.is_granted.get() {
                waiter.waker.borrow_mut().clone_from(cx.waker());
                return Poll::Pending;
            }
            self.waiter = None;
            let state = Rc::clone(&self.semaphore.state);
            return Poll::Ready(Permit { state, count: self.count });
        }
        if let Some(permit) = self.semaphore.try_acquire(self.count) {
            return Poll::Ready(permit);
        }
        let waiter = Rc::new(Waiter {
            wanted: self.count,
            is_granted: Cell::new(false),
            waker: RefCell::new(cx.waker().clone()),
        });
        self.semaphore.state.waiters.borrow_mut().push_back(Rc::clone(&waiter));
        self.waiter = Some(waiter);
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let state = &self.semaphore.state;
        if waiter.is_granted.get() {
            state.release(self.count);
        } else {
            state.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiter));
            // Later tasks may have waited only for this one.
            state.serve();
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("count", &self.count).finish_non_exhaustive()
    }
}
