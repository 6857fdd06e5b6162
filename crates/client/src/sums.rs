//! Checksums of device blocks, as a client knows them, and what it finds wrong.
//!
//! The writer's client makes a sum of each block when it writes a fill to its device; `ReadExtents` brings those
//! of committed blocks. An inode's sums are known as its extents are, under READ, and dropped with them. The
//! extents that are put in always bring what is known of their blocks, so a block that was freed and used again
//! never has its old sum. What a read checks against is copied when its extents are held.

use crate::client::Client;
use protocol::inline::Bytes;
use protocol::sums::checksum;
use protocol::{DeviceId, InodeId};
use reactor::time::{Instant, now};
use serde::Serialize;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Blocks of a group: few, so that a small file takes little.
const GROUP_BLOCKS: u64 = 16;

/// Most memory that sums of one inode take, in bytes; then they are dropped with its extents.
const BYTES_MAX: usize = 64 << 20;

/// Groups above twice as many as the last time are looked through for some that no extent needs.
const GROUPS_MIN: usize = 64;

/// Wrong blocks that the log has named and does not name again.
const NAMED_MAX: usize = 1024;

/// Shortest time between two lines in the log about bytes that were changed on the way.
const REPAIRED_EVERY: Duration = Duration::from_secs(1);

/// Sums of blocks side by side, of those that have one.
#[derive(Clone, Debug, Default)]
struct Group {
    has: u16,
    sums: [u32; GROUP_BLOCKS as usize],
}

/// The sums of the blocks that an inode's extents touch.
#[derive(Debug, Default)]
pub(crate) struct KnownSums {
    groups: BTreeMap<(DeviceId, u64), Group>,
    /// Groups that were left when they were looked through.
    needed: usize,
}

impl KnownSums {
    /// Adds or replaces the sum of a block.
    pub(crate) fn put(&mut self, device: DeviceId, block: u64, sum: u32) {
        let group = self.groups.entry((device, block / GROUP_BLOCKS)).or_default();
        let at = (block % GROUP_BLOCKS) as usize;
        group.has |= 1 << at;
        group.sums[at] = sum;
    }

    /// Forgets the sums of some blocks.
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

    /// Returns whether all of some blocks have a sum.
    pub(crate) fn has_all(&self, device: DeviceId, blocks: Range<u64>) -> bool {
        let count = blocks.end - blocks.start;
        let mut found = Checks::default();
        self.add_to(&mut found, device, blocks);
        found.0.len() as u64 == count
    }

    /// Adds what is known of some blocks to what a read checks.
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

    /// Returns whether so many were added that it is worth it to look for some that no extent needs.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.groups.len() > (2 * self.needed).max(GROUPS_MIN)
    }

    /// Keeps only what lies in one of these ranges of blocks, or near it.
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

/// The blocks that an address range touches on a device with blocks of this size.
pub(crate) fn blocks_at(address: u64, length: u64, block_size: u64) -> Range<u64> {
    address / block_size..(address + length).div_ceil(block_size)
}

/// What a read has to find: the sums of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks(SmallVec<[(DeviceId, u64, u32); 2]>);

impl Checks {
    /// Adds a block.
    pub(crate) fn push(&mut self, device: DeviceId, block: u64, sum: u32) {
        self.0.push((device, block, sum));
    }

    /// Puts the blocks into order, each once, as [`Checks::within`] needs them.
    pub(crate) fn sort(&mut self) {
        if !self.0.is_sorted_by(|a, b| (a.0, a.1) < (b.0, b.1)) {
            self.0.sort_unstable();
            self.0.dedup_by_key(|(device, block, _)| (*device, *block));
        }
    }

    /// The sums of those of a range of blocks that have one, ascending.
    pub(crate) fn within(&self, device: DeviceId, blocks: Range<u64>) -> &[(DeviceId, u64, u32)] {
        let from = self.0.partition_point(|check| (check.0, check.1) < (device, blocks.start));
        let to = self.0.partition_point(|check| (check.0, check.1) < (device, blocks.end));
        &self.0[from..to]
    }

    /// Adds those of a range of blocks.
    pub(crate) fn extend_from(&mut self, other: &Checks, device: DeviceId, blocks: Range<u64>) {
        self.0.extend_from_slice(other.within(device, blocks));
    }

    /// Adds others; [`Checks::sort`] is due then.
    pub(crate) fn extend(&mut self, others: Checks) {
        self.0.extend(others.0);
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing to check.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A block whose bytes twice did not have their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongBlock {
    pub(crate) device: DeviceId,
    pub(crate) block: u64,
}

/// A block that was found damaged, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The device.
    pub device: DeviceId,
    /// The block, counted from the device's start.
    pub block: u64,
    /// The file that was read.
    pub inode: InodeId,
}

/// What one client has found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChecksumCounts {
    /// Blocks, or inline bytes, that were wrong, and right when they were read again: changed on the way.
    pub checksum_repaired: u64,
    /// Reads that failed because of a wrong checksum.
    pub checksum_wrong: u64,
    /// The last block that one of them failed for.
    pub checksum_last: Option<Damage>,
}

/// What one client has found wrong, for other threads to look at.
#[derive(Clone, Debug, Default)]
pub struct ChecksumView(Arc<Mutex<ChecksumCounts>>);

impl ChecksumView {
    /// What was counted so far.
    pub fn counts(&self) -> ChecksumCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client remembers of checksums that were wrong.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    counts: ChecksumView,
    named: RefCell<BTreeSet<(DeviceId, u64, InodeId)>>,
    repaired_logged: Cell<Option<Instant>>,
}

impl Mismatches {
    /// What was counted so far.
    pub(crate) fn counts(&self) -> ChecksumCounts {
        self.counts.counts()
    }

    fn count(&self, change: impl FnOnce(&mut ChecksumCounts)) {
        change(&mut self.counts.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns whether the log is to say that bytes were changed on the way, which it does not for each of many.
    fn may_tell_of_repair(&self) -> bool {
        let last = self.repaired_logged.get();
        let is_due = last.is_none_or(|last| now() - last >= REPAIRED_EVERY);
        if is_due {
            self.repaired_logged.set(Some(now()));
        }
        is_due
    }

    /// Returns whether the log has not named a block of a file yet, and notes that it does now.
    fn may_name(&self, damage: (DeviceId, u64, InodeId)) -> bool {
        let mut named = self.named.borrow_mut();
        if named.len() >= NAMED_MAX {
            named.clear();
        }
        named.insert(damage)
    }
}

impl Client {
    /// What was found wrong, for other threads to look at.
    pub fn checksums(&self) -> ChecksumView {
        self.mismatches.counts.clone()
    }

    /// Takes note of a block whose bytes were wrong, and right when they were read again.
    pub(crate) fn note_repaired(&self, device: DeviceId, block: u64) {
        self.mismatches.count(|counts| counts.checksum_repaired += 1);
        if self.mismatches.may_tell_of_repair() {
            let so_far = self.mismatches.counts().checksum_repaired;
            tracing::warn!(%device, block, so_far, "data did not have its checksum, and has it when it is read again: it was changed on the way; check network and memory");
        }
    }

    /// Takes note of a read that fails because a block is damaged. The log names each block of a file once.
    pub(crate) fn note_wrong(&self, inode: InodeId, wrong: WrongBlock) {
        let WrongBlock { device, block } = wrong;
        self.mismatches.count(|counts| {
            counts.checksum_wrong += 1;
            counts.checksum_last = Some(Damage { device, block, inode });
        });
        if self.mismatches.may_name((device, block, inode)) {
            let known = self.devices.info(device);
            let node = known.map(|info| info.node).unwrap_or_default();
            tracing::error!(%device, node, block, %inode, "data does not have its checksum: the device holds other bytes than were written; restore the file, or delete it");
        }
    }

    /// Returns whether inline bytes have their sum.
    pub(crate) fn is_right(&self, inode: InodeId, bytes: &Bytes, sum: u32) -> bool {
        let is_right = !self.checksum || checksum(&bytes.0) == sum;
        if !is_right {
            tracing::warn!(%inode, "inline data came without its checksum");
        }
        is_right
    }

    /// Takes note of inline bytes that were wrong, and right when they were asked for again, or not.
    pub(crate) fn note_inline(&self, inode: InodeId, is_repaired: bool) {
        if is_repaired {
            self.mismatches.count(|counts| counts.checksum_repaired += 1);
            return;
        }
        self.mismatches.count(|counts| counts.checksum_wrong += 1);
        tracing::error!(%inode, "inline data does not have its checksum; restore the file, or delete it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEVICE: DeviceId = DeviceId(1);

    proptest! {
        /// Goal: sums are of the blocks that they were put for, and of no others, after any changes.
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

    /// Goal: what no extent needs goes, and what one needs stays.
    #[test]
    fn what_is_not_needed_goes() {
        let mut known = KnownSums::default();
        (0..=GROUPS_MIN as u64).for_each(|group| known.put(DEVICE, group * GROUP_BLOCKS, 1));
        assert!(known.may_be_stale());
        known.keep([(DEVICE, 3..5), (DEVICE, 40..41)].into_iter());
        assert!(!known.may_be_stale() && known.groups.len() == 2);
        assert!(known.has_all(DEVICE, 0..1) && known.has_all(DEVICE, 32..33));
    }

    /// Goal: a block that several pieces of a read touch is looked up once.
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
