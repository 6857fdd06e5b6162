//! A connection: messages in both directions, and reads and writes of the peer's memory.
//!
//! [`Endpoint::flush`] posts all collected work requests together: one call of the library, and one
//! doorbell of the adapter, for any number of them. A write has no completion of its own: the
//! following send has one, and the adapter completes both in order. The endpoint holds the memory
//! until then.

use crate::Error;
use crate::abi::{
    IbvRecvWr, IbvSendWr, IbvSge, IbvWc, RdmaCmId, SEND_SIGNALED, WC_RECV, WC_SUCCESS,
    WC_WR_FLUSH_ERR, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND, WR_SEND_WITH_INV,
};
use crate::device::Device;
use crate::listener::Id;
use crate::memory::{element, register, registered};
use crate::queue::{Queue, Sizes};
use reactor::time::Instant;
use reactor::{Buffer, Chunk};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Kinds of work requests, in the upper half of their identifiers.
const RECEIVE: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
const SEND: u64 = 4;

/// Space for each message to send, in bytes.
const SEND_BYTES: usize = 64;

/// Number of receives that are posted before [`Endpoint::open`].
const RECEIVES_FIRST: u32 = 2;

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's memory.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The peer's key for this memory.
    pub key: u32,
}

/// Memory for a received message: its head, and a separate buffer for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the head.
    pub head: usize,
    /// Largest number of bytes after the head; 0 for none.
    pub data: usize,
}

/// A completed operation.
#[derive(Debug)]
pub enum Completion {
    /// A message was received.
    Received {
        /// Its first bytes; fewer than a head if it is shorter.
        head: SmallVec<[u8; SEND_BYTES]>,
        /// The rest.
        data: Option<Buffer>,
    },
    /// A read of the peer's memory has ended.
    Read {
        /// The token of the call.
        token: u64,
        /// The bytes.
        data: Buffer,
    },
    /// A message was sent, and everything that was written before it.
    Sent {
        /// The token of the call.
        token: u64,
    },
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages received.
    pub received: u64,
    /// Messages sent.
    pub sent: u64,
    /// Reads and writes of the peer's memory.
    pub transfers: u64,
    /// Calls that posted sends, reads and writes: doorbells of the send queue.
    pub send_doorbells: u64,
    /// Calls that posted receives: doorbells of the receive queue.
    pub receive_doorbells: u64,
    /// Wake-ups by completion events.
    pub wakeups: u64,
    /// Transfers with data that was copied to memory that can be registered.
    pub copies: u64,
}

/// A read under way.
struct Reading {
    token: u64,
    buffer: Buffer,
    bytes: usize,
}

/// A message under way, with the buffers that were written before it.
struct Sending {
    token: u64,
    /// Held until the send completes.
    _written: SmallVec<[Buffer; 1]>,
    /// Number of send queue entries that become free when it completes.
    entries: u32,
}

/// A connection.
pub struct Endpoint {
    queue: Queue,
    id: Id,
    device: Arc<Device>,
    addresses: (SocketAddr, SocketAddr),
    room: Room,
    /// The heads of received messages, one after the other.
    heads: Buffer,
    heads_key: u32,
    /// The buffers for the rest of each.
    rooms: Vec<Option<Buffer>>,
    to_receive: Vec<u32>,
    /// Receives that are only posted after [`Self::open`].
    shut: Range<u32>,
    /// Messages to send, one after the other.
    messages: Buffer,
    messages_key: u32,
    sending: Vec<Option<Sending>>,
    free_messages: Vec<u32>,
    /// Times at which the messages under way were posted, the oldest first.
    sent_at: VecDeque<Instant>,
    reading: Vec<Option<Reading>>,
    free_reads: Vec<u32>,
    /// Buffers written since the last message.
    written: SmallVec<[Buffer; 1]>,
    /// Work requests that are not posted yet, with their data.
    gathered: VecDeque<(IbvSendWr, IbvSge)>,
    entries_max: u32,
    entries_used: u32,
    counts: Counts,
}

impl Endpoint {
    /// Makes the resources of a connection without posting anything.
    ///
    /// # Safety
    /// `raw` must be the identifier of `id`, of this device, without a queue pair.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        id: Id,
        raw: *mut RdmaCmId,
        sizes: Sizes,
        room: Room,
        addresses: (SocketAddr, SocketAddr),
    ) -> Result<Self, Error> {
        assert!(sizes.sends >= 2 && sizes.receives > 0, "{sizes:?}");
        let receives = sizes.receives as usize;
        let sends = sizes.sends as usize;
        let first = sizes.receives.min(RECEIVES_FIRST);
        let room_for = |bytes: usize| -> Result<(Buffer, u32), Error> {
            let mut buffer = Buffer::zeroed(bytes);
            let key = register(device, &mut buffer);
            let key = key.map_err(|error| device.failed("register memory", error))?;
            Ok((buffer, key))
        };
        let (heads, heads_key) = room_for(receives * room.head)?;
        let (messages, messages_key) = room_for(sends * SEND_BYTES)?;
        // SAFETY: guaranteed by the caller; the identifier is dropped after the queue.
        let queue = unsafe { Queue::new(device, raw, sizes) }?;
        Ok(Self {
            queue,
            id,
            device: Arc::clone(device),
            addresses,
            room,
            heads,
            heads_key,
            rooms: (0..receives).map(|_| None).collect(),
            to_receive: (0..first).collect(),
            shut: first..sizes.receives,
            messages,
            messages_key,
            sending: (0..sends).map(|_| None).collect(),
            free_messages: (0..sizes.sends).collect(),
            sent_at: VecDeque::new(),
            reading: Vec::new(),
            free_reads: Vec::new(),
            written: SmallVec::new(),
            gathered: VecDeque::new(),
            entries_max: sizes.sends,
            entries_used: 0,
            counts: Counts::default(),
        })
    }

    /// Posts the first receives. Memory for more is reserved for peers that are known.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.post_receives()
    }

    /// Lets [`Self::flush`] post all receives, not only the first two.
    pub fn open(&mut self) {
        self.to_receive.extend(std::mem::take(&mut self.shut));
    }

    /// Returns the local address of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.addresses.0
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.addresses.1
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Reads the peer's memory into a buffer, from the buffer's start.
    ///
    /// # Errors
    /// If the buffer cannot be registered.
    pub fn read(&mut self, remote: Remote, mut buffer: Buffer, token: u64) -> io::Result<()> {
        let bytes = remote.length as usize;
        let key = register(&self.device, &mut buffer)?;
        let element = element(&buffer, 0..bytes, key);
        let index = self.free_reads.pop().unwrap_or_else(|| {
            self.reading.push(None);
            self.reading.len() as u32 - 1
        });
        self.reading[index as usize] = Some(Reading { token, buffer, bytes });
        let mut request = IbvSendWr::new(identifier(READ, index), WR_RDMA_READ, SEND_SIGNALED);
        (request.remote_addr, request.rkey) = (remote.address, remote.key);
        self.gathered.push_back((request, element));
        self.counts.transfers += 1;
        Ok(())
    }

    /// Writes a chunk to the peer's memory. The write is complete when the next message has been
    /// sent.
    ///
    /// # Errors
    /// If the memory cannot be registered.
    pub fn write(&mut self, remote: Remote, chunk: Chunk) -> io::Result<()> {
        assert!(
            chunk.len() <= remote.length as usize,
            "{} bytes are written to the peer's {}",
            chunk.len(),
            remote.length
        );
        let (buffer, element, is_copied) = registered(&self.device, chunk)?;
        self.counts.copies += u64::from(is_copied);
        self.counts.transfers += 1;
        self.written.push(buffer);
        let mut request = IbvSendWr::new(identifier(WRITE, 0), WR_RDMA_WRITE, 0);
        (request.remote_addr, request.rkey) = (remote.address, remote.key);
        self.gathered.push_back((request, element));
        Ok(())
    }

    /// Whether [`Self::send`] has space for another message.
    pub fn can_send(&self) -> bool {
        !self.free_messages.is_empty()
    }

    /// Returns the time since which the oldest message is under way, perhaps because the peer does
    /// not receive it.
    pub fn sending_since(&self) -> Option<Instant> {
        self.sent_at.front().copied()
    }

    /// Sends a message of up to 64 bytes. The peer's adapter invalidates the key `invalidate`, if
    /// given.
    ///
    /// # Panics
    /// If [`Self::can_send`] is false.
    pub fn send(&mut self, message: &[u8], invalidate: Option<u32>, token: u64) {
        let index = self.free_messages.pop().expect("the caller has looked for room");
        let start = index as usize * SEND_BYTES;
        assert!(message.len() <= SEND_BYTES, "a message of {} bytes", message.len());
        let (memory, room) = self.messages.memory();
        assert!(start + message.len() <= room, "message {index} lies outside of {room} bytes");
        // SAFETY: the range is inside the buffer, and the adapter does not read the message of this
        // index now.
        unsafe { memory.add(start).copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        let element = element(&self.messages, start..start + message.len(), self.messages_key);
        let opcode = if invalidate.is_some() { WR_SEND_WITH_INV } else { WR_SEND };
        let mut request = IbvSendWr::new(identifier(SEND, index), opcode, SEND_SIGNALED);
        request.invalidate_rkey = invalidate.unwrap_or_default();
        self.gathered.push_back((request, element));
        let written = std::mem::take(&mut self.written);
        let entries = written.len() as u32 + 1;
        self.sending[index as usize] = Some(Sending { token, _written: written, entries });
        self.counts.sent += 1;
    }

    /// Posts the collected work requests, as far as there is space. Returns true if it posted any.
    ///
    /// # Errors
    /// If the library refuses them; the connection is then over.
    pub fn flush(&mut self) -> io::Result<bool> {
        // Receives come first, because the peer may send its next command as soon as it has a
        // response. A peer that takes no responses gets no more receives, so that
        // responses to it cannot pile up here.
        if self.can_send() {
            self.post_receives()?;
        }
        self.note_times();
        let room = (self.entries_max - self.entries_used) as usize;
        let count = room.min(self.gathered.len());
        if count == 0 {
            return Ok(false);
        }
        let mut batch: SmallVec<[(IbvSendWr, IbvSge); 16]> = self.gathered.drain(..count).collect();
        // From the last to the first, so that each links to one that does not move.
        let mut next = std::ptr::null_mut();
        for (request, element) in batch.iter_mut().rev() {
            (request.sg_list, request.num_sge) = (std::ptr::from_mut(element), 1);
            request.next = next;
            next = std::ptr::from_mut(request);
        }
        self.entries_used += count as u32;
        self.counts.send_doorbells += 1;
        // SAFETY: the list is complete; the library copies requests and elements. The memory that
        // they name is held in `reading`, `sending`, `written` and `messages` until its completion
        // or the end of the queue.
        unsafe { self.queue.post_sends(next) }?;
        Ok(true)
    }

    /// Records the time of all new messages, because they are posted together.
    fn note_times(&mut self) {
        let under_way = self.sending.len() - self.free_messages.len();
        if self.sent_at.len() < under_way {
            self.sent_at.resize(under_way, reactor::time::now());
        }
    }

    /// Whether a request could not be posted yet for lack of space.
    pub fn is_full(&self) -> bool {
        !self.gathered.is_empty()
    }

    fn post_receives(&mut self) -> io::Result<()> {
        if self.to_receive.is_empty() {
            return Ok(());
        }
        let mut elements: SmallVec<[[IbvSge; 2]; 16]> = SmallVec::new();
        for &index in &self.to_receive {
            let (index, head) = (index as usize, self.room.head);
            let first = element(&self.heads, index * head..(index + 1) * head, self.heads_key);
            let mut second = IbvSge::default();
            if self.room.data > 0 {
                let mut buffer = self.rooms[index]
                    .take()
                    .unwrap_or_else(|| Buffer::with_capacity(self.room.data));
                let key = register(&self.device, &mut buffer)?;
                second = element(&buffer, 0..self.room.data, key);
                self.rooms[index] = Some(buffer);
            }
            elements.push([first, second]);
        }
        let pairs = elements.iter_mut().zip(self.to_receive.drain(..));
        let mut requests: SmallVec<[IbvRecvWr; 16]> = pairs
            .map(|(pair, index)| IbvRecvWr {
                wr_id: identifier(RECEIVE, index),
                next: std::ptr::null_mut(),
                sg_list: pair.as_mut_ptr(),
                num_sge: if self.room.data > 0 { 2 } else { 1 },
            })
            .collect();
        let mut next = std::ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.next = next;
            next = std::ptr::from_mut(request);
        }
        self.counts.receive_doorbells += 1;
        // SAFETY: the list is complete; the memory that it names is held in `heads` and `rooms`.
        unsafe { self.queue.post_receives(next) }
    }

    /// Returns the next completion.
    ///
    /// # Errors
    /// The reason why the connection is over.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion, &'static str>> {
        loop {
            let taken = self.queue.take().map_err(|_| "its completion queue failed")?;
            if let Some(completion) = taken {
                return Poll::Ready(self.completed(&completion));
            }
            if let Some(reason) = self.id.link.over() {
                return Poll::Ready(Err(reason));
            }
            self.id.link.register(cx.waker());
            let announced = self.queue.poll_announced(cx, &mut self.counts.wakeups);
            ready!(announced).map_err(|_| "its completion channel failed")?;
        }
    }

    fn completed(&mut self, completion: &IbvWc) -> Result<Completion, &'static str> {
        let (kind, index) = (completion.wr_id >> 32, completion.wr_id as u32 as usize);
        if completion.status != WC_SUCCESS {
            if completion.status != WC_WR_FLUSH_ERR {
                let status = self.id.status_text(completion.status);
                tracing::info!(peer = %self.peer_addr(), status, kind, "a work request fails");
            }
            // The queue pair has failed too.
            return Err(self.id.link.over().unwrap_or("a work request failed"));
        }
        match kind {
            RECEIVE if completion.opcode != WC_RECV => {
                Err("the peer sent something else than a message")
            }
            RECEIVE => Ok(self.received(index, completion.byte_len as usize)),
            READ => {
                let reading = self.reading.get_mut(index).and_then(Option::take);
                let Some(Reading { token, mut buffer, bytes }) = reading else {
                    return Err("a read ended that was not begun");
                };
                self.free_reads.push(index as u32);
                self.entries_used -= 1;
                buffer.set_len(bytes);
                Ok(Completion::Read { token, data: buffer })
            }
            SEND => {
                let sending = self.sending.get_mut(index).and_then(Option::take);
                let Some(Sending { token, entries, .. }) = sending else {
                    return Err("a send ended that was not begun");
                };
                self.free_messages.push(index as u32);
                self.sent_at.pop_front();
                self.entries_used -= entries;
                Ok(Completion::Sent { token })
            }
            _ => Err("a work request ended that was not begun"),
        }
    }

    fn received(&mut self, index: usize, bytes: usize) -> Completion {
        self.counts.received += 1;
        let head_bytes = bytes.min(self.room.head);
        let start = index * self.room.head;
        let mut head = SmallVec::from_elem(0, head_bytes);
        let (memory, room) = self.heads.memory();
        assert!(start + head_bytes <= room, "head {index} lies outside of {room} bytes");
        // SAFETY: the range is inside the buffer. The adapter may be writing to other ranges, so
        // there is no reference to the whole buffer.
        unsafe { memory.add(start).copy_to_nonoverlapping(head.as_mut_ptr(), head_bytes) };
        let data_bytes = bytes - head_bytes;
        let data = (data_bytes > 0).then(|| self.rooms[index].take()).flatten().map(|mut data| {
            data.set_len(data_bytes.min(self.room.data));
            data
        });
        self.to_receive.push(index as u32);
        Completion::Received { head, data }
    }

    /// Ends the connection. Afterwards the adapter accesses none of its memory.
    pub fn close(&mut self) {
        self.id.disconnect();
        self.queue.end();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Before the fields are dropped, because the adapter may be accessing their memory.
        self.close();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("peer", &self.peer_addr())
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

fn identifier(kind: u64, index: u32) -> u64 {
    kind << 32 | u64::from(index)
}

#[cfg(test)]
mod tests;
