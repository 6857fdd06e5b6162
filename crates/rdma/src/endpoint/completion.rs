//! Completions of work requests.

use super::{Endpoint, INVALIDATE, READ, RECEIVE, Reading, SEND, Sending};
use crate::abi::{IbvWc, WC_RECV, WC_SUCCESS, WC_WR_FLUSH_ERR};
use reactor::Buffer;
use smallvec::SmallVec;
use std::task::{Context, Poll, ready};

/// A completed operation.
#[derive(Debug)]
pub enum Completion {
    /// A message was received.
    Received {
        /// Its first bytes; fewer than a head if it is shorter.
        head: SmallVec<[u8; 64]>,
        /// The rest.
        data: Option<Buffer>,
        /// The key of this side that the message has invalidated.
        invalidated: Option<u32>,
    },
    /// The peer's access to lent memory has ended.
    Returned {
        /// The number under which it was lent.
        slot: usize,
        /// The buffer that the peer could write.
        sink: Option<Buffer>,
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

impl Endpoint {
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
            RECEIVE => Ok(self.received(index, completion)),
            INVALIDATE => {
                self.entries_used -= 1;
                let lent = self.windows.invalidated(index);
                let lent = lent.ok_or("an invalidation ended that was not begun")?;
                Ok(Completion::Returned { slot: index, sink: lent.into_sink() })
            }
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

    fn received(&mut self, index: usize, completion: &IbvWc) -> Completion {
        let bytes = completion.byte_len as usize;
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
        let invalidated = self.windows.invalidated_by(completion);
        Completion::Received { head, data, invalidated }
    }
}
