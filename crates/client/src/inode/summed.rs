//! The sums of the blocks that an inode's cached extents touch.

use crate::inode::state::State;
use crate::sums::blocks_at;
use protocol::space::NewAllocation;
use protocol::sums::BlockSums;
use protocol::{AllocationId, DeviceId, Extent};
use std::ops::Range;

/// What a commit or a compaction of this client has named.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnCommit<'a> {
    /// For the first time.
    pub(crate) allocations: &'a [NewAllocation],
    /// The sums of their blocks, if sums are made.
    pub(crate) sums: &'a [u32],
    /// All extents.
    pub(crate) extents: &'a [Extent],
}

/// The blocks that an extent touches; `None` if it lies on no device that is known, as lost bytes.
fn blocks_of(
    extent: &Extent,
    block_size: impl Fn(DeviceId) -> Option<u32>,
) -> Option<(DeviceId, Range<u64>)> {
    let AllocationId { device, block } = extent.place.allocation;
    let block_size = u64::from(block_size(device)?);
    let address = block.checked_mul(block_size)?.checked_add(u64::from(extent.place.at))?;
    Some((device, blocks_at(address, u64::from(extent.length), block_size)))
}

impl State {
    /// Takes in the sums that came with extents. Blocks without one have none, whatever was known of them.
    pub(crate) fn set_sums(
        &mut self,
        extents: &[Extent],
        sums: &BlockSums,
        block_size: impl Fn(DeviceId) -> Option<u32>,
    ) {
        if !self.may_cache() {
            return;
        }
        self.bound_sums(&block_size);
        if !reactor::mutant!("old-sum-kept") {
            for (device, blocks) in extents.iter().filter_map(|it| blocks_of(it, &block_size)) {
                self.sums.remove(device, blocks);
            }
        }
        sums.each().for_each(|(device, block, sum)| self.sums.put(device, block, sum));
    }

    /// Takes in the sums of what this client has named. Returns whether those of all blocks are known then: not if
    /// one was named by an earlier commit, and what came with that was dropped since.
    pub(crate) fn set_own_sums(
        &mut self,
        own: OwnCommit<'_>,
        block_size: impl Fn(DeviceId) -> Option<u32>,
    ) -> bool {
        if !self.may_cache() {
            return true;
        }
        self.bound_sums(&block_size);
        let blocks = own.allocations.iter().flat_map(|named| {
            let AllocationId { device, block } = named.allocation;
            (block..block + u64::from(named.blocks)).map(move |block| (device, block))
        });
        if reactor::mutant!("own-sums-unnoted") {
            return true;
        }
        for ((device, block), sum) in blocks.zip(own.sums) {
            self.sums.put(device, block, *sum);
        }
        own.extents.iter().all(|extent| {
            blocks_of(extent, &block_size)
                .is_none_or(|(device, blocks)| self.sums.has_all(device, blocks))
        })
    }

    /// Drops sums that no extent needs, and everything if they still take too much memory.
    fn bound_sums(&mut self, block_size: impl Fn(DeviceId) -> Option<u32>) {
        if self.sums.may_be_stale() {
            let needed = self.extents.iter().filter_map(|run| {
                let length = run.length.min(u64::from(u32::MAX)) as u32;
                blocks_of(&Extent { offset: run.offset, length, place: run.place }, &block_size)
            });
            self.sums.keep(needed);
        }
        if self.sums.are_too_many() {
            self.forget_extents();
        }
    }
}
