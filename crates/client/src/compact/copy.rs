//! One compaction: copies pieces of a file to one place, and exchanges them.

use crate::client::Client;
use crate::extent_map::Run;
use crate::inode::Inode;
use crate::read::committed::CommittedPieces;
use crate::session::life::{ReadGuard, SessionStamp};
use crate::space::Allocated;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::space::NewAllocation;
use protocol::sums::Sums;
use protocol::{DeviceId, Errno, Extent, ExtentList, Generation, Place};
use reactor::Shared;
use reactor::time::timeout;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// A compaction needs one part in this many of the pool free.
const FREE_PARTS: u64 = 8;

/// Most pieces that one compaction puts together. It bounds a transaction of the metadata service.
const PIECES_MAX: usize = 1024;

/// A compaction is worth it if reading takes at least `COMMANDS_MIN` commands, and more than one
/// for this many bytes.
const COMMAND_BYTES: u64 = 128 << 10;
const COMMANDS_MIN: u64 = 4;

/// How often space is leased for a copy. A grant may be smaller than the request, or in short runs.
const LEASES_MAX: usize = 2;

/// Longest wait for space for a copy. Meanwhile the pieces hold back all blocks that others free,
/// and so the space itself, if the pool is full.
const LEASE_PATIENCE: Duration = Duration::from_millis(100);

/// A copy may lie in one piece for this many commands of the old pieces.
const COMMANDS_SAVED_PARTS: usize = 2;

/// Bytes are worth a compaction if they hold more than this many quarters of their size in blocks.
const HELD_QUARTERS: u64 = 5;

/// A copy that a device has acknowledged.
#[derive(Debug)]
pub(super) struct Copied {
    generation: Generation,
    old: Vec<Extent>,
    new: Vec<Extent>,
    device: DeviceId,
    allocated: Vec<Allocated>,
    /// The checksums of their blocks.
    sums: Sums,
    /// The number of the last write to the device.
    number: u64,
    session: SessionStamp,
    /// Commands that it took to read the old pieces.
    commands: usize,
    /// Keeps the old blocks from being used again until the exchange is answered. If the file still
    /// names them then, they hold what was read.
    _epoch: Option<ReadGuard>,
}

/// The outcome for some pieces.
pub(super) struct CopyOutcome {
    /// They are all the pieces up to here.
    pub(super) end: u64,
    /// Their copy, if they were worth one.
    pub(super) copied: Option<Copied>,
    /// Whether they are many, and left alone while the file is written.
    pub(super) is_left: bool,
}

impl Copied {
    /// Returns where it begins in the file.
    pub(super) fn offset(&self) -> u64 {
        self.old.first().map_or(0, |extent| extent.offset)
    }
}

/// Returns whether pieces take too many commands.
fn is_slow(pieces: &CommittedPieces) -> bool {
    let commands = pieces.commands as u64;
    commands >= COMMANDS_MIN && commands > pieces.bytes().div_ceil(COMMAND_BYTES)
}

/// Returns whether pieces hold too many blocks.
fn is_large(pieces: &CommittedPieces, block_size: u64) -> bool {
    pieces.held_bytes > pieces.bytes() * HELD_QUARTERS / 4 + 4 * block_size
}

/// Returns a run as an extent.
fn old_extent(run: &Run<Place>) -> Extent {
    Extent { offset: run.offset, length: run.length as u32, place: run.place }
}

/// Returns the extents of runs that were copied, one after the other, into allocations.
fn extents_in(runs: &[Run<Place>], allocated: &[Allocated], block_size: u32) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut rest = allocated.iter();
    // The next byte goes to `at` in the present allocation.
    let (mut present, mut at) = (rest.next(), 0);
    for run in runs {
        let (mut offset, mut left) = (run.offset, run.length as u32);
        while left > 0 {
            let Some(allocation) = present else { return extents };
            let length = left.min(allocation.blocks * block_size - at);
            if length == 0 {
                (present, at) = (rest.next(), 0);
                continue;
            }
            let place = Place { allocation: allocation.allocation, at };
            let next = Extent { offset, length, place };
            match extents.last_mut() {
                Some(last) if last.continues_in(&next) => last.length += length,
                _ => extents.push(next),
            }
            (offset, left, at) = (offset + u64::from(length), left - length, at + length);
        }
    }
    extents
}

impl Client {
    /// Copies the next pieces of a range, if they are worth it.
    ///
    /// # Errors
    /// ESTALE if the file is gone. Other errors are temporary: the file stays as it is, and a later
    /// pass tries again.
    pub(super) async fn copy_pieces(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        range: Range<u64>,
        is_quiet: bool,
    ) -> Result<CopyOutcome, Errno> {
        let session = self.session.life.stamp();
        let generation = inode.state.borrow().generation;
        let pieces = self.find_pieces(inode, range.clone(), PIECES_MAX).await?;
        let end = pieces.end.max(range.start + 1);
        let none = |is_left| Ok(CopyOutcome { end, copied: None, is_left });
        let Some(device) = self.home_of(&pieces) else { return none(false) };
        let info = self.devices.usable(device).ok_or(Errno::EIO)?;
        let (is_slow, is_large) = (is_slow(&pieces), is_large(&pieces, info.block_size.into()));
        let is_worth_it = is_large || is_slow && is_quiet;
        if !is_worth_it {
            return none(is_slow);
        }
        self.find_room().await?;
        // Writers have precedence for this memory.
        let memory = self.dirty_budget.try_acquire(pieces.bytes() as usize).ok_or(Errno::EAGAIN)?;
        let bytes = self.read_pieces(inode, &pieces, info.block_size as usize).await?;
        let allowed = (pieces.commands / COMMANDS_SAVED_PARTS).max(1);
        let allocated = self.allocate_for(device, bytes.len(), info.block_size, allowed).await?;
        let sums = self.make_sums(&bytes, info.block_size);
        let number = self.write_copy(&allocated, bytes, info.block_size, session).await?;
        drop(memory);
        let copied = Copied {
            generation,
            old: pieces.runs.iter().map(old_extent).collect(),
            new: extents_in(&pieces.runs, &allocated, info.block_size),
            device,
            allocated,
            sums,
            number,
            session,
            commands: pieces.commands,
            _epoch: (!reactor::mutant!("compaction-drops-epoch")).then_some(pieces.epoch),
        };
        Ok(CopyOutcome { end, copied: Some(copied), is_left: false })
    }

    /// Returns the device that most of the pieces lie on, if it may take all of them. Data on a
    /// disk is not moved into memory.
    fn home_of(&self, pieces: &CommittedPieces) -> Option<DeviceId> {
        let mut devices: Vec<(DeviceId, u64)> = Vec::new();
        for run in &pieces.runs {
            let device = run.place.allocation.device;
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, bytes)) => *bytes += run.length,
                None => devices.push((device, run.length)),
            }
        }
        let is_volatile = |id: DeviceId| self.devices.info(id).is_none_or(|info| info.is_volatile);
        let is_all_volatile = devices.iter().all(|(device, _)| is_volatile(*device));
        devices.retain(|(device, _)| {
            self.devices.usable(*device).is_some() && (is_all_volatile || !is_volatile(*device))
        });
        devices.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(device, _)| device)
    }

    /// Allocates blocks for this many bytes side by side, or else in at most `pieces_max` runs. If
    /// the leased free blocks lie in pieces themselves, from writes, leases more.
    async fn allocate_for(
        self: &Rc<Self>,
        device: DeviceId,
        bytes: usize,
        block_size: u32,
        pieces_max: usize,
    ) -> Result<Vec<Allocated>, Errno> {
        let blocks = (bytes / block_size as usize) as u32;
        for number in 0..=LEASES_MAX {
            let pieces_max = if number == LEASES_MAX { pieces_max } else { 1 };
            if let Some(allocated) = self.try_allocate(device, blocks, block_size, pieces_max) {
                return Ok(allocated);
            }
            // The copy belongs on this device, not on another one.
            if number < LEASES_MAX && self.lease_soon(device, bytes as u64).await? != device {
                return Err(Errno::ENOSPC);
            }
        }
        Err(Errno::ENOSPC)
    }

    /// Leases space for a copy, if it is granted soon. A later grant serves others, or the next copy.
    async fn lease_soon(self: &Rc<Self>, device: DeviceId, bytes: u64) -> Result<DeviceId, Errno> {
        if reactor::mutant!("compaction-waits-for-space") {
            return self.lease_space(device, bytes).await;
        }
        if self.compaction.leases.count() > 0 {
            return Err(Errno::EAGAIN);
        }
        let (client, lease) = (Rc::clone(self), self.compaction.leases.enter());
        let leasing = reactor::spawn(async move {
            let leased = client.lease_space(device, bytes).await;
            drop(lease);
            leased
        });
        match timeout(LEASE_PATIENCE, leasing).await {
            Ok(leased) => leased.unwrap_or(Err(Errno::EIO)),
            Err(_) => Err(Errno::EAGAIN),
        }
    }

    /// Allocates blocks in at most `pieces_max` runs, or none.
    fn try_allocate(
        &self,
        device: DeviceId,
        blocks: u32,
        block_size: u32,
        pieces_max: usize,
    ) -> Option<Vec<Allocated>> {
        let mut space = self.space.borrow_mut();
        let mut reserved = space.reserve(device, u64::from(blocks))?;
        let (mut allocated, mut left) = (Vec::new(), blocks);
        while left > 0 && allocated.len() < pieces_max {
            let Some(next) = space.allocate(&mut reserved, left, block_size) else { break };
            left -= next.blocks;
            allocated.push(next);
        }
        if left > 0 {
            for part in &allocated {
                space.give_back(part);
            }
            return None;
        }
        Some(allocated)
    }

    /// Writes a copy to its blocks. Returns the number of the last write. Blocks of a write that
    /// failed stay out of use until the session ends.
    async fn write_copy(
        self: &Rc<Self>,
        allocated: &[Allocated],
        bytes: Shared,
        block_size: u32,
        session: SessionStamp,
    ) -> Result<u64, Errno> {
        let mut newest = 0;
        let mut at = 0;
        for part in allocated {
            let length = (part.blocks * block_size) as usize;
            let address = part.allocation.block * u64::from(block_size);
            let chunk = bytes.slice(at..at + length);
            let device = part.allocation.device;
            newest = self.write_device(device, address, chunk, session).await?.max(newest);
            at += length;
        }
        Ok(newest)
    }

    /// Has the device flush a copy, and the service exchange it for the pieces. Returns false if
    /// that failed, for example because the file has changed meanwhile.
    pub(super) async fn exchange(self: &Rc<Self>, inode: &Rc<Inode>, copied: Copied) -> bool {
        let Copied { generation, device, number, session, commands, .. } = copied;
        let is_lazy = reactor::mutant!("compaction-unflushed");
        if !is_lazy && self.flush_device(device, number).await.is_err() {
            return false;
        }
        let is_flushed = is_lazy || self.is_flushed(device, number);
        if !self.session.life.is_present(session) || !is_flushed {
            return false;
        }
        let name = |allocated: &Allocated| {
            let Allocated { allocation, blocks, incarnation } = *allocated;
            NewAllocation { allocation, blocks, incarnation, is_flushed }
        };
        let bytes: u64 = copied.old.iter().map(|extent| u64::from(extent.length)).sum();
        let call = Call::Change(ChangeCall::Compact {
            inode: inode.id,
            generation,
            old: ExtentList(copied.old),
            allocations: copied.allocated.iter().map(name).collect(),
            sums: copied.sums,
            new: ExtentList(copied.new),
        });
        match self.session.call_or_failure(call).await {
            Ok(Answer::Attr(_)) => {
                self.compaction.count(|counts| {
                    counts.compacted_bytes += bytes;
                    counts.compacted_pieces += commands as u64;
                });
                true
            }
            Err(failure) if failure.is_refusal => {
                self.compaction.count(|counts| counts.compactions_overtaken += 1);
                if self.session.life.is_present(session) {
                    let mut space = self.space.borrow_mut();
                    for part in &copied.allocated {
                        space.give_back(part);
                    }
                }
                false
            }
            // The file may name the copy, so its blocks stay out of use until the session ends.
            // What is cached may be older.
            Ok(_) | Err(_) => {
                inode.state.borrow_mut().forget_data();
                false
            }
        }
    }
}

impl Client {
    /// Fails with ENOSPC unless the pool has room beside a round of copies.
    async fn find_room(self: &Rc<Self>) -> Result<(), Errno> {
        let pool = self.pool_use().await?;
        // Leased, unused space is returned when the service needs it.
        let spare = pool.free_bytes.saturating_sub(pool.dead_bytes);
        let is_enough = spare >= pool.total_bytes / FREE_PARTS;
        if is_enough { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}

#[cfg(test)]
mod tests {
    use crate::lifecycle::tests::alone;
    use protocol::{DeviceId, Errno};

    /// Goal: a copy does not wait until there is space, and makes no second request while the first
    /// waits (P11).
    #[test]
    fn a_copy_does_not_wait_for_space() {
        let scene = async {
            let client = alone();
            for _ in 0..2 {
                assert_eq!(client.lease_soon(DeviceId(1), 1).await, Err(Errno::EAGAIN));
                assert_eq!(client.compaction.leases.count(), 1);
            }
        };
        reactor::sim::Simulation::new(1).run(scene).unwrap();
    }
}
