//! Connections over RDMA: the exchange of the connection manager, and the task that moves capsules
//! and completions between a queue pair and its endpoint.
//!
//! The memory of a command's data is lent to the target through a memory window of the adapter, for
//! this command alone. Registration is that of the buffers' pool: each piece of memory is registered
//! once, for the local adapter, and keeps its registration while it is recycled. So reads and writes
//! take neither a copy nor a system call, and a target that keeps a key, or whose queue pair ended,
//! reaches no memory of this host.

use super::{Connection, Inner, TICKS_PER_TIMEOUT};
use crate::error::{ConnectionEnd, Error, ProtocolError};
use crate::options::ConnectOptions;
use crate::queue_pair::{Capsule, QueuePair, QueuePairConfig, Transfer};
use nvme::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectStatus};
use nvme::{CompletionQueueEntry, ControllerId, QueueId, SubmissionQueueEntry};
use rdma::{
    Completion, Connector, Endpoint, Library, REASON_CONSUMER, Remote, Returned, Room, Sizes,
};
use reactor::relay::{self, State};
use reactor::time::{self, Sleep};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Work requests of a command: binding of a window, message, invalidation of the window.
const SENDS_FOR_COMMAND: u32 = 3;
/// Fewest work requests of a queue.
const SENDS_MIN: u32 = 4;

thread_local! {
    /// The connector of this thread's connections, which share the registration of memory.
    static CONNECTOR: State<RefCell<Weak<Connector>>> =
        const { State::new(|| RefCell::new(Weak::new())) };
}

/// Lets the runners of this thread's reactor use its connections' registrations: a
/// [`Share`](relay::Share).
pub fn share() -> Box<dyn FnOnce() + Send> {
    relay::share(&CONNECTOR)
}

/// Returns the connector of this thread.
fn connector() -> Result<Rc<Connector>, rdma::Error> {
    if let Some(known) = relay::with(&CONNECTOR, |known| known.borrow().upgrade()).flatten() {
        return Ok(known);
    }
    let connector = Rc::new(Connector::new(&Library::load()?)?);
    relay::with(&CONNECTOR, |known| known.replace(Rc::downgrade(&connector)));
    Ok(connector)
}

/// Returns the sizes of a queue pair for `entries` commands, within the limits of the device.
fn sizes_for(entries: u16, requests_max: u32, completions_max: u32) -> Sizes {
    let receives = u32::from(entries);
    let sends = receives * SENDS_FOR_COMMAND;
    let sends = sends.min(requests_max).min(completions_max.saturating_sub(receives));
    Sizes { receives, sends: sends.max(SENDS_MIN) }
}

impl Connection {
    /// Connects a queue pair over RDMA.
    pub(super) async fn open_rdma(
        options: &ConnectOptions,
        depth: u16,
        queue: QueueId,
        controller: ControllerId,
    ) -> Result<Self, Error> {
        let (address, timeout) = (options.address, options.connect_timeout);
        let connector = connector()?;
        // A queue of n entries holds n - 1 commands at a time.
        let entries = depth + 1;
        // The identifier is reserved for the admin queue.
        let controller = if queue.is_admin() { 0 } else { controller.0 };
        let request = ConnectRequest::new(queue, entries, controller);
        let room = Room { head: CompletionQueueEntry::BYTES, data: 0 };
        let sizes = |requests, completions| sizes_for(entries, requests, completions);
        let connecting = connector.connect(address, timeout, sizes, room, request.bytes());
        let connected = time::timeout(timeout, connecting).await.map_err(|_| Error::Timeout {
            address,
            what: "the request for an RDMA connection",
            timeout,
        })?;
        let (endpoint, answer) = connected.map_err(|error| refusal(error, queue))?;
        let receive_entries = ConnectAccept::decode(&answer).map_err(|fault| {
            Error::InvalidResponse { structure: "private data of the RDMA connection", fault }
        })?;
        let pair = QueuePair::over_rdma(QueuePairConfig {
            depth: depth.min(receive_entries),
            has_header_digest: false,
            has_data_digest: false,
            timeout_ticks: TICKS_PER_TIMEOUT,
        });
        let is_local = address.ip().is_loopback() || address.ip() == endpoint.local_addr().ip();
        let connection = Self::of(pair, options, is_local);
        let tick = connection.tick();
        drop(reactor::spawn(Driver {
            inner: Rc::clone(&connection.0),
            endpoint,
            tick: time::sleep(tick),
            tick_period: tick,
            _connector: connector,
        }));
        Ok(connection)
    }
}

/// Returns the error for a failed attempt, with the status of the target's refusal.
fn refusal(error: rdma::Error, queue: QueueId) -> Error {
    let rdma::Error::Refused { address, reason: REASON_CONSUMER, private_data } = &error else {
        return error.into();
    };
    let Some(status) = ConnectReject::decode(private_data) else { return error.into() };
    let hint = match status {
        RejectStatus::InvalidHostSendQueueSize | RejectStatus::InvalidHostReceiveQueueSize => {
            ": give a smaller --queue-size"
        }
        RejectStatus::NoResources => ": the target has no room for another connection now",
        _ => "",
    };
    Error::QueueRefused { address: *address, queue, status, hint }
}

/// The task of a connection.
struct Driver {
    inner: Rc<Inner>,
    endpoint: Endpoint,
    tick: Sleep,
    tick_period: Duration,
    /// Keeps the thread's connector for the next connection.
    _connector: Rc<Connector>,
}

impl Driver {
    /// Takes completions and posts commands. Returns true if there were any.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionEnd> {
        let mut is_any = false;
        while let Poll::Ready(completion) = self.endpoint.poll(cx) {
            is_any = true;
            self.complete(completion.map_err(end_of)?)?;
        }
        if is_any {
            self.inner.wake_finished();
        }
        while self.endpoint.can_send() {
            let capsule = self.inner.pair.borrow_mut().take_capsule();
            let Some(capsule) = capsule else { break };
            self.post(capsule)?;
        }
        let is_posted = self.endpoint.flush().map_err(device_failed)?;
        Ok(is_any || is_posted)
    }

    fn complete(&mut self, completion: Completion) -> Result<(), ConnectionEnd> {
        match completion {
            Completion::Received { head, invalidated, .. } => {
                let mut pair = self.inner.pair.borrow_mut();
                let cid = pair.receive_response(&head)?;
                let index = pair.index_of(cid);
                let returned = self.endpoint.take_back(index, invalidated);
                match returned.map_err(ProtocolError::Invalidation)? {
                    Returned::Now(buffer) => pair.returned(index, buffer),
                    Returned::Later => {}
                }
            }
            Completion::Returned { slot, sink } => {
                self.inner.pair.borrow_mut().returned(slot, sink);
            }
            // The host reads no memory of the target.
            Completion::Sent { .. } | Completion::Read { .. } => {}
        }
        Ok(())
    }

    /// Lends a command's memory, and sends the command.
    fn post(&mut self, mut capsule: Capsule) -> Result<(), ConnectionEnd> {
        let index = self.inner.pair.borrow().index_of(capsule.cid);
        let token = index as u64;
        let lent = match std::mem::replace(&mut capsule.transfer, Transfer::None) {
            Transfer::None => None,
            Transfer::InCapsule(bytes) => {
                let sent = self.endpoint.send_data(capsule.sqe.bytes(), bytes.into(), token);
                return sent.map_err(device_failed);
            }
            Transfer::Source(bytes) => {
                Some(self.endpoint.lend_source(index, bytes).map_err(device_failed)?)
            }
            Transfer::Sink(buffer, range) => match self.endpoint.lend_sink(index, buffer, range) {
                Ok(remote) => Some(remote),
                Err((error, buffer)) => {
                    self.inner.pair.borrow_mut().returned(index, Some(buffer));
                    return Err(device_failed(error));
                }
            },
        };
        let sqe = lent.map_or(Ok(capsule.sqe), |remote| describe(&capsule, remote))?;
        self.endpoint.send(sqe.bytes(), None, token);
        Ok(())
    }

    /// Ends the connection: the adapter accesses no memory afterwards, so that all commands end.
    fn end(&mut self, why: ConnectionEnd) {
        *self.inner.reason.borrow_mut() = Some(why.clone());
        self.endpoint.close();
        let mut pair = self.inner.pair.borrow_mut();
        for (index, buffer) in self.endpoint.take_left() {
            pair.returned(index, buffer);
        }
        pair.close(None);
        drop(pair);
        let counts = self.endpoint.counts();
        tracing::debug!(peer = %self.endpoint.peer_addr(), %why, ?counts, "a connection over RDMA ends");
        self.inner.finish(why);
    }

    /// Returns true if a command is overdue.
    fn poll_tick(&mut self, cx: &mut Context<'_>) -> bool {
        while Pin::new(&mut self.tick).poll(cx).is_ready() {
            self.tick.reset(time::now() + self.tick_period);
            if self.inner.pair.borrow_mut().tick() {
                return true;
            }
        }
        false
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
        let why = if let Some(why) = end_wanted {
            why
        } else if this.poll_tick(cx) {
            ConnectionEnd::CommandTimeout(this.inner.command_timeout)
        } else {
            loop {
                match this.turn(cx) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Pending,
                    Err(why) => break why,
                }
            }
        };
        this.end(why);
        Poll::Ready(())
    }
}

/// Returns the command with the key of its lent memory.
fn describe(capsule: &Capsule, remote: Remote) -> Result<SubmissionQueueEntry, ConnectionEnd> {
    let keyed = capsule.keyed(remote.address, remote.length, remote.key);
    keyed.map_err(|error| device_failed(io::Error::other(error.to_string())))
}

fn device_failed(error: io::Error) -> ConnectionEnd {
    ConnectionEnd::RdmaDevice(Arc::new(error))
}

/// Returns the end of a connection for the endpoint's reason.
fn end_of(reason: &'static str) -> ConnectionEnd {
    match reason {
        rdma::DISCONNECTED => ConnectionEnd::ClosedByTarget,
        other => ConnectionEnd::Rdma(other),
    }
}
