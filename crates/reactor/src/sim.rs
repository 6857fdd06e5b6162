//! The simulated twin: a whole cluster in one thread, driven by a seed.
//!
//! A [`Simulation`] runs the shipped code unchanged on virtual time, a simulated network and
//! simulated disks. *Nodes* are groups of tasks with an address, files and a lifecycle of their
//! own. They can be killed (as by `kill -9`), lose power (unflushed writes are lost or torn), be
//! paused (as by SIGSTOP) or suspended (network and disk stop too), and come back. Links can be cut
//! in one direction or both, or be slow; disks can be slow, full or broken. All choices (order of
//! ready tasks, delays, sizes of the pieces in which bytes arrive, which unflushed blocks survive)
//! come from one generator, so a seed repeats a run exactly. [`Simulation::trace_hash`]
//! distinguishes two runs.
//!
//! It does not model CPU time (tasks take none), kernel caches, losses of the metadata of files
//! (sizes and names are durable at once), and TCP timeouts on a broken link (a partition holds all
//! bytes until it is healed). Shipped code breaks repetition if it iterates a `HashMap` with the
//! standard random state, or asks the system for time or randomness without this crate.

mod copies;
mod disk;
mod moment;
mod network;
mod node;
mod rng;
mod streams;
mod world;

pub use node::{DiskError, DiskFault, DiskPace, Moment, Network, Node};
use world::Event;
pub(crate) use world::{SimHandle, World};

pub(crate) use rng::splitmix;

use crate::context::{Context, Driver, Entered, try_with_context};
use crate::executor::Executor;
use crate::operation::Operation;
use crate::slots::Slots;
use crate::timers::Timers;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Most task polls between two checks for events.
const POLLS_MAX: usize = 4096;

/// The behaviour of the simulated machines. Times are drawn uniformly from ranges `(least, most)`.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Latency of one direction between two nodes.
    pub latency: (Duration, Duration),
    /// Latency of one direction within a node.
    pub local_latency: (Duration, Duration),
    /// Number of pieces of a stream, out of a million, that are late, by up to `spike_max`.
    pub spike_ppm: u32,
    /// See `spike_ppm`.
    pub spike_max: Duration,
    /// Most bytes in one direction of a connection between sending and receiving program.
    pub window_bytes: usize,
    /// Most bytes that arrive at once; the least is 1.
    pub piece_bytes_max: usize,
    /// Time of a disk read.
    pub read_latency: (Duration, Duration),
    /// Time of a disk write.
    pub write_latency: (Duration, Duration),
    /// Time of a disk flush.
    pub sync_latency: (Duration, Duration),
    /// Unit in which an unflushed write is lost or kept at power loss, in bytes, a divisor of 4096.
    pub tear_bytes: usize,
    /// Whether ready tasks run in random order, to find hidden dependencies on it.
    pub shuffle: bool,
    /// Virtual time after which a run counts as hanging.
    pub time_max: Duration,
}

impl Default for SimConfig {
    fn default() -> Self {
        let us = Duration::from_micros;
        Self {
            latency: (us(20), us(300)),
            local_latency: (us(1), us(20)),
            spike_ppm: 5_000,
            spike_max: Duration::from_millis(30),
            window_bytes: 256 << 10,
            piece_bytes_max: 64 << 10,
            read_latency: (us(20), us(200)),
            write_latency: (us(10), us(300)),
            sync_latency: (us(100), us(2000)),
            tear_bytes: 512,
            shuffle: true,
            time_max: Duration::from_hours(24),
        }
    }
}

/// The reason why a run ended without its future's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stalled {
    /// No task is ready, and no timer or event will ever make one so.
    #[error("deadlock: every task waits and nothing is in flight")]
    Deadlock,
    /// The configured virtual time has passed.
    #[error("the simulated time limit has passed")]
    TimeLimit,
}

/// A deterministic world with virtual time.
pub struct Simulation {
    context: Rc<Context>,
}

/// The driver's state.
pub(crate) struct Sim {
    pub(crate) world: RefCell<World>,
    pub(crate) now_ns: Cell<u64>,
    /// Objects whose last handle was dropped while the world was in use: closed before the next
    /// event.
    pub(crate) closing: RefCell<Vec<u64>>,
}

impl Simulation {
    /// Makes a world with the default behaviour.
    pub fn new(seed: u64) -> Self {
        Self::with_config(seed, SimConfig::default())
    }

    /// Makes a world with the given behaviour.
    pub fn with_config(seed: u64, config: SimConfig) -> Self {
        let executor = Executor::new(Box::new(|| {}));
        if config.shuffle {
            executor.shuffle.set(Some(seed ^ 0x5bd1_e995));
        }
        let sim = Sim {
            world: RefCell::new(World::new(seed, config)),
            now_ns: Cell::new(0),
            closing: RefCell::default(),
        };
        let context = Context {
            executor,
            slots: RefCell::new(Slots::default()),
            timers: RefCell::new(Timers::new()),
            driver: Driver::Sim(Box::new(sim)),
            relay: OnceCell::new(),
        };
        Self { context: Rc::new(context) }
    }

    /// Adds a node. The future of [`run`](Self::run) belongs to a first node, called `root`.
    pub fn node(&self, name: &str) -> Node {
        let id = self.sim().world.borrow_mut().add_node(name);
        Node::new(Rc::clone(&self.context), id)
    }

    /// Returns the links between the nodes.
    pub fn network(&self) -> Network {
        Network::new(Rc::clone(&self.context))
    }

    /// Returns the virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.sim().now_ns.get())
    }

    /// Returns a hash over all polls, events, completions and their times.
    pub fn trace_hash(&self) -> u64 {
        self.sim().world.borrow().trace ^ self.context.executor.trace.get()
    }

    /// Runs `future` and all tasks until it has completed.
    ///
    /// # Errors
    /// [`Stalled`] if that will not happen.
    ///
    /// # Panics
    /// If the thread runs a reactor already, and if a task panics.
    pub fn run<F: Future>(&mut self, future: F) -> Result<F::Output, Stalled> {
        let context = Rc::clone(&self.context);
        let _entered = Entered::new(&context);
        let mut future = pin!(future);
        let mut output = None;
        context.executor.wake_root();
        loop {
            let is_over = context.executor.run(POLLS_MAX, |cx| {
                if let Poll::Ready(value) = future.as_mut().poll(cx) {
                    output = Some(value);
                }
                output.is_some()
            });
            if is_over && let Some(output) = output.take() {
                return Ok(output);
            }
            self.close_dropped();
            if !context.executor.has_ready() {
                self.advance()?;
            }
        }
    }

    fn sim(&self) -> &Sim {
        self.context.sim().expect("made with a simulated driver")
    }

    /// Moves time to the next timer or event and carries it out.
    fn advance(&self) -> Result<(), Stalled> {
        let sim = self.sim();
        let timer_ns = self.context.timers.borrow().next_ns();
        let event_ns = sim.world.borrow().next_ns();
        let next_ns = match (timer_ns, event_ns) {
            (None, None) => return Err(Stalled::Deadlock),
            (Some(ns), None) | (None, Some(ns)) => ns,
            (Some(timer), Some(event)) => timer.min(event),
        };
        let now_ns = next_ns.max(sim.now_ns.get());
        if u128::from(now_ns) > sim.world.borrow().config.time_max.as_nanos() {
            return Err(Stalled::TimeLimit);
        }
        sim.now_ns.set(now_ns);
        sim.world.borrow_mut().now_ns = now_ns;
        if event_ns == Some(next_ns) {
            let event = sim.world.borrow_mut().pop();
            let event = event.and_then(|event| sim.world.borrow_mut().freeze(event));
            if let Some(event) = event {
                self.context.carry_out(event);
            }
        } else {
            let waker = self.context.timers.borrow_mut().pop_due(now_ns);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        Ok(())
    }

    fn close_dropped(&self) {
        let sim = self.sim();
        let closing = std::mem::take(&mut *sim.closing.borrow_mut());
        for object in closing {
            sim.world.borrow_mut().close(object);
        }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // While a task's panic unwinds through `run`, the context is left first.
        let _entered = Entered::new(&self.context);
        self.context.executor.close();
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

/// Runs `f` on the world for the node of the running task, if this is a simulation.
pub(crate) fn simulated<T>(f: impl FnOnce(&mut World, u32) -> T) -> Option<T> {
    try_with_context(|context| {
        let node = context.executor.node.get();
        context.sim().map(|sim| f(&mut sim.world.borrow_mut(), node))
    })
    .flatten()
}

impl Context {
    /// Returns the simulation's state, in a simulation.
    pub(crate) fn sim(&self) -> Option<&Sim> {
        match &self.driver {
            Driver::Sim(sim) => Some(sim),
            Driver::Kernel(_) => None,
        }
    }

    /// Carries out an event.
    fn carry_out(&self, event: Event) {
        let Some(sim) = self.sim() else { return };
        match event {
            Event::Complete { key, code } => self.complete_simulated(key, code),
            Event::Disk { key, object, epoch, covered } => {
                let code = {
                    let mut slots = self.slots.borrow_mut();
                    let operation = slots.get(key).operation.as_mut();
                    let mut world = sim.world.borrow_mut();
                    operation.map_or(-libc::EINVAL, |operation| {
                        world.run_disk(object, epoch, covered, operation)
                    })
                };
                self.complete_simulated(key, code);
            }
            Event::Connect { key, socket, address, attempts } => {
                sim.world.borrow_mut().connect(key, socket, address, attempts);
            }
            Event::Connected { key, socket } => {
                if sim.world.borrow_mut().take_connect(key, socket) {
                    self.complete_simulated(key, 0);
                }
            }
            Event::Deliver(delivery) => {
                let target = delivery.target;
                sim.world.borrow_mut().deliver(delivery);
                self.pump(sim, target);
            }
            Event::Shutdown { key, object, how } => {
                let code = sim.world.borrow_mut().shut_down(object, how);
                self.complete_simulated(key, code);
                self.pump(sim, object);
            }
            Event::Pump(object) => self.pump(sim, object),
        }
    }

    /// Completes all operations on a socket that have become possible.
    fn pump(&self, sim: &Sim, object: u64) {
        sim.world.borrow_mut().pump_sends(object);
        loop {
            let next = sim.world.borrow_mut().next_accept(object);
            let Some((key, stream, peer)) = next else { break };
            let handle = SimHandle::into_handle(stream);
            self.slots.borrow_mut().get(key).accepted = Some((handle, peer));
            self.complete_simulated(key, 0);
        }
        loop {
            let completed = {
                let mut world = sim.world.borrow_mut();
                let Some(key) = world.next_receive(object) else { break };
                let mut slots = self.slots.borrow_mut();
                match slots.get(key).operation.as_mut() {
                    Some(Operation::Receive(segments)) => (key, world.receive(object, segments)),
                    _ => (key, -libc::EINVAL),
                }
            };
            self.complete_simulated(completed.0, completed.1);
        }
    }

    fn complete_simulated(&self, key: u32, code: i32) {
        if let Some(sim) = self.sim() {
            sim.world.borrow_mut().note(0x10, u64::from(key), code as u64);
        }
        self.complete(key, code);
    }
}
