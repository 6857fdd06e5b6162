//! An operation from its start to its end.

use crate::family::Point;
use crate::slots::{Slot, SlotId};
use crate::slow::Ended;
use crate::thread::{Local, with_local};
use crate::trace;
use reactor::time::{Instant, now};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

/// A running operation. It ends when it is dropped. An operation that is given up (without a call
/// of [`Operation::done`]) counts as failed.
#[derive(Debug)]
#[must_use = "an operation ends when this is dropped"]
pub struct Operation {
    point: Point,
    started_ns: u64,
    subject: u64,
    pid: u32,
    slot_id: Option<SlotId>,
    within: Option<SlotId>,
    bytes: u64,
    errno: i32,
    is_done: bool,
    /// An operation belongs to its thread.
    _thread: PhantomData<Rc<()>>,
}

/// Starts an operation about `subject` (see [`crate::Family::subject`]; 0 is none).
pub fn start(point: Point, subject: u64) -> Operation {
    start_at(point, subject, 0, now())
}

/// Starts an operation for a process, if the caller has read the clock already.
pub fn start_at(point: Point, subject: u64, pid: u32, started: Instant) -> Operation {
    let started_ns = started.as_ns();
    let slot_ids = with_local(|local| {
        let within = local.current.get();
        if let Some(outer) = within.and_then(|slot_id| local.block.slot(slot_id)) {
            outer.wait(point.code(), subject, started_ns);
        }
        // Reserves the counts under this name.
        let _ = local.block.cells(point);
        let slot_id = local.take_slot().map(|index| {
            let slot = local.slot_at(index);
            slot.begin(point.code(), started_ns, subject, pid, within.is_some());
            SlotId { index, generation: slot.generation.load(Relaxed) }
        });
        (slot_id, within)
    });
    let (slot_id, within) = slot_ids.unwrap_or_default();
    Operation {
        point,
        started_ns,
        subject,
        pid,
        slot_id,
        within,
        bytes: 0,
        errno: 0,
        is_done: false,
        _thread: PhantomData,
    }
}

impl Operation {
    /// Sets the subject of an operation that started without one.
    pub fn about(&mut self, subject: u64) {
        self.subject = subject;
        if let Some(slot_id) = self.slot_id {
            with_local(|local| local.slot_at(slot_id.index).subject.store(subject, Relaxed));
        }
    }

    /// Adds to the bytes of data that the operation has carried.
    pub fn carried(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Sets the answer: an errno, 0 for success.
    pub fn done(&mut self, errno: i32) {
        self.is_done = true;
        self.errno = errno;
    }

    /// Ends the operation with this errno, 0 for success.
    pub fn end(mut self, errno: i32) {
        self.done(errno);
    }

    /// Enters the operation: until the result is dropped, operations that start on this thread are
    /// waits of this one.
    pub fn enter(&self) -> Inside {
        let slot_id = self.slot_id;
        let before = with_local(|local| local.current.replace(slot_id)).flatten();
        Inside { before, _thread: PhantomData }
    }

    /// Runs a future as the work of this operation: operations that it starts are waits of this
    /// one.
    pub async fn during<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            let _inside = self.enter();
            future.as_mut().poll(context)
        })
        .await
    }

    fn account(&self, local: &Local, ended_ns: u64) {
        let own = self.slot_id.and_then(|slot_id| local.block.slot(slot_id));
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
        if let Some(slot_id) = self.slot_id {
            local.free_slot(slot_id.index);
        }
    }
}

/// Counts an operation that has ended.
fn account(
    local: &Local,
    point: Point,
    ended: Ended,
    within: Option<SlotId>,
    (bytes, errno): (u64, i32),
) {
    let block = &local.block;
    block.cells(point).count(ended.ns, bytes, errno != 0);
    if let Some(outer) = within.and_then(|slot_id| block.slot(slot_id)) {
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

/// Counts an operation that ends now, if it costs too much to follow it while it runs. Errno 0 is
/// none.
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

/// A guard: while it lives, operations that start on this thread are waits of its operation.
#[derive(Debug)]
#[must_use = "the operation is left when this is dropped"]
pub struct Inside {
    before: Option<SlotId>,
    _thread: PhantomData<Rc<()>>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        with_local(|local| local.current.set(self.before));
    }
}
