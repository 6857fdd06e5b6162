//! The transport over `/dev/fuse`: reads are requests, writes are answers.
//!
//! One task at a time receives. It reads, lets the file system answer, and queues the write of the
//! answer and then the next read, so both go to the kernel in one system call. Only if an answer
//! has to wait does another task continue to receive. A single reader keeps a request on one CPU
//! and wakes one task per request.
//!
//! A read goes into two pieces: 80 bytes, which is exactly the header and argument of a WRITE, and
//! a 4096-aligned buffer. So the data of a WRITE lands aligned in a buffer of its own, which goes
//! to the file system. The arguments of all other operations are joined from both pieces.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use reactor::local::{OneshotSender, oneshot};
use reactor::{Buffer, Chunk, Op, Segment, Segments};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, WriteIn, opcode};
use crate::error::{DecodeError, FuseError};
use crate::reply::Encoded;
use crate::request::{Decoder, Message, decode_write};
use crate::session::{
    Connection, FetchError, FileSystem, Held, Incoming, Kept, Transport, sort_fetch_error,
};
use crate::transport::callers::Callers;
use crate::transport::is_prompt;
use crate::types::Unique;

/// Bytes before the data of a WRITE.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Most idle receivers that are kept for reuse; further ones end.
const IDLE_MAX: usize = 16;

/// The turn to receive. It is passed from task to task and never free while a task waits for it, so
/// a stray wake-up cannot lose it.
#[derive(Default)]
struct Turn {
    is_taken: Cell<bool>,
    idle: RefCell<Vec<OneshotSender<()>>>,
    /// Binds the thread to the CPU of a lone caller, unless the other transport does.
    callers: Option<Callers>,
}

impl Turn {
    /// Takes the turn when it is free. Returns `false` at the end, or if enough other tasks wait
    /// for it.
    async fn take(&self) -> bool {
        if !self.is_taken.replace(true) {
            return true;
        }
        if self.idle.borrow().len() >= IDLE_MAX {
            return false;
        }
        let (sender, receiver) = oneshot();
        self.idle.borrow_mut().push(sender);
        receiver.await.is_ok()
    }

    /// Passes the turn to an idle receiver. Returns `false` and frees the turn if there is none.
    fn pass(&self) -> bool {
        while let Some(sender) = self.idle.borrow_mut().pop() {
            if sender.send(()).is_ok() {
                return true;
            }
        }
        self.is_taken.set(false);
        false
    }

    /// Releases all waiting receivers, at the end.
    fn open(&self) {
        self.is_taken.set(false);
        self.idle.borrow_mut().clear();
    }
}

/// Starts receiving.
pub(crate) fn start<F: FileSystem>(connection: &Rc<Connection<F>>) {
    let is_alone = connection.negotiated.transport == Transport::Device;
    let callers = is_alone.then(|| Callers::new(connection.mounter.as_deref()));
    let turn = Rc::new(Turn { callers, ..Turn::default() });
    connection.spawn(receiver(Rc::clone(connection), turn));
}

type Sending = Op<(io::Result<usize>, Vec<Chunk>)>;

/// A task that receives while it has the turn.
async fn receiver<F: FileSystem>(connection: Rc<Connection<F>>, turn: Rc<Turn>) {
    let mut scratch = Vec::new();
    while turn.take().await {
        let mut sending: Option<Sending> = None;
        let mut payload = None;
        loop {
            connection.room().await;
            if connection.has_ended() {
                finish_sending(sending.take()).await;
                return turn.open();
            }
            let (result, mut segments) =
                connection.device.readv(segments(&connection, payload.take())).await;
            finish_sending(sending.take()).await;
            if let Err(error) = result {
                match sort_fetch_error(error) {
                    FetchError::Transient => {}
                    FetchError::Ended => connection.end(None),
                    FetchError::Broken(error) => connection.end(Some(error)),
                }
                continue;
            }
            let (header, incoming, held) = receive(&connection, &mut segments, &mut scratch);
            payload = segments.pop().and_then(Segment::into_buffer);
            let mut has_turn = true;
            let encoded = match incoming {
                Incoming::Nothing => continue,
                Incoming::Answer(encoded) => encoded,
                Incoming::Request(request) => {
                    if let Some(callers) = &turn.callers {
                        callers.note(request.pid, is_prompt(&request.operation));
                    }
                    let hand_over = || {
                        has_turn = false;
                        payload = None;
                        if !turn.pass() {
                            connection.spawn(boxed(Rc::clone(&connection), Rc::clone(&turn)));
                        }
                    };
                    connection.answer(header.opcode, request, hand_over).await
                }
            };
            drop(held);
            sending = Some(send(&connection, header.unique, encoded));
            if !has_turn {
                finish_sending(sending.take()).await;
                break;
            }
        }
    }
}

/// Returns a boxed receiver, so that its type does not contain itself.
fn boxed<F: FileSystem>(
    connection: Rc<Connection<F>>,
    turn: Rc<Turn>,
) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(receiver(connection, turn))
}

/// Returns the buffers for the next request. A payload buffer that was not given away is used
/// again.
fn segments<F: FileSystem>(connection: &Connection<F>, payload: Option<Buffer>) -> Segments {
    let payload_bytes = connection.negotiated.max_write_bytes.max(8192) as usize;
    let mut payload = payload.unwrap_or_else(|| Buffer::with_capacity(payload_bytes));
    payload.clear();
    let head = Buffer::with_capacity(HEAD_BYTES);
    let mut segments = Segments::new();
    segments.push(Segment::Buffer(head, 0..HEAD_BYTES));
    segments.push(Segment::Buffer(payload, 0..payload_bytes));
    segments
}

/// Decodes the received pieces. Leaves the payload buffer in `segments` unless a WRITE keeps it.
/// Returns also the memory of a WRITE, to be dropped when it is answered.
fn receive<F: FileSystem>(
    connection: &Rc<Connection<F>>,
    segments: &mut Segments,
    scratch: &mut Vec<u8>,
) -> (InHeader, Incoming, Option<Held<F>>) {
    let payload = segments.pop().and_then(Segment::into_buffer);
    let head = segments.pop().and_then(Segment::into_buffer);
    let (Some(head), Some(mut payload)) = (head, payload) else {
        unreachable!("a read returns the two buffers that it got")
    };
    let Ok((header, arguments)) = InHeader::read_from_prefix(&head) else {
        tracing::error!(bytes = head.len(), "FUSE message without a header");
        return (InHeader::default(), Incoming::Nothing, None);
    };
    let mut held_by_write = None;
    let message = if header.opcode == opcode::WRITE {
        let (input, data) = match WriteIn::read_from_prefix(arguments) {
            Ok((input, _)) => {
                payload.truncate(input.size as usize);
                (input, payload)
            }
            Err(_) => (WriteIn { size: u32::MAX, ..WriteIn::default() }, payload),
        };
        let Kept { data, free, held } = connection.keep_write(data);
        segments.extend(free.map(|buffer| Segment::Buffer(buffer, 0..0)));
        held_by_write = Some(held);
        decode_write(&input, data.into()).map(Message::Operation)
    } else {
        let message = decode_joined(connection.decoder, &header, arguments, &payload, scratch);
        segments.push(Segment::Buffer(payload, 0..0));
        message
    };
    (header, connection.receive(&header, message), held_by_write)
}

/// Decodes arguments that lie in one or two pieces.
fn decode_joined(
    decoder: Decoder,
    header: &InHeader,
    head: &[u8],
    tail: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Message, DecodeError> {
    let received_bytes = size_of::<InHeader>() + head.len() + tail.len();
    if header.len as usize != received_bytes {
        return Err(DecodeError::Length {
            opcode: header.opcode,
            header_bytes: header.len as usize,
            received_bytes,
        });
    }
    if tail.is_empty() {
        return decoder.decode(header, head, None);
    }
    scratch.clear();
    scratch.extend_from_slice(head);
    scratch.extend_from_slice(tail);
    decoder.decode(header, scratch, None)
}

/// Queues an answer.
fn send<F: FileSystem>(connection: &Connection<F>, unique: u64, encoded: Encoded) -> Sending {
    let header = encoded.header(Unique(unique));
    let mut head = [0; size_of::<crate::abi::OutHeader>() + size_of::<crate::abi::StatxOut>()];
    let (start, rest) = head.split_at_mut(size_of::<crate::abi::OutHeader>());
    start.copy_from_slice(header.as_bytes());
    let fixed = encoded.fixed();
    rest[..fixed.len()].copy_from_slice(fixed);
    let head_len = start.len() + fixed.len();
    let mut chunks = Vec::with_capacity(1 + encoded.chunks.len());
    chunks.push(Chunk::copy_from(&head[..head_len]));
    chunks.extend(encoded.chunks);
    connection.device.writev(chunks)
}

/// Waits for a queued answer. It is no error if the request is gone meanwhile (interrupted,
/// unmounted). A refused answer has failed the request in the kernel.
async fn finish_sending(sending: Option<Sending>) {
    let Some(sending) = sending else { return };
    let (result, _) = sending.await;
    match result {
        Ok(_) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
        Err(source) => {
            let error = FuseError::Transport { action: "send an answer", source };
            tracing::error!(%error, "the request failed with EIO");
        }
    }
}
