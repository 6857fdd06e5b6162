//! Tasks that wait for an event in the simulated world, to interfere at that moment.

use super::world::World;
use crate::local::OneshotSender;

/// An event in the simulated world.
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
    /// The awaited event; its number of bytes and its stream do not count.
    pub(crate) seen: Seen,
    /// Least number of bytes of an awaited piece.
    pub(crate) bytes_min: usize,
    /// The sender of the event to the waiting task.
    pub(crate) sender: OneshotSender<Seen>,
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
    /// Notifies all tasks that wait for this event.
    pub(crate) fn see(&mut self, seen: Seen) {
        if self.watches.is_empty() {
            return;
        }
        let watches = std::mem::take(&mut self.watches);
        for watch in watches {
            if watch.waits_for(seen) {
                let _ = watch.sender.send(seen);
            } else if !watch.sender.is_closed() {
                self.watches.push(watch);
            }
        }
    }
}
