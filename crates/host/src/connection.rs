//! Runs one [`QueuePair`] over a socket, or over an RDMA endpoint: a task that receives, sends and
//! checks deadlines, and futures for callers that submit commands.
//!
//! One receive and at most one send are under way at any time. Submitting a command only queues
//! bytes in the state machine and wakes the task. By the task's turn all other commands of the loop
//! turn are queued too, and one vectored send takes them all. Received bytes go into one large
//! buffer, except that the remainder of a large payload goes directly into its destination.

mod driver;
mod execute;
mod fused;
mod verbs;

pub(crate) use execute::Execute;
pub use verbs::share;

use crate::error::{ConnectionEnd, Error};
use crate::options::{ConnectOptions, TlsOptions, Transport};
use crate::queue_pair::{Data, Outcome, QueuePair, QueuePairConfig, QueuePairState};
use nvme::{ControllerId, QueueId, SubmissionQueueEntry};
use reactor::local::Notify;
use reactor::{JoinHandle, TcpStream, time};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tls::{Psk, Stream};

/// Maximum number of tasks that may wait for a free slot of one queue pair.
pub(crate) const WAITERS_MAX: usize = 65_536;
/// Resolution of a command's timeout: ticks per timeout.
const TICKS_PER_TIMEOUT: u32 = 16;

/// A connected queue pair; clones refer to the same one.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Rc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pair: RefCell<QueuePair>,
    /// The waker of each slot's command, by the slot's index.
    waiting: RefCell<Vec<Option<Waker>>>,
    /// The wakers that wait for a free slot, in order.
    queued: RefCell<VecDeque<(u64, Waker)>>,
    next_ticket: Cell<u64>,
    driver: RefCell<Option<Waker>>,
    /// The reason for which the host wants to end the connection.
    end_wanted: RefCell<Option<ConnectionEnd>>,
    /// The reason for the end of the connection, from the time at which the end is certain.
    reason: RefCell<Option<ConnectionEnd>>,
    /// The reason for the end of the connection, after it has ended.
    end: RefCell<Option<ConnectionEnd>>,
    /// Reports changes of state.
    changed: Notify,
    command_timeout: Duration,
    /// Whether the target is on this machine.
    is_local: bool,
}

impl Connection {
    /// Establishes the transport connection of a queue pair.
    pub(crate) async fn open(
        options: &ConnectOptions,
        depth: u16,
        queue: QueueId,
        controller: ControllerId,
    ) -> Result<Self, Error> {
        match options.transport {
            Transport::Tcp => Self::open_tcp(options, depth).await,
            Transport::Rdma => Self::open_rdma(options, depth, queue, controller).await,
        }
    }

    /// Connects the socket and exchanges `ICReq` and `ICResp`.
    async fn open_tcp(options: &ConnectOptions, depth: u16) -> Result<Self, Error> {
        let address = options.address;
        let timeout = options.connect_timeout;
        let deadline = time::now() + timeout;
        let socket_options = options.socket_options();
        let stream = time::timeout_at(deadline, TcpStream::connect(address, &socket_options))
            .await
            .map_err(|_| Error::Timeout { address, what: "the TCP connection", timeout })?
            .map_err(|error| Error::Connect { address, error: Arc::new(error) })?;
        let is_local = address.ip().is_loopback() || address.ip() == stream.local_addr().ip();
        let stream = match &options.tls {
            None => Stream::from(stream),
            Some(tls) => secure(stream, tls, options)?,
        };
        let connection = Self::start(stream, options, depth, is_local);
        let is_ready = time::timeout_at(deadline, connection.initialized()).await;
        if is_ready.is_err() {
            connection.close(ConnectionEnd::Closed);
            return Err(Error::Timeout { address, what: "ICReq", timeout });
        }
        let reason = connection.0.reason.borrow().clone();
        match reason {
            None => Ok(connection),
            // A failure under TLS before the first answer is a failure of the handshake.
            Some(end @ ConnectionEnd::Tls(_)) => Err(Error::SecureChannel(end)),
            Some(end) => Err(end.into()),
        }
    }

    fn start(stream: Stream, options: &ConnectOptions, depth: u16, is_local: bool) -> Self {
        let pair = QueuePair::new(QueuePairConfig {
            depth,
            has_header_digest: options.hdr_digest,
            has_data_digest: options.data_digest,
            timeout_ticks: TICKS_PER_TIMEOUT,
        });
        let connection = Self::of(pair, options, is_local);
        let tick = connection.tick();
        let _driver: JoinHandle<()> =
            reactor::spawn(driver::Driver::new(Rc::clone(&connection.0), stream, tick));
        connection
    }

    /// Creates a connection without a task.
    fn of(pair: QueuePair, options: &ConnectOptions, is_local: bool) -> Self {
        let command_timeout = options.command_timeout();
        let waiting = vec![None; usize::from(pair.depth())];
        Self(Rc::new(Inner {
            pair: RefCell::new(pair),
            waiting: RefCell::new(waiting),
            queued: RefCell::new(VecDeque::new()),
            next_ticket: Cell::new(0),
            driver: RefCell::new(None),
            end_wanted: RefCell::new(None),
            reason: RefCell::new(None),
            end: RefCell::new(None),
            changed: Notify::new(),
            command_timeout,
            is_local,
        }))
    }

    /// Returns the time between two ticks of the queue pair.
    fn tick(&self) -> Duration {
        self.0.command_timeout / TICKS_PER_TIMEOUT
    }

    async fn initialized(&self) {
        while self.0.pair.borrow().state() == QueuePairState::Initializing {
            self.0.changed.notified().await;
        }
    }

    /// Waits until the connection has ended.
    pub(crate) async fn ended(&self) -> ConnectionEnd {
        loop {
            if let Some(end) = self.end() {
                return end;
            }
            self.0.changed.notified().await;
        }
    }

    /// Returns the reason for the end of the connection, if it has ended.
    pub(crate) fn end(&self) -> Option<ConnectionEnd> {
        self.0.end.borrow().clone()
    }

    /// Returns the reason for the end of the connection, for errors.
    pub(crate) fn reason(&self) -> ConnectionEnd {
        self.0.reason.borrow().clone().unwrap_or(ConnectionEnd::Closed)
    }

    /// Ends the connection. Outstanding commands are lost.
    pub(crate) fn close(&self, why: ConnectionEnd) {
        self.0.end_wanted.borrow_mut().get_or_insert(why);
        self.0.wake_driver();
    }

    /// Returns whether the target is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.0.is_local
    }

    /// Returns the maximum number of outstanding commands.
    pub(crate) fn depth(&self) -> u16 {
        self.0.pair.borrow().depth()
    }

    /// Returns whether header and data digests are in use.
    pub(crate) fn digests(&self) -> (bool, bool) {
        self.0.pair.borrow().digests()
    }

    pub(crate) fn set_in_capsule_data_bytes_max(&self, bytes: u32) {
        self.0.pair.borrow_mut().set_in_capsule_data_bytes_max(bytes);
    }

    /// Executes a command, after a wait for a free slot if there is none.
    pub(crate) fn execute(&self, sqe: SubmissionQueueEntry, data: Data) -> Execute {
        Execute::new(self.clone(), sqe, data, true)
    }

    /// Executes a command that may stay unanswered without a limit of time.
    pub(crate) fn execute_without_deadline(&self, sqe: SubmissionQueueEntry) -> Execute {
        Execute::new(self.clone(), sqe, Data::None, false)
    }
}

/// Puts the connection under TLS. The handshake runs with the first received bytes.
fn secure(stream: TcpStream, tls: &TlsOptions, options: &ConnectOptions) -> Result<Stream, Error> {
    let psks: Result<Vec<Psk>, _> = tls
        .psks(&options.hostnqn, &options.subsystem_nqn)?
        .into_iter()
        .map(|psk| {
            let hash = match psk.hash {
                auth::Hash::Sha384 => tls::Hash::Sha384,
                auth::Hash::Sha256 | auth::Hash::Sha512 => tls::Hash::Sha256,
            };
            Psk::new(psk.identity.as_bytes(), psk.secret, hash)
        })
        .collect();
    let failed = |end| Error::SecureChannel(end);
    let psks = psks.map_err(ConnectionEnd::TlsKey).map_err(failed)?;
    Stream::client(stream, &psks).map_err(ConnectionEnd::Tls).map_err(failed)
}

impl Inner {
    fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }

    /// Wakes the callers whose commands have finished.
    fn wake_finished(&self) {
        let mut pair = self.pair.borrow_mut();
        let mut waiting = self.waiting.borrow_mut();
        while let Some(cid) = pair.next_finished() {
            if let Some(waker) = waiting.get_mut(pair.index_of(cid)).and_then(Option::take) {
                waker.wake();
            }
        }
        // Slots of commands without a waiting caller become free without a report.
        let (depth, occupied) = (pair.depth(), pair.occupied());
        assert!(occupied <= depth, "{occupied} of {depth} commands are outstanding");
        let free = usize::from(depth - occupied);
        drop((pair, waiting));
        let queued = self.queued.borrow().len();
        for _ in 0..free.min(queued) {
            self.wake_next_queued();
        }
    }

    /// Wakes the next caller that waits for a slot. Those that were only begun get no wake-up and take
    /// a slot when they are polled, so they are passed over.
    fn wake_next_queued(&self) {
        while let Some((_, waker)) = self.queued.borrow_mut().pop_front() {
            let is_only_begun = waker.will_wake(Waker::noop());
            waker.wake();
            if !is_only_begun {
                return;
            }
        }
    }

    /// Reports the end of the connection to all waiting callers.
    fn finish(&self, end: ConnectionEnd) {
        let before = self.end.borrow_mut().replace(end);
        assert!(before.is_none(), "a connection ends twice: {before:?}");
        self.wake_finished();
        for (_, waker) in self.queued.borrow_mut().drain(..) {
            waker.wake();
        }
        self.changed.notify();
    }
}

/// Returns the outcome of a command, for callers that need no details.
pub(crate) fn check_outcome(
    command: &'static str,
    outcome: Outcome,
    connection: &Connection,
) -> Result<nvme::CompletionQueueEntry, Error> {
    match outcome {
        Outcome::Completed(cqe) if cqe.status().is_success() => Ok(cqe),
        Outcome::Completed(cqe) => Err(Error::Refused { command, status: cqe.status(), hint: "" }),
        Outcome::DataDigestMismatch => Err(Error::DataDigest),
        Outcome::DataUnderrun { received_bytes, expected_bytes } => {
            Err(Error::DataUnderrun { received_bytes, expected_bytes })
        }
        Outcome::ConnectionLost => Err(Error::ConnectionLost(connection.reason())),
    }
}
