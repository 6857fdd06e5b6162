//! Memory of what is read ahead: its bound, its counts, and rooms in huge pages.

use reactor::Region;
use std::cell::{Cell, RefCell};

/// Bytes of a piece's memory in huge pages.
const ROOM_BYTES: usize = 1 << 20;

/// Smallest piece that gets such memory.
const ROOM_PIECE_BYTES_MIN: u64 = 512 << 10;

/// Most rooms that are kept while nothing is in them.
pub(crate) const IDLE_ROOMS_MAX: usize = 8;

/// What one client uses for what it reads ahead.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Bytes of all pieces.
    pub(crate) kept: Cell<u64>,
    /// Bytes that were read ahead so far.
    pub(crate) read: Cell<u64>,
    /// Those of them that a reader has asked for.
    pub(crate) used: Cell<u64>,
    /// Rooms of pieces that are gone; answers may still be sent from some.
    pub(crate) rooms: RefCell<Vec<Region>>,
}

/// What was counted of reading ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AheadCounts {
    /// Bytes that are kept now.
    pub ahead_kept_bytes: u64,
    /// Bytes that were read ahead.
    pub ahead_read_bytes: u64,
    /// Bytes that readers got of those; the others were dropped.
    pub ahead_used_bytes: u64,
}

impl Memory {
    /// What was counted so far.
    pub(crate) fn counts(&self) -> AheadCounts {
        AheadCounts {
            ahead_kept_bytes: self.kept.get(),
            ahead_read_bytes: self.read.get(),
            ahead_used_bytes: self.used.get(),
        }
    }

    /// Memory for a piece of so many bytes, unless ordinary memory is as good.
    pub(crate) fn room(&self, length: u64) -> Option<Region> {
        if !(ROOM_PIECE_BYTES_MIN..=ROOM_BYTES as u64).contains(&length) {
            return None;
        }
        let mut rooms = self.rooms.borrow_mut();
        if let Some(free) = rooms.iter().rposition(Region::is_unique) {
            return Some(rooms.swap_remove(free));
        }
        // Without it the piece is read into buffers.
        let mut made = Region::in_huge_pages(ROOM_BYTES).ok()?;
        let room = made.pop();
        rooms.append(&mut made);
        room
    }
}
