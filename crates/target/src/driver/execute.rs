//! Executes the commands of an I/O queue pair on the namespaces' devices.
//!
//! A command of a memory namespace ends at once and allocates nothing. Other commands are kept here
//! until their device completes them. They are polled when the connection's task runs, so that one
//! loop turn handles all its completions together. [`Pace`] bounds the bytes that a connection's
//! commands move in one turn, so that neither kind takes too much of the thread's time. A running
//! command is never dropped before its device has completed it, because a fence relies on its
//! permit.

use super::fused::{FusedPair, Sorted};
use super::io_command::{IoCommand, is_broadcast_flush};
use super::limit::Limited;
use super::pace::{COMMAND_BYTES, Pace};
use super::work::{Outcome, Pending};
use crate::admission::{Lane, Lent, Moment, Permit, Refusal};
use crate::controller::check_in_capsule;
use crate::counts::{Counter, Origin, Tally};
use crate::exclusion::Writer;
use crate::limits::Limits;
use crate::namespace::Namespace;
use crate::queue_pair::{Event, QueuePair, Tag};
use crate::reservation::Guard;
use crate::target::{IoQueue, Target};
use block::Device;
use nvme::{Nsid, Status, SubmissionQueueEntry};
use reactor::Chunk;
use reactor::time::Instant;
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
    pub(super) device: Rc<dyn Device>,
    /// Counts this queue pair's writes.
    pub(super) writer: Writer,
    /// Whether the device was seen to work outside this thread.
    pub(super) is_elsewhere: Rc<Cell<bool>>,
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
        let writer = Writer::new(namespace.exclusion());
        let (namespace, tally) = (Arc::clone(namespace), Tally::default());
        Self {
            namespace,
            device,
            writer,
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
    pub(super) limits: Limits,
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
    /// The first command of a fused pair whose second has not arrived.
    pub(super) half: Option<Tag>,
    /// The fused pairs that do not run yet.
    pub(super) pairs: Vec<FusedPair>,
    /// Permits of reads whose bytes are taken from a namespace's memory when they are sent.
    lent: Lent,
    /// The remaining work of this turn.
    pub(super) pace: Rc<Pace>,
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
            half: None,
            pairs: Vec::new(),
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

    pub(super) fn decode(&self, sqe: &SubmissionQueueEntry) -> Result<(usize, IoCommand), Status> {
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
        match self.sort_fused(event, pair) {
            Sorted::Done => Ok(()),
            Sorted::Single => self.handle_as(event, true, pair, (now, cx)),
        }
    }

    /// Handles an event as [`Self::handle`] does, of a command or a fused pair. `is_limited`: the
    /// limits of its namespace may still have to be checked.
    pub(super) fn handle_as(
        &mut self,
        event: Event,
        is_limited: bool,
        pair: &mut QueuePair,
        (now, cx): (Moment, &mut Context<'_>),
    ) -> Result<(), Refusal> {
        let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
        if !self.pairs.is_empty()
            && let Some(index) = self.pairs.iter().position(|it| it.has(tag))
        {
            return self.handle_pair(index, event, is_limited, pair, (now, cx));
        }
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
        let has_all = pair.has_data(tag) || command.data_bytes_in() == 0;
        if is_limited
            && let Some(bytes) = self.cost(open, &command, event, pair.data(tag), has_all)
            && self.limit(open, bytes, event)
        {
            return Ok(());
        }
        let is_new = matches!(event, Event::Command(_));
        let needs_memory = is_new && (!has_all || command.needs_buffer());
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
        let permit = self.enter(open, now)?;
        let data = pair.take_data(tag);
        let (work, counted) = self.start(open, command, data);
        let (first, tickets, started) = (None, Vec::new(), now);
        let pending =
            Pending { tag, first, permit, open, command, work, counted, started, tickets };
        self.execute(pair, pending, cx);
        Ok(())
    }

    /// Counts a command in, if its host is still admitted.
    pub(super) fn enter(&mut self, open: usize, now: Moment) -> Result<Permit, Refusal> {
        let permit = self.lane.enter(now);
        if permit.is_err() {
            self.note(open, |tally| tally.refused += 1);
        }
        permit
    }

    pub(super) fn execute(
        &mut self,
        pair: &mut QueuePair,
        mut pending: Pending,
        cx: &mut Context<'_>,
    ) {
        self.pace.spend(COMMAND_BYTES);
        match pending.poll(cx) {
            Poll::Ready(outcome) => {
                // The device has worked on this thread.
                self.pace.spend(pending.command.buffer_bytes() as u64);
                self.finish(pair, pending, outcome);
            }
            Poll::Pending => self.pending.push(pending),
        }
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
        let Pending { tag, first, permit, open, command, started, tickets, counted, work } =
            pending;
        // A Compare and Write that waits for this command may begin.
        drop((work, counted));
        let outcome = if tickets.is_empty() {
            outcome
        } else {
            Outcome::Failed(Status::ABORTED_PREEMPT.do_not_retry())
        };
        let known = self.open.get(open).and_then(Option::as_ref);
        let nsid = known.map_or(0, |open| u64::from(open.namespace.nsid().get()));
        let has_failed = matches!(outcome, Outcome::Failed(_) | Outcome::FailedSecond(_));
        command.count(nsid, started, has_failed);
        let all = if open == ALL { 0..self.open.len() } else { open..open + 1 };
        for index in all {
            self.note(index, |tally| tally.note(&command, &outcome));
        }
        if let Some(first) = first {
            return self.finish_pair(pair, (first, tag), &outcome);
        }
        match outcome {
            Outcome::Data(chunk) => {
                if matches!(chunk, Chunk::Region(_)) {
                    self.lent.add(permit);
                }
                pair.complete_read(tag, chunk, 0);
            }
            Outcome::Done => pair.complete(tag, Status::SUCCESS, 0),
            Outcome::Failed(status) | Outcome::FailedSecond(status) => {
                let sqe = *pair.command(tag);
                self.fail(pair, tag, &sqe, status);
            }
        }
    }

    pub(super) fn fail(
        &mut self,
        pair: &mut QueuePair,
        tag: Tag,
        sqe: &SubmissionQueueEntry,
        status: Status,
    ) {
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
