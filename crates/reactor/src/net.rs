//! TCP over the reactor.
//!
//! Receives and sends own their memory while they run. A send takes a list of chunks and sends all
//! of it with as few calls as possible, usually one: on loopback, eight 4 KiB messages in one send
//! cost a sixth of eight sends.

mod entrance;
mod socket;

pub use entrance::{Entered, Entrance, EntranceLimits};

use crate::buffer::Buffer;
use crate::chunk::{Chunk, Segment, Segments};
use crate::handle::{Handle, note_written};
use crate::operation::{Op, Operation, Step};
use smallvec::smallvec;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

/// Most connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The options of sockets.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Network namespace (e.g. `/run/netns/node1`) of the socket. A thread that enters the
    /// namespace only for this purpose makes the socket; that needs `CAP_SYS_ADMIN` there.
    pub network_namespace: Option<PathBuf>,
    /// `TCP_NODELAY`: send small messages at once.
    pub nodelay: bool,
    /// `SO_SNDBUF` in bytes; `None` leaves it to the kernel.
    pub send_buffer_bytes: Option<usize>,
    /// `SO_RCVBUF` in bytes; `None` leaves it to the kernel.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            network_namespace: None,
            nodelay: true,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener {
    handle: Handle,
    options: SocketOptions,
    local_addr: SocketAddr,
}

impl TcpListener {
    /// Listens at `address` (port 0 takes a free one). The address may be reused immediately after
    /// the former listener has closed.
    ///
    /// # Errors
    /// Errors of `socket`, `bind` and `listen`, and of `setns` for a network namespace.
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let (handle, local_addr) = socket::listen(address, options)?;
        Ok(Self { handle, options: options.clone(), local_addr })
    }

    /// Waits for a connection. Dropping the future closes a connection that has just arrived: to
    /// continue after another future came first, race it by `&mut`.
    ///
    /// # Errors
    /// Errors of `accept`. `EMFILE` and similar errors pass, so a caller should retry after a
    /// pause.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (handle, peer_addr) = Op::submit(&self.handle, Operation::Accept, |completion| {
            let result = completion.result();
            let accepted = completion.accepted;
            Step::Done(result.and_then(|_| accepted.ok_or(io::ErrorKind::InvalidData.into())))
        })
        .await?;
        let stream = TcpStream::new(handle, &self.options, peer_addr)?;
        Ok((stream, peer_addr))
    }

    /// Returns the address of the listener, with its actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

/// A connection. Clones refer to the same connection; it is closed with the last of them and of the
/// operations on it.
#[derive(Clone, Debug)]
pub struct TcpStream {
    handle: Handle,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
}

impl TcpStream {
    /// Connects to `address`. There is no deadline beyond the kernel's (minutes): wrap it in
    /// [`timeout`](crate::time::timeout).
    ///
    /// # Errors
    /// Errors of `socket` and `connect`, and of `setns` for a network namespace.
    pub async fn connect(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let handle = socket::open(address, options)?;
        Op::submit(&handle, Operation::Connect(address), |completion| {
            Step::Done(completion.into_result())
        })
        .await?;
        Self::new(handle, options, address)
    }

    fn new(handle: Handle, options: &SocketOptions, peer_addr: SocketAddr) -> io::Result<Self> {
        let local_addr = socket::set_up(&handle, options)?;
        Ok(Self { handle, local_addr, peer_addr })
    }

    /// Receives at least one byte into a range of the buffer's capacity; 0 means that the peer has
    /// shut its side down. The buffer's visible length grows to cover the received bytes.
    ///
    /// Dropping the future loses bytes that have just arrived. To continue after another future
    /// came first, race it by `&mut`; drop it only to abandon the connection.
    pub fn recv(&self, buffer: Buffer, range: Range<usize>) -> Op<(io::Result<usize>, Buffer)> {
        let segments = smallvec![Segment::Buffer(buffer, range)];
        Op::submit(&self.handle, Operation::Receive(segments), |completion| {
            let result = completion.result();
            let Operation::Receive(mut segments) = completion.operation else {
                unreachable!("a receive completes as a receive")
            };
            if let Ok(n) = result {
                note_written(&mut segments, n);
            }
            Step::Done((result, Operation::Receive(segments).into_buffer()))
        })
    }

    /// Receives at least one byte and fills the segments in order: e.g. the rest of a payload into
    /// its destination and the following bytes into a receive buffer. As for [`recv`](Self::recv),
    /// dropping the future may lose bytes.
    pub fn recv_vectored(&self, segments: Segments) -> Op<(io::Result<usize>, Segments)> {
        Op::submit(&self.handle, Operation::Receive(segments), |completion| {
            let result = completion.result();
            let Operation::Receive(mut segments) = completion.operation else {
                unreachable!("a receive completes as a receive")
            };
            if let Ok(n) = result {
                note_written(&mut segments, n);
            }
            Step::Done((result, segments))
        })
    }

    /// Sends all bytes of all chunks. Returns the list empty, for reuse. After an error, or if the
    /// future was dropped, an unknown part was sent: the connection is of no use any more.
    ///
    /// Two sends at a time on one connection may mix: await one before the next.
    pub fn send_vectored(&self, chunks: Vec<Chunk>) -> Op<(io::Result<()>, Vec<Chunk>)> {
        if chunks.iter().all(Chunk::is_empty) {
            return Op::ready((Ok(()), emptied(chunks)));
        }
        Op::submit(&self.handle, Operation::Send { chunks, skip: 0 }, |completion| {
            let result = completion.result();
            let Operation::Send { chunks, skip } = completion.operation else {
                unreachable!("a send completes as a send")
            };
            match result {
                Err(error) => Step::Done((Err(error), emptied(chunks))),
                Ok(n) => {
                    let skip = skip + n;
                    if skip < chunks.iter().map(Chunk::len).sum() {
                        Step::Again(Operation::Send { chunks, skip })
                    } else {
                        Step::Done((Ok(()), emptied(chunks)))
                    }
                }
            }
        })
    }

    /// Shuts one or both directions down; pending receives end.
    pub fn shutdown(&self, how: Shutdown) -> Op<io::Result<()>> {
        Op::submit(&self.handle, Operation::Shutdown(how), |completion| {
            Step::Done(completion.into_result().map(drop))
        })
    }

    /// Makes the socket discard unsent data when it is closed, and reset the connection
    /// (`SO_LINGER` of zero seconds). In the simulation a closed connection never delivers unsent
    /// data.
    pub fn discard_unsent_on_close(&self) {
        socket::discard_unsent_on_close(&self.handle);
    }

    /// Returns the address of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the address of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    /// Returns the handle, for operations that this type lacks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

fn emptied(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
    chunks.clear();
    chunks
}
