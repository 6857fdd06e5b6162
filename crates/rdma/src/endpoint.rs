//! A connection: messages in both directions, and reads and writes of the peer's memory.
//!
//! [`Endpoint::flush`] posts all collected work requests together: one call of the library, and one
//! doorbell of the adapter, for any number of them. A write has no completion of its own: the
//! following send has one, and the adapter completes both in order. The endpoint holds the memory
//! until then.

use crate::Error;
use crate::abi::{
    IbvRecvWr, IbvSendWr, IbvSge, RdmaCmId, SEND_SIGNALED, WR_BIND_MW, WR_RDMA_READ, WR_RDMA_WRITE,
    WR_SEND, WR_SEND_WITH_INV,
};
use crate::device::Device;
use crate::events::Id;
use crate::memory::{element, register, registered};
use crate::queue::{Queue, Sizes};
use reactor::time::Instant;
use reactor::{Buffer, Chunk};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use windows::Windows;

mod completion;
mod windows;

pub use completion::{Completion, Counts};
pub use windows::Returned;

/// Kinds of work requests, in the upper half of their identifiers.
const RECEIVE: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
const SEND: u64 = 4;
const BIND: u64 = 5;
const INVALIDATE: u64 = 6;

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

/// A read under way.
struct Reading {
    token: u64,
    buffer: Buffer,
    bytes: usize,
}

/// A message under way. It holds its own data and the data that was written before it.
struct Sending {
    token: u64,
    /// Held until the send completes.
    _held: SmallVec<[Chunk; 1]>,
    /// Number of send queue entries that become free when it completes.
    entries: u32,
}

/// A work request, and the places of its data.
type Gathered = (IbvSendWr, SmallVec<[IbvSge; 2]>);

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
    /// Memory that was written to the peer since the last message.
    written: SmallVec<[Chunk; 1]>,
    /// Number of memory windows that were bound since the last message.
    bound: u32,
    windows: Windows,
    /// Work requests that are not posted yet, with their data.
    gathered: VecDeque<Gathered>,
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
            let keys = register(device, &mut buffer);
            let keys = keys.map_err(|error| device.failed("register memory", error))?;
            Ok((buffer, keys.local))
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
            bound: 0,
            windows: Windows::default(),
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

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the connection's identifier.
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    /// Sets the local and the peer's address, which a connecting side only learns late.
    pub(crate) fn learn_addresses(&mut self, addresses: (SocketAddr, SocketAddr)) {
        self.addresses = addresses;
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
        let keys = register(&self.device, &mut buffer)?;
        let element = element(&buffer, 0..bytes, keys.local);
        let index = self.free_reads.pop().unwrap_or_else(|| {
            self.reading.push(None);
            self.reading.len() as u32 - 1
        });
        self.reading[index as usize] = Some(Reading { token, buffer, bytes });
        let mut request = IbvSendWr::new(identifier(READ, index), WR_RDMA_READ, SEND_SIGNALED);
        (request.remote_addr, request.rkey) = (remote.address, remote.key);
        self.gathered.push_back((request, smallvec![element]));
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
        let (chunk, element, _, is_copied) = registered(&self.device, chunk)?;
        self.counts.copies += u64::from(is_copied);
        self.counts.transfers += 1;
        self.written.push(chunk);
        let mut request = IbvSendWr::new(identifier(WRITE, 0), WR_RDMA_WRITE, 0);
        (request.remote_addr, request.rkey) = (remote.address, remote.key);
        self.gathered.push_back((request, smallvec![element]));
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
        let opcode = if invalidate.is_some() { WR_SEND_WITH_INV } else { WR_SEND };
        let mut request = IbvSendWr::new(0, opcode, SEND_SIGNALED);
        request.invalidate_rkey = invalidate.unwrap_or_default();
        self.send_with(request, message, None, token);
    }

    /// Sends a message of up to 64 bytes, followed by `data`, which needs no copy.
    ///
    /// # Errors
    /// If the memory cannot be registered; nothing is sent then.
    ///
    /// # Panics
    /// If [`Self::can_send`] is false.
    pub fn send_data(&mut self, message: &[u8], data: Chunk, token: u64) -> io::Result<()> {
        let (chunk, element, _, is_copied) = registered(&self.device, data)?;
        self.counts.copies += u64::from(is_copied);
        let request = IbvSendWr::new(0, WR_SEND, SEND_SIGNALED);
        self.send_with(request, message, Some((chunk, element)), token);
        Ok(())
    }

    fn send_with(
        &mut self,
        mut request: IbvSendWr,
        message: &[u8],
        data: Option<(Chunk, IbvSge)>,
        token: u64,
    ) {
        let index = self.free_messages.pop().expect("the caller has looked for room");
        let start = index as usize * SEND_BYTES;
        assert!(message.len() <= SEND_BYTES, "a message of {} bytes", message.len());
        let (memory, room) = self.messages.memory();
        assert!(start + message.len() <= room, "message {index} lies outside of {room} bytes");
        // SAFETY: the range is inside the buffer, and the adapter does not read the message of this
        // index now.
        unsafe { memory.add(start).copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        let element = element(&self.messages, start..start + message.len(), self.messages_key);
        request.wr_id = identifier(SEND, index);
        let mut elements = smallvec![element];
        let mut held = std::mem::take(&mut self.written);
        let entries = held.len() as u32 + std::mem::take(&mut self.bound) + 1;
        if let Some((chunk, element)) = data {
            elements.push(element);
            held.push(chunk);
        }
        self.gathered.push_back((request, elements));
        self.sending[index as usize] = Some(Sending { token, _held: held, entries });
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
        let mut batch: SmallVec<[Gathered; 16]> = self.gathered.drain(..count).collect();
        // From the last to the first, so that each links to one that does not move.
        let mut next = std::ptr::null_mut();
        for (request, elements) in batch.iter_mut().rev() {
            (request.sg_list, request.num_sge) = (elements.as_mut_ptr(), elements.len() as i32);
            request.next = next;
            next = std::ptr::from_mut(request);
        }
        self.entries_used += count as u32;
        self.counts.send_doorbells += 1;
        // SAFETY: the list is complete; the library copies requests and elements. The memory that
        // they name is held in `reading`, `sending`, `written`, `windows` and `messages` until its
        // completion or the end of the queue.
        unsafe { self.queue.post_sends(next) }?;
        for (request, _) in batch.iter().filter(|(request, _)| request.opcode == WR_BIND_MW) {
            // The library expects a window's key of the latest binding.
            // SAFETY: the window exists until the end of the queue.
            unsafe { (*request.bind_mw.mw).rkey = request.bind_mw.rkey };
        }
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
                let keys = register(&self.device, &mut buffer)?;
                second = element(&buffer, 0..self.room.data, keys.local);
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

    /// Ends the connection. Afterwards the adapter accesses none of its memory.
    pub fn close(&mut self) {
        self.id.disconnect();
        // Windows are bound to the queue pair, so they go first.
        self.windows.end();
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
