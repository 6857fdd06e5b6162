//! The accepting end: whoever knocks has to prove within a few seconds that it knows the secret.

use crate::connection::{Connection, Handler};
use crate::error::RpcError;
use crate::interface::{Acceptor, Interface};
use crate::transport::{self, Transport};
use protocol::auth::{Role, Secret};
use protocol::connection::{Limits, Peer};
use ring::{SocketOptions, TcpListener};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

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

    /// The address that is listened on, with the port that the kernel chose for 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of `accept(2)`: a passing lack of descriptors among them, so go on after a pause.
    pub async fn accept(&self) -> io::Result<Knock> {
        let (stream, address) = self.0.accept().await?;
        Ok(Knock(Transport::new(stream, address)))
    }
}

/// A connection that has not proven anything.
#[derive(Debug)]
pub struct Knock(Transport);

impl Knock {
    /// Where it comes from.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Carries the handshake out, within 5 s.
    ///
    /// # Errors
    /// [`RpcError::Protocol`] with the reason, [`RpcError::Deadline`], [`RpcError::Refused`] if the
    /// peer went away.
    pub async fn authenticate(
        self,
        secret: &Secret,
        limits: Limits,
    ) -> Result<Authenticated, RpcError> {
        let mut peer = Peer::accept(secret.clone(), transport::nonce(), limits);
        let role = transport::handshake(&self.0, &mut peer).await?;
        Ok(Authenticated { role, transport: self.0, peer })
    }
}

/// A connection whose peer knows the secret, before its first call.
#[derive(Debug)]
pub struct Authenticated {
    role: Role,
    transport: Transport,
    peer: Peer,
}

impl Authenticated {
    /// What the peer is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Starts serving it; `I` must be the interface of [`Authenticated::role`].
    ///
    /// # Panics
    /// If it is another's.
    pub fn start<I: Interface>(
        self,
        handler: Rc<dyn Handler<Acceptor<I>>>,
    ) -> Connection<Acceptor<I>> {
        assert_eq!(I::ROLE, self.role, "a connection is served by its role's interface");
        Connection::start(self.transport, self.peer, handler)
    }
}
