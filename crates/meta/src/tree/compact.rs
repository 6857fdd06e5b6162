//! Compaction: replacing extents of a file by others that have the same bytes in fewer pieces.
//!
//! A client reads a run of a file, writes it elsewhere, and asks for this exchange. The core
//! executes it only if the file still has exactly the extents that the client read. Data that was
//! written, cut off or lost since then stays as it is, and the client discards its copy. So a
//! compaction needs no right, and no session waits for one.

use super::Outcome;
use super::data::Commit;
use super::extents::Edit;
use super::references::References;
use super::transaction::{Context, Transaction};
use crate::records::Inode;
use crate::store::Error;
use protocol::client::Answer;
use protocol::extent::EXTENTS_PER_MESSAGE_MAX;
use protocol::space::NewAllocation;
use protocol::{DeviceId, Errno, Extent, Generation, InodeId, Rights};
use std::ops::Range;

/// A requested compaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compact<'a> {
    pub(crate) inode: InodeId,
    pub(crate) generation: Generation,
    pub(crate) old: &'a [Extent],
    pub(crate) allocations: &'a [NewAllocation],
    pub(crate) sums: &'a [u32],
    pub(crate) new: &'a [Extent],
}

/// A run of a file's bytes and the address of the first of them on its device, in bytes. Extents
/// that continue each other are one run, regardless of their borders.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    range: Range<u64>,
    device: DeviceId,
    address: u64,
}

/// Returns whether extents are ascending and apart, and few enough for one message.
fn are_in_order(extents: &[Extent]) -> bool {
    !extents.is_empty()
        && extents.len() <= EXTENTS_PER_MESSAGE_MAX
        && extents.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
}

/// Returns the bytes of a file that extents, ascending and apart, cover.
fn covered(extents: &[Extent]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for extent in extents {
        match ranges.last_mut() {
            Some(last) if last.end == extent.offset => last.end = extent.end(),
            _ => ranges.push(extent.offset..extent.end()),
        }
    }
    ranges
}

impl Transaction<'_> {
    /// Returns whether a file has exactly these extents between the first and the last of them, and
    /// none of them is lost with its device's power.
    pub(super) fn has_extents(
        &self,
        inode: &Inode,
        generation: Generation,
        extents: &[Extent],
    ) -> Result<bool, Error> {
        if !are_in_order(extents) {
            return Err(Errno::EINVAL.into());
        }
        let mut present =
            self.extents_within(inode, extents[0].offset..extents[extents.len() - 1].end())?;
        if !reactor::mutant!("lost-data-compacted") {
            self.mark_lost(&mut present)?;
        }
        if present.iter().any(|extent| extent.place.lost_with().is_some()) {
            return Ok(false);
        }
        let is_same = generation == inode.attr.generation
            && self.runs(&present).is_some_and(|runs| Some(runs) == self.runs(extents));
        Ok(is_same)
    }

    /// Returns a file's extents within a range, clipped to it.
    fn extents_within(&self, inode: &Inode, range: Range<u64>) -> Result<Vec<Extent>, Error> {
        let id = inode.attr.inode;
        let mut extents = Vec::new();
        let mut at = range.start;
        while at < range.end && extents.len() <= 2 * EXTENTS_PER_MESSAGE_MAX {
            match self.page_before(id, at)? {
                Some((_, page)) if page.end > at => {
                    let parts = page.extents.0.iter();
                    extents.extend(parts.filter_map(|extent| extent.clip(range.start, range.end)));
                    at = page.end;
                }
                _ => at = self.page_after(id, at)?.unwrap_or(range.end),
            }
        }
        Ok(extents)
    }

    /// Returns extents as runs; `None` if one is on a device that the pool does not have.
    fn runs(&self, extents: &[Extent]) -> Option<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
        for extent in extents {
            let device = extent.place.allocation.device;
            let block_size = u64::from(self.base.space.devices.get(&device)?.info.block_size);
            let first = extent.place.allocation.block.checked_mul(block_size)?;
            let address = first.checked_add(u64::from(extent.place.at))?;
            match runs.last_mut() {
                Some(last)
                    if last.range.end == extent.offset
                        && last.device == device
                        && last.address + (last.range.end - last.range.start) == address =>
                {
                    last.range.end = extent.end();
                }
                _ => runs.push(Run { range: extent.offset..extent.end(), device, address }),
            }
        }
        Some(runs)
    }

    /// `Compact`.
    pub(crate) fn compact(
        &mut self,
        context: &Context<'_>,
        compact: Compact<'_>,
    ) -> Result<Outcome, Error> {
        let Compact { inode: id, generation, old, allocations, sums, new } = compact;
        let mut inode = self.file(id)?;
        let before = inode.attr;
        let is_same = self.has_extents(&inode, generation, old)?;
        if !is_same && !reactor::mutant!("compaction-overtakes-write") {
            return Err(Errno::EAGAIN.into());
        }
        self.check_compact(&compact)?;
        let commit = Commit {
            inode: id,
            generation,
            allocations,
            sums,
            extents: new,
            inline: &[],
            mtime: None,
            kill_privileges: false,
            attributes: None,
        };
        let named = self.check_commit(context, commit)?;
        inode.flush_epoch = inode.flush_epoch.max(named.newest_epoch());
        let mut references = References::of_commit(named);
        let edits: Vec<Edit> = new.iter().copied().map(Edit::put).collect();
        self.edit_extents(&mut inode, &edits, &mut references)?;
        self.settle_references(references)?;
        assert!(
            inode.attr == before || reactor::mutant!("compaction-overtakes-write"),
            "a compaction changed the attributes of {id}: {:?}",
            inode.attr
        );
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).granting(id, Rights::READ))
    }

    /// Returns EINVAL unless the new extents have the bytes of the old ones and are as safe:
    /// flushed data must not need a flush again, nor move to memory.
    fn check_compact(&self, compact: &Compact<'_>) -> Result<(), Error> {
        let Compact { old, allocations, new, .. } = *compact;
        let is_volatile = |id: DeviceId| {
            let device = self.base.space.devices.get(&id);
            device.is_none_or(|device| device.info.is_volatile)
        };
        let is_all_volatile = old.iter().all(|extent| is_volatile(extent.place.allocation.device));
        let is_safe = |named: &NewAllocation| {
            (named.is_flushed || reactor::mutant!("compaction-unflushed-taken"))
                && (is_all_volatile
                    || !is_volatile(named.allocation.device)
                    || reactor::mutant!("compaction-into-memory"))
        };
        let is_moved = are_in_order(new)
            && (covered(old) == covered(new) || reactor::mutant!("compaction-of-other-bytes"));
        if is_moved && allocations.iter().all(is_safe) { Ok(()) } else { Err(Errno::EINVAL.into()) }
    }
}
