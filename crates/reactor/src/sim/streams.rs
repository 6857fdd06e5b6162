//! The state of simulated sockets.

use crate::chunk::Segment;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) node: u32,
    pub(crate) port: u16,
    /// Established connections that are not accepted yet: stream and peer address.
    pub(crate) queue: VecDeque<(u64, SocketAddr)>,
    /// Waiting accepts.
    pub(crate) accepts: VecDeque<u32>,
}

impl Listener {
    /// Cancels an accept. Returns whether `key` waited.
    pub(crate) fn cancel(&mut self, key: u32) -> bool {
        remove(&mut self.accepts, |&waiting| waiting == key)
    }
}

/// A send with bytes that are not taken yet.
pub(crate) struct Sending {
    pub(crate) key: u32,
    pub(crate) bytes: Rc<Vec<u8>>,
    /// Bytes taken.
    pub(crate) done: usize,
}

/// One end of a connection.
pub(crate) struct Stream {
    pub(crate) node: u32,
    pub(crate) peer_node: u32,
    pub(crate) local: SocketAddr,
    /// The other end, which may be gone.
    pub(crate) peer: u64,
    /// The connect that waits for the other end's answer.
    pub(crate) connecting: Option<u32>,
    /// Bytes that have arrived.
    pub(crate) inbox: Inbox,
    pub(crate) receives: VecDeque<u32>,
    pub(crate) sends: VecDeque<Sending>,
    /// Bytes sent that the program at the other end has not read.
    pub(crate) unread: usize,
    /// No more bytes come.
    pub(crate) is_at_end: bool,
    /// The connection was reset.
    pub(crate) is_reset: bool,
    /// This end has sent its end.
    pub(crate) has_shut: bool,
    /// When the last piece sent arrives: later ones must not overtake it.
    pub(crate) last_arrival_ns: u64,
    /// Whether received data is held back, though the link is whole.
    pub(crate) is_held_back: bool,
    /// Data that has come over a cut link, to deliver after the healing.
    pub(crate) held: VecDeque<Delivery>,
}

impl Stream {
    /// Cancels an operation. Returns whether `key` waited.
    pub(crate) fn cancel(&mut self, key: u32) -> bool {
        self.connecting.take_if(|waiting| *waiting == key).is_some()
            || remove(&mut self.receives, |&waiting| waiting == key)
            || remove(&mut self.sends, |waiting| waiting.key == key)
    }
}

fn remove<T>(queue: &mut VecDeque<T>, is_it: impl FnMut(&T) -> bool) -> bool {
    let place = queue.iter().position(is_it);
    place.and_then(|place| queue.remove(place)).is_some()
}

/// A payload on its way to a stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The stream that sent it.
    pub(crate) source: u64,
    pub(crate) source_node: u32,
    /// The stream that receives it.
    pub(crate) target: u64,
    pub(crate) target_node: u32,
    pub(crate) payload: Payload,
}

/// A part of one send's bytes, which the pieces share.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Rc<Vec<u8>>,
    pub(crate) range: Range<usize>,
}

impl Piece {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

/// Bytes that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pieces: VecDeque<Piece>,
    len: usize,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        self.len += piece.range.len();
        self.pieces.push_back(piece);
    }

    /// Moves bytes into a segment. Returns how many.
    pub(crate) fn fill(&mut self, segment: &mut Segment) -> usize {
        let here = segment.len().min(self.len);
        match self.pieces.front() {
            Some(first) if first.range.len() >= here => {
                segment.fill_from(&first.as_slice()[..here]);
            }
            _ => {
                let mut bytes = Vec::with_capacity(here);
                for piece in &self.pieces {
                    let left = here - bytes.len();
                    bytes.extend_from_slice(&piece.as_slice()[..left.min(piece.range.len())]);
                    if bytes.len() == here {
                        break;
                    }
                }
                segment.fill_from(&bytes);
            }
        }
        self.skip(here);
        here
    }

    fn skip(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(first) = self.pieces.front_mut() {
            let here = count.min(first.range.len());
            first.range.start += here;
            count -= here;
            if !first.range.is_empty() {
                break;
            }
            self.pieces.pop_front();
        }
    }
}

/// The content of a delivery.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Bytes.
    Data(Piece),
    /// Number of bytes that were read at the other end.
    Read(usize),
    /// No more bytes will come.
    End,
    /// The connection is dead.
    Reset,
}
