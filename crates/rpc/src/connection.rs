//! A connection after its handshake: calls out, calls in, one reader and one writer task.

mod answers;
mod deferred;
mod tasks;

use crate::access::Credential;
use crate::error::RpcError;
use crate::interface::{Connector, Interface, Side};
use crate::transport::{self, Transport};
use crate::unsent::Unsent;
use answers::{Pending, Waiting};
use deferred::Deferred;
use protocol::connection::{ConnectionError, Event, Limits, Peer};
use protocol::frame;
use reactor::{JoinHandle, SocketOptions, time};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub use answers::{Answering, Reply};

/// The owner of a connection, as the receiver of its events. All methods run on the reader task, in
/// the order of arrival, and must not wait: longer work needs a task of its own.
pub trait Handler<S: Side>: 'static {
    /// Takes a call of the peer, which must get its answer through `reply`, now or later.
    fn called(&self, call: S::Incoming, reply: Reply<S>);

    /// Takes the end of the connection, with the reason. Called once, as the last event.
    fn closed(&self, reason: &str) {
        let _ = reason;
    }
}

/// Bytes that a connection has carried since its handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes passed to the kernel.
    pub sent_bytes: u64,
    /// Bytes received from the kernel.
    pub received_bytes: u64,
}

struct Inner<S: Side> {
    peer: RefCell<Peer>,
    /// A call that goes out before the next queued message.
    deferred: Deferred<S::Call>,
    pending: RefCell<BTreeMap<u64, Pending<S::Answer>>>,
    handler: RefCell<Option<Rc<dyn Handler<S>>>>,
    /// The reason for the end, once the connection is closed.
    reason: RefCell<Option<Rc<str>>>,
    /// The writer, while it sleeps.
    writer: RefCell<Option<Waker>>,
    /// Tasks that wait until all output is sent, or for the end.
    watchers: RefCell<Vec<Waker>>,
    /// Whether the writer is sending.
    is_sending: Cell<bool>,
    /// Number of bytes that the writer is sending.
    sending_bytes: Cell<usize>,
    /// Those bytes, and the queue behind them.
    unsent: Unsent,
    traffic: Cell<Traffic>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    address: SocketAddr,
}

/// One end of an authenticated connection; clones share it. It is closed when the last clone is
/// dropped ([`Reply`]s do not keep it open).
pub struct Connection<S: Side>(Rc<Owner<S>>);

/// Closes when the last [`Connection`] is gone; the tasks hold only the inner part.
struct Owner<S: Side>(Rc<Inner<S>>);

impl<S: Side> Drop for Owner<S> {
    fn drop(&mut self) {
        self.0.close("its owner dropped it");
    }
}

impl<S: Side> Clone for Connection<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: Side> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0.0;
        f.debug_struct("Connection")
            .field("address", &inner.address)
            .field("closed", &inner.reason.borrow())
            .finish_non_exhaustive()
    }
}

impl<I: Interface> Connection<Connector<I>> {
    /// Connects and authenticates. No call of the peer is missed, because the reader starts with
    /// `handler` only at the end.
    ///
    /// # Errors
    /// [`RpcError::Connect`], [`RpcError::Refused`], [`RpcError::Tls`] or [`RpcError::Protocol`] (with
    /// [`ConnectionError::Secret`]) if the service does not know the key or the secret, or
    /// [`RpcError::Deadline`].
    pub async fn connect(
        address: SocketAddr,
        options: &SocketOptions,
        credential: &Credential,
        limits: Limits,
        handler: Rc<dyn Handler<Connector<I>>>,
    ) -> Result<Self, RpcError> {
        let (transport, peer) =
            transport::connect(address, options, credential, I::ROLE, limits).await?;
        Ok(Self::start(transport, peer, handler))
    }
}

impl<S: Side> Connection<S> {
    /// Starts the tasks of an authenticated connection.
    pub(crate) fn start(transport: Transport, peer: Peer, handler: Rc<dyn Handler<S>>) -> Self {
        let inner = Rc::new(Inner {
            peer: RefCell::new(peer),
            deferred: Deferred::default(),
            pending: RefCell::default(),
            handler: RefCell::new(Some(handler)),
            reason: RefCell::new(None),
            writer: RefCell::new(None),
            watchers: RefCell::default(),
            is_sending: Cell::new(false),
            sending_bytes: Cell::new(0),
            unsent: Unsent::default(),
            traffic: Cell::default(),
            tasks: RefCell::default(),
            address: transport.address,
        });
        let transport = Rc::new(transport);
        let reader = reactor::spawn(tasks::read(Rc::clone(&inner), Rc::clone(&transport)));
        let writer = reactor::spawn(tasks::write(Rc::clone(&inner), transport));
        inner.tasks.borrow_mut().extend([reader, writer]);
        Self(Rc::new(Owner(inner)))
    }

    /// Calls the peer. The call is queued at once, in the order of these calls, and sent with all
    /// others of the loop turn; the future is only its answer. Dropping the future gives up the
    /// answer, not the call. Without a deadline the call waits as long as the connection lives.
    ///
    /// # Errors
    /// The future returns [`RpcError::Closed`], [`RpcError::Deadline`], or [`RpcError::Protocol`]
    /// if the call is too long or too many are under way.
    pub fn call(&self, call: &S::Call, deadline: Option<Duration>) -> Answering<S> {
        let inner = &self.0.0;
        let waiting = Rc::new(RefCell::new(Waiting { answer: None, waker: None }));
        let tag = match inner.queue(|peer| peer.call(call)) {
            Ok(tag) => {
                inner.pending.borrow_mut().insert(tag, Pending::Awaited(Rc::clone(&waiting)));
                tag
            }
            Err(error) => {
                waiting.borrow_mut().answer = Some(Err(error));
                0
            }
        };
        let deadline = deadline.map(|after| (after, time::sleep(after)));
        Answering { inner: Rc::downgrade(inner), waiting, tag, deadline }
    }

    /// Calls the peer. The reader runs `then` with the answer (or the error), in the order of the
    /// stream, before it processes anything later. `then` must not wait.
    pub fn call_then(
        &self,
        call: &S::Call,
        then: impl FnOnce(Result<S::Answer, RpcError>) + 'static,
    ) {
        let inner = &self.0.0;
        match inner.queue(|peer| peer.call(call)) {
            Ok(tag) => {
                inner.pending.borrow_mut().insert(tag, Pending::Then(Box::new(then)));
            }
            Err(error) => then(Err(error)),
        }
    }

    /// Closes at once; bytes that are still queued are not sent.
    pub fn close(&self, reason: &str) {
        self.0.0.close(reason);
    }

    /// Returns why the connection is closed, if it is.
    pub fn closed_reason(&self) -> Option<Rc<str>> {
        self.0.0.reason.borrow().clone()
    }

    /// Completes when the connection is closed, with the reason.
    pub async fn closed(&self) -> Rc<str> {
        let inner = &self.0.0;
        inner.watch(|inner| inner.reason.borrow().clone()).await
    }

    /// Completes when the kernel has all queued bytes, or the connection is closed.
    pub async fn flushed(&self) {
        let inner = &self.0.0;
        let is_flushed = |inner: &Inner<S>| {
            let is_done = inner.peer.borrow().output().is_empty() && !inner.is_sending.get();
            (is_done || inner.reason.borrow().is_some()).then_some(())
        };
        inner.watch(is_flushed).await;
    }

    /// Returns whether both are clones of one connection.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the peer's address.
    pub fn address(&self) -> SocketAddr {
        self.0.0.address
    }

    /// Returns the bytes so far.
    pub fn traffic(&self) -> Traffic {
        self.0.0.traffic.get()
    }

    /// Returns the number of own calls without an answer yet.
    pub fn calls_out(&self) -> usize {
        self.0.0.peer.borrow().calls_out()
    }
}

impl<S: Side> Inner<S> {
    /// Makes `queue` encode a message behind the deferred call, and wakes the writer.
    fn queue<T>(
        &self,
        queue: impl FnOnce(&mut Peer) -> Result<T, ConnectionError>,
    ) -> Result<T, RpcError> {
        if !reactor::mutant!("news-overtaken") {
            self.queue_deferred();
        }
        self.queue_now(queue)
    }

    /// As `queue`, but leaves a deferred call waiting.
    fn queue_now<T>(
        &self,
        queue: impl FnOnce(&mut Peer) -> Result<T, ConnectionError>,
    ) -> Result<T, RpcError> {
        if let Some(reason) = &*self.reason.borrow() {
            return Err(RpcError::Closed(Rc::clone(reason)));
        }
        let queued = queue(&mut self.peer.borrow_mut());
        self.count_unsent();
        match queued {
            Ok(value) => {
                if self.unsent.is_too_much() {
                    let error = ConnectionError::Output(self.unsent.bytes());
                    self.close(&error.to_string());
                    return Err(error.into());
                }
                if let Some(writer) = self.writer.borrow_mut().take() {
                    writer.wake();
                }
                Ok(value)
            }
            Err(error @ ConnectionError::Output(_)) => {
                self.close(&error.to_string());
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the connection is closed.
    fn is_closed(&self) -> bool {
        self.reason.borrow().is_some()
    }

    fn count_unsent(&self) {
        let is_open = self.reason.borrow().is_none();
        let bytes = self.peer.borrow().output().len() + self.sending_bytes.get();
        self.unsent.set(if is_open { bytes } else { 0 });
    }

    /// Returns whether calls of the peer have to wait until it reads.
    fn holds_calls(&self) -> bool {
        S::WAITS_FOR_READER && self.unsent.holds_calls()
    }

    fn close(&self, reason: &str) {
        if self.reason.borrow().is_some() {
            return;
        }
        let reason: Rc<str> = reason.into();
        *self.reason.borrow_mut() = Some(Rc::clone(&reason));
        self.unsent.set(0);
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        for waiting in pending.into_values().filter(|_| !reactor::mutant!("closed-untold")) {
            waiting.finish(Err(RpcError::Closed(Rc::clone(&reason))));
        }
        let handler = self.handler.borrow_mut().take();
        if let Some(handler) = handler {
            handler.closed(&reason);
        }
        self.notify();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            task.abort();
        }
    }

    /// Wakes all watchers.
    fn notify(&self) {
        let watchers = std::mem::take(&mut *self.watchers.borrow_mut());
        for waker in watchers {
            waker.wake();
        }
    }

    async fn watch<T>(&self, check: impl Fn(&Self) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(value) = check(self) {
                return Poll::Ready(value);
            }
            self.watchers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Passes one event to its receiver; returns false when there is none.
    fn dispatch(self: &Rc<Self>) -> Result<bool, ConnectionError> {
        enum Came<C, A> {
            Call(u64, C),
            Answer(u64, A),
        }
        let came = match self.peer.borrow_mut().event()? {
            None => return Ok(false),
            Some(Event::Call { tag, body }) => Came::Call(tag, frame::decode::<S::Incoming>(body)?),
            Some(Event::Answer { tag, body }) => {
                Came::Answer(tag, frame::decode::<S::Answer>(body)?)
            }
            Some(Event::Ready(_)) => {
                return Err(ConnectionError::Unexpected("a second handshake"));
            }
        };
        let handler = self.handler.borrow().clone();
        let Some(handler) = handler else { return Ok(false) };
        match came {
            Came::Call(tag, call) => {
                handler.called(call, Reply { inner: Rc::downgrade(self), tag });
            }
            Came::Answer(tag, answer) => {
                let tag = if reactor::mutant!("answer-to-another") { tag ^ 1 } else { tag };
                let waiting = self.pending.borrow_mut().remove(&tag);
                if let Some(waiting) = waiting {
                    waiting.finish(Ok(answer));
                }
            }
        }
        Ok(self.reason.borrow().is_none())
    }
}
