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

/// Number of extents at which an answer gets no further page.
const EXTENTS_PER_ANSWER: usize = 1024;

/// Number of sums at which an answer gets no data behind the requested range.
const SUMS_ENOUGH: usize = SUMS_PER_MESSAGE_MAX / 4;

/// An answer, while its sums are added extent by extent.
#[derive(Default)]
struct Summed {
    sums: BlockSums,
    count: usize,
    /// The block of the last look-up.
    last: Option<(DeviceId, u64)>,
    chunk: LastChunk,
}

impl Transaction<'_> {
    /// `ReadExtents`. It returns whole pages, up to a number of sums: the data behind the requested
    /// range costs little, and saves the next call.
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
        // Most small files have no extents, and no page is read.
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

    /// Returns the sums of the blocks that extents touch, and the offset to which they are
    /// complete: `covered_to`, or the start of the first extent that is left out because of too
    /// many sums.
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
            // The first extent is needed: an answer covers at least one byte.
            let may_end = extent.offset > asked.start;
            let is_taken = !(is_behind && may_end) && self.add_sums(&mut summed, &extent)?;
            if !is_taken && may_end {
                extents.truncate(index);
                return Ok((summed.sums, extent.offset));
            }
        }
        Ok((summed.sums, covered_to))
    }

    /// Adds the sums of the blocks that an extent touches. Returns false, without adding any, if a
    /// message might then have too many.
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
