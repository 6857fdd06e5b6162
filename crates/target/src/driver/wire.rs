//! The transport connection below a queue pair.

use crate::target::Transport;
use rdma::Endpoint;
use std::net::SocketAddr;
use tls::Stream;

/// A connection's stream of bytes, or its messages.
pub(super) enum Wire {
    /// TCP, in the clear or under TLS.
    Tcp(Stream),
    /// RDMA.
    Rdma(Box<Endpoint>),
}

impl Wire {
    /// Returns the kind of transport.
    pub(super) fn transport(&self) -> Transport {
        match self {
            Self::Tcp(_) => Transport::Tcp,
            Self::Rdma(_) => Transport::Rdma,
        }
    }

    /// Returns the host's address.
    pub(super) fn peer_addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(stream) => stream.tcp().peer_addr(),
            Self::Rdma(endpoint) => endpoint.peer_addr(),
        }
    }

    /// Returns the local address at which the host reached the target.
    pub(super) fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Tcp(stream) => stream.tcp().local_addr(),
            Self::Rdma(endpoint) => endpoint.local_addr(),
        }
    }

    /// Returns the identity of its TLS key.
    pub(super) fn identity(&self) -> Option<&[u8]> {
        match self {
            Self::Tcp(stream) => stream.identity(),
            Self::Rdma(_) => None,
        }
    }
}

impl From<Stream> for Wire {
    fn from(stream: Stream) -> Self {
        Self::Tcp(stream)
    }
}
