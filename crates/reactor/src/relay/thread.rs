//! The threads of runners, and their rings.

use super::{Baton, ENTRIES, Phase};
use crate::affinity;
use crate::context::{Context, Entered};
use crate::engine::{Engine, Kind, Reaped, kick};
use crate::operation::Operation;
use crate::runtime::{Config, POLLS_PER_TURN_MAX, spin_for};
use crate::spin::Spinner;
use crate::time::monotonic_ns;
use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the spin or sleep of a runner.
#[derive(Clone)]
pub(super) struct Bell {
    kick: Arc<OwnedFd>,
    /// Set from the ringing until the runner has the baton.
    is_rung: Arc<AtomicBool>,
}

impl Bell {
    pub(super) fn ring(&self) {
        self.is_rung.store(true, Ordering::Release);
        kick(&self.kick);
    }
}

/// The side of a runner's thread.
pub(super) struct Own {
    pub(super) context: Option<Rc<Context>>,
    pub(super) baton: Arc<Baton>,
    pub(super) number: u16,
    pub(super) reaped: Vec<Reaped>,
    pub(super) spinner: Spinner,
    pub(super) bell: Option<Bell>,
}

/// The ring of a runner's thread.
pub(super) struct Station {
    pub(super) engine: Engine,
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

    pub(super) fn note_start(&mut self, operation: &Operation) {
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
pub(super) struct Sent<T>(pub(super) T);

// SAFETY: what is sent is touched by the holder of the baton alone: the own thread holds it while
// it makes the value, and the runner takes it first.
unsafe impl<T> Send for Sent<T> {}

thread_local! {
    /// The engine of this thread, if it is a runner other than the reactor's own thread.
    static STATION: RefCell<Option<Station>> = const { RefCell::new(None) };
}

/// Runs `f` with the ring of this runner.
pub(super) fn with_station<T>(f: impl FnOnce(&mut Station) -> T) -> T {
    STATION.with_borrow_mut(|station| f(station.as_mut().expect("a runner has a ring")))
}

/// Returns whether this thread is a runner other than its reactor's own thread.
pub(crate) fn is_here() -> bool {
    // Buffers may be dropped while the thread ends.
    let is_runner = |station: &RefCell<Option<Station>>| {
        station.try_borrow().map_or(true, |station| station.is_some())
    };
    STATION.try_with(is_runner).unwrap_or(false)
}

/// Binds this thread to a CPU and makes its ring.
pub(super) fn make_station(cpu: u16) -> io::Result<Bell> {
    affinity::settle(cpu)?;
    crate::buffer::keep_little();
    let config =
        Config { entries: ENTRIES, sqe128: true, engine: Some(Kind::Uring), ..Config::default() };
    let (engine, kick) = Engine::new(&config)?;
    STATION.set(Some(Station { engine, transfers: 0, owed: 0 }));
    Ok(Bell { kick, is_rung: Arc::default() })
}

impl Own {
    pub(super) fn run(mut self) {
        loop {
            // Without the baton nothing can be given up in order.
            let Ok(waited) = catch_unwind(AssertUnwindSafe(|| self.wait())) else {
                std::process::abort();
            };
            self.baton.take();
            if let Some(bell) = &self.bell {
                bell.is_rung.store(false, Ordering::Relaxed);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| self.turn()));
            let is_over = match (ended, waited) {
                (Ok(is_over), Ok(())) => is_over,
                // The ring stays: its operations are cancelled with the reactor.
                (Err(payload), Ok(())) => {
                    self.fail(payload);
                    false
                }
                (_, Err(error)) => {
                    self.fail(Box::new(format!("a runner's ring is broken: {error}")));
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
                if idle_ns.is_some() {
                    // Entries that have moved to another ring are not missed for ever.
                    station.owed = 0;
                }
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
            relay.hand_over(context);
            // SAFETY: this thread holds the baton and looks at everything anew.
            unsafe { self.baton.bump() };
        }
        relay.hand_over(context);
        drop(entered);
        relay.phase.get() == Phase::Over
    }
}
