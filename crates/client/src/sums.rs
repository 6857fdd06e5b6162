//! Checksums of device blocks.
//!
//! The writer's client computes a checksum of each block when it writes a fill to its device. The
//! answer to `ReadExtents` brings those of committed blocks. A read copies the checksums that it
//! needs when it takes hold of its extents.

pub(crate) mod known;
pub(crate) mod mismatches;

use protocol::DeviceId;
use smallvec::SmallVec;
use std::ops::Range;

/// Returns the blocks that an address range touches on a device with blocks of this size.
pub(crate) fn blocks_at(address: u64, length: u64, block_size: u64) -> Range<u64> {
    address / block_size..(address + length).div_ceil(block_size)
}

/// A block and its checksum.
pub(crate) type Check = (DeviceId, u64, u32);

/// Checksums of blocks that a read compares with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(SmallVec<[Check; 2]>);

impl Checks {
    /// Adds a block.
    pub(crate) fn push(&mut self, device: DeviceId, block: u64, sum: u32) {
        self.0.push((device, block, sum));
    }

    /// Sorts the blocks, each once, as [`Checks::within`] needs them.
    pub(crate) fn sort(&mut self) {
        if !self.0.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)) {
            self.0.sort_unstable();
            self.0.dedup_by_key(|(device, block, _)| (*device, *block));
        }
    }

    /// Returns the checksums of the blocks in a range that have one, ascending.
    pub(crate) fn within(&self, device: DeviceId, blocks: Range<u64>) -> &[Check] {
        let from = self.0.partition_point(|check| (check.0, check.1) < (device, blocks.start));
        let to = self.0.partition_point(|check| (check.0, check.1) < (device, blocks.end));
        &self.0[from..to]
    }

    /// Adds those of a range of blocks from another set.
    pub(crate) fn extend_from(&mut self, other: &Checks, device: DeviceId, blocks: Range<u64>) {
        self.0.extend_from_slice(other.within(device, blocks));
    }

    /// Adds another set; [`Checks::sort`] is due then.
    pub(crate) fn extend(&mut self, others: Checks) {
        self.0.extend(others.0);
    }

    /// Returns how many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is nothing to compare.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a block that several pieces of a read touch is compared once.
    #[test]
    fn checks_are_in_order_and_once() {
        let mut checks = Checks::default();
        for (device, block) in [(2, 5), (1, 9), (1, 8), (1, 9)] {
            checks.push(DeviceId(device), block, block as u32);
        }
        checks.sort();
        let found = |device, blocks| {
            let within = checks.within(DeviceId(device), blocks);
            within.iter().map(|check| check.1).collect::<Vec<_>>()
        };
        assert_eq!(
            (found(1, 0..9), found(1, 0..90), found(2, 5..6)),
            (vec![8], vec![8, 9], vec![5])
        );
    }
}
