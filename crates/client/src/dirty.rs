//! Data of one inode that is written but not committed.
//!
//! Written bytes are gathered, in the order in which they come, in *fills*: up to 1 MiB of memory
//! that goes to a device as one. A fill gets its blocks only when it is written out, so that a fill
//! of 22 unaligned records becomes one aligned device write and one allocation, and no block has to
//! be read in order to change a part of it. `runs` maps each written range of the file to its place
//! in a fill. Bytes that a later write covers are not committed.

pub(crate) mod deferral;
pub(crate) mod failures;
pub(crate) mod fill;
mod gathered;
pub(crate) mod named;
pub(crate) mod parts;
#[cfg(test)]
mod tests;

use crate::dirty::deferral::Deferral;
use crate::dirty::failures::Failures;
use crate::dirty::fill::{Fill, FillId, FillPlace, FillState, Pieces, Sealed};
use crate::extent_map::{ExtentMap, Run};
use crate::space::reservation::{Blocks, Reservation};
use protocol::attr::AttrChanges;
use protocol::{DeviceId, Errno, Timestamp};
use reactor::{Buffer, Chunk};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a full fill.
pub(crate) const FILL_BYTES: usize = protocol::space::ALLOCATION_MAX_BYTES as usize;

/// A written buffer of at least this size goes out as it is, without a copy into a fill.
pub(crate) const ADOPT_BYTES: usize = 256 << 10;

/// Most runs that one commit names. It bounds a transaction of the metadata service.
pub(crate) const RUNS_PER_COMMIT_MAX: usize = 1024;

/// Most writes that one fill gathers, so that a commit can name all of them.
const WRITES_PER_FILL_MAX: u32 = RUNS_PER_COMMIT_MAX as u32;

/// A part of a chunk of written bytes.
#[derive(Debug)]
pub(crate) struct ChunkPart<'a> {
    pub(crate) chunk: &'a Chunk,
    pub(crate) part: Range<usize>,
}

/// All uncommitted data of an inode.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    runs: ExtentMap<FillPlace>,
    fills: BTreeMap<FillId, Fill>,
    next_fill: u64,
    mtime: Option<Timestamp>,
    /// Whether a writer other than root requires that suid and sgid are cleared.
    pub(crate) kill_privileges: bool,
    /// Changes of attributes that came after the data.
    pub(crate) deferral: Deferral,
    /// Failures of writes and commits.
    pub(crate) failures: Failures,
}

impl Dirty {
    /// Returns whether everything is committed.
    pub(crate) fn is_clean(&self) -> bool {
        self.runs.is_empty()
            && self.fills.is_empty()
            && self.mtime.is_none()
            && self.deferral.is_empty()
    }

    /// Returns one past the last uncommitted byte.
    pub(crate) fn end(&self) -> u64 {
        self.runs.end()
    }

    /// Returns when the newest uncommitted byte was written.
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        self.mtime
    }

    /// Notes the time of a write, and whether it clears suid and sgid.
    pub(crate) fn touch(&mut self, now: Timestamp, kills_privileges: bool) {
        self.mtime = Some(now);
        self.kill_privileges |= kills_privileges;
        self.deferral.written(kills_privileges);
    }
}

impl crate::dirty::Dirty {
    /// Adds changes of attributes that come after everything written so far.
    pub(crate) fn set_attributes(&mut self, changes: &AttrChanges, now: Timestamp) {
        self.deferral.add(changes, now);
        if changes.mtime.is_some() {
            // The time that was set replaces that of the write before it.
            self.take_mtime();
        }
    }
}

impl Dirty {
    /// Takes out the time to be committed.
    pub(crate) fn take_mtime(&mut self) -> Option<Timestamp> {
        self.mtime.take()
    }

    /// Returns the fill that gathers bytes for a device, and the room in it.
    pub(crate) fn gathering(&self, device: DeviceId, block_size: u32) -> Option<(FillId, usize)> {
        let fill = self.fills.iter().rev().find(|(_, fill)| {
            (fill.device, fill.block_size) == (device, block_size)
                && matches!(fill.state, FillState::Gathering(_))
        });
        fill.map(|(&id, fill)| (id, FILL_BYTES - fill.used as usize))
    }

    /// Begins a fill for a device with blocks of this size. The reservation covers the bytes in the
    /// buffer.
    pub(crate) fn begin(
        &mut self,
        block_size: u32,
        buffer: Buffer,
        reservation: Reservation,
    ) -> FillId {
        assert_eq!(reservation.bytes(), buffer.len(), "a fill begins with memory of another");
        let device = reservation.blocks.device();
        let id = FillId(self.next_fill);
        self.next_fill += 1;
        let fill = Fill {
            device,
            block_size,
            used: buffer.len() as u32,
            state: FillState::Gathering(buffer),
            reservation: Some(reservation),
            pieces: Pieces::new(),
            sums: Vec::new(),
            number: 0,
            named: Vec::new(),
            readers: Rc::new(()),
            writes: 0,
        };
        self.fills.insert(id, fill);
        id
    }

    /// Adds bytes to a gathering fill as the file's bytes at `offset`, with their reservation.
    /// Returns whether the fill is full now.
    pub(crate) fn append(
        &mut self,
        id: FillId,
        offset: u64,
        bytes: ChunkPart<'_>,
        reservation: Reservation,
    ) -> bool {
        let Some(fill) = self.fills.get_mut(&id) else { return false };
        let FillState::Gathering(buffer) = &mut fill.state else { return false };
        let at = buffer.len() as u32;
        assert!(
            at as usize + bytes.part.len() <= FILL_BYTES,
            "{id:?} has {at} bytes and no room for {} at {offset}",
            bytes.part.len()
        );
        let length = bytes.part.len() as u64;
        buffer.extend_from_chunk(bytes.chunk, bytes.part);
        fill.used = buffer.len() as u32;
        fill.writes += 1;
        if let Some(held) = &mut fill.reservation {
            held.join(reservation);
        }
        let held = fill.reservation.as_ref().map(Reservation::bytes);
        assert!(
            held == Some(fill.used as usize) && fill.used as usize <= FILL_BYTES,
            "{id:?} gathers {} bytes at {offset}, with memory for {held:?}",
            fill.used
        );
        let full = fill.used as usize == FILL_BYTES || fill.writes >= WRITES_PER_FILL_MAX;
        self.place(offset, length, FillPlace { fill: id, at });
        full
    }

    /// Makes a run of a fill's bytes the file's bytes at `offset`.
    pub(crate) fn place(&mut self, offset: u64, length: u64, place: FillPlace) {
        let used = self.fills.get(&place.fill).map(|fill| u64::from(fill.used));
        assert!(
            used.is_some_and(|used| u64::from(place.at) + length <= used),
            "{length} bytes at {offset} would lie in {place:?}, which has {used:?}"
        );
        self.runs.insert(Run { offset, length, place }, |before, after| {
            before.place.fill == after.place.fill
                && u64::from(before.place.at) + before.length == u64::from(after.place.at)
        });
    }

    /// Returns a fill.
    pub(crate) fn fill(&self, id: FillId) -> Option<&Fill> {
        self.fills.get(&id)
    }

    /// Returns the fills that still gather.
    pub(crate) fn gathering_fills(&self) -> Vec<FillId> {
        let gathering =
            self.fills.iter().filter(|(_, fill)| matches!(fill.state, FillState::Gathering(_)));
        gathering.map(|(&id, _)| id).collect()
    }

    /// Adds blocks to those of a gathering fill, and releases those that it does not need.
    pub(crate) fn keep_needed(&mut self, id: FillId, blocks: Blocks) {
        let Some(fill) = self.fills.get_mut(&id) else { return };
        let needed = if reactor::mutant!("last-block-given-back") {
            u64::from(fill.used / fill.block_size)
        } else {
            u64::from(fill.used.div_ceil(fill.block_size))
        };
        if let Some(held) = &mut fill.reservation {
            held.add_blocks(blocks);
            drop(held.spare(needed));
        }
    }

    /// Closes a gathering fill: pads it to whole blocks and returns what is to be written.
    pub(crate) fn seal(&mut self, id: FillId) -> Option<Sealed> {
        let fill = self.fills.get_mut(&id)?;
        let block_size = fill.block_size;
        let FillState::Gathering(buffer) = &mut fill.state else { return None };
        let reservation = fill.reservation.take()?;
        let used = buffer.len();
        let padded = used.next_multiple_of(block_size as usize);
        let mut whole = std::mem::replace(buffer, Buffer::with_capacity(0));
        if padded > whole.capacity() {
            let mut larger = Buffer::with_capacity(padded);
            larger.extend_from_slice(&whole);
            whole = larger;
        }
        whole.set_len(padded);
        whole[used..].fill(0);
        let bytes = whole.freeze();
        fill.state = FillState::Writing(bytes.clone());
        let (device, used) = (fill.device, fill.used);
        assert_eq!(reservation.bytes(), used as usize, "{id:?} is sealed with memory of another");
        assert!(
            reservation.blocks.device() == device
                && bytes.len().is_multiple_of(block_size as usize)
                && (used as usize..used as usize + block_size as usize).contains(&bytes.len())
                && reservation.blocks.get() * u64::from(block_size) >= bytes.len() as u64,
            "{id:?} of {device} with {used} bytes is padded to {}, with blocks {:?}",
            bytes.len(),
            reservation.blocks
        );
        Some(Sealed { id, device, block_size, bytes, reservation })
    }

    /// Records that a sealed fill was written to these allocations (to none if the write failed).
    /// `number` is that of the last write to the device. `sums` has a checksum for each block, or
    /// is empty.
    pub(crate) fn written(&mut self, id: FillId, pieces: Pieces, sums: Vec<u32>, number: u64) {
        if let Some(fill) = self.fills.get_mut(&id) {
            assert!(
                matches!(fill.state, FillState::Writing(_)) && fill.named.is_empty(),
                "{id:?} was written, and was not on its way: {fill:?}"
            );
            let mut covered = 0;
            for (start, piece) in &pieces {
                assert!(
                    *start == covered && piece.allocation.device == fill.device,
                    "{id:?} of {} was written to {pieces:?}",
                    fill.device
                );
                covered += piece.blocks * fill.block_size;
            }
            assert!(
                pieces.is_empty() || covered == fill.used.next_multiple_of(fill.block_size),
                "of {} bytes of {id:?} {covered} were written: {pieces:?}",
                fill.used
            );
            assert!(
                sums.is_empty() || sums.len() as u32 == fill.used.div_ceil(fill.block_size),
                "{id:?} of {} bytes has {} sums",
                fill.used,
                sums.len()
            );
            fill.state = FillState::Written;
            fill.pieces = pieces;
            fill.sums = sums;
            fill.number = number;
        }
    }

    /// Returns the devices of written fills, each with the number of the last write.
    pub(crate) fn writes(&self) -> SmallVec<[(DeviceId, u64); 2]> {
        let mut writes: SmallVec<[(DeviceId, u64); 2]> = SmallVec::new();
        for fill in self.fills.values().filter(|fill| !fill.pieces.is_empty()) {
            match writes.iter_mut().find(|(device, _)| *device == fill.device) {
                Some((_, newest)) => *newest = fill.number.max(*newest),
                None => writes.push((fill.device, fill.number)),
            }
        }
        writes
    }

    /// Returns whether every fill begun before `limit` has been written.
    pub(crate) fn is_written_before(&self, limit: FillId) -> bool {
        self.fills.range(..limit).all(|(_, fill)| matches!(fill.state, FillState::Written))
    }

    /// Returns a limit for [`Dirty::is_written_before`]: fills begun from now on are not before it.
    pub(crate) fn limit(&self) -> FillId {
        FillId(self.next_fill)
    }

    /// Returns the uncommitted runs within a range.
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<Run<FillPlace>> {
        self.runs.within(start..end).collect()
    }

    /// Returns all uncommitted runs as they are now.
    pub(crate) fn present(&self) -> Vec<Run<FillPlace>> {
        self.runs.iter().collect()
    }

    /// Takes out written fills that no run needs any more and no read uses. Blocks of them that no
    /// commit has named are used again at once.
    pub(crate) fn take_done(&mut self) -> Vec<Fill> {
        let mut needed: Vec<FillId> = self.runs.iter().map(|run| run.place.fill).collect();
        needed.sort_unstable();
        needed.dedup();
        let done: Vec<FillId> = self
            .fills
            .iter()
            .filter(|(id, fill)| {
                let is_read = Rc::strong_count(&fill.readers) > 1;
                matches!(fill.state, FillState::Written)
                    && needed.binary_search(id).is_err()
                    && (!is_read || reactor::mutant!("read-blocks-reused"))
            })
            .map(|(&id, _)| id)
            .collect();
        assert!(needed.iter().all(|id| self.fills.contains_key(id)), "dirty bytes lie in no fill");
        let done: Vec<Fill> = done.iter().filter_map(|id| self.fills.remove(id)).collect();
        // Bytes in no fill could never be committed.
        assert!(
            self.runs.is_empty() || !self.fills.is_empty(),
            "bytes up to {} are dirty, and no fill holds them",
            self.runs.end()
        );
        done
    }

    /// Drops a fill's runs: its bytes are lost.
    pub(crate) fn lose(&mut self, id: FillId, error: Errno) {
        let lost: Vec<Run<FillPlace>> =
            self.runs.iter().filter(|run| run.place.fill == id).collect();
        for run in lost {
            self.runs.remove(run.offset..run.end());
        }
        self.failures.note(error);
    }

    /// Drops fills that still gather, and their reservations.
    pub(crate) fn discard_gathering(&mut self) {
        self.fills.retain(|_, fill| !matches!(fill.state, FillState::Gathering(_)));
    }

    /// Forgets what was written, because no reader can reach it any more.
    pub(crate) fn forget_runs(&mut self) {
        self.runs.clear();
        self.mtime = None;
        self.deferral.clear();
    }

    /// Drops the bytes past a new size.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.runs.remove(size..u64::MAX);
        let end = self.runs.end();
        assert!(end <= size, "bytes up to {end} are dirty after a truncation to {size}");
    }

    /// Drops everything, because the session was lost. Fills on their way to a device release their
    /// memory when they arrive.
    pub(crate) fn lose_all(&mut self, error: Errno) {
        if !self.is_clean() {
            self.failures.note(error);
        }
        self.runs.clear();
        self.mtime = None;
        self.deferral.clear();
        self.fills.clear();
    }
}
