//! Executes the commands of an I/O queue pair on the namespaces' devices.
//!
//! A command of a memory namespace ends at once and allocates nothing. Other commands are kept here
//! until their device completes them. They are polled when the connection's task runs, so that one
//! loop turn handles all its completions together. [`Pace`] bounds the bytes that a connection's
//! commands move in one turn, so that neither kind takes too much of the thread's time. A running
//! command is never dropped before its device has completed it, because a fence relies on its
//! permit.

use super::io_command::{Extent, IoCommand, is_broadcast_flush, ranges};
use super::limit::Limited;
use super::pace::{COMMAND_BYTES, Pace};
use super::reserve::report;
use super::work::{Long, Outcome, Pending, Work, compare, status_of, then_flush};
use crate::admission::{Lane, Lent, Moment, Refusal};
use crate::controller::check_in_capsule;
use crate::counts::{Counter, Origin, Tally};
use crate::limits::Limits;
use crate::namespace::Namespace;
use crate::queue_pair::{Event, QueuePair, Tag};
use crate::reservation::Guard;
use crate::target::{IoQueue, Target};
use block::{Device, DiscardEffect, IoFuture};
use nvme::command::DsmRange;
use nvme::{Nsid, Status, SubmissionQueueEntry};
use reactor::time::Instant;
use reactor::{Buffer, Chunk};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Index for a command on all namespaces.
pub(super) const ALL: usize = usize::MAX;
/// Index for "no namespace".
const NONE: usize = usize::MAX;

/// A namespace as this queue pair uses it.
pub(super) struct Open {
    pub(super) namespace: Arc<Namespace>,
    device: Rc<dyn Device>,
    /// Whether the device was seen to work outside this thread.
    is_elsewhere: Rc<Cell<bool>>,
    /// This thread's counter of the namespace.
    counter: Counter,
    /// Numbers that are not added to the counter yet.
    tally: Tally,
    /// Whether the subsystem still has the namespace.
    pub(super) is_active: bool,
    /// The rights of the queue pair's host, if hosts can reserve the namespace.
    pub(super) guard: Option<Guard>,
}

impl Open {
    fn new(namespace: &Arc<Namespace>, queue: &IoQueue) -> Self {
        let device = namespace.backing().attach();
        let reservations = namespace.reservations();
        let host = queue.association().host();
        let guard = reservations.map(|it| Guard::new(it, host, queue.signal()));
        let counter = namespace.counter();
        let (namespace, tally) = (Arc::clone(namespace), Tally::default());
        Self {
            namespace,
            device,
            is_elsewhere: Rc::default(),
            counter,
            tally,
            is_active: true,
            guard,
        }
    }
}

/// The link from an I/O queue pair to the devices.
pub(super) struct Executor {
    pub(super) target: Arc<Target>,
    pub(super) queue: IoQueue,
    lane: Lane,
    limits: Limits,
    /// The subsystem's namespaces as of `generation`, and removed namespaces on which commands
    /// still run. A new namespace may reuse the entry of a closed one.
    pub(super) open: Vec<Option<Open>>,
    /// Whether some of `open` wait for the end of their last command.
    has_inactive: bool,
    /// The index in `open` of each active namespace, by identifier; [`NONE`] without one. There are
    /// at most 1024 identifiers.
    by_nsid: Vec<usize>,
    /// The indices in `open` whose tally is not empty.
    touched: Vec<usize>,
    generation: u64,
    pub(super) pending: Vec<Pending>,
    /// Commands that wait because of a namespace's limits, by the time at which they may continue
    /// and the order of their arrival.
    pub(super) limited: BTreeMap<(Instant, u64), Limited>,
    /// Number of commands that had to wait.
    pub(super) limited_count: u64,
    /// Permits of reads whose bytes are taken from a namespace's memory when they are sent.
    lent: Lent,
    /// The remaining work of this turn.
    pace: Rc<Pace>,
}

impl Executor {
    pub(super) fn new(target: &Arc<Target>, queue: IoQueue, lane: Lane) -> Self {
        let lent = lane.lend();
        let mut executor = Self {
            target: Arc::clone(target),
            queue,
            lane,
            limits: target.limits().clone(),
            open: Vec::new(),
            has_inactive: false,
            by_nsid: Vec::new(),
            touched: Vec::new(),
            generation: 0,
            pending: Vec::new(),
            limited: BTreeMap::new(),
            limited_count: 0,
            lent,
            pace: Rc::default(),
        };
        executor.reopen();
        executor
    }

    /// Returns an empty collection for the permits of reads whose data is being sent.
    pub(super) fn lend(&self) -> Lent {
        self.lane.lend()
    }

    /// Moves the permits of all reads in the output to `sending`.
    pub(super) fn take_lent(&mut self, sending: &mut Lent) {
        sending.append(&mut self.lent);
    }

    /// Returns the bound on the work of this turn.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    pub(super) fn queue(&self) -> &IoQueue {
        &self.queue
    }

    /// Follows changes of the subsystem's namespaces.
    pub(super) fn refresh(&mut self) {
        if self.queue.association().subsystem().generation() != self.generation {
            self.reopen();
        }
    }

    fn reopen(&mut self) {
        let subsystem = self.queue.association().subsystem();
        self.generation = subsystem.generation();
        let namespaces = self.queue.association().namespaces();
        // Indices of commands in flight must stay valid.
        let mut known: BTreeMap<*const Namespace, usize> = BTreeMap::new();
        for (index, open) in self.open.iter_mut().enumerate() {
            if let Some(open) = open {
                open.is_active = false;
                known.insert(Arc::as_ptr(&open.namespace), index);
            }
        }
        self.by_nsid.fill(NONE);
        for namespace in namespaces {
            let index = known.get(&Arc::as_ptr(&namespace)).copied();
            let index = index.unwrap_or_else(|| self.add(Open::new(&namespace, &self.queue)));
            if let Some(open) = &mut self.open[index] {
                open.is_active = true;
            }
            let nsid = namespace.nsid().get() as usize;
            if self.by_nsid.len() <= nsid {
                self.by_nsid.resize(nsid + 1, NONE);
            }
            self.by_nsid[nsid] = index;
        }
        self.close_unused();
    }

    /// Puts a namespace into a free entry and returns its index.
    fn add(&mut self, open: Open) -> usize {
        if let Some(index) = self.open.iter().position(Option::is_none) {
            self.open[index] = Some(open);
            return index;
        }
        self.open.push(Some(open));
        self.open.len() - 1
    }

    /// Closes the devices of removed namespaces on which no command runs any more.
    fn close_unused(&mut self) {
        self.flush_tallies();
        self.has_inactive = false;
        for index in 0..self.open.len() {
            if self.open[index].as_ref().is_none_or(|open| open.is_active) {
                continue;
            }
            let is_used = self.pending.iter().any(|pending| pending.open == index);
            if is_used {
                self.has_inactive = true;
            } else {
                self.open[index] = None;
            }
        }
    }

    /// Returns the namespaces that are not removed.
    fn active(&self) -> impl Iterator<Item = &Open> {
        self.open.iter().flatten().filter(|open| open.is_active)
    }

    pub(super) fn find(&self, nsid: Nsid) -> Result<usize, Status> {
        match usize::try_from(nsid.get()).ok().and_then(|nsid| self.by_nsid.get(nsid)) {
            Some(&index) if index != NONE => Ok(index),
            _ => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// Adds a command to a namespace's tally.
    fn note(&mut self, index: usize, note: impl FnOnce(&mut Tally)) {
        let Some(Some(open)) = self.open.get_mut(index) else { return };
        if open.tally == Tally::default() {
            self.touched.push(index);
        }
        note(&mut open.tally);
    }

    fn decode(&self, sqe: &SubmissionQueueEntry) -> Result<(usize, IoCommand), Status> {
        IoCommand::check_opcode(sqe)?;
        let subsystem = self.queue.association().subsystem();
        if is_broadcast_flush(sqe) {
            subsystem.check_access(self.active().map(|open| &open.namespace))?;
            return Ok((ALL, IoCommand::Flush));
        }
        let index = self.find(sqe.namespace_id())?;
        let Some(open) = &self.open[index] else { return Err(Status::INVALID_NAMESPACE) };
        subsystem.check_access([&open.namespace])?;
        let command = IoCommand::new(sqe, &open.namespace, &self.limits)?;
        Ok((index, command))
    }

    /// Handles an event of a command. Fails if the host is no longer admitted; the connection must
    /// end then.
    pub(super) fn handle(
        &mut self,
        event: Event,
        pair: &mut QueuePair,
        now: Moment,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        self.handle_as(event, matches!(event, Event::Command(_)), pair, (now, cx))
    }

    /// Handles an event as [`Self::handle`] does. `is_limited`: the limits of its namespace still
    /// have to be checked.
    pub(super) fn handle_as(
        &mut self,
        event: Event,
        is_limited: bool,
        pair: &mut QueuePair,
        (now, cx): (Moment, &mut Context<'_>),
    ) -> Result<(), Refusal> {
        let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
        let sqe = *pair.command(tag);
        let decoded = match event {
            Event::Command(_) => self
                .decode(&sqe)
                .and_then(|decoded| check_in_capsule(&sqe, pair.data(tag).len()).map(|()| decoded)),
            Event::Reserved(_) | Event::Data(_) => self.decode(&sqe),
        };
        let allowed = decoded.and_then(|(open, command)| {
            self.check_same_namespace(open, tag, pair)?;
            self.check_rights(open, &command, pair).map(|()| (open, command))
        });
        let is_aborted = pair.is_aborted(tag);
        let (open, command) = match allowed {
            _ if is_aborted => {
                self.fail(pair, tag, &sqe, Status::ABORTED_PREEMPT.do_not_retry());
                return Ok(());
            }
            Ok(allowed) => allowed,
            Err(status) => {
                // Another path may be open: then the host can repeat the command there.
                let status = if status.is_path_error() { status } else { status.do_not_retry() };
                self.fail(pair, tag, &sqe, status);
                return Ok(());
            }
        };
        if is_limited && self.limit(open, &command, tag) {
            return Ok(());
        }
        let has_all = pair.has_data(tag) || command.data_bytes_in() == 0;
        let is_new = matches!(event, Event::Command(_));
        let needs_memory = is_new && (!has_all || command.returns_data());
        if needs_memory && !pair.reserve(tag, command.buffer_bytes()) {
            return Ok(());
        }
        if !has_all {
            pair.request_data(tag, command.data_bytes_in());
            return Ok(());
        }
        if pair.is_damaged(tag) {
            self.fail(pair, tag, &sqe, Status::TRANSIENT_TRANSPORT_ERROR);
            return Ok(());
        }
        self.execute(pair, (tag, open, command), now, cx)
    }

    fn execute(
        &mut self,
        pair: &mut QueuePair,
        (tag, open, command): (Tag, usize, IoCommand),
        now: Moment,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let permit = match self.lane.enter(now) {
            Ok(permit) => permit,
            Err(refusal) => {
                self.note(open, |tally| tally.refused += 1);
                return Err(refusal);
            }
        };
        let data = pair.take_data(tag);
        let work = self.start(open, command, data);
        let tickets = Vec::new();
        let mut pending = Pending { tag, permit, open, command, work, started: now, tickets };
        self.pace.spend(COMMAND_BYTES);
        match pending.poll(cx) {
            Poll::Ready(outcome) => {
                // The device has worked on this thread.
                self.pace.spend(pending.command.buffer_bytes() as u64);
                self.finish(pair, pending, outcome);
            }
            Poll::Pending => self.pending.push(pending),
        }
        Ok(())
    }

    fn start(&self, open: usize, command: IoCommand, data: Option<Buffer>) -> Work {
        let Some(Some(open)) = self.open.get(open) else {
            return self.flush_all();
        };
        let Open { device, namespace, .. } = open;
        let has_cache = namespace.has_write_cache();
        match command {
            IoCommand::Read(extent) => {
                Work::Read(device.read(extent.offset, extent.bytes as usize))
            }
            IoCommand::Write { extent, is_fua } => {
                let chunk = Chunk::from(data.unwrap_or_else(|| Buffer::with_capacity(0)));
                let write = device.write(extent.offset, chunk);
                if is_fua && has_cache { then_flush(write, device) } else { Work::Write(write) }
            }
            IoCommand::WriteZeroes { extent, is_fua, is_deallocate } => {
                let can_discard = device.geometry().discard == DiscardEffect::Zeroes;
                let kind = if is_deallocate && can_discard { Long::Discard } else { Long::Zero };
                self.long(open, kind, vec![extent], is_fua && has_cache)
            }
            IoCommand::Compare(extent) => compare(device, extent, data),
            IoCommand::Manage { is_deallocate: false, .. } => Work::Write(IoFuture::ready(Ok(()))),
            IoCommand::Manage { list_bytes, .. } => {
                let list = data.as_deref().unwrap_or_default();
                let list = &list[..list.len().min(list_bytes as usize)];
                match ranges(namespace, DsmRange::list(list), &self.limits) {
                    Ok(extents) => self.long(open, Long::Discard, extents, false),
                    Err(status) => Work::Steps(Box::pin(async move { Err(status.do_not_retry()) })),
                }
            }
            IoCommand::Flush if reactor::mutant!("target-flush-noop") => {
                Work::Write(IoFuture::ready(Ok(())))
            }
            IoCommand::Flush => Work::Write(device.flush()),
            IoCommand::Reserve(reserve) => self.reserve(namespace, reserve, data.as_deref()),
            IoCommand::Report { bytes } => report(namespace, bytes),
        }
    }

    /// Deallocates or clears ranges, in steps between which other connections get their turns.
    fn long(&self, open: &Open, kind: Long, extents: Vec<Extent>, is_flushed: bool) -> Work {
        let (pace, device) = (Rc::clone(&self.pace), Rc::clone(&open.device));
        let is_elsewhere = Rc::clone(&open.is_elsewhere);
        Work::Steps(Box::pin(async move {
            for Extent { offset, bytes } in extents {
                let step = |offset, bytes| match kind {
                    Long::Discard => device.discard(offset, bytes),
                    Long::Zero => device.write_zeroes(offset, bytes),
                };
                pace.in_steps(offset, bytes, &is_elsewhere, step).await?;
            }
            if is_flushed {
                device.flush().await.map_err(|error| status_of(&error))?;
            }
            Ok(())
        }))
    }

    /// Flushes all namespaces. Fails if one of the flushes fails.
    fn flush_all(&self) -> Work {
        // Includes removed namespaces: their caches may hold writes from before this flush.
        let open = self.open.iter().flatten();
        let flushes: Vec<IoFuture<()>> = open.map(|open| open.device.flush()).collect();
        Work::Write(IoFuture::boxed(async move {
            let mut result = Ok(());
            for flush in flushes {
                result = result.and(flush.await);
            }
            result
        }))
    }

    /// Polls all commands that devices work on. Returns true if one has ended.
    pub(super) fn poll(&mut self, pair: &mut QueuePair, cx: &mut Context<'_>) -> bool {
        let mut index = 0;
        let before = self.pending.len();
        while index < self.pending.len() && self.pace.has_room() {
            match self.pending[index].poll(cx) {
                Poll::Ready(outcome) => {
                    let pending = self.pending.swap_remove(index);
                    // The response may need a digest.
                    self.pace.spend(COMMAND_BYTES + pending.command.buffer_bytes() as u64 / 4);
                    self.finish(pair, pending, outcome);
                }
                Poll::Pending => index += 1,
            }
        }
        if self.pace.is_short() && index > 0 && self.pending.len() > 1 {
            // The next turn starts with another command.
            let first = if index < self.pending.len() { index } else { 1 };
            self.pending.rotate_left(first);
        }
        let has_ended = before != self.pending.len();
        if has_ended && self.has_inactive {
            self.close_unused();
        }
        has_ended
    }

    /// Polls all commands without responses to the host, because the connection is over.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.pace.stop();
        self.drop_limited();
        self.pending.retain_mut(|pending| pending.poll(cx).is_pending());
        if self.pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn finish(&mut self, pair: &mut QueuePair, pending: Pending, outcome: Outcome) {
        let Pending { tag, permit, open, command, started, tickets, .. } = pending;
        let outcome = if tickets.is_empty() {
            outcome
        } else {
            Outcome::Failed(Status::ABORTED_PREEMPT.do_not_retry())
        };
        let known = self.open.get(open).and_then(Option::as_ref);
        let nsid = known.map_or(0, |open| u64::from(open.namespace.nsid().get()));
        command.count(nsid, started, matches!(outcome, Outcome::Failed(_)));
        let all = if open == ALL { 0..self.open.len() } else { open..open + 1 };
        for index in all {
            self.note(index, |tally| tally.note(&command, &outcome));
        }
        match outcome {
            Outcome::Data(chunk) => {
                if matches!(chunk, Chunk::Region(_)) {
                    self.lent.add(permit);
                }
                pair.complete_read(tag, chunk, 0);
            }
            Outcome::Done => pair.complete(tag, Status::SUCCESS, 0),
            Outcome::Failed(status) => {
                let sqe = *pair.command(tag);
                self.fail(pair, tag, &sqe, status);
            }
        }
    }

    fn fail(&mut self, pair: &mut QueuePair, tag: Tag, sqe: &SubmissionQueueEntry, status: Status) {
        let lba = u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32);
        self.queue.association().note_error(self.queue.qid(), sqe, status, lba);
        pair.complete(tag, status, 0);
    }

    /// Adds the tallies to the namespaces' counters.
    pub(super) fn flush_tallies(&mut self) {
        for index in self.touched.drain(..) {
            if let Some(Open { counter, tally, .. }) = &mut self.open[index] {
                counter.add(&std::mem::take(tally), Origin::Remote);
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.drop_limited();
        self.flush_tallies();
    }
}
