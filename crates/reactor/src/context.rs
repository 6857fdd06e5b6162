//! The state of one running reactor. Code on its thread finds it through a thread-local.

use crate::engine::{Engine, Kind};
use crate::executor::Executor;
use crate::handle::Handle;
use crate::operation::Operation;
use crate::relay::{Errand, Relay, Runner};
use crate::sim::Sim;
use crate::slots::{Ended, Slot, Slots};
use crate::timers::Timers;
use std::cell::{OnceCell, RefCell};
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The engine that executes operations.
#[allow(clippy::large_enum_variant, reason = "one per thread; the hot variant stays inline")]
pub(crate) enum Driver {
    /// The kernel.
    Kernel(RefCell<Engine>),
    /// The simulation.
    Sim(Box<Sim>),
}

pub(crate) struct Context {
    pub(crate) executor: Executor,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) driver: Driver,
    /// The threads that run this reactor in turn, if it is not one thread's alone.
    pub(crate) relay: OnceCell<Box<Relay>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Context>>> = const { RefCell::new(None) };
}

/// Makes `context` the thread's current one until dropped.
pub(crate) struct Entered(());

impl Entered {
    /// # Panics
    /// If the thread runs a reactor already.
    pub(crate) fn new(context: &Rc<Context>) -> Self {
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "a thread runs one reactor at a time");
            *current = Some(Rc::clone(context));
        });
        Self(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
    }
}

/// Runs `f` with the thread's context.
///
/// # Panics
/// If the thread runs no reactor.
pub(crate) fn with_context<T>(f: impl FnOnce(&Rc<Context>) -> T) -> T {
    try_with_context(f).expect("this needs a reactor::Runtime running on the thread")
}

/// Runs `f` with the thread's context, if there is one.
pub(crate) fn try_with_context<T>(f: impl FnOnce(&Rc<Context>) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(f)).ok().flatten()
}

impl Context {
    /// Queues an operation on the running thread's ring.
    pub(crate) fn submit(&self, handle: Handle, operation: Operation) -> u32 {
        if let Some(relay) = self.relay.get() {
            return self.submit_to(relay.usual(&operation), handle, operation);
        }
        let mut slots = self.slots.borrow_mut();
        let key = slots.insert(handle, operation);
        match &self.driver {
            Driver::Kernel(engine) => engine.borrow_mut().start(key, slots.get(key)),
            Driver::Sim(sim) => {
                let slot = slots.get(key);
                if let (Some(handle), Some(operation)) = (&slot.handle, &slot.operation) {
                    sim.world.borrow_mut().start(key, handle.simulated(), operation);
                }
            }
        }
        key
    }

    /// Queues an operation on a runner's ring.
    pub(crate) fn submit_to(&self, runner: Runner, handle: Handle, operation: Operation) -> u32 {
        let Some(relay) = self.relay.get() else { return self.submit(handle, operation) };
        let key = self.slots.borrow_mut().insert(handle, operation);
        self.start_on(relay, key, runner);
        key
    }

    /// Queues an operation on the ring of the reactor's own thread, which runs.
    pub(crate) fn start_on_own(&self, key: u32, slot: &mut Slot) {
        if let Driver::Kernel(engine) = &self.driver {
            engine.borrow_mut().start(key, slot);
        }
    }

    /// Cancels an operation on the ring of the reactor's own thread, which runs.
    pub(crate) fn cancel_on_own(&self, key: u32, generation: u32) {
        if let Driver::Kernel(engine) = &self.driver {
            engine.borrow_mut().cancel(key, generation);
        }
    }

    /// Returns whether the reactor's own thread has a ring of `io_uring`.
    pub(crate) fn is_on_uring(&self) -> bool {
        matches!(&self.driver, Driver::Kernel(engine) if engine.borrow().kind() == Kind::Uring)
    }

    /// Takes an operation's completion, or registers the waker.
    pub(crate) fn poll(&self, key: u32, waker: &Waker) -> Poll<Ended> {
        self.slots.borrow_mut().poll(key, waker)
    }

    /// Cancels an operation.
    pub(crate) fn cancel(&self, key: u32) {
        let (is_pending, rest) = self.slots.borrow_mut().orphan(key);
        drop(rest);
        if is_pending {
            self.cancel_pending(key);
        }
    }

    /// Cancels an operation that has not completed.
    pub(crate) fn cancel_pending(&self, key: u32) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        match (&self.driver, self.relay.get()) {
            (Driver::Kernel(_), Some(relay)) if slot.runner != relay.running.get() => {
                relay.leave(self, slot.runner, Errand::Cancel(key, slot.generation));
            }
            (Driver::Kernel(_), _) => self.cancel_here(key, slot.generation),
            (Driver::Sim(sim), _) => {
                let object = slot.handle.as_ref().map_or(0, Handle::simulated);
                sim.world.borrow_mut().cancel(key, object);
            }
        }
    }

    /// As `complete`, for a result of the kernel: takes ownership of a descriptor that it made.
    pub(crate) fn complete_from_kernel(&self, key: u32, code: i32) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        if code >= 0 && matches!(slot.operation, Some(Operation::Accept)) {
            // SAFETY: a successful accept returns a new descriptor, which has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(code) };
            slot.accepted = Some((Handle::from_fd(fd), slot.arguments.decoded_address()));
        }
        drop(slots);
        self.complete(key, code);
    }

    /// Passes a result to the waiting task.
    pub(crate) fn complete(&self, key: u32, code: i32) {
        let (waker, rest) = self.slots.borrow_mut().complete(key, code);
        drop(rest);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
