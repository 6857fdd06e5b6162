//! One connection: a task that moves bytes between socket, queue pair and executor.
//!
//! One hand-written future polls everything. A turn takes all input (commands, completions of
//! devices, signals), then sends the resulting output with one vectored send. While a large data
//! PDU arrives, the rest of it is received directly into the command's buffer; the receive buffer
//! follows it and takes the bytes after the PDU.

mod admin;
mod arrival;
mod deadline;
mod door;
mod verbs;

pub(super) use arrival::Arrival;

use super::Registration;
use super::cores::Threads;
use super::execute::Executor;
use super::wire::Wire;
use crate::admission::{Lane, Lent, Refusal};
use crate::controller::Controller;
use crate::limits::{Limits, RECEIVE_BYTES, RECEIVE_BYTES_FIRST};
use crate::queue_pair::{Event, LARGE_TRANSFER_BYTES, QueuePair, QueuePairState};
use crate::signal;
use crate::target::{IoQueue, Target};
use admin::Connecting;
use door::{Door, Proving};
use reactor::time::{Instant, Sleep};
use reactor::{Buffer, Chunk, Segment, Segments, Sparse};
use std::future::poll_fn;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tls::Receiving;

/// Most bytes to receive into the buffer while large data is expected, so that little of it has to
/// be copied.
const RECEIVE_SMALL_BYTES: usize = 4 << 10;
/// Free space of the receive buffer below which its content is moved to its start. It exceeds the
/// longest PDU that is taken as a whole (a command with in-capsule data).
const RECEIVE_ROOM_BYTES: usize = 96 << 10;
/// Unsent bytes above which no further command is handled on a connection that is not an I/O queue
/// pair. Any peer can open such a connection, and its answers use no budget.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Time for the peer to receive a terminate request and to close the connection.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum rounds of a turn over RDMA: a host that completes and sends as fast as it is served must
/// not block the reactor.
const ROUNDS_MAX: u32 = 8;

/// Reason why the listener's reactor ends its part: the first command has arrived.
const LEAVES: &str = "it moves to its core";

/// Limits log lines that hosts can cause after the end of their admission.
static REFUSED: Sparse = Sparse::new();

/// Counts a refused command and returns the reason for ending the connection.
fn note_refused(target: &Target, queue: &IoQueue, refusal: Refusal) -> &'static str {
    if let Some(suppressed) = REFUSED.pass() {
        let host = queue.association().host();
        tracing::info!(%host, %refusal, suppressed, "a command is refused");
    }
    target.admissions().note_refused();
    "its host is no longer admitted"
}

/// The role of the connection.
enum Role {
    Unconnected,
    /// Connect has succeeded, but the host still has to prove itself.
    Proving(Box<Proving>),
    Admin(Box<Controller>, Lane),
    Io(Box<Executor>),
}

/// A send under way, and the memory that is free after it.
struct Sending {
    op: tls::Sending,
    bytes: usize,
    reserved_bytes: usize,
    started: Instant,
}

pub(super) struct Connection {
    target: Arc<Target>,
    limits: Limits,
    wire: Wire,
    registration: Registration,
    pair: QueuePair,
    role: Role,
    /// A Connect that waits for the end of the controllers that it replaces.
    connecting: Option<Connecting>,
    /// The proofs of a host that must prove itself.
    door: Option<Box<Door>>,
    /// The cores' threads, while the connection is on the listener's reactor.
    outside: Option<Rc<Threads>>,
    /// The receive buffer while no receive is under way. `unread` is the part that the queue pair
    /// has not used yet.
    buffer: Option<Buffer>,
    unread: std::ops::Range<usize>,
    receiving: Option<Receiving>,
    /// Bytes of the payload segment that precedes the receive buffer, 0 without one.
    payload_bytes: usize,
    sending: Option<Sending>,
    /// Over RDMA: bytes of data that were posted since no message was under way.
    posted_bytes: usize,
    /// The time since which the connection waits for data of commands without receiving any.
    data_since: Option<Instant>,
    /// Permits of the reads whose data is being sent.
    lent: Option<Lent>,
    spare: Vec<Chunk>,
    /// The timer and the time for which it is set.
    timer: Option<(Sleep, Instant)>,
    handshake_deadline: Instant,
    linger_deadline: Option<Instant>,
    now: Instant,
}

impl Connection {
    pub(super) fn new(
        target: &Arc<Target>,
        wire: impl Into<Wire>,
        registration: Registration,
    ) -> Self {
        let (limits, now) = (target.limits().clone(), reactor::time::now());
        Self {
            target: Arc::clone(target),
            pair: QueuePair::sharing(&limits, target.budget()),
            handshake_deadline: now + limits.handshake,
            limits,
            wire: wire.into(),
            registration,
            role: Role::Unconnected,
            connecting: None,
            door: None,
            outside: None,
            buffer: Some(Buffer::with_capacity(RECEIVE_BYTES_FIRST)),
            unread: 0..0,
            receiving: None,
            payload_bytes: 0,
            sending: None,
            posted_bytes: 0,
            data_since: None,
            lent: None,
            spare: Vec::new(),
            timer: None,
            linger_deadline: None,
            now,
        }
    }

    /// Serves the connection until it ends and nothing of it is in flight.
    pub(super) async fn run(mut self) {
        let reason = poll_fn(|cx| self.poll(cx)).await;
        if reason == LEAVES {
            return self.leave().await;
        }
        tracing::info!(peer = %self.wire.peer_addr(), reason, "a connection ends");
        self.close().await;
    }

    /// Ends the connection. The controller ends first, so that its other queue pairs end too.
    async fn close(mut self) {
        self.pair.clear();
        self.receiving = None;
        match &mut self.wire {
            Wire::Tcp(stream) => drop(stream.tcp().shutdown(Shutdown::Both).await),
            Wire::Rdma(endpoint) => verbs::end(endpoint),
        }
        if let Role::Admin(..) | Role::Proving(_) = self.role {
            self.role = Role::Unconnected;
        }
        if let (Some(mut sending), Wire::Tcp(stream)) = (self.sending.take(), &mut self.wire) {
            let _ = poll_fn(|cx| stream.poll_send(&mut sending.op, cx)).await;
        }
        self.lent = None;
        if let Role::Io(executor) = &mut self.role {
            poll_fn(|cx| executor.poll_drain(cx)).await;
        }
    }

    /// Runs one turn. Ready with the reason when the connection has to end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&'static str> {
        self.registration.signal.register(cx.waker());
        self.now = reactor::time::now();
        if let Err(reason) = self.look_at_signals().and_then(|()| self.check_time(cx)) {
            return Poll::Ready(reason);
        }
        if let Role::Io(executor) = &mut self.role {
            executor.pace().begin();
            executor.refresh();
            executor.poll(&mut self.pair, cx);
        }
        let mut rounds = 0;
        loop {
            if rounds == ROUNDS_MAX && matches!(self.wire, Wire::Rdma(_)) {
                reactor::wake_after_others(cx.waker());
                break;
            }
            rounds += 1;
            let turn = self.poll_send(cx).and_then(|is_sent| {
                let is_received = self.poll_receive(cx)?;
                let is_handled = self.handle_events(cx)?;
                let is_connected = self.poll_connecting(cx) | self.poll_door(cx);
                let is_started = self.start_send()?;
                Ok(is_sent || is_received || is_handled || is_connected || is_started)
            });
            match turn {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => return Poll::Ready(reason),
            }
        }
        if let Role::Io(executor) = &self.role {
            executor.pace().end(cx.waker());
        }
        if self.pair.awaits_budget() {
            self.target.budget().wait(cx.waker());
            // Memory may have become free just before.
            if self.pair.retry_memory() {
                reactor::wake_after_others(cx.waker());
            }
        }
        // Newly started work may have a deadline.
        match self.check_time(cx) {
            Ok(()) => {
                // A limited command became due since the check in this turn.
                if let Role::Io(executor) = &self.role
                    && executor.has_due(self.now)
                {
                    reactor::wake_after_others(cx.waker());
                }
                Poll::Pending
            }
            Err(reason) => Poll::Ready(reason),
        }
    }

    fn look_at_signals(&mut self) -> Result<(), &'static str> {
        let signal = &self.registration.signal;
        if signal.is_raised(signal::CLOSE) {
            return Err("its admission, controller or target has ended");
        }
        if signal.take(signal::EVENT) != 0 {
            if let Role::Io(executor) = &mut self.role {
                executor.take_tickets(&mut self.pair);
            }
            self.poll_event();
        }
        Ok(())
    }

    fn poll_event(&mut self) {
        if let Role::Admin(controller, _) = &mut self.role {
            while let Some(event) = controller.poll_event() {
                self.pair.complete(event.tag, event.status, event.result);
            }
        }
    }

    /// Polls a send under way. Returns true if it has ended.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        let (Some(sending), Wire::Tcp(stream)) = (&mut self.sending, &mut self.wire) else {
            return Ok(false);
        };
        let Poll::Ready((result, spare)) = stream.poll_send(&mut sending.op, cx) else {
            return Ok(false);
        };
        let reserved_bytes = sending.reserved_bytes;
        self.sending = None;
        self.spare = spare;
        if let Some(lent) = &mut self.lent {
            lent.give_back();
        }
        result.map_err(|_| "sending failed")?;
        self.pair.release(reserved_bytes);
        Ok(true)
    }

    /// Returns the number of bytes that wait to be sent or are being sent.
    fn unsent_bytes(&self) -> usize {
        let being_sent = match &self.wire {
            Wire::Tcp(_) => self.sending.as_ref().map_or(0, |sending| sending.bytes),
            Wire::Rdma(_) => self.posted_bytes,
        };
        self.pair.output_bytes() + being_sent
    }

    /// Sends all output if no send is under way. Returns true if it has started a send.
    fn start_send(&mut self) -> Result<bool, &'static str> {
        if matches!(self.wire, Wire::Rdma(_)) {
            return self.post_work();
        }
        if self.sending.is_some() {
            return Ok(false);
        }
        let bytes = self.pair.output_bytes();
        let Some((chunks, reserved_bytes)) = self.pair.take_output(std::mem::take(&mut self.spare))
        else {
            return Ok(self.linger());
        };
        if let Role::Io(executor) = &mut self.role {
            executor.flush_tallies();
            if let Some(lent) = &mut self.lent {
                executor.take_lent(lent);
            }
        }
        let Wire::Tcp(stream) = &self.wire else { return Ok(false) };
        let op = stream.send(chunks);
        self.sending = Some(Sending { op, bytes, reserved_bytes, started: self.now });
        Ok(true)
    }

    /// Gives the peer time to receive a terminate request before the socket closes.
    fn linger(&mut self) -> bool {
        let is_over = self.pair.state() == QueuePairState::Terminating;
        if !is_over || self.linger_deadline.is_some() {
            return false;
        }
        let Wire::Tcp(stream) = &self.wire else { return false };
        self.linger_deadline = Some(self.now + LINGER);
        let stream = stream.tcp().clone();
        reactor::spawn(async move { stream.shutdown(Shutdown::Write).await });
        true
    }

    /// Receives, unless too much output is waiting. Returns true if something arrived.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        if matches!(self.wire, Wire::Rdma(_)) {
            return self.poll_verbs(cx);
        }
        if self.receiving.is_none() {
            if self.pair.output_bytes() > self.limits.output_bytes_max {
                return Ok(false);
            }
            self.start_receive();
        }
        let (Some(op), Wire::Tcp(stream)) = (&mut self.receiving, &mut self.wire) else {
            return Ok(false);
        };
        let Poll::Ready((result, segments)) = stream.poll_receive(op, cx) else {
            return Ok(false);
        };
        self.receiving = None;
        let bytes = result.map_err(|error| self.receive_failed(&error))?;
        let mut segments = segments.into_iter();
        let in_payload = bytes.min(self.payload_bytes);
        if self.payload_bytes > 0 {
            if let Some(buffer) = segments.next().and_then(Segment::into_buffer) {
                self.pair.put_payload(buffer, in_payload);
            }
            self.payload_bytes = 0;
        }
        self.buffer = segments.next().and_then(Segment::into_buffer);
        if bytes == 0 {
            return Err("the peer closed it");
        }
        self.unread.end += bytes - in_payload;
        self.feed();
        Ok(true)
    }

    fn start_receive(&mut self) {
        let Some(mut buffer) = self.buffer.take() else { return };
        if self.unread.is_empty() {
            self.unread = 0..0;
            if matches!(self.role, Role::Io(_)) && buffer.capacity() < RECEIVE_BYTES {
                buffer = Buffer::with_capacity(RECEIVE_BYTES);
            }
        } else if buffer.capacity() - self.unread.end < RECEIVE_ROOM_BYTES {
            buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let start = self.unread.end;
        let mut end = buffer.capacity();
        let mut segments = Segments::new();
        if self.unread.is_empty()
            && let Some((payload, range)) = self.pair.take_payload(LARGE_TRANSFER_BYTES)
        {
            self.payload_bytes = range.len();
            segments.push(Segment::Buffer(payload, range));
        }
        if self.pair.awaits_large_data() {
            end = end.min(start + RECEIVE_SMALL_BYTES);
        }
        segments.push(Segment::Buffer(buffer, start..end));
        let Wire::Tcp(stream) = &self.wire else { return };
        self.receiving = Some(stream.receive(segments));
    }

    /// Passes the received bytes to the queue pair.
    fn feed(&mut self) {
        if let Some(buffer) = &self.buffer {
            let used = self.pair.receive(&buffer[self.unread.clone()]);
            self.unread.start += used;
        }
    }

    /// Handles all events of the queue pair. Returns whether there were any.
    fn handle_events(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        if self.pair.state() == QueuePairState::Terminated {
            return Err("the peer terminated it");
        }
        if self.outside.is_some() && self.pair.has_event() {
            return Err(LEAVES);
        }
        let now = self.target.admissions().now();
        let may_go_on = self.may_go_on();
        let mut is_any = match &mut self.role {
            Role::Io(executor) if may_go_on => {
                let handled = executor.handle_limited(&mut self.pair, now, cx);
                handled.map_err(|it| note_refused(&self.target, executor.queue(), it))?
            }
            _ => false,
        };
        loop {
            // The remaining events wait for the next turn.
            if let Role::Io(executor) = &self.role
                && self.pair.has_events()
                && !executor.pace().has_room()
            {
                break;
            }
            // They wait until the host has received more.
            if !matches!(self.role, Role::Io(_)) && self.unsent_bytes() > ANSWER_BYTES_MAX {
                break;
            }
            let Some(event) = self.pair.next_event() else { break };
            is_any = true;
            if matches!(event, Event::Data(_)) {
                self.data_since = None;
            }
            let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
            let is_for_door = self.is_for_door(self.pair.command(tag));
            if is_for_door && let Role::Io(executor) = &mut self.role {
                executor.drop_half(&mut self.pair);
            }
            match &mut self.role {
                Role::Io(executor) if !is_for_door => {
                    let handled = executor.handle(event, &mut self.pair, now, cx);
                    let refused = |refusal| note_refused(&self.target, executor.queue(), refusal);
                    handled.map_err(refused)?;
                }
                _ => self.handle_admin(event)?,
            }
        }
        if self.pair.awaiting_data() == 0 {
            self.data_since = None;
        } else if self.data_since.is_none() {
            self.data_since = Some(self.now);
        }
        if is_any {
            match &self.role {
                Role::Io(executor) => executor.queue().association().note_traffic(),
                Role::Admin(..) => self.poll_event(),
                Role::Unconnected | Role::Proving(_) => {}
            }
        }
        Ok(is_any)
    }
}
