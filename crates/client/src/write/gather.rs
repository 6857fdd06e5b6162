//! Gathering: bytes of a write become part of the inode's dirty data.

use crate::client::Client;
use crate::dirty::fill::{FillPlace, Sealed};
use crate::dirty::{ADOPT_BYTES, ChunkPart, Dirty, FILL_BYTES};
use crate::inode::Inode;
use crate::write::reserve::SizedReservation;
use protocol::{FILE_SIZE_MAX_BYTES, Rights, Timestamp};
use reactor::{Buffer, Chunk};
use std::rc::Rc;

impl Client {
    /// Makes bytes part of the inode's dirty data. It does not wait, so the rights that it relies
    /// on cannot change.
    pub(crate) fn gather(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        bytes: Chunk,
        reserved: SizedReservation,
        kill_privileges: bool,
    ) {
        let rights = inode.state.borrow().rights;
        assert!(
            rights.contains(Rights::WRITE) && inode.changes.count() == 0,
            "{} bytes are written to {} at {offset} under {rights:?}, beside {} changes",
            bytes.len(),
            inode.id,
            inode.changes.count()
        );
        assert!(
            offset + bytes.len() as u64 <= FILE_SIZE_MAX_BYTES,
            "{} bytes at {offset} of {} lie past the end of all files",
            bytes.len(),
            inode.id
        );
        let mut dirty = inode.dirty.borrow_mut();
        dirty.touch(Timestamp(reactor::time::system_time() as i64), kill_privileges);
        let mut full = Vec::new();
        if bytes.len() >= ADOPT_BYTES {
            let length = bytes.len() as u64;
            let id = dirty.begin(reserved.block_size, bytes.into_buffer(), reserved.reservation);
            dirty.place(offset, length, FillPlace { fill: id, at: 0 });
            full.extend(dirty.seal(id));
        } else {
            append_to_fills(&mut dirty, offset, &bytes, reserved, &mut full);
        }
        drop(dirty);
        self.dirty_inodes.borrow_mut().insert(inode.id, Rc::clone(inode));
        for sealed in full {
            reactor::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
        }
    }
}

/// Appends bytes to gathering fills, and begins new ones as they become full.
fn append_to_fills(
    dirty: &mut Dirty,
    offset: u64,
    bytes: &Chunk,
    reserved: SizedReservation,
    full: &mut Vec<Sealed>,
) {
    let SizedReservation { block_size, mut reservation } = reserved;
    let device = reservation.blocks.device();
    let mut done = 0;
    while done < bytes.len() {
        let (id, room) = dirty.gathering(device, block_size).unwrap_or_else(|| {
            let buffer = Buffer::with_capacity(FILL_BYTES);
            (dirty.begin(block_size, buffer, reservation.empty()), FILL_BYTES)
        });
        let part = done..(done + room).min(bytes.len());
        let taken = reservation.take(part.len());
        let is_full = dirty.append(
            id,
            offset + part.start as u64,
            ChunkPart { chunk: bytes, part: part.clone() },
            taken,
        );
        done = part.end;
        if is_full && let Some(mut sealed) = dirty.seal(id) {
            // Blocks reserved beyond this fill serve the next one.
            let needed = (sealed.bytes.len() / block_size as usize) as u64;
            reservation.add_blocks(sealed.reservation.spare(needed));
            full.push(sealed);
        }
    }
    assert_eq!(reservation.bytes(), 0, "memory is left of a write at {offset} on {device}");
    let spare = reservation.spare(0);
    if let Some((id, _)) = dirty.gathering(device, block_size) {
        dirty.keep_needed(id, spare);
    }
}
