//! The checksums of the blocks that an inode's cached extents touch.

use crate::inode::state::State;
use crate::sums::blocks_at;
use protocol::space::NewAllocation;
use protocol::sums::BlockSums;
use protocol::{AllocationId, DeviceId, Extent};
use std::ops::Range;

/// The blocks and extents of a commit or compaction of this client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnCommit<'a> {
    /// Blocks that it names for the first time.
    pub(crate) allocations: &'a [NewAllocation],
    /// The checksums of these blocks, if this client makes checksums.
    pub(crate) sums: &'a [u32],
    /// All its extents.
    pub(crate) extents: &'a [Extent],
}

/// Returns the blocks that an extent touches; `None` if its device is not known, as for lost bytes.
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
    /// Caches the checksums that came with extents. Blocks without one have none from now on.
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

    /// Caches the checksums of what this client has named. Returns whether those of all blocks are
    /// known then. They are not if an earlier commit named a block and its checksum was dropped
    /// since.
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

    /// Drops checksums that no extent needs, and everything if they still take too much memory.
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
