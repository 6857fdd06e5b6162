//! A connection under TLS: a session between a socket and the memory of its user.

use super::Outgoing;
use crate::error::Error;
use crate::records::{OVERHEAD_BYTES, PLAIN_BYTES_MAX};
use crate::session::Session;
use reactor::{Buffer, Chunk, Inline, Op, Segment, Segments, TcpStream};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

/// Size of plain text that is encrypted before a part of it is sent: whole records, which fit into
/// 256 KiB encrypted.
const PIECE_BYTES: usize = 15 * PLAIN_BYTES_MAX;
/// Initial space for received bytes, because every stranger gets it.
pub(super) const RECEIVE_BYTES_FIRST: usize = 4 << 10;
/// Longest part of a handshake from the peer, in bytes; enough for the smallest records.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;
/// Largest space for received bytes. It doubles when it is filled, once the handshake is over.
const RECEIVE_BYTES_MAX: usize = 256 << 10;

/// Possible first bytes from a peer under TLS: the content type of a record (alert, handshake).
const FIRST_BYTES: [u8; 2] = [21, 22];

/// A connection under TLS.
#[derive(Debug)]
pub struct Secure {
    pub(super) tcp: TcpStream,
    pub(super) session: Session,
    /// Received bytes, while no receive is under way; the session has not taken `unread`.
    pub(super) incoming: Option<Buffer>,
    pub(super) unread: Range<usize>,
    pub(super) receiving: Option<Op<(io::Result<usize>, Buffer)>>,
    pub(super) sending: Option<Op<(io::Result<()>, Vec<Chunk>)>>,
    /// Memory for reuse.
    pub(super) spare: Vec<u8>,
    pub(super) chunks: Vec<Chunk>,
    /// Whether bytes have been received, and the bytes that the handshake took.
    pub(super) has_begun: bool,
    pub(super) handshake_bytes: usize,
    /// Whether the peer may use the clear, depending on its first byte, and whether it does.
    pub(super) may_be_clear: bool,
    pub(super) is_clear: bool,
    /// The reason of the failure; the peer gets an alert first.
    pub(super) failure: Option<Error>,
    /// A sender that waits for the handshake.
    pub(super) sender: Option<Waker>,
}

impl Secure {
    pub(super) fn new(tcp: TcpStream, session: Session) -> Self {
        Self {
            tcp,
            session,
            incoming: Some(Buffer::with_capacity(RECEIVE_BYTES_FIRST)),
            unread: 0..0,
            receiving: None,
            sending: None,
            spare: Vec::new(),
            chunks: Vec::new(),
            has_begun: false,
            handshake_bytes: 0,
            may_be_clear: false,
            is_clear: false,
            failure: None,
            sender: None,
        }
    }

    /// Records a failure. The polling task sends the alert to the peer, and then fails.
    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Sends the session's bytes for the peer.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(op) = &mut self.sending {
                let (result, mut chunks) = ready!(Pin::new(op).poll(cx));
                self.sending = None;
                chunks.clear();
                self.chunks = chunks;
                result?;
            }
            if !self.session.has_output() {
                return Poll::Ready(Ok(()));
            }
            let mut chunks = std::mem::take(&mut self.chunks);
            if let Some(lent) = self.session.take_lent().filter(|lent| !lent.is_empty()) {
                chunks.push(Chunk::from(lent));
            }
            if !self.session.output().is_empty() {
                let output = self.session.take_output(std::mem::take(&mut self.spare));
                chunks.push(Chunk::copy_from(&output));
                self.spare = output;
            }
            self.sending = Some(self.tcp.send_vectored(chunks));
        }
    }

    pub(super) fn poll_receive(
        &mut self,
        segments: &mut Segments,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let flushed = self.poll_flush(cx);
            if let Some(failure) = &self.failure {
                let failure = io::Error::other(failure.clone());
                return flushed.map(|_| Err(failure));
            }
            if let Poll::Ready(Err(error)) = flushed {
                return Poll::Ready(Err(error));
            }
            if self.session.is_open() || self.session.has_ended() {
                let bytes = self.decrypt(segments);
                if bytes > 0 || (self.session.has_ended() && self.failure.is_none()) {
                    return Poll::Ready(Ok(bytes));
                }
            } else if !self.unread.is_empty() {
                self.shake();
                if self.is_clear {
                    return Poll::Ready(Ok(self.hand_over(segments)));
                }
            }
            let has_output = self.sending.is_none() && self.session.has_output();
            if has_output || self.failure.is_some() || !self.unread.is_empty() {
                continue;
            }
            match ready!(self.poll_incoming(cx))? {
                0 => return Poll::Ready(self.end_of_stream()),
                bytes => self.unread = 0..bytes,
            }
        }
    }

    /// Receives bytes for the session, which has taken all earlier ones.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(mut buffer) = self.incoming.take() {
            buffer.clear();
            let range = 0..buffer.capacity();
            self.receiving = Some(self.tcp.recv(buffer, range));
        }
        let Some(op) = &mut self.receiving else { unreachable!("a buffer is somewhere") };
        let (result, buffer) = ready!(Pin::new(op).poll(cx));
        self.receiving = None;
        let capacity = buffer.capacity();
        let is_filled = result.as_ref().is_ok_and(|&bytes| bytes == capacity);
        self.incoming = Some(buffer);
        if is_filled && capacity < RECEIVE_BYTES_MAX && self.session.is_open() {
            self.grow(2 * capacity);
        }
        Poll::Ready(result)
    }

    /// Switches to a larger buffer, with the received bytes.
    fn grow(&mut self, bytes: usize) {
        if let Some(old) = self.incoming.take() {
            let mut buffer = Buffer::with_capacity(bytes);
            buffer.extend_from_slice(&old);
            self.incoming = Some(buffer);
        }
    }

    /// Handles the end of the peer's bytes. An end without a close message loses nothing, and third
    /// parties can cause it: the host repeats outstanding commands of a queue pair that ends.
    fn end_of_stream(&mut self) -> io::Result<usize> {
        let is_open = self.session.is_open();
        match self.session.end_of_stream() {
            Err(error) if !is_open => Err(io::Error::other(error)),
            _ => Ok(0),
        }
    }

    /// Continues the handshake with received bytes.
    fn shake(&mut self) {
        let Some(buffer) = &self.incoming else { return };
        let mut input = &buffer[self.unread.clone()];
        // Otherwise the library would wait for a record of the length that it reads from foreign
        // bytes.
        let is_foreign = !self.has_begun && !FIRST_BYTES.contains(&input[0]);
        self.has_begun = true;
        self.is_clear |= is_foreign && self.may_be_clear;
        if self.is_clear {
            return;
        }
        if is_foreign {
            self.unread = 0..0;
            return self.fail(Error::Handshake("the peer does not speak TLS"));
        }
        let done = self.session.handshake(&mut input);
        self.handshake_bytes += self.unread.len() - input.len();
        self.unread.start = self.unread.end - input.len();
        match done {
            Ok(true) => {
                if let Some(sender) = self.sender.take() {
                    sender.wake();
                }
            }
            Ok(false) if self.handshake_bytes > HANDSHAKE_BYTES_MAX => {
                self.fail(Error::Handshake("the peer's part of it is too long"));
            }
            Ok(false) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Copies bytes received in the clear into the segments, in order. Returns how many.
    fn hand_over(&mut self, segments: &mut Segments) -> usize {
        let Some(incoming) = &self.incoming else { return 0 };
        let start = self.unread.start;
        for segment in segments {
            let left = &incoming[self.unread.clone()];
            let bytes = left.len().min(segment.len());
            match segment {
                Segment::Buffer(buffer, range) => {
                    buffer.set_len(buffer.len().max(range.start + bytes));
                    buffer[range.start..range.start + bytes].copy_from_slice(&left[..bytes]);
                }
                Segment::Region(slice) => slice.range(0, bytes).copy_in(&left[..bytes]),
            }
            self.unread.start += bytes;
        }
        self.unread.start - start
    }

    /// Decrypts received bytes into the segments, in order. Returns the number of bytes of plain
    /// text. Records a failure.
    fn decrypt(&mut self, segments: &mut Segments) -> usize {
        let mut total = 0;
        for segment in segments {
            let room = segment.len();
            let bytes = match segment {
                Segment::Buffer(buffer, range) => {
                    let visible = buffer.len();
                    buffer.set_len(visible.max(range.end));
                    let bytes = self.decrypt_into(&mut buffer[range.clone()]);
                    let covered = if bytes == 0 { 0 } else { range.start + bytes };
                    buffer.set_len(visible.max(covered));
                    bytes
                }
                Segment::Region(slice) => {
                    let mut plain = vec![0; room.min(PLAIN_BYTES_MAX)];
                    let mut done = 0;
                    while done < room {
                        let wanted = plain.len().min(room - done);
                        let bytes = self.decrypt_into(&mut plain[..wanted]);
                        slice.range(done, bytes).copy_in(&plain[..bytes]);
                        done += bytes;
                        if bytes < wanted {
                            break;
                        }
                    }
                    done
                }
            };
            total += bytes;
            if bytes < room {
                break;
            }
        }
        total
    }

    /// Decrypts until `plain` is full or nothing is left.
    fn decrypt_into(&mut self, plain: &mut [u8]) -> usize {
        let empty: &[u8] = &[];
        let mut input = self.incoming.as_ref().map_or(empty, |buffer| &buffer[self.unread.clone()]);
        let mut done = 0;
        while done < plain.len() {
            match self.session.read_into(&mut input, &mut plain[done..]) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) => {
                    self.failure.get_or_insert(error);
                    break;
                }
            }
        }
        self.unread.start = self.unread.end - input.len();
        done
    }

    pub(super) fn poll_send(
        &mut self,
        outgoing: &mut Outgoing,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let flushed = self.poll_flush(cx);
            if let Some(failure) = &self.failure {
                return Poll::Ready(Err(io::Error::other(failure.clone())));
            }
            // While a piece is being sent, only one next piece is encrypted.
            let is_ahead = flushed.is_pending() && self.session.has_output();
            if outgoing.is_done() || is_ahead {
                return flushed;
            }
            if let Poll::Ready(Err(error)) = flushed {
                return Poll::Ready(Err(error));
            }
            if !self.session.is_open() && !self.session.has_ended() {
                self.sender = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if let Err(error) = self.encrypt(outgoing) {
                self.fail(error);
            }
        }
    }

    /// Encrypts the next piece: the chunks one after the other in full records, so that a header
    /// shares its record with the data after it. A record within one chunk is encrypted directly
    /// from there; others are gathered in the place where they are encrypted.
    fn encrypt(&mut self, outgoing: &mut Outgoing) -> Result<(), Error> {
        outgoing.advance(0);
        let mut left = outgoing.bytes(PIECE_BYTES);
        let record_bytes = left + left.div_ceil(PLAIN_BYTES_MAX) * OVERHEAD_BYTES;
        if record_bytes > Inline::CAPACITY {
            self.session.lend(Buffer::with_capacity(record_bytes));
        }
        while left > 0 {
            let bytes = left.min(PLAIN_BYTES_MAX);
            match outgoing.lasting(bytes) {
                Some(plain) => self.session.write(plain)?,
                None => self.session.write_filled(bytes, |place| outgoing.copy_out(place))?,
            }
            outgoing.advance(bytes);
            left -= bytes;
        }
        Ok(())
    }
}
