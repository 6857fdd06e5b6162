//! The bytes of one connection over TCP, with or without TLS, and its handshake.

use crate::access::{Credential, Guard, may_be};
use crate::error::RpcError;
use protocol::auth::Role;
use protocol::connection::{Event, Limits, Peer};
use reactor::{Buffer, Chunk, SocketOptions, TcpListener, TcpStream};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tls::{Holder, Session};

/// Most bytes of one receive.
const RECEIVE_BYTES: usize = 64 << 10;

/// Size above which a buffer for encoding is not kept, in bytes.
const SPARE_MAX_BYTES: usize = 256 << 10;

/// Longest time for connecting and the handshake together.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// Most bytes that a stranger may send before the TLS handshake is over; our ends send less than 1
/// KiB.
const TLS_HANDSHAKE_MAX_BYTES: usize = 4 << 10;

/// Types of the first record of a TLS stream: an alert, or the handshake.
const TLS_FIRST_BYTES: [u8; 2] = [21, 22];

/// One TCP connection.
#[derive(Debug)]
pub(crate) struct Transport {
    stream: TcpStream,
    pub(crate) address: SocketAddr,
    tls: Option<RefCell<Tls>>,
}

/// The TLS state of a connection.
#[derive(Debug)]
struct Tls {
    session: Session,
    /// Plain text, emptied after each use.
    plain: Vec<u8>,
    /// Buffer for the bytes to send, emptied after each use.
    spare: Vec<u8>,
}

impl Transport {
    pub(crate) fn new(stream: TcpStream, address: SocketAddr) -> Self {
        Self { stream, address, tls: None }
    }

    /// Receives into an emptied `buffer` and passes the plain text to `take`. Returns the number of
    /// received bytes; 0 means that the peer has ended.
    pub(crate) async fn receive(
        &self,
        buffer: Buffer,
        take: impl FnOnce(&[u8]),
    ) -> (Result<usize, RpcError>, Buffer) {
        let (received, buffer) = receive(&self.stream, buffer).await;
        let received = received.map_err(RpcError::from).and_then(|bytes| {
            let Some(tls) = &self.tls else {
                take(&buffer);
                return Ok(bytes);
            };
            // Frames have lengths, so a truncated stream is noticed without a closing message of
            // TLS.
            let Tls { session, plain, .. } = &mut *tls.borrow_mut();
            session.read(&buffer, plain)?;
            take(plain);
            plain.clear();
            plain.shrink_to(SPARE_MAX_BYTES);
            Ok(if session.has_ended() { 0 } else { bytes })
        });
        (received, buffer)
    }

    /// Sends all bytes. Only one task at a time may send.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Result<(), RpcError> {
        let Some(tls) = &self.tls else {
            return Ok(send(&self.stream, bytes).await?);
        };
        let records = {
            let Tls { session, spare, .. } = &mut *tls.borrow_mut();
            session.write(bytes)?;
            session.take_output(std::mem::take(spare))
        };
        send(&self.stream, &records).await?;
        tls.borrow_mut().spare = self::spare(records);
        Ok(())
    }
}

async fn receive(stream: &TcpStream, mut buffer: Buffer) -> (io::Result<usize>, Buffer) {
    buffer.clear();
    let range = 0..buffer.capacity();
    stream.recv(buffer, range).await
}

async fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.send_vectored(vec![Chunk::copy_from(bytes)]).await.0
}

/// Returns a buffer for [`Transport::receive`].
pub(crate) fn receive_buffer() -> Buffer {
    Buffer::with_capacity(RECEIVE_BYTES)
}

/// Returns the buffer of sent bytes for the next use, unless it is too large to keep.
pub(crate) fn spare(bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() > SPARE_MAX_BYTES { Vec::new() } else { bytes }
}

fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    reactor::random::fill(&mut nonce);
    nonce
}

/// Listens without Nagle's algorithm, because small messages must not wait for one another.
pub(crate) fn listen(address: SocketAddr, options: &SocketOptions) -> io::Result<TcpListener> {
    TcpListener::bind(address, &with_nodelay(options))
}

fn with_nodelay(options: &SocketOptions) -> SocketOptions {
    SocketOptions { nodelay: true, ..options.clone() }
}

/// Connects and performs the handshake.
pub(crate) async fn connect(
    address: SocketAddr,
    options: &SocketOptions,
    credential: &Credential,
    role: Role,
    limits: Limits,
) -> Result<(Transport, Peer), RpcError> {
    let options = with_nodelay(options);
    let stream = reactor::time::timeout(HANDSHAKE_DEADLINE, TcpStream::connect(address, &options))
        .await
        .unwrap_or_else(|elapsed| Err(elapsed.into()))
        .map_err(|source| RpcError::Connect { address, source })?;
    let mut transport = Transport::new(stream, address);
    let shaking = async {
        let mut peer = match credential {
            Credential::Plain(secret) => Peer::connect(secret.clone(), role, nonce(), limits),
            Credential::Tls(psk) => {
                let early = shake_tls(&mut transport, Session::client(psk)?).await?;
                received(Peer::open(role, limits), &early)
            }
        };
        shake(&transport, &mut peer).await?;
        Ok(peer)
    };
    let peer = in_time(shaking).await?;
    Ok((transport, peer))
}

/// Performs the handshake at the accepting end; returns the peer's role and, with TLS, the holder
/// of its key.
pub(crate) async fn accept(
    transport: &mut Transport,
    guard: &Guard,
    limits: Limits,
) -> Result<(Role, Option<Holder>, Peer), RpcError> {
    in_time(async {
        let server = match guard {
            Guard::Plain(secret) => {
                let nonce = if reactor::mutant!("nonce-repeated") { [0; 32] } else { nonce() };
                let mut peer = Peer::accept(secret.clone(), nonce, limits);
                let role = shake(transport, &mut peer).await?;
                return Ok((role, None, peer));
            }
            Guard::Tls(server) => server,
        };
        let early = shake_tls(transport, Session::server(server)?).await?;
        let holder = transport.holder().ok_or(RpcError::Identity)?;
        let mut peer = received(Peer::welcome(limits), &early);
        let role = shake(transport, &mut peer).await?;
        if !may_be(&holder, role) {
            return Err(RpcError::Role { role, holder });
        }
        Ok((role, Some(holder), peer))
    })
    .await
}

impl Transport {
    /// Returns the holder of the peer's key.
    fn holder(&self) -> Option<Holder> {
        Holder::of(self.tls.as_ref()?.borrow().session.identity())
    }
}

async fn in_time<T>(shaking: impl Future<Output = Result<T, RpcError>>) -> Result<T, RpcError> {
    reactor::time::timeout(HANDSHAKE_DEADLINE, shaking)
        .await
        .unwrap_or(Err(RpcError::Deadline(HANDSHAKE_DEADLINE)))
}

/// Returns a peer that has received these bytes already.
fn received(mut peer: Peer, early: &[u8]) -> Peer {
    peer.receive(early);
    peer
}

/// Performs the TLS handshake; returns the plain text that followed it at once.
async fn shake_tls(transport: &mut Transport, mut session: Session) -> Result<Vec<u8>, RpcError> {
    let stream = &transport.stream;
    let (mut plain, mut received_bytes) = (Vec::new(), 0);
    let mut buffer = receive_buffer();
    let mut shaken = Ok(session.is_open());
    loop {
        let output = session.take_output(Vec::new());
        if !output.is_empty() {
            send(stream, &output).await?;
        }
        if shaken? {
            break;
        }
        let came;
        (came, buffer) = receive(stream, buffer).await;
        let came = came?;
        if came == 0 {
            return Err(RpcError::Refused);
        }
        // The library would wait for the length that the first bytes of another protocol seem to
        // announce.
        if received_bytes == 0 && !TLS_FIRST_BYTES.contains(&buffer[0]) {
            return Err(RpcError::NotTls);
        }
        received_bytes += came;
        let mut input = &buffer[..];
        shaken = session.handshake(&mut input);
        if shaken == Ok(true) {
            session.read(input, &mut plain)?;
        } else if received_bytes > TLS_HANDSHAKE_MAX_BYTES {
            return Err(RpcError::Overlong);
        }
    }
    transport.tls = Some(RefCell::new(Tls { session, plain: Vec::new(), spare: Vec::new() }));
    Ok(plain)
}

async fn shake(transport: &Transport, peer: &mut Peer) -> Result<Role, RpcError> {
    let mut buffer = receive_buffer();
    loop {
        // The owner sends the remaining output, because it may still refuse the peer.
        if let Some(Event::Ready(role)) = peer.event()? {
            return Ok(role);
        }
        let output = peer.take_output(Vec::new());
        if !output.is_empty() {
            transport.send(&output).await?;
        }
        let result;
        (result, buffer) = transport.receive(buffer, |bytes| peer.receive(bytes)).await;
        if result? == 0 {
            return Err(RpcError::Refused);
        }
    }
}
