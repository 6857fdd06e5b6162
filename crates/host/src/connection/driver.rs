//! The task of a connection.

use super::Inner;
use crate::error::{ConnectionEnd, ProtocolError};
use crate::queue_pair::{DIRECT_BYTES_MIN, QueuePairState};
use reactor::time::{self, Sleep};
use reactor::{Buffer, Chunk, Op, Segment};
use reactor::{Segments, time::Instant};
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tls::{Receiving, Sending, Stream};

/// Size of the receive buffer.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes to receive in addition to a payload's remainder, or while large payloads arrive: enough
/// for headers, with little of the next payload to copy.
const TAIL_BYTES: usize = 4096;
/// Longest time for a terminate request, and for the end of the socket.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(1);

/// The state of the task; see the module's description.
pub(super) struct Driver {
    inner: Rc<Inner>,
    stream: Stream,
    receive: Option<Receiving>,
    /// Length of the first segment of the receive if that segment is a command's buffer.
    direct_bytes: Option<usize>,
    receive_buffer: Option<Buffer>,
    /// Whether the last receive ended in or just behind a large payload.
    is_bulk: bool,
    send: Option<Sending>,
    chunks: Vec<Chunk>,
    tick: Sleep,
    tick_period: Duration,
    closing: Option<Closing>,
}

struct Closing {
    why: ConnectionEnd,
    shutdown: Shutting,
    deadline: Sleep,
}

/// The progress of shutting down the socket.
enum Shutting {
    /// A terminate request is sent first.
    Later,
    Running(Op<io::Result<()>>),
    Done,
}

impl Driver {
    pub(super) fn new(inner: Rc<Inner>, stream: Stream, tick_period: Duration) -> Self {
        Self {
            inner,
            stream,
            receive: None,
            direct_bytes: None,
            receive_buffer: Some(Buffer::with_capacity(RECEIVE_BUFFER_BYTES)),
            is_bulk: false,
            send: None,
            chunks: Vec::with_capacity(64),
            tick: time::sleep(tick_period),
            tick_period,
            closing: None,
        }
    }

    fn start_receive(&mut self) {
        let Some(mut buffer) = self.receive_buffer.take() else { return };
        buffer.clear();
        let mut segments = Segments::new();
        let direct = self.inner.pair.borrow_mut().take_direct();
        let mut window_bytes = buffer.capacity();
        if let Some(direct) = direct {
            self.direct_bytes = Some(direct.range.len());
            segments.push(Segment::Buffer(direct.buffer, direct.range));
            window_bytes = TAIL_BYTES;
        } else {
            self.direct_bytes = None;
            if self.is_bulk {
                window_bytes = TAIL_BYTES;
            }
        }
        segments.push(Segment::Buffer(buffer, 0..window_bytes));
        self.receive = Some(self.stream.receive(segments));
    }

    /// Handles received bytes. Fails when the connection is over.
    fn received(
        &mut self,
        result: io::Result<usize>,
        segments: Segments,
    ) -> Result<(), ConnectionEnd> {
        let received_bytes = *result.as_ref().unwrap_or(&0);
        let mut segments = segments.into_iter();
        let mut window_bytes = received_bytes;
        let mut outcome = Ok(());
        if let Some(direct_bytes) = self.direct_bytes.take()
            && let Some(buffer) = segments.next().and_then(Segment::into_buffer)
        {
            let n = received_bytes.min(direct_bytes);
            window_bytes = received_bytes - n;
            outcome = self.inner.pair.borrow_mut().direct_received(buffer, n);
        }
        if let Some(buffer) = segments.next().and_then(Segment::into_buffer) {
            if outcome.is_ok() && window_bytes > 0 {
                let bytes = buffer.get(..window_bytes).unwrap_or_default();
                outcome = self.inner.pair.borrow_mut().receive(bytes);
            }
            self.receive_buffer = Some(buffer);
        }
        self.is_bulk = self.inner.pair.borrow().last_payload_bytes() >= 2 * DIRECT_BYTES_MIN;
        match result {
            Err(error) => Err(error.into()),
            Ok(0) => Err(ConnectionEnd::ClosedByTarget),
            Ok(_) => outcome.map_err(ConnectionEnd::Protocol),
        }
    }

    /// Ends the connection: the state machine drops all commands, and the socket is shut down.
    fn begin_closing(&mut self, why: ConnectionEnd) {
        if self.closing.is_some() {
            return;
        }
        let fault = match &why {
            ConnectionEnd::Protocol(fault @ ProtocolError::Pdu(_)) => Some(*fault),
            _ => None,
        };
        *self.inner.reason.borrow_mut() = Some(why.clone());
        // While a receive is under way the kernel may write into a command's buffer, which
        // therefore cannot be returned yet. The state machine is closed after the receive has
        // ended.
        if self.receive.is_none() {
            self.inner.pair.borrow_mut().close(fault.as_ref());
        }
        let deadline = time::sleep(CLOSING_TIME_MAX);
        let is_polite = fault.is_some() && self.receive.is_none() && self.send.is_none();
        if !is_polite {
            // Bytes that the kernel has not sent yet must not reach the target after a repetition
            // on another path.
            self.stream.tcp().discard_unsent_on_close();
        }
        let shutdown = if is_polite {
            Shutting::Later
        } else {
            Shutting::Running(self.stream.tcp().shutdown(Shutdown::Both))
        };
        self.closing = Some(Closing { why, shutdown, deadline });
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> bool {
        if self.receive.is_none() && self.closing.is_none() {
            self.start_receive();
        }
        let Some(receive) = &mut self.receive else { return false };
        let Poll::Ready((result, segments)) = self.stream.poll_receive(receive, cx) else {
            return false;
        };
        self.receive = None;
        let state_before = self.inner.pair.borrow().state();
        let outcome = self.received(result, segments);
        self.inner.wake_finished();
        if state_before == QueuePairState::Initializing {
            self.inner.changed.notify();
        }
        if let Err(why) = outcome {
            self.begin_closing(why);
        }
        true
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(send) = &mut self.send {
            let Poll::Ready((result, chunks)) = self.stream.poll_send(send, cx) else {
                return false;
            };
            self.send = None;
            self.chunks = chunks;
            if let Err(error) = result {
                self.begin_closing(error.into());
            }
            return true;
        }
        let is_shutting =
            self.closing.as_ref().is_some_and(|it| !matches!(it.shutdown, Shutting::Later));
        let mut pair = self.inner.pair.borrow_mut();
        if is_shutting || !pair.has_output() {
            return false;
        }
        pair.transmit(&mut self.chunks);
        drop(pair);
        self.send = Some(self.stream.send(std::mem::take(&mut self.chunks)));
        true
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) {
        while Pin::new(&mut self.tick).poll(cx).is_ready() {
            let next: Instant = time::now() + self.tick_period;
            self.tick.reset(next);
            if self.inner.pair.borrow_mut().tick() {
                self.begin_closing(ConnectionEnd::CommandTimeout(self.inner.command_timeout));
            }
        }
    }

    /// Returns true when everything has ended.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> bool {
        let is_sending = self.send.is_some() || self.inner.pair.borrow().has_output();
        let is_receiving = self.receive.is_some();
        let Some(closing) = &mut self.closing else { return false };
        let is_late = Pin::new(&mut closing.deadline).poll(cx).is_ready();
        if matches!(closing.shutdown, Shutting::Later) && (is_late || !is_sending) {
            closing.shutdown = Shutting::Running(self.stream.tcp().shutdown(Shutdown::Both));
        }
        if let Shutting::Running(shutdown) = &mut closing.shutdown
            && Pin::new(shutdown).poll(cx).is_ready()
        {
            closing.shutdown = Shutting::Done;
        }
        let is_shut = matches!(closing.shutdown, Shutting::Done);
        if !is_late && (!is_shut || is_receiving || self.send.is_some()) {
            return false;
        }
        let why = closing.why.clone();
        self.inner.pair.borrow_mut().close(None);
        self.inner.finish(why);
        true
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.inner.driver.borrow().as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *this.inner.driver.borrow_mut() = Some(cx.waker().clone());
        }
        let end_wanted = this.inner.end_wanted.borrow_mut().take();
        if let Some(why) = end_wanted {
            this.begin_closing(why);
        }
        this.poll_tick(cx);
        loop {
            let has_received = this.poll_receive(cx);
            let has_sent = this.poll_send(cx);
            if !has_received && !has_sent {
                break;
            }
        }
        if this.closing.is_some() && this.poll_closing(cx) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
