//! One host's admission and the lanes through it, which count commands.

use crate::admission::{Epoch, Moment, Refusal};
use crate::signal::{self, Signal};
use auth::TlsKey;
use nvme::HostId;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// One admission of one host identifier.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) host: HostId,
    pub(crate) epoch: Epoch,
    /// The time of its lapse, in nanoseconds of the admissions' clock; the largest value means
    /// never.
    lapse_ns: AtomicU64,
    is_closed: AtomicBool,
    /// The key that the host has to prove under TLS; cleared at the admission's end.
    key: Mutex<Option<TlsKey>>,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    lanes: Vec<Arc<Gate>>,
    waiters: Vec<Waker>,
}

/// The counter of one lane, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Gate {
    in_flight: AtomicU64,
    signal: Arc<Signal>,
}

impl Slot {
    pub(crate) fn new(host: HostId, epoch: Epoch, lapse: Moment, key: Option<TlsKey>) -> Arc<Self> {
        Arc::new(Self {
            host,
            epoch,
            lapse_ns: AtomicU64::new(lapse.as_ns()),
            is_closed: AtomicBool::new(false),
            key: Mutex::new(key),
            members: Mutex::default(),
        })
    }

    /// Moves the lapse to `lapse`, unless it is later already.
    pub(crate) fn extend(&self, lapse: Moment) {
        self.lapse_ns.fetch_max(lapse.as_ns(), Ordering::SeqCst);
    }

    pub(crate) fn is_lapsed(&self, now: Moment) -> bool {
        let is_past = now.as_ns() >= self.lapse_ns.load(Ordering::Relaxed);
        is_past && !reactor::mutant!("admissions-never-lapse")
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Returns the key that the host has to prove, or `None` after the admission has ended.
    pub(crate) fn key(&self) -> Option<TlsKey> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the admission and marks it as ended in all lanes.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        drop(self.key.lock().unwrap_or_else(PoisonError::into_inner).take());
        for gate in &self.members().lanes {
            if !reactor::mutant!("fence-keeps-connections") {
                gate.signal.raise(signal::CLOSE);
            }
        }
    }

    /// Returns the number of commands in execution.
    pub(crate) fn in_flight(&self) -> u64 {
        self.members().lanes.iter().map(|gate| gate.in_flight.load(Ordering::SeqCst)).sum()
    }

    /// Returns the number of commands in execution, and wakes `waker` when it may have become zero.
    pub(crate) fn poll_in_flight(&self, waker: &Waker) -> u64 {
        let mut members = self.members();
        if !members.waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            members.waiters.push(waker.clone());
        }
        members.lanes.iter().map(|gate| gate.in_flight.load(Ordering::SeqCst)).sum()
    }

    pub(crate) fn has_lanes(&self) -> bool {
        !self.members().lanes.is_empty()
    }

    pub(crate) fn open_lane(this: &Arc<Self>, signal: &Arc<Signal>) -> Result<Lane, Refusal> {
        let gate = Arc::new(Gate { in_flight: AtomicU64::new(0), signal: Arc::clone(signal) });
        this.members().lanes.push(Arc::clone(&gate));
        // Checked after the lane became visible to `close`: one of the two sees the other.
        let lane = Lane(Rc::new(Inner { slot: Arc::clone(this), gate }));
        if this.is_closed() { Err(Refusal::NotAdmitted) } else { Ok(lane) }
    }

    fn wake_waiters(&self) {
        let waiters = std::mem::take(&mut self.members().waiters);
        for waiter in waiters {
            waiter.wake();
        }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Inner {
    slot: Arc<Slot>,
    gate: Arc<Gate>,
}

impl Inner {
    fn leave(&self, commands: u64) {
        let before = self.gate.in_flight.fetch_sub(commands, Ordering::SeqCst);
        assert!(
            before >= commands,
            "{commands} commands of {:?} leave under {:?}, but only {before} have entered",
            self.slot.host,
            self.slot.epoch
        );
        if self.slot.is_closed.load(Ordering::SeqCst) {
            self.slot.wake_waiters();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Permits hold the lane, so no command is in flight any more.
        let in_flight = self.gate.in_flight.load(Ordering::SeqCst);
        // A fence that missed such commands would complete before they have ended.
        assert_eq!(
            in_flight, 0,
            "a lane of {:?} is dropped with commands in flight",
            self.slot.host
        );
        self.slot.members().lanes.retain(|gate| !Arc::ptr_eq(gate, &self.gate));
        self.slot.wake_waiters();
    }
}

/// The passage of one queue pair or local handle through its host's admission. It stays on one
/// thread.
#[derive(Clone, Debug)]
pub struct Lane(Rc<Inner>);

impl Lane {
    /// Counts one command in, if the admission is in force at `now`.
    ///
    /// # Errors
    /// The reason for refusing the command.
    pub fn enter(&self, now: Moment) -> Result<Permit, Refusal> {
        let inner = &self.0;
        inner.gate.in_flight.fetch_add(1, Ordering::SeqCst);
        // From here on, dropping the permit counts the command out again.
        let permit = Permit(Some(Rc::clone(inner)));
        if inner.slot.is_closed() && !reactor::mutant!("closed-lets-commands-in") {
            return Err(Refusal::NotAdmitted);
        }
        if inner.slot.is_lapsed(now) && !reactor::mutant!("lapsed-lets-commands-in") {
            Err(Refusal::Lapsed)
        } else {
            Ok(permit)
        }
    }

    /// Returns whether the lane would accept commands at `now`.
    pub fn is_open(&self, now: Moment) -> bool {
        !self.0.slot.is_closed() && !self.0.slot.is_lapsed(now)
    }

    /// Returns the host of the admission.
    pub fn host(&self) -> HostId {
        self.0.slot.host
    }

    /// Returns an empty collection of permits.
    pub fn lend(&self) -> Lent {
        Lent { inner: Rc::clone(&self.0), commands: 0 }
    }
}

/// A counted command; dropping the permit counts the command out.
#[derive(Debug)]
#[must_use = "a permit has to live until the back-end I/O has ended"]
pub struct Permit(Option<Rc<Inner>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            inner.leave(1);
        }
    }
}

/// Permits of several commands of one lane, which are counted out together.
#[derive(Debug)]
pub struct Lent {
    inner: Rc<Inner>,
    commands: u64,
}

impl Lent {
    /// Adds a permit of the same lane.
    pub fn add(&mut self, mut permit: Permit) {
        // Taking the lane out disarms the permit. Its count moves to this collection.
        if let Some(inner) = permit.0.take() {
            assert!(Rc::ptr_eq(&self.inner, &inner), "permits of one lane only");
            self.commands += 1;
        }
    }

    /// Moves all permits of `other` into this collection.
    pub fn append(&mut self, other: &mut Self) {
        assert!(Rc::ptr_eq(&self.inner, &other.inner), "permits of one lane only");
        self.commands += std::mem::take(&mut other.commands);
    }

    /// Counts out all commands.
    pub fn give_back(&mut self) {
        let commands = std::mem::take(&mut self.commands);
        if commands != 0 {
            self.inner.leave(commands);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.give_back();
    }
}
