//! An operation from its start to its end.

use crate::family::Point;
use crate::slots::{Place, Slot};
use crate::slow::Ended;
use crate::thread::{Local, with_local};
use crate::trace;
use reactor::time::{Instant, now};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// An operation that runs. Its end is its drop: one that is given up counts as failed unless [`Operation::done`]
/// was called.
#[derive(Debug)]
#[must_use = "an operation ends when this is dropped"]
pub struct Operation {
    point: Point,
    started_ns: u64,
    subject: u64,
    pid: u32,
    place: Option<Place>,
    within: Option<Place>,
    bytes: u64,
    errno: i32,
    is_done: bool,
    /// It belongs to its thread.
    _thread: PhantomData<Rc<()>>,
}

/// Starts an operation about `subject` (see [`crate::Family::subject`]; 0 is none).
pub fn start(point: Point, subject: u64) -> Operation {
    start_at(point, subject, 0, now())
}

/// As [`start`], for a process, where the clock has been read already.
pub fn start_at(point: Point, subject: u64, pid: u32, started: Instant) -> Operation {
    let started_ns = started.as_ns();
    let places = with_local(|local| {
        let within = local.current.get();
        if let Some(outer) = within.and_then(|place| local.block.slot(place)) {
            outer.wait(point.code(), subject, started_ns);
        }
        // Its name is known from now on.
        let _ = local.block.cells(point);
        let place = local.take_slot().map(|index| {
            let slot = local.slot_at(index);
            slot.begin(point.code(), started_ns, subject, pid, within.is_some());
            Place { index, generation: slot.generation.load(Relaxed) }
        });
        (place, within)
    });
    let (place, within) = places.unwrap_or_default();
    Operation {
        point,
        started_ns,
        subject,
        pid,
        place,
        within,
        bytes: 0,
        errno: 0,
        is_done: false,
        _thread: PhantomData,
    }
}

impl Operation {
    /// It is about this subject, which was not known before.
    pub fn about(&mut self, subject: u64) {
        self.subject = subject;
        if let Some(place) = self.place {
            with_local(|local| local.slot_at(place.index).subject.store(subject, Relaxed));
        }
    }

    /// It has carried data.
    pub fn carried(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// It was answered: with this errno, 0 if it went well.
    pub fn done(&mut self, errno: i32) {
        self.is_done = true;
        self.errno = errno;
    }

    /// Ends it: with this errno, 0 if it went well.
    pub fn end(mut self, errno: i32) {
        self.done(errno);
    }

    /// Until the result is dropped, what starts on this thread is a wait of this operation.
    pub fn enter(&self) -> Inside {
        let place = self.place;
        let before = with_local(|local| local.current.replace(place)).flatten();
        Inside { before, _thread: PhantomData }
    }

    /// Runs a future as the work of this operation: what it starts is a wait of it.
    pub async fn during<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            let _inside = self.enter();
            future.as_mut().poll(context)
        })
        .await
    }

    fn account(&self, local: &Local, ended_ns: u64) {
        let own = self.place.and_then(|place| local.block.slot(place));
        let ended = Ended {
            code: self.point.code(),
            subject: self.subject,
            pid: self.pid,
            at_ns: ended_ns,
            ns: ended_ns.saturating_sub(self.started_ns),
            longest: own.and_then(Slot::longest),
        };
        let errno = if self.is_done { self.errno } else { trace::GIVEN_UP };
        account(local, self.point, ended, self.within, (self.bytes, errno));
        if let Some(place) = self.place {
            local.free_slot(place.index);
        }
    }
}

/// Counts what has ended.
fn account(
    local: &Local,
    point: Point,
    ended: Ended,
    within: Option<Place>,
    (bytes, errno): (u64, i32),
) {
    let block = &local.block;
    block.cells(point).count(ended.ns, bytes, errno != 0);
    if let Some(outer) = within.and_then(|place| block.slot(place)) {
        outer.wait_ends(ended.code, ended.subject, ended.ns);
    } else if block.slowest.wants(ended.at_ns, ended.ns) {
        block.slowest.keep(ended);
    }
    if trace::is_on() {
        block.events.add(trace::Record { ended, bytes, errno, is_inner: within.is_some() });
    }
    tracing::trace!(
        target: "operation",
        family = point.family.name(),
        name = point.name,
        subject = ended.subject,
        pid = ended.pid,
        us = ended.ns / 1000,
        bytes,
        errno,
        "done"
    );
}

/// Counts an operation that ends now, where it costs too much to follow it while it runs. Errno 0 is none.
pub fn record(point: Point, subject: u64, started: Instant, bytes: u64, errno: i32) {
    let ended_ns = now().as_ns();
    let ns = ended_ns.saturating_sub(started.as_ns());
    let ended = Ended { code: point.code(), subject, pid: 0, at_ns: ended_ns, ns, longest: None };
    with_local(|local| account(local, point, ended, None, (bytes, errno)));
}

impl Drop for Operation {
    fn drop(&mut self) {
        let ended_ns = now().as_ns();
        with_local(|local| self.account(local, ended_ns));
    }
}

/// While this lives, what starts on this thread is a wait of an operation.
#[derive(Debug)]
#[must_use = "the operation is left when this is dropped"]
pub struct Inside {
    before: Option<Place>,
    _thread: PhantomData<Rc<()>>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        with_local(|local| local.current.set(self.before));
    }
}
