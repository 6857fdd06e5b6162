//! The state of simulated sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) node: u32,
    pub(crate) port: u16,
    /// Established connections that nobody has accepted: stream and peer address.
    pub(crate) queue: VecDeque<(u64, SocketAddr)>,
    /// Accepts that wait.
    pub(crate) accepts: VecDeque<u32>,
}

impl Listener {
    /// Whether `key` waited.
    pub(crate) fn cancel(&mut self, key: u32) -> bool {
        remove(&mut self.accepts, |&waiting| waiting == key)
    }
}

/// A send that is not all taken yet.
pub(crate) struct Sending {
    pub(crate) key: u32,
    pub(crate) bytes: Vec<u8>,
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
    pub(crate) inbox: VecDeque<u8>,
    pub(crate) receives: VecDeque<u32>,
    pub(crate) sends: VecDeque<Sending>,
    /// Bytes sent that the other program has not read.
    pub(crate) unread: usize,
    /// No more bytes come.
    pub(crate) is_at_end: bool,
    /// The connection was reset.
    pub(crate) is_reset: bool,
    /// This end has sent its end.
    pub(crate) has_shut: bool,
    /// When the last piece sent arrives: later ones may not overtake it.
    pub(crate) last_arrival_ns: u64,
    /// What comes is held back, though the link is whole.
    pub(crate) is_held_back: bool,
    /// What has come over a cut link, for after the healing.
    pub(crate) held: VecDeque<Delivery>,
}

impl Stream {
    /// Whether `key` waited.
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

/// Something on its way to a stream.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The stream it came from.
    pub(crate) source: u64,
    pub(crate) source_node: u32,
    /// The stream it goes to.
    pub(crate) target: u64,
    pub(crate) target_node: u32,
    pub(crate) payload: Payload,
}

/// What arrives.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Bytes.
    Data(Vec<u8>),
    /// So many bytes were read at the other end.
    Read(usize),
    /// No more bytes will come.
    End,
    /// The connection is dead.
    Reset,
}
