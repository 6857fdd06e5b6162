//! One connection: a task that moves bytes between socket, queue pair and executors.
//!
//! Everything is polled by one hand-written future. A turn takes all that has come (commands,
//! answers of devices, signals), then sends what that made with one vectored send. While a data PDU
//! of some size is coming in, its rest is received straight into the command's buffer, with the
//! receive buffer behind it for what follows.

mod admin;
mod arrival;
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
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tls::Receiving;

/// What is received at most while large data is awaited, so that little of it has to be copied.
const RECEIVE_SMALL_BYTES: usize = 4 << 10;
/// Room that must be left in the receive buffer before it is tidied up: more than the longest PDU
/// that is taken as a whole (a command with in-capsule data).
const RECEIVE_ROOM_BYTES: usize = 96 << 10;
/// Time for the peer to take a terminate request and close.
const LINGER: Duration = Duration::from_secs(1);
/// Rounds of a turn over RDMA: a host that completes and sends as fast as it is served must not keep the reactor.
const ROUNDS_MAX: u32 = 8;

/// Why the listener's reactor has done its part: the first command is there.
const LEAVES: &str = "it moves to its core";

/// Lines that hosts can cause that are not admitted any more.
static REFUSED: Sparse = Sparse::new();

/// Counts a command that was refused, and returns why the connection ends.
fn note_refused(target: &Target, queue: &IoQueue, refusal: Refusal) -> &'static str {
    if let Some(suppressed) = REFUSED.pass() {
        let host = queue.association().host();
        tracing::info!(%host, %refusal, suppressed, "a command is refused");
    }
    target.admissions().note_refused();
    "its host is not admitted any more"
}

/// What the connection is.
enum Role {
    Unconnected,
    /// Connect has succeeded; the host has to prove itself.
    Proving(Box<Proving>),
    Admin(Box<Controller>, Lane),
    Io(Box<Executor>),
}

/// A send under way, and what is free when it ends.
struct Sending {
    op: tls::Sending,
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
    /// The proofs of a host that has to prove itself.
    door: Option<Box<Door>>,
    /// The candidate threads for serving it, while it is on the listener's reactor.
    outside: Option<Rc<Threads>>,
    /// The receive buffer while no receive is under way; `unread` is what the queue pair has not
    /// used.
    buffer: Option<Buffer>,
    unread: std::ops::Range<usize>,
    receiving: Option<Receiving>,
    /// Bytes of the payload segment that precedes the receive buffer, 0 without one.
    payload_bytes: usize,
    sending: Option<Sending>,
    /// Since when the connection waits for data of commands without receiving any.
    data_since: Option<Instant>,
    /// Permits of the reads that are being sent.
    lent: Option<Lent>,
    spare: Vec<Chunk>,
    /// The timer, and until when it is armed.
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

    /// Ends the connection: first the controller, so that its other queue pairs end too.
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

    /// One turn; ready with the reason when the connection has to end.
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
            // Some may have become free just before.
            if self.pair.retry_memory() {
                reactor::wake_after_others(cx.waker());
            }
        }
        // What was begun may have a deadline.
        match self.check_time(cx) {
            Ok(()) => {
                // It came due since the last look in this turn.
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

    /// Looks whether a deadline has passed and arms the timer for the next.
    fn check_time(&mut self, cx: &mut Context<'_>) -> Result<(), &'static str> {
        loop {
            let deadline = self.next_deadline()?;
            let Some(deadline) = deadline else {
                self.timer = None;
                return Ok(());
            };
            match &mut self.timer {
                // An earlier wake-up than needed only looks again; so nothing is done per command.
                Some((_, armed)) if *armed <= deadline && *armed > self.now => return Ok(()),
                Some((sleep, armed)) => {
                    sleep.reset(deadline);
                    *armed = deadline;
                }
                None => self.timer = Some((reactor::time::sleep_until(deadline), deadline)),
            }
            if let Some((sleep, _)) = &mut self.timer
                && Pin::new(sleep).poll(cx).is_pending()
            {
                return Ok(());
            }
            self.now = reactor::time::now();
        }
    }

    /// The earliest of the deadlines; fails if one has passed.
    fn next_deadline(&mut self) -> Result<Option<Instant>, &'static str> {
        let mut earliest: Option<Instant> = None;
        let mut note = |deadline: Instant| {
            earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        };
        if let Some(deadline) = self.linger_deadline {
            if self.now >= deadline {
                return Err("the peer did not close after a terminate request");
            }
            note(deadline);
        }
        let (limits, budget) = (&self.limits, self.target.budget());
        for (since, reason) in [
            (self.sending_since(), "the peer does not take what is sent"),
            (self.data_since, "the peer does not send the data that it announced"),
        ] {
            let Some(since) = since else { continue };
            let is_short = self.pair.reserved_bytes() > 0 && budget.is_short();
            let deadline = since + if is_short { limits.send_when_short } else { limits.send };
            if self.now >= deadline {
                return Err(reason);
            }
            // Memory may become short meanwhile.
            note(deadline.min(self.now + limits.send_when_short));
        }
        if let Some(deadline) = self.door.as_ref().and_then(|door| door.deadline()) {
            if self.now >= deadline {
                return Err("its host did not prove itself in time");
            }
            note(deadline);
        }
        match &mut self.role {
            Role::Unconnected => {
                if self.now >= self.handshake_deadline {
                    return Err("it did not connect in time");
                }
                note(self.handshake_deadline);
            }
            Role::Admin(controller, _) => {
                if !controller.check_keep_alive(self.now) {
                    return Err("its keep alive timer has expired");
                }
                if let Some(deadline) = controller.deadline() {
                    note(deadline);
                }
            }
            Role::Io(executor) => executor.next_limited(self.now).into_iter().for_each(&mut note),
            Role::Proving(_) => {}
        }
        Ok(earliest)
    }

    /// Looks at a send under way; true if it has ended.
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

    /// Sends everything that there is, if nothing is being sent; true if it began to.
    fn start_send(&mut self) -> Result<bool, &'static str> {
        if matches!(self.wire, Wire::Rdma(_)) {
            return self.post_work();
        }
        if self.sending.is_some() {
            return Ok(false);
        }
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
        self.sending = Some(Sending { op, reserved_bytes, started: self.now });
        Ok(true)
    }

    /// After a terminate request was sent: gives the peer time to take it before the socket goes.
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

    /// Receives, unless too much is waiting to be sent; true if something came.
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

    /// Gives the queue pair what has come.
    fn feed(&mut self) {
        if let Some(buffer) = &self.buffer {
            let used = self.pair.receive(&buffer[self.unread.clone()]);
            self.unread.start += used;
        }
    }

    /// Handles all events of the queue pair; returns whether there were any.
    fn handle_events(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        if self.pair.state() == QueuePairState::Terminated {
            return Err("the peer terminated it");
        }
        if self.outside.is_some() && self.pair.has_event() {
            return Err(LEAVES);
        }
        let now = self.target.admissions().now();
        let mut is_any = match &mut self.role {
            Role::Io(executor) => {
                let handled = executor.handle_limited(&mut self.pair, now, cx);
                handled.map_err(|it| note_refused(&self.target, executor.queue(), it))?
            }
            _ => false,
        };
        loop {
            // What is left waits for the next turn.
            if let Role::Io(executor) = &self.role
                && self.pair.has_events()
                && !executor.pace().has_room()
            {
                break;
            }
            let Some(event) = self.pair.next_event() else { break };
            is_any = true;
            if matches!(event, Event::Data(_)) {
                self.data_since = None;
            }
            let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
            let is_for_door = self.is_for_door(self.pair.command(tag));
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
