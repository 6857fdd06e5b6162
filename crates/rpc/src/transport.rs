//! Bytes of one connection over TCP, and its handshake.

use crate::error::RpcError;
use protocol::auth::{Role, Secret};
use protocol::connection::{Event, Limits, Peer};
use ring::{Buffer, Chunk, SocketOptions, TcpListener, TcpStream};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of one receive at most.
const RECEIVE_BYTES: usize = 64 << 10;

/// Buffers for encoding that grew larger than this are not kept, in bytes.
const SPARE_MAX_BYTES: usize = 256 << 10;

/// A connection is made and its handshake is over within this.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Transport {
    stream: TcpStream,
    pub(crate) address: SocketAddr,
}

impl Transport {
    pub(crate) fn new(stream: TcpStream, address: SocketAddr) -> Self {
        Self { stream, address }
    }

    /// Receives into an emptied `buffer`; 0 bytes mean that the peer has ended.
    pub(crate) async fn receive(&self, mut buffer: Buffer) -> (io::Result<usize>, Buffer) {
        buffer.clear();
        let range = 0..buffer.capacity();
        self.stream.recv(buffer, range).await
    }

    /// Sends all bytes.
    pub(crate) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.stream.send_vectored(vec![Chunk::copy_from(bytes)]).await.0
    }
}

/// A buffer for [`Transport::receive`].
pub(crate) fn receive_buffer() -> Buffer {
    Buffer::with_capacity(RECEIVE_BYTES)
}

/// What was sent, for the next use if it is not too large to keep.
pub(crate) fn spare(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() > SPARE_MAX_BYTES { Vec::new() } else { bytes }
}

pub(crate) fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    ring::random::fill(&mut nonce);
    nonce
}

/// Listens; a job's processes speak in small messages that must not wait for one another.
pub(crate) fn listen(address: SocketAddr, options: &SocketOptions) -> io::Result<TcpListener> {
    TcpListener::bind(address, &with_nodelay(options))
}

fn with_nodelay(options: &SocketOptions) -> SocketOptions {
    SocketOptions { nodelay: true, ..options.clone() }
}

/// Connects and carries the handshake out.
pub(crate) async fn connect(
    address: SocketAddr,
    options: &SocketOptions,
    secret: &Secret,
    role: Role,
    limits: Limits,
) -> Result<(Transport, Peer), RpcError> {
    let options = with_nodelay(options);
    let stream = ring::time::timeout(HANDSHAKE_DEADLINE, TcpStream::connect(address, &options))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()))
        .map_err(|source| RpcError::Connect { address, source })?;
    let transport = Transport::new(stream, address);
    let mut peer = Peer::connect(secret.clone(), role, nonce(), limits);
    handshake(&transport, &mut peer).await?;
    Ok((transport, peer))
}

/// Carries the handshake out, within a deadline; what was received beyond it stays in `peer`.
pub(crate) async fn handshake(transport: &Transport, peer: &mut Peer) -> Result<Role, RpcError> {
    ring::time::timeout(HANDSHAKE_DEADLINE, shake(transport, peer))
        .await
        .unwrap_or(Err(RpcError::Deadline(HANDSHAKE_DEADLINE)))
}

async fn shake(transport: &Transport, peer: &mut Peer) -> Result<Role, RpcError> {
    let mut buffer = receive_buffer();
    loop {
        if let Some(Event::Ready(role)) = peer.event()? {
            return Ok(role);
        }
        let output = peer.take_output(Vec::new());
        if !output.is_empty() {
            transport.send(&output).await?;
        }
        let result;
        (result, buffer) = transport.receive(buffer).await;
        if result? == 0 {
            return Err(RpcError::Refused);
        }
        peer.receive(&buffer);
    }
}
