//! Memory for data that is read ahead: its bound, its counts, and buffers in huge pages.

use reactor::Region;
use std::cell::{Cell, RefCell};

/// Bytes of a room: a piece's memory in huge pages.
const ROOM_BYTES: usize = 1 << 20;

/// Smallest piece that gets a room.
const ROOM_PIECE_BYTES_MIN: u64 = 512 << 10;

/// Most unused rooms that are kept.
pub(crate) const IDLE_ROOMS_MAX: usize = 8;

/// One client's memory for read-ahead.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Bytes of all pieces.
    pub(crate) kept: Cell<u64>,
    /// Bytes that were read ahead so far.
    pub(crate) read: Cell<u64>,
    /// Bytes of these that readers have got.
    pub(crate) used: Cell<u64>,
    /// Rooms of pieces that are gone; answers may still be sent from some.
    pub(crate) rooms: RefCell<Vec<Region>>,
}

/// Counts of read-ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AheadCounts {
    /// Bytes that are kept now.
    pub ahead_kept_bytes: u64,
    /// Bytes that were read ahead.
    pub ahead_read_bytes: u64,
    /// Bytes of these that readers got; the others were dropped.
    pub ahead_used_bytes: u64,
}

impl Memory {
    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> AheadCounts {
        AheadCounts {
            ahead_kept_bytes: self.kept.get(),
            ahead_read_bytes: self.read.get(),
            ahead_used_bytes: self.used.get(),
        }
    }

    /// Returns a room for a piece of this length, unless ordinary memory is as good.
    pub(crate) fn room(&self, length: u64) -> Option<Region> {
        if !(ROOM_PIECE_BYTES_MIN..=ROOM_BYTES as u64).contains(&length) {
            return None;
        }
        let mut rooms = self.rooms.borrow_mut();
        if let Some(free) = rooms.iter().rposition(Region::is_unique) {
            return Some(rooms.swap_remove(free));
        }
        // Without a room the piece is read into buffers.
        let mut made = Region::in_huge_pages(ROOM_BYTES).ok()?;
        let room = made.pop();
        rooms.append(&mut made);
        room
    }
}
