//! The target's I/O: listeners, cores and connections on the reactor.
//!
//! Each connection is one task on one core. It stays there, and only that thread uses its queue
//! pair, devices and buffers. With one core everything runs on the caller's reactor. With more, a
//! connection moves to the thread of a core as soon as its role is known (see [`Cores`]).

mod connection;
mod cores;
mod execute;
mod fabric;
mod fused;
mod io_command;
mod limit;
mod listen;
mod pace;

mod reserve;
mod start;
mod wire;
mod work;

use crate::error::Error;
use crate::signal::{self, Signal};
use crate::target::Target;
use cores::{CoreAssignment, Kind, Loads, Threads};
use fabric::RdmaListener;
use reactor::net::{Entered, Entrance, EntranceLimits};
use reactor::{Config, SocketOptions, TcpListener};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of accepted connections that wait for their core.
const HANDOVER_MAX: usize = 64;
/// Pause while connections end that have the order to end.
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Pause between attempts to listen at an address that is in use.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

pub use cores::{Cores, QueuePairs};

/// Settings of a running target.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Addresses to listen at; port 0 takes a free port.
    pub listen: Vec<SocketAddr>,
    /// Addresses to listen at over RDMA.
    pub listen_rdma: Vec<SocketAddr>,
    /// Threads that serve connections; 1 serves on the caller's reactor.
    pub cores: usize,
    /// Settings for the reactors of further cores.
    pub runtime: Config,
    /// Settings for sockets.
    pub socket: SocketOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], nvme::tcp::IO_PORT))],
            listen_rdma: Vec::new(),
            cores: 1,
            runtime: Config::default(),
            socket: SocketOptions::default(),
        }
    }
}

/// The live connections of all cores.
#[derive(Debug)]
struct Connections {
    state: Mutex<ConnectionsState>,
    loads: Loads,
}

#[derive(Debug)]
struct ConnectionsState {
    /// Decides which connections are kept.
    entrance: Entrance,
    signals: BTreeMap<u64, Arc<Signal>>,
    is_closed: bool,
    /// Woken when the last connection has ended.
    waiter: Option<std::task::Waker>,
}

impl Connections {
    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(connections_max: usize, cores: usize) -> Arc<Self> {
        let state = ConnectionsState {
            entrance: Entrance::new(EntranceLimits::of(connections_max)),
            signals: BTreeMap::new(),
            is_closed: false,
            waiter: None,
        };
        Arc::new(Self { state: Mutex::new(state), loads: Loads::new(cores) })
    }

    /// Enters a connection. If it replaces another one that is not a queue pair yet, that one ends.
    /// Fails with the reason if there is no room.
    async fn open(self: &Arc<Self>, peer: SocketAddr) -> Result<Registration, &'static str> {
        loop {
            if let Some(opened) = self.try_open(peer) {
                return opened;
            }
            reactor::time::sleep(ENDING_PAUSE).await;
        }
    }

    /// Tries to enter a connection, as [`Self::open`] does. Returns [`None`] while connections are
    /// ending to make room.
    fn try_open(self: &Arc<Self>, peer: SocketAddr) -> Option<Result<Registration, &'static str>> {
        let mut state = self.state();
        if state.is_closed {
            return Some(Err("the target ends"));
        }
        let (id, ending) = match state.entrance.enter(peer.ip()) {
            Entered::Kept { id, ending } => (id, ending),
            Entered::Busy => return None,
            Entered::Full => return Some(Err("all connections are in use")),
            Entered::PeerFull => {
                return Some(Err("its address has its maximum of connections"));
            }
        };
        let signal = Arc::<Signal>::default();
        state.signals.insert(id, Arc::clone(&signal));
        let ending = ending.and_then(|ending| state.signals.get(&ending).cloned());
        drop(state);
        if let Some(ending) = ending {
            ending.raise(signal::CLOSE);
        }
        let assignment = CoreAssignment::default();
        Some(Ok(Registration { connections: Arc::clone(self), id, signal, assignment }))
    }

    /// Ends one connection that is not a queue pair yet, if there is one, because descriptors are
    /// short.
    fn make_room(&self) {
        let mut state = self.state();
        let ending = state.entrance.make_room();
        let ending = ending.and_then(|ending| state.signals.get(&ending).cloned());
        drop(state);
        if let Some(ending) = ending {
            ending.raise(signal::CLOSE);
        }
    }

    /// Ends all connections and refuses new ones.
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

/// A connection's entry; dropping it removes the entry.
#[derive(Debug)]
struct Registration {
    connections: Arc<Connections>,
    id: u64,
    signal: Arc<Signal>,
    assignment: CoreAssignment,
}

impl Registration {
    /// Assigns the connection to the best core for its kind. Returns the core.
    fn choose_core(&mut self, kind: Kind) -> usize {
        self.assignment.choose(&self.connections.loads, kind)
    }

    /// Records that the connection has become a queue pair of this kind. From now on it does not
    /// end to make room for a new one.
    fn settle(&mut self, kind: Kind) {
        self.assignment.settle(&self.connections.loads, kind);
        self.connections.state().entrance.prove(self.id);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.assignment.leave(&self.connections.loads);
        let mut state = self.connections.state();
        state.entrance.leave(self.id);
        state.signals.remove(&self.id);
        let waiter = if state.signals.is_empty() { state.waiter.take() } else { None };
        drop(state);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// A running target.
#[derive(Debug)]
pub struct Server {
    target: Arc<Target>,
    connections: Arc<Connections>,
    addresses: Vec<SocketAddr>,
    /// Settings for sockets.
    socket: SocketOptions,
    /// The listeners' tasks, in the order of `addresses`.
    acceptors: Vec<reactor::JoinHandle<()>>,
    /// The listeners over RDMA.
    rdma: Vec<RdmaListener>,
    cores: Vec<reactor::thread::JoinHandle<()>>,
    threads: Option<Rc<Threads>>,
}

impl Server {
    /// Starts to listen and to serve connections. Needs a running reactor.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Thread`], [`Error::Rdma`].
    pub fn start(target: &Arc<Target>, options: &ServerOptions) -> Result<Self, Error> {
        let mut listeners = Vec::new();
        for &address in &options.listen {
            let listener = TcpListener::bind(address, &options.socket)
                .map_err(|source| Error::Listen { address, source })?;
            listeners.push(listener);
        }
        let mut server = Self {
            target: Arc::clone(target),
            connections: Connections::new(target.limits().connections_max, options.cores),
            addresses: Vec::new(),
            socket: options.socket.clone(),
            acceptors: Vec::new(),
            rdma: Vec::new(),
            cores: Vec::new(),
            threads: None,
        };
        let mut senders = Vec::new();
        if options.cores > 1 {
            for index in 0..options.cores {
                let (sender, thread) = cores::start(target, index, &options.runtime)?;
                senders.push(sender);
                server.cores.push(thread);
            }
        }
        server.threads = (!senders.is_empty()).then(|| Rc::new(Threads::new(senders)));
        for &address in &options.listen_rdma {
            server.listen_rdma(address)?;
        }
        for listener in listeners {
            server.accept(listener);
        }
        Ok(server)
    }

    /// Starts as [`Self::start`] does, but waits up to `patience` for addresses in use. The kernel
    /// releases the sockets of a killed target only when it has torn down its ring, which is after
    /// the end of the process.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_patiently(
        target: &Arc<Target>,
        options: &ServerOptions,
        patience: Duration,
    ) -> Result<Self, Error> {
        let deadline = reactor::time::now() + patience;
        loop {
            match Self::start(target, options) {
                Err(
                    Error::Listen { source, .. } | Error::Rdma(rdma::Error::Listen { source, .. }),
                ) if source.kind() == std::io::ErrorKind::AddrInUse
                    && reactor::time::now() < deadline =>
                {
                    reactor::time::sleep(LISTEN_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Returns the addresses at which the target listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the running target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Returns a view of what the cores serve.
    pub fn cores(&self) -> Cores {
        Cores { connections: Arc::clone(&self.connections) }
    }

    /// Returns the number of live connections.
    pub fn connections(&self) -> usize {
        self.connections.state().signals.len()
    }

    /// Stops the target: accepts no more connections, ends all, waits for the end of their back-end
    /// I/O and flushes all namespaces.
    ///
    /// # Errors
    /// The first flush that failed, after all flushes were tried.
    pub async fn shutdown(mut self) -> Result<(), block::Error> {
        for acceptor in self.acceptors.drain(..) {
            acceptor.abort();
            let _ = acceptor.await;
        }
        self.unlisten_rdma().await;
        self.connections.close();
        self.connections.ended().await;
        // The cores' threads end when connections can no longer be sent to them.
        self.threads = None;
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
