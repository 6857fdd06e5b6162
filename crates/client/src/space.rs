//! The blocks that this session has leased, and which of them are free.
//!
//! Writers *reserve* blocks when they take data into memory, so that `write` itself reports a full
//! pool, not close. They *allocate* when they know how much goes out together, so that allocations
//! are as long as possible. Reservations are per device.

pub(crate) mod reservation;

use crate::space::reservation::{Blocks, Reserved};
use protocol::space::{ALLOCATION_MAX_BYTES, BlockRange, SpaceGrant};
use protocol::{AllocationId, DeviceId, Incarnation};
use std::collections::BTreeMap;

/// Free leased blocks of one device.
#[derive(Debug)]
struct Lease {
    incarnation: Incarnation,
    /// Free runs: start → count.
    free: BTreeMap<u64, u64>,
    free_blocks: u64,
    /// Blocks that this session has reserved.
    reserved: Reserved,
}

/// A run of blocks to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) allocation: AllocationId,
    pub(crate) blocks: u32,
    pub(crate) incarnation: Incarnation,
}

/// All leased space.
#[derive(Debug, Default)]
pub(crate) struct Space {
    leases: BTreeMap<DeviceId, Lease>,
}

impl Space {
    /// Adds what the metadata service granted. Drops space of an older incarnation, because the
    /// service would refuse commits that name it. Returns false if this session has some of the
    /// blocks already.
    #[must_use]
    pub(crate) fn add(&mut self, grant: &SpaceGrant) -> bool {
        let lease = self.leases.entry(grant.device).or_insert_with(|| Lease {
            incarnation: grant.incarnation,
            free: BTreeMap::new(),
            free_blocks: 0,
            reserved: Reserved::default(),
        });
        if lease.incarnation != grant.incarnation {
            lease.incarnation = grant.incarnation;
            lease.free.clear();
            lease.free_blocks = 0;
        }
        grant.free.iter().all(|range| lease.put(*range))
    }

    /// Notes that the device has another incarnation. Blocks that were not written to yet serve it
    /// as well.
    pub(crate) fn renew(&mut self, device: DeviceId, incarnation: Incarnation) {
        if let Some(lease) = self.leases.get_mut(&device) {
            lease.incarnation = incarnation;
        }
    }

    /// Reserves blocks if enough are free and not reserved yet.
    pub(crate) fn reserve(&self, device: DeviceId, blocks: u64) -> Option<Blocks> {
        match self.leases.get(&device) {
            Some(lease) if lease.free_blocks >= lease.reserved.get() + blocks => {
                Some(lease.reserved.take(device, blocks))
            }
            _ => (blocks == 0).then(|| Blocks::none(device)),
        }
    }

    /// Reserves what is free and not reserved yet, at most `blocks`.
    pub(crate) fn reserve_up_to(&self, device: DeviceId, blocks: u64) -> Blocks {
        let Some(lease) = self.leases.get(&device) else { return Blocks::none(device) };
        let blocks = lease.free_blocks.saturating_sub(lease.reserved.get()).min(blocks);
        lease.reserved.take(device, blocks)
    }

    /// Returns whether blocks are reserved in the present session, or are none.
    pub(crate) fn is_present(&self, reserved: &Blocks) -> bool {
        let lease = self.leases.get(&reserved.device());
        lease.map_or(reserved.get() == 0, |lease| reserved.are_of(&lease.reserved))
    }

    /// Turns reserved blocks into an allocation of at most `blocks`, as long as the free runs
    /// allow. Returns `None` if nothing is free, because the device has another incarnation by now.
    pub(crate) fn allocate(
        &mut self,
        reserved: &mut Blocks,
        blocks: u32,
        block_size: u32,
    ) -> Option<Allocated> {
        let device = reserved.device();
        let lease = self.leases.get_mut(&device)?;
        assert!(
            reserved.are_of(&lease.reserved) && blocks > 0,
            "{blocks} blocks of {device} are allocated, with those set aside in another session"
        );
        let most = (ALLOCATION_MAX_BYTES / u64::from(block_size)).min(u64::from(blocks));
        // The first run that fits all of it, otherwise the longest run.
        let fit = lease.free.iter().find(|(_, count)| **count >= most);
        let (&start, &count) = match fit {
            Some(run) => run,
            None => lease.free.iter().max_by_key(|(_, count)| **count)?,
        };
        let taken = count.min(most);
        lease.free.remove(&start);
        if count > taken {
            lease.free.insert(start + taken, count - taken);
        }
        assert!(
            taken > 0 && taken <= lease.free_blocks,
            "{taken} blocks at {start} of {device} are allocated, and {} are free",
            lease.free_blocks
        );
        lease.free_blocks -= taken;
        reserved.release(taken);
        Some(Allocated {
            allocation: AllocationId { device, block: start },
            blocks: taken as u32,
            incarnation: lease.incarnation,
        })
    }

    /// Takes back blocks that were allocated but never named in a commit; all writes to them have
    /// ended.
    pub(crate) fn give_back(&mut self, allocated: &Allocated) {
        if let Some(lease) = self.leases.get_mut(&allocated.allocation.device)
            && (lease.incarnation == allocated.incarnation || reactor::mutant!("old-blocks-reused"))
        {
            let start = allocated.allocation.block;
            let is_new = lease.put(BlockRange { start, count: u64::from(allocated.blocks) });
            assert!(
                is_new
                    || reactor::mutant!("old-blocks-reused")
                    || reactor::mutant!("named-blocks-reused"),
                "{allocated:?} is given back, and some of it is free"
            );
        }
    }

    /// Takes out all blocks that are free and not reserved, for their return to the metadata
    /// service.
    pub(crate) fn take_unused(&mut self) -> Vec<SpaceGrant> {
        let mut unused = Vec::new();
        for (&device, lease) in &mut self.leases {
            let mut spare = lease.free_blocks.saturating_sub(lease.reserved.get());
            let mut ranges = Vec::new();
            while spare > 0 {
                let Some((start, count)) = lease.free.pop_last() else { break };
                let taken = count.min(spare);
                if count > taken {
                    lease.free.insert(start, count - taken);
                }
                ranges.push(BlockRange { start: start + count - taken, count: taken });
                assert!(
                    taken > 0 && taken <= lease.free_blocks,
                    "{taken} blocks at {start} of {device} are returned, and {} are free",
                    lease.free_blocks
                );
                lease.free_blocks -= taken;
                spare -= taken;
            }
            if !ranges.is_empty() {
                ranges.reverse();
                unused.push(SpaceGrant { device, incarnation: lease.incarnation, free: ranges });
            }
        }
        unused
    }

    /// Puts unused blocks back whose return was not sent. The service does not take those of an
    /// earlier incarnation in a commit.
    pub(crate) fn put_back(&mut self, unused: &SpaceGrant) {
        if let Some(lease) = self.leases.get_mut(&unused.device)
            && lease.incarnation == unused.incarnation
        {
            let is_new = unused.free.iter().all(|range| lease.put(*range));
            assert!(is_new, "blocks of {} were granted while leased here", unused.device);
        }
    }

    /// Forgets everything, because the session was lost.
    pub(crate) fn clear(&mut self) {
        for lease in self.leases.values_mut() {
            lease.free.clear();
            lease.free_blocks = 0;
            lease.reserved = Reserved::default();
        }
    }
}

impl Lease {
    /// Adds free blocks. Returns false, without a change, if the range is empty or some of it is
    /// free already.
    fn put(&mut self, range: BlockRange) -> bool {
        let (mut start, mut count) = (range.start, range.count);
        let Some(end) = start.checked_add(count).filter(|end| *end > start) else { return false };
        let before = self.free.range(..end).next_back().map(|(before, count)| before + count);
        if before.is_some_and(|before| before > start) {
            return false;
        }
        self.free_blocks += count;
        if let Some(next) = self.free.remove(&(start + count)) {
            count += next;
        }
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
            count += length;
        }
        self.free.insert(start, count);
        assert!(
            self.free_blocks >= count,
            "{count} blocks at {start} are free, and all are {}",
            self.free_blocks
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const DEVICE: DeviceId = DeviceId(3);

    fn grant(start: u64, count: u64) -> SpaceGrant {
        let free = vec![BlockRange { start, count }];
        SpaceGrant { device: DEVICE, incarnation: Incarnation(1), free }
    }

    /// Goal: no more can be reserved than is free.
    #[test]
    fn reservations_are_bounded_by_free_blocks() {
        let mut space = Space::default();
        assert!(space.reserve(DEVICE, 1).is_none());
        assert!(space.add(&grant(0, 10)));
        let mut reserved = space.reserve(DEVICE, 10).unwrap();
        assert!(space.reserve(DEVICE, 1).is_none());
        assert!(space.take_unused().is_empty());
        reserved.release(4);
        let unused = space.take_unused();
        assert_eq!(unused, [grant(6, 4)]);
        assert!(space.reserve(DEVICE, 1).is_none());
        space.put_back(&unused[0]);
        assert!(space.reserve(DEVICE, 4).is_some());
    }

    /// Goal: space of a device that lost writes is not used again.
    #[test]
    fn a_new_incarnation_drops_old_space() {
        let mut space = Space::default();
        assert!(space.add(&grant(0, 10)));
        assert!(space.add(&SpaceGrant { incarnation: Incarnation(2), ..grant(100, 5) }));
        let allocated = space.allocate(&mut Blocks::none(DEVICE), 256, 4096).unwrap();
        assert_eq!((allocated.allocation.block, allocated.blocks), (100, 5));
        assert_eq!(allocated.incarnation, Incarnation(2));
    }

    /// Goal: leased space that was not written to goes on under a new incarnation; what was written
    /// under the old one does not come back as free.
    #[test]
    fn unused_space_serves_a_new_incarnation() {
        let mut space = Space::default();
        assert!(space.add(&grant(0, 10)));
        let old = space.allocate(&mut Blocks::none(DEVICE), 4, 4096).unwrap();
        space.renew(DEVICE, Incarnation(2));
        space.give_back(&old);
        let new = space.allocate(&mut Blocks::none(DEVICE), 256, 4096).unwrap();
        assert_eq!((new.allocation.block, new.blocks, new.incarnation), (4, 6, Incarnation(2)));
    }

    proptest! {
        /// Goal: no block is ever handed out twice, and none gets lost.
        #[test]
        fn blocks_are_handed_out_once(steps in prop::collection::vec((0u8..4, 1u32..40), 1..80)) {
            let mut space = Space::default();
            let mut held: Vec<Allocated> = Vec::new();
            let (mut granted, mut returned) = (0, 0);
            for (kind, size) in steps {
                match kind {
                    0 => {
                        assert!(space.add(&grant(granted, u64::from(size))));
                        granted += u64::from(size);
                    }
                    1 => {
                        let Some(mut reserved) = space.reserve(DEVICE, u64::from(size)) else {
                            continue;
                        };
                        let mut left = size;
                        while left > 0 {
                            let allocated = space.allocate(&mut reserved, left, 4096).unwrap();
                            left -= allocated.blocks;
                            held.push(allocated);
                        }
                        prop_assert_eq!(reserved.get(), 0);
                    }
                    2 if !held.is_empty() => {
                        let back = held.swap_remove(size as usize % held.len());
                        space.give_back(&back);
                    }
                    3 => for unused in space.take_unused() {
                        returned += unused.free.iter().map(|r| r.count).sum::<u64>();
                    },
                    _ => {}
                }
                let mut seen = HashSet::new();
                for a in &held {
                    for block in a.allocation.block..a.allocation.block + u64::from(a.blocks) {
                        prop_assert!(seen.insert(block));
                    }
                }
                let free = space.leases.get(&DEVICE).map_or(0, |l| l.free_blocks);
                prop_assert_eq!(seen.len() as u64 + free + returned, granted);
            }
        }
    }
}
