//! The loop: run ready tasks, submit, reap, sleep.

use crate::context::{Context, Driver, Entered, with_context};
use crate::engine::{Engine, Kind, Reaped, kick};
use crate::executor::Executor;
use crate::relay::Relay;
use crate::slots::Slots;
use crate::spin::{Spin, Spinner, Turn};
use crate::time::{boot_ns, monotonic_ns, realtime_ns};
use crate::timers::Timers;
use std::cell::{OnceCell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Most task polls between two checks for I/O.
pub(crate) const POLLS_PER_TURN_MAX: usize = 1024;
/// How long an ending runtime waits for the kernel to end its last operations.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);
/// How often it looks at operations of other threads' rings meanwhile.
const DRAIN_LOOK: Duration = Duration::from_millis(2);

/// The configuration of a [`Runtime`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Submission queue entries of `io_uring` (8 … 32 768, rounded up to a power of two); the
    /// completion queue is four times as long. More operations than this in one turn only cost more
    /// system calls.
    pub entries: u32,
    /// How long to spin for completions before sleeping.
    pub spin: Spin,
    /// 128-byte submission entries, for [`Handle::uring_cmd`](crate::Handle::uring_cmd).
    pub sqe128: bool,
    /// Most threads, of the kernel or of the epoll engine, that execute this thread's blocking
    /// operations on files (above all syncs); 0 means four for each CPU. Syncs that wait for one
    /// flush of the disk share it only if they wait at the same time.
    pub blocking_max: u32,
    /// The engine; `None` for the process's choice.
    pub engine: Option<Kind>,
}

impl Default for Config {
    fn default() -> Self {
        Self { entries: 256, spin: Spin::default(), sqe128: false, blocking_max: 0, engine: None }
    }
}

/// A reactor and executor for the thread that makes it.
pub struct Runtime {
    context: Rc<Context>,
    spinner: Spinner,
    reaped: Vec<Reaped>,
}

impl Runtime {
    /// Makes a runtime for this thread.
    ///
    /// # Errors
    /// If the required engine does not work here, with the cause; errors of making the engine.
    pub fn new(config: &Config) -> io::Result<Self> {
        let (engine, fd) = Engine::new(config)?;
        let context = Rc::new(Context {
            executor: Executor::new(Box::new(move || kick(&fd))),
            slots: RefCell::new(Slots::default()),
            timers: RefCell::new(Timers::new()),
            driver: Driver::Kernel(RefCell::new(engine)),
            relay: OnceCell::new(),
        });
        let spinner = Spinner::new(config.spin, monotonic_ns());
        Ok(Self { context, spinner, reaped: Vec::new() })
    }

    /// Runs `future` and all tasks until `future` has completed. Other tasks stay, and continue
    /// with the next call.
    ///
    /// # Panics
    /// If the thread is inside a runtime already, or the engine itself fails.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let context = Rc::clone(&self.context);
        let _entered = Entered::new(&context);
        let mut future = pin!(future);
        let mut output = None;
        context.executor.wake_root();
        loop {
            if let Some(relay) = context.relay.get() {
                context.executor.take_root();
                if context.run_errands(relay) {
                    // Tasks may count on these operations having begun.
                    self.enter_if_needed().expect("entering fails only for a broken engine");
                }
            }
            let is_over =
                context.executor.run(POLLS_PER_TURN_MAX, |cx| match future.as_mut().poll(cx) {
                    Poll::Ready(value) => {
                        output = Some(value);
                        true
                    }
                    Poll::Pending => false,
                });
            if is_over && let Some(output) = output.take() {
                return output;
            }
            self.turn().expect("waiting fails only for a broken engine");
        }
    }

    fn engine(&self) -> &RefCell<Engine> {
        engine_of(&self.context)
    }

    /// Returns the engine of the runtime.
    pub fn engine_kind(&self) -> Kind {
        self.engine().borrow().kind()
    }

    /// Runs the I/O half of a loop turn.
    fn turn(&mut self) -> io::Result<()> {
        let is_busy = self.context.executor.has_ready() || self.fire_timers();
        if is_busy {
            self.enter_if_needed()?;
            self.reap();
            if let Some(relay) = self.context.relay.get().filter(|relay| relay.has_threads()) {
                relay.pass();
            }
            return Ok(());
        }
        // One enter submits operations and processes ready ones; afterwards a wait may be
        // unnecessary.
        let now_ns = monotonic_ns();
        let spin = self.spinner.begin(now_ns);
        let context = Rc::clone(&self.context);
        if let Some(relay) = context.relay.get().filter(|relay| relay.has_threads()) {
            return self.rest(relay, spin, now_ns);
        }
        let Some(turn) = spin else { return self.sleep(now_ns) };
        let is_due = |next_ns| next_ns <= boot_ns();
        let has_work = || {
            context.executor.has_ready() || context.timers.borrow().next_ns().is_some_and(is_due)
        };
        let mut engine = engine_of(&context).borrow_mut();
        let idle_ns = spin_for(&mut engine, &mut self.reaped, &mut self.spinner, turn, has_work)?;
        drop(engine);
        self.complete();
        idle_ns.map_or(Ok(()), |idle_ns| self.sleep(idle_ns))
    }

    fn enter_if_needed(&self) -> io::Result<()> {
        let mut engine = self.engine().borrow_mut();
        if engine.needs_enter() { engine.enter() } else { Ok(()) }
    }

    /// Sleeps until an event; `idle_ns` is the time since which there was nothing to do.
    fn sleep(&mut self, idle_ns: u64) -> io::Result<()> {
        if !self.context.executor.prepare_sleep() {
            return Ok(());
        }
        let timeout = self.timeout();
        let result = self.engine().borrow_mut().wait(timeout.map(|it| it.0));
        self.wake_up(idle_ns);
        result
    }

    /// Spins or sleeps until an event, and lets other threads run the reactor meanwhile.
    fn rest(&mut self, relay: &Relay, spin: Option<Turn>, now_ns: u64) -> io::Result<()> {
        let context = Rc::clone(&self.context);
        let executor = &context.executor;
        if !executor.prepare_sleep() {
            return Ok(());
        }
        let timeout = self.timeout();
        let until_ns = timeout.map(|it| it.1);
        let (reaped, spinner) = (&mut self.reaped, &mut self.spinner);
        let has_work =
            || !executor.is_asleep() || until_ns.is_some_and(|until_ns| until_ns <= boot_ns());
        let mut idle_ns = Some(now_ns);
        let result = relay.sleep(until_ns, || {
            let mut engine = engine_of(&context).borrow_mut();
            if let Some(turn) = spin {
                idle_ns = spin_for(&mut engine, reaped, spinner, turn, has_work)?;
            }
            idle_ns.map_or(Ok(()), |_| engine.wait(timeout.map(|it| it.0)))
        });
        match idle_ns {
            Some(idle_ns) => self.wake_up(idle_ns),
            None => executor.end_sleep(),
        }
        self.complete();
        result
    }

    /// Returns the time until the next timer, and when that is.
    fn timeout(&self) -> Option<(Duration, u64)> {
        let next_ns = self.context.timers.borrow().next_ns()?;
        Some((Duration::from_nanos(next_ns.saturating_sub(boot_ns())), next_ns))
    }

    fn wake_up(&mut self, idle_ns: u64) {
        self.context.executor.end_sleep();
        if self.reap() {
            self.spinner.slept(monotonic_ns() - idle_ns);
        }
        self.fire_timers();
    }

    /// Passes on all completions. Returns true if there were any.
    fn reap(&mut self) -> bool {
        engine_of(&self.context).borrow_mut().reap(&mut self.reaped);
        self.complete()
    }

    /// Passes on the reaped completions. Returns true if there were any.
    fn complete(&mut self) -> bool {
        let got = !self.reaped.is_empty();
        for (key, code) in self.reaped.drain(..) {
            self.context.complete_from_kernel(key, code);
        }
        got
    }

    /// Wakes the owners of due timers. Returns true if there were any.
    fn fire_timers(&self) -> bool {
        if self.context.timers.borrow().next_ns().is_none() {
            return false;
        }
        let now_ns = boot_ns();
        let mut fired = false;
        loop {
            let Some(waker) = self.context.timers.borrow_mut().pop_due(now_ns) else { break };
            waker.wake();
            fired = true;
        }
        fired
    }
}

impl Drop for Runtime {
    /// Drops all tasks and waits until the kernel no longer uses their memory. If that takes more
    /// than ten seconds (a disk that does not answer), the memory is leaked and not reused.
    fn drop(&mut self) {
        let context = Rc::clone(&self.context);
        let entered = Entered::new(&context);
        context.executor.close();
        if let Some(relay) = context.relay.get() {
            relay.drain();
            context.run_errands(relay);
        }
        let pending = context.slots.borrow().pending();
        for key in pending {
            context.cancel_pending(key);
        }
        let mut is_drained = true;
        let end_ns = monotonic_ns() + DRAIN_TIME_MAX.as_nanos() as u64;
        // The kernel may still write into memory of operations and of the eventfd's read.
        let is_busy = || {
            let is_read = engine_of(&context).borrow_mut().close();
            is_read || context.slots.borrow().in_flight() > 0
        };
        while is_busy() {
            let left_ns = end_ns.saturating_sub(monotonic_ns());
            let left = Duration::from_nanos(left_ns);
            let waited = match context.relay.get() {
                // The last operation may complete on another ring.
                Some(relay) => {
                    let left = left.min(DRAIN_LOOK);
                    relay.sleep(None, || self.engine().borrow_mut().wait(Some(left)))
                }
                None => self.engine().borrow_mut().wait(Some(left)),
            };
            self.reap();
            if left_ns == 0 || waited.is_err() {
                std::mem::forget(Rc::clone(&context));
                is_drained = false;
                break;
            }
        }
        if let Some(relay) = context.relay.get() {
            relay.close(is_drained);
        }
        context.executor.close();
        drop(entered);
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("spin", &self.spinner.spin()).finish_non_exhaustive()
    }
}

/// Spins on a ring until something completes or there is other work. Returns when the thread became
/// idle if it has to sleep now.
pub(crate) fn spin_for(
    engine: &mut Engine,
    reaped: &mut Vec<Reaped>,
    spinner: &mut Spinner,
    mut turn: Turn,
    has_work: impl Fn() -> bool,
) -> io::Result<Option<u64>> {
    loop {
        if engine.needs_enter() {
            engine.enter()?;
        }
        engine.reap(reaped);
        let now_ns = monotonic_ns();
        if !reaped.is_empty() || has_work() {
            spinner.found(&turn, now_ns);
            return Ok(None);
        }
        if turn.is_over(now_ns) {
            spinner.gave_up(&turn, now_ns);
            return Ok(Some(turn.start));
        }
        if turn.offer_cpu(now_ns) {
            spinner.contended(monotonic_ns());
            return Ok(Some(turn.start));
        }
        std::hint::spin_loop();
    }
}

fn engine_of(context: &Context) -> &RefCell<Engine> {
    match &context.driver {
        Driver::Kernel(engine) => engine,
        Driver::Sim(_) => unreachable!("a runtime is made on an engine"),
    }
}

/// Returns the histogram of batch sizes of this thread's reactor so far: for each number of
/// operations, the number of system calls that started it. On `io_uring` it includes operations of
/// the reactor itself; on epoll each operation is a call of its own. Empty in a simulation.
///
/// # Panics
/// If the thread has no reactor.
pub fn submissions() -> Vec<(usize, u64)> {
    with_context(|context| match &context.driver {
        // The ring of the reactor's own thread is not a runner's to look at.
        _ if crate::relay::is_here() => Vec::new(),
        Driver::Kernel(engine) => engine.borrow().submissions(),
        Driver::Sim(_) => Vec::new(),
    })
}

impl Context {
    pub(crate) fn now_ns(&self) -> u64 {
        match &self.driver {
            Driver::Kernel(_) => boot_ns(),
            Driver::Sim(sim) => sim.now_ns.get(),
        }
    }

    pub(crate) fn awake_ns(&self) -> u64 {
        match &self.driver {
            Driver::Kernel(_) => monotonic_ns(),
            Driver::Sim(sim) => sim.world.borrow().awake_ns(self.executor.node.get()),
        }
    }

    pub(crate) fn system_ns(&self) -> u64 {
        match &self.driver {
            Driver::Kernel(_) => realtime_ns(),
            Driver::Sim(sim) => sim.world.borrow().wall_ns(self.executor.node.get()),
        }
    }

    /// Fills `bytes` from the simulation's generator. Returns false if there is none.
    pub(crate) fn random_fill(&self, bytes: &mut [u8]) -> bool {
        match &self.driver {
            Driver::Kernel(_) => false,
            Driver::Sim(sim) => {
                sim.world.borrow_mut().rng.fill(bytes);
                true
            }
        }
    }
}
