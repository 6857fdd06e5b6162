//! Several threads that run one reactor in turn.
//!
//! A caller that waits for an answer is served fastest by a thread that waits on the caller's own
//! CPU: two switches and no interrupt ([`crate::affinity`] has the figures). One thread can follow
//! one caller. For callers on several CPUs each CPU needs a thread of its own, and all of these
//! threads need the same file system, whose state belongs to one reactor.
//!
//! So a reactor may have *runners*: threads with a ring of their own, each bound to one CPU. A
//! thread takes the *baton*, a lock, before it touches anything of the reactor, and gives it away
//! before it sleeps. Whoever holds it reaps its own ring, runs all tasks that are ready, and starts
//! on its own ring what they ask for. What must happen on another ring (a cancellation, a command
//! that is meant for a CPU) is an *errand* for the other runner. Timers, `block_on`'s future and
//! kicks by other threads stay with the reactor's own thread, runner 0.
//!
//! Tasks therefore move between threads, and so do `Rc`s and `RefCell`s. That is sound because only
//! the holder of the baton touches them, and because the state that threads keep for themselves
//! stays out of tasks: who allows runners names all thread-local state that tasks rely on
//! ([`Share`]).

mod state;
#[cfg(test)]
mod tests;

pub use state::{State, share, with};

use crate::affinity;
use crate::context::{Context, Entered, with_context};
use crate::engine::{Engine, Kind, Reaped, kick};
use crate::operation::Operation;
use crate::runtime::{Config, POLLS_PER_TURN_MAX, spin_for};
use crate::spin::{Spin, Spinner};
use crate::time::monotonic_ns;
use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexFair as _};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

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

/// Ends the spin or sleep of a runner.
#[derive(Clone)]
struct Bell {
    kick: Arc<OwnedFd>,
    /// Set from the ringing until the runner has the baton.
    is_rung: Arc<AtomicBool>,
}

impl Bell {
    fn ring(&self) {
        self.is_rung.store(true, Ordering::Release);
        kick(&self.kick);
    }
}

/// The side of a runner's thread.
struct Own {
    context: Option<Rc<Context>>,
    baton: Arc<Baton>,
    number: u16,
    reaped: Vec<Reaped>,
    spinner: Spinner,
    bell: Option<Bell>,
}

/// The ring of a runner's thread.
struct Station {
    engine: Engine,
    /// Transfers of files and devices that have not completed.
    transfers: u32,
    /// Commands that have completed, so a caller waits, and that were not followed by the next.
    owed: u32,
}

impl Station {
    /// Whether a caller on this CPU probably waits for what ends soon: then it is worth while to
    /// spin.
    fn is_waited_for(&self) -> bool {
        self.transfers > 0 || self.owed > 0
    }

    fn note_start(&mut self, operation: &Operation) {
        match operation {
            Operation::Command(_) => self.owed = self.owed.saturating_sub(1),
            operation => self.transfers += u32::from(operation.is_transfer()),
        }
    }

    fn note_end(&mut self, operation: &Operation) {
        match operation {
            Operation::Command(_) => self.owed += 1,
            operation => self.transfers -= u32::from(operation.is_transfer()),
        }
    }
}

/// Moves a value to a new thread.
struct Sent<T>(T);

// SAFETY: what is sent is touched by the holder of the baton alone: the own thread holds it while
// it makes the value, and the runner takes it first.
unsafe impl<T> Send for Sent<T> {}

thread_local! {
    /// The engine of this thread, if it is a runner other than the reactor's own thread.
    static STATION: RefCell<Option<Station>> = const { RefCell::new(None) };
}

/// Runs `f` with the ring of this runner.
fn with_station<T>(f: impl FnOnce(&mut Station) -> T) -> T {
    STATION.with_borrow_mut(|station| f(station.as_mut().expect("a runner has a ring")))
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

/// Returns whether this thread is a runner other than its reactor's own thread.
pub(crate) fn is_here() -> bool {
    STATION.with_borrow(Option::is_some)
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
        let result = wait();
        self.baton.take();
        self.sleeps_until_ns.set(0);
        self.running.set(OWN);
        if let Some(payload) = self.panic.take() {
            std::panic::resume_unwind(payload);
        }
        result
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
    }
}

/// Binds this thread to a CPU and makes its ring.
fn make_station(cpu: u16) -> io::Result<Bell> {
    affinity::settle(cpu)?;
    let config =
        Config { entries: ENTRIES, sqe128: true, engine: Some(Kind::Uring), ..Config::default() };
    let (engine, kick) = Engine::new(&config)?;
    STATION.set(Some(Station { engine, transfers: 0, owed: 0 }));
    Ok(Bell { kick, is_rung: Arc::default() })
}

impl Own {
    fn run(mut self) {
        loop {
            let waited = self.wait();
            self.baton.take();
            if let Some(bell) = &self.bell {
                bell.is_rung.store(false, Ordering::Relaxed);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| self.turn()));
            let is_over = match ended {
                Ok(is_over) => is_over || waited.is_err(),
                Err(payload) => {
                    self.fail(payload);
                    true
                }
            };
            if is_over {
                // Its count of the context is touched with the baton.
                self.context = None;
            }
            // SAFETY: taken above, and nothing of the reactor is left on this thread.
            unsafe { self.baton.give() };
            if is_over {
                return STATION.set(None);
            }
        }
    }

    /// Waits for something to do, without the baton.
    fn wait(&mut self) -> io::Result<()> {
        let (reaped, spinner, bell) = (&mut self.reaped, &mut self.spinner, &self.bell);
        let is_rung = || bell.as_ref().is_some_and(|bell| bell.is_rung.load(Ordering::Acquire));
        with_station(|station| {
            let now_ns = monotonic_ns();
            let mut idle_ns = Some(now_ns);
            if station.is_waited_for()
                && let Some(turn) = spinner.begin(now_ns)
            {
                idle_ns = spin_for(&mut station.engine, reaped, spinner, turn, is_rung)?;
            }
            let Some(idle_ns) = idle_ns else { return Ok(()) };
            station.engine.wait(None)?;
            station.engine.reap(reaped);
            if station.is_waited_for() && !reaped.is_empty() {
                spinner.slept(monotonic_ns() - idle_ns);
            }
            Ok(())
        })
    }

    /// Passes on all completions of the ring.
    fn complete(&mut self, context: &Context) {
        let reaped = &mut self.reaped;
        with_station(|station| station.engine.reap(reaped));
        for (key, code) in reaped.drain(..) {
            if let Some(operation) = &context.slots.borrow_mut().get(key).operation {
                with_station(|station| station.note_end(operation));
            }
            context.complete_from_kernel(key, code);
        }
    }

    /// Passes a panic on to the reactor's own thread.
    fn fail(&self, payload: Box<dyn Any + Send>) {
        if let Some(context) = &self.context
            && let Some(relay) = context.relay.get()
        {
            relay.panic.set(Some(payload));
            context.executor.kick_owner();
        }
    }

    /// Does what is to be done while this thread holds the baton. Returns whether the runner shall
    /// end.
    fn turn(&mut self) -> bool {
        let Some(context) = &self.context.clone() else { return true };
        let Some(relay) = context.relay.get() else { return true };
        let entered = Entered::new(context);
        loop {
            relay.running.set(self.number);
            self.complete(context);
            context.run_errands(relay);
            context.executor.run(POLLS_PER_TURN_MAX, |_| {
                context.executor.leave_root();
                false
            });
            if !context.executor.has_ready() {
                break;
            }
            with_station(
                |Station { engine, .. }| {
                    if engine.needs_enter() { engine.enter() } else { Ok(()) }
                },
            )
            .expect("entering fails only for a broken engine");
            // SAFETY: this thread holds the baton and looks at everything anew.
            unsafe { self.baton.bump() };
        }
        relay.hand_over(context);
        drop(entered);
        relay.phase.get() == Phase::Over
    }
}

impl Context {
    /// Does what others have left for the runner that holds the baton.
    pub(crate) fn run_errands(&self, relay: &Relay) {
        for errand in relay.take_errands() {
            match errand {
                Errand::Start(key) => self.start_here(key),
                Errand::Cancel(key, generation) => self.cancel_here(key, generation),
            }
        }
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
