//! The checksums of an inode's blocks, as far as they are known.
//!
//! They are known as the inode's extents are, under READ, and dropped with them. Extents that enter
//! the cache always bring what is known of their blocks, so a block that was freed and used again
//! never keeps its old checksum.

use crate::sums::Checks;
use protocol::DeviceId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks of a group: few, so that a small file takes little memory.
const GROUP_BLOCKS: u64 = 16;

/// Most memory that the checksums of one inode take, in bytes. Beyond that they are dropped with
/// its extents.
const BYTES_MAX: usize = 64 << 20;

/// Groups without need are looked for when there are twice as many as after the last time, and more
/// than this.
const GROUPS_MIN: usize = 64;

/// The checksums of blocks side by side, with a bit for each that has one.
#[derive(Clone, Debug, Default)]
struct Group {
    has: u16,
    sums: [u32; GROUP_BLOCKS as usize],
}

/// The checksums of the blocks that an inode's extents touch.
#[derive(Debug, Default)]
pub(crate) struct KnownSums {
    groups: BTreeMap<(DeviceId, u64), Group>,
    /// Groups that were left after the last search.
    needed: usize,
}

impl KnownSums {
    /// Adds or replaces the checksum of a block.
    pub(crate) fn put(&mut self, device: DeviceId, block: u64, sum: u32) {
        let group = self.groups.entry((device, block / GROUP_BLOCKS)).or_default();
        let at = (block % GROUP_BLOCKS) as usize;
        group.has |= 1 << at;
        group.sums[at] = sum;
    }

    /// Forgets the checksums of some blocks.
    pub(crate) fn remove(&mut self, device: DeviceId, blocks: Range<u64>) {
        let groups = blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS);
        let touched = self.groups.range_mut((device, groups.start)..(device, groups.end));
        for ((_, group), known) in touched {
            let first = group * GROUP_BLOCKS;
            for at in 0..GROUP_BLOCKS {
                if blocks.contains(&(first + at)) {
                    known.has &= !(1 << at);
                }
            }
        }
    }

    /// Returns whether all of some blocks have a checksum.
    pub(crate) fn has_all(&self, device: DeviceId, blocks: Range<u64>) -> bool {
        let count = blocks.end - blocks.start;
        let mut found = Checks::default();
        self.add_to(&mut found, device, blocks);
        found.0.len() as u64 == count
    }

    /// Adds the known checksums of some blocks to those that a read compares.
    pub(crate) fn add_to(&self, checks: &mut Checks, device: DeviceId, blocks: Range<u64>) {
        let groups = blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS);
        for ((_, group), known) in self.groups.range((device, groups.start)..(device, groups.end)) {
            let first = group * GROUP_BLOCKS;
            let from = blocks.start.max(first);
            for block in from..blocks.end.min(first + GROUP_BLOCKS) {
                let at = (block - first) as usize;
                if known.has & (1 << at) != 0 {
                    checks.push(device, block, known.sums[at]);
                }
            }
        }
    }

    /// Returns whether they take more memory than they may.
    pub(crate) fn are_too_many(&self) -> bool {
        self.groups.len() * size_of::<((DeviceId, u64), Group)>() > BYTES_MAX
    }

    /// Returns whether a search for groups that no extent needs is worth it.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.groups.len() > (2 * self.needed).max(GROUPS_MIN)
    }

    /// Keeps only groups that touch one of these ranges of blocks.
    pub(crate) fn keep(&mut self, needed: impl Iterator<Item = (DeviceId, Range<u64>)>) {
        let mut kept = BTreeSet::new();
        for (device, blocks) in needed {
            let groups = blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS);
            kept.extend(groups.map(|group| (device, group)));
        }
        self.groups.retain(|group, _| kept.contains(group));
        self.needed = self.groups.len();
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.needed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEVICE: DeviceId = DeviceId(1);

    proptest! {
        /// Goal: a checksum belongs to the block that it was put for, and to no other, after any
        /// changes.
        #[test]
        fn sums_behave_like_an_array(
            steps in prop::collection::vec((0u64..70, 1u64..20, any::<Option<u32>>()), 0..40),
            asked in (0u64..80, 0u64..40),
        ) {
            let mut known = KnownSums::default();
            let mut model = [None; 128];
            for (first, count, sum) in steps {
                known.remove(DEVICE, first..first + count);
                model[first as usize..(first + count) as usize].fill(None);
                if let Some(sum) = sum {
                    known.put(DEVICE, first, sum);
                    model[first as usize] = Some(sum);
                }
            }
            known.put(DeviceId(2), asked.0, 7);
            let blocks = asked.0..asked.0 + asked.1;
            let mut found = Checks::default();
            known.add_to(&mut found, DEVICE, blocks.clone());
            let wanted: Vec<_> = blocks
                .clone()
                .filter_map(|block| model[block as usize].map(|sum| (DEVICE, block, sum)))
                .collect();
            prop_assert_eq!(known.has_all(DEVICE, blocks), wanted.len() as u64 == asked.1);
            prop_assert_eq!(found.0.to_vec(), wanted);
        }
    }

    /// Goal: groups that no extent needs go, and the others stay.
    #[test]
    fn what_is_not_needed_goes() {
        let mut known = KnownSums::default();
        (0..=GROUPS_MIN as u64).for_each(|group| known.put(DEVICE, group * GROUP_BLOCKS, 1));
        assert!(known.may_be_stale());
        known.keep([(DEVICE, 3..5), (DEVICE, 40..41)].into_iter());
        assert!(!known.may_be_stale() && known.groups.len() == 2);
        assert!(known.has_all(DEVICE, 0..1) && known.has_all(DEVICE, 32..33));
    }
}
