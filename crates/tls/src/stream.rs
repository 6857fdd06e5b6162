//! A TCP connection in the clear or under TLS, for tasks that poll it manually.
//!
//! In the clear it is the connection itself: its operations are those of [`TcpStream`] without
//! additions. Under TLS it encrypts plain text in pieces of several records, and decrypts received
//! records directly into the caller's segments. The polling task carries out the handshake: the
//! first receive goes through it, and sends wait for its end.

mod outgoing;
mod secure;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::key::Psk;
use crate::server::Server;
use crate::session::Session;
pub use outgoing::Outgoing;
use reactor::{Buffer, Chunk, Op, Segments, TcpStream};
pub use secure::Secure;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// In the clear.
    Plain(TcpStream),
    /// Under TLS.
    Secure(Box<Secure>),
}

/// A receive under way.
#[derive(Debug)]
pub enum Receiving {
    /// In the clear.
    Plain(Op<(io::Result<usize>, Segments)>),
    /// Under TLS: the memory for plain text.
    Secure(Segments),
}

/// A send under way.
#[derive(Debug)]
pub enum Sending {
    /// In the clear.
    Plain(Op<(io::Result<()>, Vec<Chunk>)>),
    /// Under TLS.
    Secure(Outgoing),
}

/// A connection without operations under way, which can be sent to another thread.
#[derive(Debug)]
pub struct Idle(Parts);

#[derive(Debug)]
enum Parts {
    Plain(TcpStream),
    Secure { tcp: TcpStream, session: Box<Session>, incoming: Option<Buffer>, unread: Range<usize> },
}

impl From<Idle> for Stream {
    fn from(idle: Idle) -> Self {
        match idle.0 {
            Parts::Plain(tcp) => Self::Plain(tcp),
            Parts::Secure { tcp, session, incoming, unread } => {
                let idle =
                    Secure { incoming, unread, has_begun: true, ..Secure::new(tcp, *session) };
                Self::Secure(Box::new(idle))
            }
        }
    }
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self::Plain(tcp)
    }
}

impl Stream {
    /// Returns the connecting end, under TLS with one of these keys, best first.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn client(tcp: TcpStream, psks: &[Psk]) -> Result<Self, Error> {
        Ok(Self::Secure(Box::new(Secure::new(tcp, Session::client_of(psks)?))))
    }

    /// Returns the accepting end, under TLS.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn server(tcp: TcpStream, server: &Server) -> Result<Self, Error> {
        Ok(Self::Secure(Box::new(Secure::new(tcp, Session::server(server)?))))
    }

    /// Returns the accepting end, under TLS or in the clear, depending on the peer's first byte.
    /// Nothing may be sent before a byte has been received.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn either(tcp: TcpStream, server: &Server) -> Result<Self, Error> {
        let secure = Secure { may_be_clear: true, ..Secure::new(tcp, Session::server(server)?) };
        Ok(Self::Secure(Box::new(secure)))
    }

    /// Returns the TCP connection.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Secure(secure) => &secure.tcp,
        }
    }

    /// Returns the identity of the key that both ends have proved to know, even if the connection
    /// has failed since; [`None`] before, and in the clear.
    pub fn identity(&self) -> Option<&[u8]> {
        let Self::Secure(secure) = self else { return None };
        secure.session.suite().map(|_| secure.session.identity())
    }

    /// Waits until no send is under way, not even for the handshake.
    ///
    /// # Errors
    /// The error of a send.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Secure(secure) => secure.poll_flush(cx),
        }
    }

    /// Makes the connection movable to another thread, with all received bytes; [`None`] if an
    /// operation is under way.
    pub fn into_idle(self) -> Option<Idle> {
        let secure = match self {
            Self::Plain(tcp) => return Some(Idle(Parts::Plain(tcp))),
            Self::Secure(secure) => *secure,
        };
        let Secure { tcp, session, incoming, unread, receiving, sending, .. } = secure;
        if receiving.is_some() || sending.is_some() {
            return None;
        }
        Some(Idle(Parts::Secure { tcp, session: Box::new(session), incoming, unread }))
    }

    /// Starts a receive like [`TcpStream::recv_vectored`]. Only one may be under way.
    pub fn receive(&self, segments: Segments) -> Receiving {
        match self {
            Self::Plain(tcp) => Receiving::Plain(tcp.recv_vectored(segments)),
            Self::Secure(_) => Receiving::Secure(segments),
        }
    }

    /// Continues a receive of this stream. A TLS failure is an [`io::Error`] that contains an
    /// [`Error`].
    pub fn poll_receive(
        &mut self,
        receiving: &mut Receiving,
        cx: &mut Context<'_>,
    ) -> Poll<(io::Result<usize>, Segments)> {
        let secure = match (&mut *self, &mut *receiving) {
            (_, Receiving::Plain(op)) => return Pin::new(op).poll(cx),
            (Self::Secure(secure), Receiving::Secure(_)) => secure,
            (Self::Plain(_), Receiving::Secure(_)) => unreachable!("the receive of another stream"),
        };
        let Receiving::Secure(segments) = receiving else { unreachable!("it is not plain") };
        let result = ready!(secure.poll_receive(segments, cx));
        let segments = std::mem::take(segments);
        if secure.is_clear && secure.unread.is_empty() {
            *self = Self::Plain(secure.tcp.clone());
        }
        Poll::Ready((result, segments))
    }

    /// Starts a send like [`TcpStream::send_vectored`]. Only one may be under way.
    pub fn send(&self, chunks: Vec<Chunk>) -> Sending {
        match self {
            Self::Plain(tcp) => Sending::Plain(tcp.send_vectored(chunks)),
            Self::Secure(_) => Sending::Secure(Outgoing::new(chunks)),
        }
    }

    /// Continues a send of this stream.
    pub fn poll_send(
        &mut self,
        sending: &mut Sending,
        cx: &mut Context<'_>,
    ) -> Poll<(io::Result<()>, Vec<Chunk>)> {
        match (self, sending) {
            (_, Sending::Plain(op)) => Pin::new(op).poll(cx),
            (Self::Secure(secure), Sending::Secure(outgoing)) => {
                let result = ready!(secure.poll_send(outgoing, cx));
                Poll::Ready((result, outgoing.take_chunks()))
            }
            (Self::Plain(_), Sending::Secure(_)) => unreachable!("the send of another stream"),
        }
    }
}
