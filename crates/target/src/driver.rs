//! The target on the ring: listeners, cores and connections.
//!
//! Each connection is one task on one core, and stays there: queue pair, devices and buffers are
//! used by that thread alone. With one core everything runs on the caller's reactor; with more, a
//! connection is handed to a core's thread when it is known what it becomes (see [`Cores`]).

mod connection;
mod cores;
mod execute;
mod fabric;
mod limit;
mod listen;
mod pace;
mod plan;
mod reserve;
mod wire;
mod work;

use crate::error::Error;
use crate::signal::{self, Signal};
use crate::target::Target;
use cores::{Kind, Loads, Place, Threads};
use fabric::RdmaListener;
use reactor::net::{Entered, Entrance, EntranceLimits};
use reactor::{Config, SocketOptions, TcpListener};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Accepted connections that may wait for their core.
const HANDOVER_MAX: usize = 64;
/// Pause while connections end that were asked to.
const ENDING_PAUSE: Duration = Duration::from_millis(1);

/// Pause between attempts to listen at an address that is in use.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

pub use cores::{Cores, QueuePairs};

/// How a target is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Where to listen over RDMA.
    pub listen_rdma: Vec<SocketAddr>,
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
            listen_rdma: Vec::new(),
            cores: 1,
            runtime: Config::default(),
            socket: SocketOptions::default(),
        }
    }
}

/// The connections that live, over all cores.
#[derive(Debug)]
struct Connections {
    state: Mutex<ConnectionsState>,
    loads: Loads,
}

#[derive(Debug)]
struct ConnectionsState {
    /// Which of them are kept.
    entrance: Entrance,
    signals: BTreeMap<u64, Arc<Signal>>,
    is_closed: bool,
    /// Notified when the last connection has ended.
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

    /// Enters a connection. Where it takes the place of another that is not a queue pair yet, that one
    /// ends. Fails with the reason if there is no room.
    async fn open(self: &Arc<Self>, peer: SocketAddr) -> Result<Registration, &'static str> {
        loop {
            if let Some(opened) = self.try_open(peer) {
                return opened;
            }
            reactor::time::sleep(ENDING_PAUSE).await;
        }
    }

    /// As [`Self::open`]; [`None`] until connections have gone that were asked to end.
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
                return Some(Err("its address has as many connections as one may"));
            }
        };
        let signal = Arc::<Signal>::default();
        state.signals.insert(id, Arc::clone(&signal));
        let ending = ending.and_then(|ending| state.signals.get(&ending).cloned());
        drop(state);
        if let Some(ending) = ending {
            ending.raise(signal::CLOSE);
        }
        let place = Place::default();
        Some(Ok(Registration { connections: Arc::clone(self), id, signal, place }))
    }

    /// Ends a connection that is not a queue pair yet, if there is one: descriptors are short.
    fn make_room(&self) {
        let mut state = self.state();
        let ending = state.entrance.make_room();
        let ending = ending.and_then(|ending| state.signals.get(&ending).cloned());
        drop(state);
        if let Some(ending) = ending {
            ending.raise(signal::CLOSE);
        }
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
    place: Place,
}

impl Registration {
    /// Takes a place on the best core for a connection of this kind. Returns the core.
    fn choose_core(&mut self, kind: Kind) -> usize {
        self.place.choose(&self.connections.loads, kind)
    }

    /// The connection has become a queue pair of this kind: from now on none ends it for a newcomer.
    fn settle(&mut self, kind: Kind) {
        self.place.settle(&self.connections.loads, kind);
        self.connections.state().entrance.prove(self.id);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.place.leave(&self.connections.loads);
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
    /// How sockets are made.
    socket: SocketOptions,
    /// The listeners' tasks, in the order of `addresses`.
    acceptors: Vec<reactor::JoinHandle<()>>,
    /// The listeners over RDMA.
    rdma: Vec<RdmaListener>,
    cores: Vec<reactor::thread::JoinHandle<()>>,
    threads: Option<Rc<Threads>>,
}

impl Server {
    /// Listens, and serves connections from now on. Needs a running reactor.
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
        let deadline = reactor::time::now() + patience;
        loop {
            match Self::start(target, options) {
                Err(Error::Listen { source, .. })
                    if source.kind() == std::io::ErrorKind::AddrInUse
                        && reactor::time::now() < deadline =>
                {
                    reactor::time::sleep(LISTEN_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// The addresses that are listened on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The target that is run.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// What the cores serve.
    pub fn cores(&self) -> Cores {
        Cores { connections: Arc::clone(&self.connections) }
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
        self.unlisten_rdma().await;
        self.connections.close();
        self.connections.ended().await;
        // The cores' threads end when no one can send them connections.
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
