//! `ReadExtents`: a file's extents, with the checksums of the blocks that they touch.

use super::Outcome;
use super::references::LastChunk;
use super::transaction::Transaction;
use crate::records::Inline;
use crate::space::live::blocks_of;
use crate::store::Error;
use protocol::client::Answer;
use protocol::inline::INLINE_MAX_BYTES;
use protocol::sums::{BlockSums, SUMS_PER_MESSAGE_MAX};
use protocol::{DeviceId, Errno, Extent, ExtentList, FILE_SIZE_MAX_BYTES, InodeId, Rights};
use std::ops::Range;

/// An answer is filled page by page up to about so many extents.
const EXTENTS_PER_ANSWER: usize = 1024;

/// What lies behind the asked range is left out if an answer has so many sums without it.
const SUMS_ENOUGH: usize = SUMS_PER_MESSAGE_MAX / 4;

/// An answer, while its sums are added extent by extent.
#[derive(Default)]
struct Summed {
    sums: BlockSums,
    count: usize,
    /// The block that was looked at last.
    last: Option<(DeviceId, u64)>,
    chunk: LastChunk,
}

impl Transaction<'_> {
    /// `ReadExtents`. Whole pages are given, up to a number of sums: what lies after the asked range costs
    /// little, and saves the next call.
    pub(crate) fn read_extents(
        &self,
        id: InodeId,
        offset: u64,
        length: u64,
    ) -> Result<Outcome, Error> {
        let inode = self.file(id)?;
        if length == 0 || offset >= FILE_SIZE_MAX_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let end = offset.saturating_add(length).min(FILE_SIZE_MAX_BYTES);
        let mut extents = Vec::new();
        // Most small files have none, and nothing is looked for.
        let has_extents = inode.attr.allocated_bytes > u64::from(inode.inline);
        let mut at = if has_extents { offset } else { FILE_SIZE_MAX_BYTES };
        while at < end && extents.len() < EXTENTS_PER_ANSWER {
            match self.page_before(id, at)? {
                Some((_, page)) if page.end > at => {
                    let touching = page.extents.0.iter().filter(|extent| extent.end() > offset);
                    extents.extend(touching);
                    at = page.end;
                }
                _ => at = self.page_after(id, at)?.unwrap_or(FILE_SIZE_MAX_BYTES),
            }
        }
        self.mark_lost(&mut extents)?;
        let (sums, covered_to) = self.sums_of(&mut extents, offset..end, at)?;
        let has_inline = offset < INLINE_MAX_BYTES;
        let inline = if has_inline { self.inline_record(&inode)? } else { Inline::default() };
        let answer = Answer::Extents {
            extents: ExtentList(extents),
            covered_to,
            inline: inline.bytes,
            inline_sum: inline.checksum,
            sums,
            attr: inode.attr,
            free_epoch: self.counters.free_epoch,
        };
        Ok(Outcome::of(answer).granting(id, Rights::READ))
    }

    /// Returns the sums of the blocks that extents touch, and how far these are complete: up to `covered_to`, or
    /// up to the first of them that is left out for having too many.
    fn sums_of(
        &self,
        extents: &mut Vec<Extent>,
        asked: Range<u64>,
        covered_to: u64,
    ) -> Result<(BlockSums, u64), Error> {
        let mut summed = Summed::default();
        for index in 0..extents.len() {
            let extent = extents[index];
            let is_behind = extent.offset >= asked.end && summed.count >= SUMS_ENOUGH;
            // The first is needed: an answer covers a byte at least.
            let may_end = extent.offset > asked.start;
            let is_taken = !(is_behind && may_end) && self.add_sums(&mut summed, &extent)?;
            if !is_taken && may_end {
                extents.truncate(index);
                return Ok((summed.sums, extent.offset));
            }
        }
        Ok((summed.sums, covered_to))
    }

    /// Adds the sums of the blocks that an extent touches. Returns false, and adds nothing, if a message might
    /// have too many then.
    fn add_sums(&self, summed: &mut Summed, extent: &Extent) -> Result<bool, Error> {
        let id = extent.place.allocation.device;
        let device = self.base.space.devices.get(&id);
        let blocks = device.and_then(|device| blocks_of(extent, device.info.block_size));
        // Lost bytes lie on no device.
        let Some(blocks) = blocks else { return Ok(true) };
        if summed.count + (blocks.end - blocks.start) as usize > SUMS_PER_MESSAGE_MAX {
            return Ok(false);
        }
        for block in blocks {
            if summed.last.replace((id, block)) == Some((id, block)) {
                continue;
            }
            let of = if reactor::mutant!("sum-of-another-block") { block ^ 1 } else { block };
            let live = self.live_block(&mut summed.chunk, id, of)?;
            if let Some(sum) = live.and_then(|live| live.sum) {
                summed.sums.push(id, block, sum);
                summed.count += 1;
            }
        }
        Ok(true)
    }
}
