//! Tasks that wait for an event in the simulated world, to interfere at that moment.

use super::world::World;
use crate::local::OneshotSender;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A node's disk begins to read.
    Read(u32),
    /// A node's disk begins to write.
    Write(u32),
    /// A node's disk begins to flush.
    Flush(u32),
    /// A piece of a stream leaves.
    Send { from: u32, to: u32, bytes: usize, stream: u64 },
}

/// A waiting task.
pub(crate) struct Watch {
    /// For what; the number of bytes and the stream do not count.
    pub(crate) seen: Seen,
    /// Bytes of a piece at least.
    pub(crate) bytes_min: usize,
    /// The receiver of the event.
    pub(crate) teller: OneshotSender<Seen>,
}

impl Watch {
    fn waits_for(&self, seen: Seen) -> bool {
        match (self.seen, seen) {
            (Seen::Send { from, to, .. }, Seen::Send { from: sender, to: receiver, bytes, .. }) => {
                (from, to) == (sender, receiver) && bytes >= self.bytes_min
            }
            (wanted, seen) => wanted == seen,
        }
    }
}

impl World {
    /// Notifies all tasks that wait for this.
    pub(crate) fn see(&mut self, seen: Seen) {
        if self.watches.is_empty() {
            return;
        }
        let watches = std::mem::take(&mut self.watches);
        for watch in watches {
            if watch.waits_for(seen) {
                let _ = watch.teller.send(seen);
            } else if !watch.teller.is_closed() {
                self.watches.push(watch);
            }
        }
    }
}
