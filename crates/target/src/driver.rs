//! The target on the ring: listeners, cores and connections.
//!
//! Each connection is one task on one core, and stays there: queue pair, devices and buffers are
//! used by that thread alone. With one core everything runs on the caller's reactor; with more,
//! accepted connections are handed to the cores' threads in turn.

mod connection;
mod execute;
mod plan;

use crate::error::Error;
use crate::signal::{self, Signal};
use crate::target::Target;
use connection::Connection;
use ring::mailbox::{Receiver, Sender, channel};
use ring::{Config, SocketOptions, TcpListener, TcpStream};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Accepted connections that may wait for their core.
const HANDOVER_MAX: usize = 64;
/// Pause after an accept that failed, e.g. for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pause between attempts to listen at an address that is in use.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// How a target is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve connections; 1 serves on the caller's reactor.
    pub cores: usize,
    /// How the reactors of further cores are made.
    pub runtime: Config,
    /// How sockets are made.
    pub socket: SocketOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], nvme::tcp::IO_PORT))],
            cores: 1,
            runtime: Config::default(),
            socket: SocketOptions::default(),
        }
    }
}

/// The connections that live, over all cores.
#[derive(Debug, Default)]
struct Connections {
    state: Mutex<ConnectionsState>,
}

#[derive(Debug, Default)]
struct ConnectionsState {
    next_id: u64,
    signals: BTreeMap<u64, Arc<Signal>>,
    is_closed: bool,
    /// Told when the last connection has ended.
    waiter: Option<std::task::Waker>,
}

impl Connections {
    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection; [`None`] if there are `max` already, or the target ends.
    fn open(self: &Arc<Self>, max: usize) -> Option<Registration> {
        let mut state = self.state();
        if state.is_closed || state.signals.len() >= max {
            return None;
        }
        let (id, signal) = (state.next_id, Arc::<Signal>::default());
        state.next_id += 1;
        state.signals.insert(id, Arc::clone(&signal));
        Some(Registration { connections: Arc::clone(self), id, signal })
    }

    /// Has all connections end, and takes no more.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for signal in state.signals.values() {
            signal.raise(signal::CLOSE);
        }
    }

    async fn ended(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            if state.signals.is_empty() {
                return std::task::Poll::Ready(());
            }
            state.waiter = Some(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}

/// A connection's entry; ends with the connection.
#[derive(Debug)]
struct Registration {
    connections: Arc<Connections>,
    id: u64,
    signal: Arc<Signal>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        state.signals.remove(&self.id);
        let waiter = if state.signals.is_empty() { state.waiter.take() } else { None };
        drop(state);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

type Handover = (TcpStream, Registration);

/// A running target.
#[derive(Debug)]
pub struct Server {
    target: Arc<Target>,
    connections: Arc<Connections>,
    addresses: Vec<SocketAddr>,
    acceptors: Vec<ring::JoinHandle<()>>,
    cores: Vec<ring::thread::JoinHandle<()>>,
}

impl Server {
    /// Listens, and serves connections from now on. Needs a running reactor.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Thread`].
    pub fn start(target: &Arc<Target>, options: &ServerOptions) -> Result<Self, Error> {
        let mut listeners = Vec::new();
        for &address in &options.listen {
            let listener = TcpListener::bind(address, &options.socket)
                .map_err(|source| Error::Listen { address, source })?;
            listeners.push(listener);
        }
        let mut server = Self {
            target: Arc::clone(target),
            connections: Arc::default(),
            addresses: listeners.iter().map(TcpListener::local_addr).collect(),
            acceptors: Vec::new(),
            cores: Vec::new(),
        };
        let mut senders = Vec::new();
        if options.cores > 1 {
            for index in 0..options.cores {
                senders.push(server.start_core(index, &options.runtime)?);
            }
        }
        let senders = Rc::new(senders);
        let turn = Rc::new(std::cell::Cell::new(0));
        for listener in listeners {
            target.add_listener(listener.local_addr());
            let acceptor = Acceptor {
                target: Arc::clone(target),
                connections: Arc::clone(&server.connections),
                cores: Rc::clone(&senders),
                turn: Rc::clone(&turn),
            };
            server.acceptors.push(ring::spawn(acceptor.run(listener)));
        }
        Ok(server)
    }

    /// As [`Self::start`], but waits up to `patience` for addresses that are in use: the sockets of
    /// a target that was killed are only given back when the kernel has torn its ring down, which
    /// is after the process has gone.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_patiently(
        target: &Arc<Target>,
        options: &ServerOptions,
        patience: Duration,
    ) -> Result<Self, Error> {
        let deadline = ring::time::now() + patience;
        loop {
            match Self::start(target, options) {
                Err(Error::Listen { source, .. })
                    if source.kind() == std::io::ErrorKind::AddrInUse
                        && ring::time::now() < deadline =>
                {
                    ring::time::sleep(LISTEN_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    fn start_core(&mut self, index: usize, config: &Config) -> Result<Sender<Handover>, Error> {
        let (sender, mut receiver): (_, Receiver<Handover>) = channel(HANDOVER_MAX);
        let target = Arc::clone(&self.target);
        let name = format!("target-{index}");
        let core = ring::thread::spawn(&name, config, move || async move {
            let tasks = ring::local::WaitGroup::new();
            while let Some((stream, registration)) = receiver.recv().await {
                let in_flight = tasks.enter();
                let connection = Connection::new(&target, stream, registration);
                ring::spawn(async move {
                    connection.run().await;
                    drop(in_flight);
                });
            }
            tasks.wait_zero().await;
        });
        self.cores.push(core.map_err(Error::Thread)?);
        Ok(sender)
    }

    /// The addresses that are listened on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The target that is run.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Connections at the moment.
    pub fn connections(&self) -> usize {
        self.connections.state().signals.len()
    }

    /// Stops: takes no more connections, ends all, waits for the end of their back-end I/O and
    /// flushes all namespaces.
    ///
    /// # Errors
    /// The first flush that failed, after all have been tried.
    pub async fn shutdown(mut self) -> Result<(), block::Error> {
        for acceptor in self.acceptors.drain(..) {
            acceptor.abort();
            let _ = acceptor.await;
        }
        self.connections.close();
        self.connections.ended().await;
        for core in self.cores.drain(..) {
            let _ = core.await;
        }
        let mut result = Ok(());
        for subsystem in self.target.subsystems() {
            for namespace in subsystem.namespaces() {
                if namespace.has_write_cache() {
                    let flushed = namespace.backing().attach().flush().await;
                    result = result.and(flushed);
                }
            }
        }
        result
    }
}

/// Accepts the connections of one listener.
struct Acceptor {
    target: Arc<Target>,
    connections: Arc<Connections>,
    cores: Rc<Vec<Sender<Handover>>>,
    turn: Rc<std::cell::Cell<usize>>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    ring::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(registration) = self.connections.open(self.target.limits().connections_max)
            else {
                tracing::warn!(%peer, "too many connections: one more is refused");
                continue;
            };
            self.hand_over(stream, registration).await;
        }
    }

    async fn hand_over(&self, stream: TcpStream, registration: Registration) {
        if self.cores.is_empty() {
            let connection = Connection::new(&self.target, stream, registration);
            ring::spawn(connection.run());
            return;
        }
        let turn = self.turn.get();
        self.turn.set((turn + 1) % self.cores.len());
        if self.cores[turn].send((stream, registration)).await.is_err() {
            tracing::error!("a core's thread has ended: its connection is dropped");
        }
    }
}
