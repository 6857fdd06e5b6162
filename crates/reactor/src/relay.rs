//! Several threads that run one reactor in turn.
//!
//! A caller that waits for an answer is served fastest by a thread that waits on the caller's own
//! CPU: two switches and no interrupt ([`crate::affinity`] has the figures). One thread can follow
//! one caller. For callers on several CPUs each CPU needs a thread of its own, and all of these
//! threads need the same file system, whose state belongs to one reactor.
//!
//! So a reactor may have *runners*: threads with a ring of their own, each bound to one CPU. A
//! thread takes the *baton*, a lock, before it touches anything of the reactor, and gives it away
//! before it sleeps. The holder reaps its own ring, runs all tasks that are ready, and starts on its
//! own ring what they ask for. What must happen on another ring (a cancellation, a command
//! that is meant for a CPU) is an *errand* for the other runner. Timers, `block_on`'s future and
//! kicks by other threads stay with the reactor's own thread, runner 0.
//!
//! Tasks therefore move between threads, and so do `Rc`s and `RefCell`s. That is sound because only
//! the holder of the baton touches them, and because the state that threads keep for themselves
//! stays out of tasks: the caller of [`allow`] names all thread-local state that tasks rely on
//! ([`Share`]).

mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use state::{State, share, with};
pub(crate) use thread::is_here;

use crate::affinity;
use crate::context::{Context, with_context};
use crate::operation::Operation;
use crate::spin::{Spin, Spinner};
use crate::time::monotonic_ns;
use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexFair as _};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use thread::{Bell, Own, Sent, make_station, with_station};

/// Submission queue entries of a runner's ring.
const ENTRIES: u32 = 64;
/// Attempts to take the baton before a thread sleeps.
const SPINS: u32 = 400;
/// Commands left for one runner in a row after which it receives for all.
const RECEIVER_AFTER: u32 = 16;
/// The reactor's own thread.
pub(crate) const OWN: u16 = 0;

/// Shares a thread's state with a runner: called on the reactor's own thread, it returns what the
/// new thread calls to use the same state. The state is touched by the holder of the baton alone.
pub type Share = fn() -> Box<dyn FnOnce() + Send>;

/// A thread that runs a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runner(pub(crate) u16);

impl Runner {
    /// The reactor's own thread.
    pub const OWN: Runner = Runner(OWN);
}

/// Something to do on the ring of one runner.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Errand {
    /// Start the operation of a slot.
    Start(u32),
    /// Cancel an operation of this generation.
    Cancel(u32, u32),
}

/// The right to touch a reactor.
pub(crate) struct Baton(RawMutex);

impl Baton {
    pub(crate) fn take(&self) {
        // A turn takes a few microseconds, less than a sleep and a wake-up.
        for _ in 0..SPINS {
            if self.0.try_lock() {
                return;
            }
            std::hint::spin_loop();
        }
        self.0.lock();
    }

    /// Gives the baton away.
    ///
    /// # Safety
    /// The thread holds it, and touches nothing of the reactor until it has it again.
    pub(crate) unsafe fn give(&self) {
        // SAFETY: by the caller's promise the lock is held here.
        unsafe { self.0.unlock() };
    }

    /// Lets a thread that waits have the baton first.
    ///
    /// # Safety
    /// As for [`give`](Self::give).
    unsafe fn bump(&self) {
        // SAFETY: as in `give`.
        unsafe { self.0.bump() };
    }
}

/// Takes the baton when dropped, after a panic too.
struct Retake<'a>(&'a Baton);

impl Drop for Retake<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// The runners of one reactor.
pub(crate) struct Relay {
    pub(crate) baton: Arc<Baton>,
    shares: Vec<Share>,
    spin: Spin,
    /// Runner 1 and so on.
    threads: RefCell<Vec<Thread>>,
    /// CPUs for which no thread could be started.
    refused: RefCell<Vec<u16>>,
    /// What each runner has to do on its ring, by its number.
    errands: RefCell<Vec<Vec<Errand>>>,
    /// The runner that holds the baton.
    pub(crate) running: Cell<u16>,
    /// The runner on whose ring sockets receive.
    receiver: Cell<u16>,
    /// The runner that the latest commands were left for, and how many in a row.
    left_for: Cell<(u16, u32)>,
    /// Until when the own thread sleeps; 0 while it is awake.
    sleeps_until_ns: Cell<u64>,
    phase: Cell<Phase>,
    /// The panic of a task on a runner.
    panic: Cell<Option<Box<dyn Any + Send>>>,
}

/// The life of the runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The runtime ends: the own thread waits for the last operations of all rings.
    Draining,
    /// The threads shall end.
    Over,
}

struct Thread {
    cpu: u16,
    bell: Bell,
    handle: JoinHandle<()>,
}

/// Allows runners for this thread's reactor. `shares` are the states of this thread that tasks of
/// the reactor rely on; runners that wait for a transfer spin for `spin`.
///
/// Without `io_uring` there are none.
///
/// # Safety
/// Tasks of the reactor rely on no other state of threads, and no thread keeps a value that is not
/// `Send` and that tasks share (an `Rc` in a `thread_local!`).
///
/// # Panics
/// If the thread runs no reactor, or runners were allowed before.
pub unsafe fn allow(shares: Vec<Share>, spin: Spin) {
    with_context(|context| {
        if !context.is_on_uring() {
            return;
        }
        let baton = Baton(RawMutex::INIT);
        baton.take();
        let relay = Relay {
            baton: Arc::new(baton),
            shares,
            spin,
            threads: RefCell::default(),
            refused: RefCell::default(),
            errands: RefCell::new(vec![Vec::new()]),
            running: Cell::new(OWN),
            receiver: Cell::new(OWN),
            left_for: Cell::new((OWN, 0)),
            sleeps_until_ns: Cell::new(0),
            phase: Cell::new(Phase::Open),
            panic: Cell::new(None),
        };
        assert!(context.relay.set(Box::new(relay)).is_ok(), "runners are allowed once");
    });
}

/// Returns the runner of a CPU, and starts its thread if there is none. It is the reactor's own
/// thread where runners are not allowed, the CPU is not one of this process's, or no thread can be
/// started.
///
/// # Panics
/// If the thread runs no reactor.
pub fn of_cpu(cpu: u16) -> Runner {
    with_context(|context| {
        let relay = context.relay.get().filter(|relay| relay.phase.get() == Phase::Open);
        relay.map_or(Runner::OWN, |relay| relay.of_cpu(context, cpu))
    })
}

impl Relay {
    fn of_cpu(&self, context: &Rc<Context>, cpu: u16) -> Runner {
        if let Some(at) = self.threads.borrow().iter().position(|thread| thread.cpu == cpu) {
            return Runner(at as u16 + 1);
        }
        if self.refused.borrow().contains(&cpu) {
            return Runner::OWN;
        }
        let number = self.threads.borrow().len() as u16 + 1;
        let Ok(thread) = self.start(context, cpu, number) else {
            self.refused.borrow_mut().push(cpu);
            return Runner::OWN;
        };
        self.errands.borrow_mut().push(Vec::new());
        self.threads.borrow_mut().push(thread);
        Runner(number)
    }

    /// Starts the thread of a runner. It takes the baton for the first time when it is kicked.
    fn start(&self, context: &Rc<Context>, cpu: u16, number: u16) -> io::Result<Thread> {
        let baton = Arc::clone(&self.baton);
        let (context, spinner) =
            (Some(Rc::clone(context)), Spinner::new(self.spin, monotonic_ns()));
        let own = Own { context, baton, number, reaped: Vec::new(), spinner, bell: None };
        let (own, (started, start)) = (Sent(own), mpsc::sync_channel(1));
        let adopt: Vec<_> = self.shares.iter().map(|share| share()).collect();
        let home = affinity::home();
        let run = move || {
            let Sent(mut own) = { own };
            affinity::adopt(home);
            match make_station(cpu) {
                Ok(bell) => {
                    for adopt in adopt {
                        adopt();
                    }
                    own.bell = Some(bell.clone());
                    let _ = started.send(Ok(bell));
                    own.run();
                }
                Err(error) => {
                    // The own thread waits for the message, and so does not touch the context.
                    drop(own);
                    let _ = started.send(Err(error));
                }
            }
        };
        let handle = std::thread::Builder::new().name(format!("runner-{cpu}")).spawn(run)?;
        let bell = start.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Thread { cpu, bell, handle })
    }

    /// Leaves an errand for another runner.
    pub(crate) fn leave(&self, context: &Context, runner: u16, errand: Errand) {
        let mut errands = self.errands.borrow_mut();
        let errands = &mut errands[usize::from(runner)];
        errands.push(errand);
        if errands.len() == 1 {
            self.kick(context, runner);
        }
    }

    fn kick(&self, context: &Context, runner: u16) {
        match self.threads.borrow().get(usize::from(runner).wrapping_sub(1)) {
            Some(thread) => thread.bell.ring(),
            None => context.executor.kick_owner(),
        }
    }

    /// Returns the runner that starts an operation, unless the operation is meant for a certain one.
    ///
    /// The answer of a peer, and then the caller's command, should wake one thread and not two: so
    /// sockets receive on the ring of the runner that commands were left for.
    pub(crate) fn usual(&self, operation: &Operation) -> Runner {
        let is_receive = matches!(operation, Operation::Receive(_));
        Runner(if is_receive { self.receiver.get() } else { self.running.get() })
    }

    /// Notes that a command is left for another runner.
    fn note_left(&self, runner: u16) {
        let (latest, count) = self.left_for.get();
        let count = if latest == runner { count + 1 } else { 1 };
        if count >= RECEIVER_AFTER {
            self.receiver.set(runner);
        }
        self.left_for.set((runner, count % RECEIVER_AFTER));
    }

    /// Takes the errands of the runner that holds the baton.
    pub(crate) fn take_errands(&self) -> Vec<Errand> {
        std::mem::take(&mut self.errands.borrow_mut()[usize::from(self.running.get())])
    }

    /// Calls `wait` without the baton on the reactor's own thread, which wakes for timers at
    /// `until_ns`.
    pub(crate) fn sleep<T>(&self, until_ns: Option<u64>, wait: impl FnOnce() -> T) -> T {
        self.sleeps_until_ns.set(until_ns.unwrap_or(u64::MAX));
        // SAFETY: this thread has held the baton since `allow` or the last sleep, and `wait` uses
        // only its engine.
        unsafe { self.baton.give() };
        let retake = Retake(&self.baton);
        let result = wait();
        drop(retake);
        self.sleeps_until_ns.set(0);
        self.come_back();
        result
    }

    /// Lets a thread that waits run the reactor first, on the reactor's own thread: one that is
    /// busy for long may be busy waiting for what another ring brings.
    pub(crate) fn pass(&self) {
        // SAFETY: this thread holds the baton and looks at everything anew.
        unsafe { self.baton.bump() };
        self.come_back();
    }

    /// Notes that the own thread runs again, and passes on the panic of a runner.
    fn come_back(&self) {
        self.running.set(OWN);
        if self.phase.get() == Phase::Open
            && let Some(payload) = self.panic.take()
        {
            std::panic::resume_unwind(payload);
        }
    }

    /// Wakes the reactor's own thread if a runner has left it something to do.
    fn hand_over(&self, context: &Context) {
        let next_ns = context.timers.borrow().next_ns().unwrap_or(u64::MAX);
        let is_early = next_ns < self.sleeps_until_ns.get();
        if is_early || context.executor.root_waits() {
            context.executor.kick_owner();
        }
    }

    /// Returns whether there are threads beside the own one.
    pub(crate) fn has_threads(&self) -> bool {
        !self.threads.borrow().is_empty()
    }

    /// Starts no further thread.
    pub(crate) fn drain(&self) {
        self.phase.set(Phase::Draining);
    }

    /// Ends the threads. The caller is the reactor's own thread; if `waits` is false, it cannot
    /// wait for their last operations.
    pub(crate) fn close(&self, waits: bool) {
        self.phase.set(Phase::Over);
        let threads = std::mem::take(&mut *self.threads.borrow_mut());
        for thread in &threads {
            thread.bell.ring();
        }
        // SAFETY: this thread holds the baton, and only joins meanwhile.
        unsafe { self.baton.give() };
        if waits {
            for thread in threads {
                let _ = thread.handle.join();
            }
        }
        self.baton.take();
        self.running.set(OWN);
    }
}

impl Context {
    /// Does what others have left for the runner that holds the baton. Returns whether there was
    /// anything.
    pub(crate) fn run_errands(&self, relay: &Relay) -> bool {
        let errands = relay.take_errands();
        let had_some = !errands.is_empty();
        for errand in errands {
            match errand {
                Errand::Start(key) => self.start_here(key),
                Errand::Cancel(key, generation) => self.cancel_here(key, generation),
            }
        }
        had_some
    }

    /// Queues an operation on the ring of a runner.
    pub(crate) fn start_on(&self, relay: &Relay, key: u32, runner: Runner) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        slot.runner = runner.0;
        let is_command = matches!(slot.operation, Some(Operation::Command(_)));
        drop(slots);
        if runner.0 == relay.running.get() {
            self.start_here(key);
        } else {
            if is_command {
                relay.note_left(runner.0);
            }
            relay.leave(self, runner.0, Errand::Start(key));
        }
    }

    /// Queues an operation on this thread's ring.
    fn start_here(&self, key: u32) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(key);
        if is_here() {
            with_station(|station| {
                slot.operation.iter().for_each(|operation| station.note_start(operation));
                station.engine.start(key, slot);
            });
        } else {
            self.start_on_own(key, slot);
        }
    }

    /// Cancels an operation of this thread's ring.
    pub(crate) fn cancel_here(&self, key: u32, generation: u32) {
        if is_here() {
            with_station(|station| station.engine.cancel(key, generation));
        } else {
            self.cancel_on_own(key, generation);
        }
    }
}
