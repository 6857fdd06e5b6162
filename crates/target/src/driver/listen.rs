//! Listeners: accept connections. They can be added and removed while the target runs.

use super::connection::Connection;
use super::cores::Threads;
use super::{Connections, Server};
use crate::error::Error;
use crate::target::{Target, Transport};
use reactor::{Sparse, TcpListener};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed accept, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits log lines that strangers can cause.
static ACCEPT_FAILED: Sparse = Sparse::new();
static NO_ROOM: Sparse = Sparse::new();
static NO_TLS: Sparse = Sparse::new();

impl Server {
    /// Listens at another address, and adds it to discovery. Port 0 takes a free port. Returns the
    /// address.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        let listener = TcpListener::bind(address, &self.socket)
            .map_err(|source| Error::Listen { address, source })?;
        Ok(self.accept(listener))
    }

    /// Stops listening at an address, and removes it from discovery. The listener's connections
    /// stay. The kernel releases the address a moment later. Returns whether the target listened
    /// there.
    pub async fn unlisten(&mut self, address: SocketAddr) -> bool {
        let Some(index) = self.addresses.iter().position(|known| *known == address) else {
            return false;
        };
        self.addresses.remove(index);
        let acceptor = self.acceptors.remove(index);
        self.target.remove_listener(address, Transport::Tcp);
        acceptor.abort();
        let _ = acceptor.await;
        true
    }

    /// Starts the task of a listener and returns its address.
    pub(super) fn accept(&mut self, listener: TcpListener) -> SocketAddr {
        let address = listener.local_addr();
        let acceptor = Acceptor {
            target: Arc::clone(&self.target),
            connections: Arc::clone(&self.connections),
            threads: self.threads.clone(),
        };
        self.target.add_listener(address, Transport::Tcp);
        self.addresses.push(address);
        self.acceptors.push(reactor::spawn(acceptor.run(listener)));
        address
    }
}

/// Accepts the connections of one listener.
struct Acceptor {
    target: Arc<Target>,
    connections: Arc<Connections>,
    /// The cores' threads, if there are several.
    threads: Option<Rc<Threads>>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(suppressed) = ACCEPT_FAILED.pass() {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    self.connections.make_room();
                    reactor::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let registration = match self.connections.open(peer).await {
                Ok(registration) => registration,
                Err(reason) => {
                    if let Some(suppressed) = NO_ROOM.pass() {
                        tracing::warn!(%peer, reason, suppressed, "a connection is refused");
                    }
                    continue;
                }
            };
            let stream = match self.target.accepted(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    if let Some(suppressed) = NO_TLS.pass() {
                        tracing::warn!(%peer, %error, suppressed, "a connection is refused");
                    }
                    continue;
                }
            };
            let connection = Connection::new(&self.target, stream, registration);
            reactor::spawn(connection.outside(self.threads.clone()).run());
        }
    }
}
