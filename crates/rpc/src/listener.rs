//! The accepting end: a connector has to prove within a few seconds that it knows a key of the job.

use crate::access::{Guard, Standing};
use crate::connection::{Connection, Handler};
use crate::error::RpcError;
use crate::interface::{Acceptor, Interface};
use crate::transport::{self, Transport};
use protocol::auth::Role;
use protocol::connection::{Limits, Peer};
use reactor::{SocketOptions, TcpListener};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tls::Holder;

/// A listening socket.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens on an address.
    ///
    /// # Errors
    /// Those of socket, bind and listen.
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Listener> {
        transport::listen(address, options).map(Listener)
    }

    /// Returns the address of the socket, with the port that the kernel chose for 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of `accept(2)`, which include a temporary lack of descriptors: try again after a
    /// pause.
    pub async fn accept(&self) -> io::Result<Knock> {
        let (stream, address) = self.0.accept().await?;
        Ok(Knock(Transport::new(stream, address)))
    }
}

/// A connection whose peer has not proved anything.
#[derive(Debug)]
pub struct Knock(Transport);

impl Knock {
    /// Returns the address of the peer.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Performs the handshake, within 5 s.
    ///
    /// # Errors
    /// [`RpcError::Tls`], [`RpcError::Role`] and [`RpcError::Protocol`] with the reason,
    /// [`RpcError::Deadline`], [`RpcError::Refused`] if the peer went away.
    pub async fn authenticate(
        self,
        guard: &Guard,
        limits: Limits,
    ) -> Result<Authenticated, RpcError> {
        let mut transport = self.0;
        let (role, holder, peer) = transport::accept(&mut transport, guard, limits).await?;
        Ok(Authenticated { role, holder, transport, peer })
    }
}

/// A connection whose peer knows a key of the job, before its first call.
#[derive(Debug)]
pub struct Authenticated {
    role: Role,
    holder: Option<Holder>,
    transport: Transport,
    peer: Peer,
}

impl Authenticated {
    /// Returns the role of the peer.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the node for which it may act.
    pub fn standing(&self) -> Standing {
        Standing(self.holder.clone())
    }

    /// Starts serving it; `I` must be the interface of [`Authenticated::role`].
    ///
    /// # Panics
    /// If `I` is the interface of another role.
    pub fn start<I: Interface>(
        self,
        handler: Rc<dyn Handler<Acceptor<I>>>,
    ) -> Connection<Acceptor<I>> {
        assert_eq!(I::ROLE, self.role, "a connection is served by its role's interface");
        Connection::start(self.transport, self.peer, handler)
    }
}
