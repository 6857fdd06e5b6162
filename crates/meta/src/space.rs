//! The pool's space: which blocks of each device are free, leased, resting or allocated.
//!
//! A device is divided into segments. A segment that was never used has no record: all its blocks
//! are free. Every block is in exactly one of: a segment's free blocks, a session's lease, a live
//! allocation, a resting range.
//!
//! An index in memory has, by device, the counts of each state, and the used segments ordered by
//! their free blocks. So no call has to search the stored segments. The index is rebuilt when the
//! store is opened, and only finished transactions change it.

mod durability;
mod lease;
pub(crate) mod live;
mod ranges;

pub(crate) use durability::{Durability, FIRST_FLUSH_EPOCH};
pub(crate) use ranges::Ranges;

use crate::records::{Device, Key, Resting, Segment, SpaceLease, corrupt, decode, key_number};
use crate::store::Error;
use crate::tree::base::Layers;
use protocol::client::Answer;
use protocol::space::{BlockRange, DeviceInfo, FIRST_GRANT_BYTES, PoolUse, SEGMENT_BYTES};
use protocol::{DeviceId, Errno, SessionId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Free runs of at least this length are leased first: it is the longest allocation, and the most
/// that one command reads.
const RUN_BYTES: u64 = protocol::space::ALLOCATION_MAX_BYTES;

/// Where there are none, runs of at least this length are leased before shorter ones: a command for
/// each costs little.
const SHORT_RUN_BYTES: u64 = 64 << 10;

/// The number of a device's blocks in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// All blocks.
    pub blocks: u64,
    /// Free and not leased.
    pub free: u64,
    /// Leased to sessions, named by no commit.
    pub leased: u64,
    /// Freed, but perhaps still being read.
    pub resting: u64,
}

impl DeviceUse {
    /// Blocks in live allocations.
    pub fn allocated(&self) -> u64 {
        let others = self.free + self.leased + self.resting;
        assert!(others <= self.blocks, "more blocks have a state than there are: {self:?}");
        self.blocks - others
    }
}

/// Free blocks of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeIn {
    /// Those in runs that hold the longest allocations.
    pub(crate) in_runs: u64,
    /// All.
    pub(crate) blocks: u64,
}

/// A device and the index of its segments.
#[derive(Debug)]
pub(crate) struct DeviceSpace {
    pub(crate) info: DeviceInfo,
    pub(crate) durability: Durability,
    /// A flush has failed under this incarnation: no later one can succeed.
    pub(crate) has_failed: bool,
    /// Segments below this number have a record.
    touched: u64,
    /// Free blocks of each segment that has a record and free blocks.
    free_of: BTreeMap<u64, FreeIn>,
    /// The same segments, ordered by free blocks in runs of [`DeviceSpace::run_blocks`], then by
    /// all free blocks.
    by_free: BTreeSet<(FreeIn, u64)>,
    usage: DeviceUse,
}

impl DeviceSpace {
    fn new(info: DeviceInfo, durability: Durability) -> DeviceSpace {
        let usage = DeviceUse { blocks: info.blocks, free: info.blocks, ..DeviceUse::default() };
        DeviceSpace {
            info,
            durability,
            has_failed: false,
            touched: 0,
            free_of: BTreeMap::new(),
            by_free: BTreeSet::new(),
            usage,
        }
    }

    /// Returns whether some commits are not durable and need a flush.
    pub(crate) fn is_unflushed(&self) -> bool {
        !self.info.is_volatile && self.durability.is_unflushed()
    }

    /// Returns whether the commits of an epoch wait for a flush.
    pub(crate) fn awaits_flush(&self, epoch: u64) -> bool {
        !self.info.is_volatile && self.durability.awaits(epoch)
    }

    /// Returns whether the unflushed commits of an epoch are durable by now.
    pub(crate) fn has_durable(&self, epoch: u64) -> bool {
        epoch > 0
            && !self.info.is_volatile
            && !self.durability.awaits(epoch)
            && !self.durability.is_lost(epoch)
    }

    /// Returns the number of blocks of a run that holds the longest allocation.
    pub(crate) fn run_blocks(&self) -> u64 {
        (RUN_BYTES / u64::from(self.info.block_size)).max(1)
    }

    /// Returns the number of blocks from which a run is worth reading by a command of its own.
    pub(crate) fn short_run_blocks(&self) -> u64 {
        (SHORT_RUN_BYTES / u64::from(self.info.block_size)).max(1)
    }

    /// Returns the free blocks of a segment, counted.
    pub(crate) fn free_in(&self, free: &Ranges) -> FreeIn {
        FreeIn { in_runs: free.blocks_in_runs(self.run_blocks()), blocks: free.blocks() }
    }

    /// Returns the number of blocks of a segment (the last one may be shorter).
    pub(crate) fn segment_blocks(&self) -> u64 {
        (SEGMENT_BYTES / u64::from(self.info.block_size)).max(1)
    }

    /// Returns an error unless the sums hold after these changes of free, leased and resting
    /// blocks.
    fn check(&self, changes: [i64; 3]) -> Result<(), Error> {
        let before = [self.usage.free, self.usage.leased, self.usage.resting];
        let mut sum = Some(0_u64);
        for (blocks, change) in before.into_iter().zip(changes) {
            let after = blocks.checked_add_signed(change);
            sum = sum.zip(after).and_then(|(sum, after)| sum.checked_add(after));
        }
        if sum.is_some_and(|sum| sum <= self.usage.blocks) {
            return Ok(());
        }
        let reason =
            format!("{:?} cannot change by {changes:?} (free, leased, resting)", self.usage);
        Err(corrupt(&Key::Device(self.info.device).encode(), &reason))
    }

    /// Returns whether blocks lie in a segment.
    fn holds(&self, index: u64, blocks: &Ranges) -> bool {
        let whole = self.segment_range(index);
        let ranges = blocks.as_slice();
        index < self.segment_count()
            && ranges.first().is_none_or(|first| first.start >= whole.start)
            && ranges.last().is_none_or(|last| last.end() <= whole.end())
    }

    fn segment_count(&self) -> u64 {
        self.info.blocks.div_ceil(self.segment_blocks())
    }

    /// Returns all blocks of a segment.
    pub(crate) fn segment_range(&self, index: u64) -> BlockRange {
        let start = index.saturating_mul(self.segment_blocks());
        let count = self.segment_blocks().min(self.info.blocks.saturating_sub(start));
        BlockRange { start, count }
    }

    /// Splits a range at the borders of segments; returns the parts with their segments.
    pub(crate) fn split(&self, range: BlockRange) -> Vec<(u64, BlockRange)> {
        let mut parts = Vec::new();
        let mut start = range.start;
        while start < range.end() {
            let index = start / self.segment_blocks();
            let end = ((index + 1) * self.segment_blocks()).min(range.end());
            parts.push((index, BlockRange { start, count: end - start }));
            start = end;
        }
        parts
    }

    /// Returns the number of free blocks of a segment.
    fn segment_free(&self, index: u64) -> u64 {
        match self.free_of.get(&index) {
            Some(free) => free.blocks,
            None if index >= self.touched => self.segment_range(index).count,
            None => 0,
        }
    }

    fn set_segment_free(&mut self, index: u64, free: FreeIn) {
        let whole = self.segment_range(index).count;
        let (old, blocks) = (self.segment_free(index), free.blocks);
        assert!(
            index < self.segment_count()
                && free.in_runs <= blocks
                && blocks <= whole
                && old <= self.usage.free,
            "segment {index} of {} has {free:?} of {whole} blocks free, after {old}: {:?}",
            self.info.device,
            self.usage
        );
        // Segments below `touched` have a record; one without a record counts as free.
        assert!(
            index <= self.touched,
            "segment {index} of {} is touched out of turn",
            self.info.device
        );
        if let Some(before) = self.free_of.remove(&index) {
            let was_indexed = self.by_free.remove(&(before, index));
            assert!(
                was_indexed,
                "segment {index} of {} is in only one of the two indexes",
                self.info.device
            );
        }
        if blocks > 0 {
            self.by_free.insert((free, index));
            self.free_of.insert(index, free);
        }
        self.touched = self.touched.max(index + 1);
        self.usage.free = self.usage.free - old + blocks;
    }
}

/// A change of the index by a finished transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpaceEffect {
    /// The new number of free blocks in a segment.
    SegmentFree { device: DeviceId, index: u64, free: FreeIn },
    /// The new number of blocks of a session's lease in a segment.
    Lease { session: SessionId, device: DeviceId, index: u64, blocks: u64 },
    /// The number of blocks that began to rest.
    Rest { device: DeviceId, blocks: u64 },
    /// The number of blocks that no longer rest.
    Rested { device: DeviceId, blocks: u64 },
    /// The size of a session's next grant on a device.
    NextGrant { session: SessionId, device: DeviceId, bytes: u64 },
    /// Unflushed data was committed in a flush epoch.
    Unflushed { device: DeviceId, epoch: u64 },
}

/// Returns whether a device's geometry makes sense.
pub(crate) fn is_sound(info: &DeviceInfo) -> bool {
    info.block_size.is_power_of_two()
        && (512..=65536).contains(&info.block_size)
        && info.blocks > 0
        && info.blocks.checked_mul(u64::from(info.block_size)).is_some_and(|b| b < 1 << 60)
}

/// The index of all devices' space.
#[derive(Debug, Default)]
pub(crate) struct SpaceIndex {
    pub(crate) devices: BTreeMap<DeviceId, DeviceSpace>,
    /// Blocks of each lease; one without blocks has no entry.
    leases: BTreeMap<(SessionId, DeviceId, u64), u64>,
    next_grant: HashMap<(SessionId, DeviceId), u64>,
}

impl SpaceIndex {
    /// Builds the index from the stored records.
    pub(crate) fn load(layers: &Layers, flush_epoch: u64) -> Result<SpaceIndex, Error> {
        let mut index = SpaceIndex::default();
        layers.each(&Key::Device(DeviceId(0)).prefix(0), |key, value| {
            let mut device: Device = decode(key, value)?;
            if !is_sound(&device.info) {
                return Err(corrupt(key, "device geometry makes no sense"));
            }
            if !device.durability.is_sound() {
                return Err(corrupt(key, "the device's lost epochs make no sense"));
            }
            device.info.online = false;
            device.durability.newest = flush_epoch;
            index.add_device(device.info, device.durability);
            Ok(())
        })?;
        layers.each(&Key::Segment(DeviceId(0), 0).prefix(0), |key, value| {
            let segment: Segment = decode(key, value)?;
            let device = DeviceId(key_number(key, 0)? as u32);
            let index_of = key_number(key, 1)?;
            let is_next = |space: &DeviceSpace| {
                index_of == space.touched && space.holds(index_of, &segment.free)
            };
            if !index.devices.get(&device).is_some_and(is_next) {
                return Err(corrupt(
                    key,
                    "the device has no such segment, or one before it is missing",
                ));
            }
            let free = index.devices[&device].free_in(&segment.free);
            index.apply(SpaceEffect::SegmentFree { device, index: index_of, free });
            Ok(())
        })?;
        layers.each(&Key::SpaceLease(SessionId(0), DeviceId(0), 0).prefix(0), |key, value| {
            let lease: SpaceLease = decode(key, value)?;
            let session = SessionId(key_number(key, 0)?);
            let device = DeviceId(key_number(key, 1)? as u32);
            let index_of = key_number(key, 2)?;
            let space = index.devices.get(&device);
            if !space.is_some_and(|space| space.holds(index_of, &lease.free)) {
                return Err(corrupt(key, "the device has no such blocks"));
            }
            let blocks = lease.free.blocks();
            index.apply(SpaceEffect::Lease { session, device, index: index_of, blocks });
            Ok(())
        })?;
        layers.each(&Key::Resting(protocol::FreeEpoch(0)).prefix(0), |key, value| {
            let resting: Resting = decode(key, value)?;
            for (allocation, blocks) in resting.freed {
                if !index.devices.contains_key(&allocation.device) {
                    return Err(corrupt(key, "blocks of a device that does not exist rest"));
                }
                let blocks = u64::from(blocks);
                index.apply(SpaceEffect::Rest { device: allocation.device, blocks });
            }
            Ok(())
        })?;
        index.check(&[])?;
        Ok(index)
    }

    /// Returns an error if these effects would give a state to more blocks than the device has, or
    /// take blocks from a state that they are not in. Only records that contradict each other cause
    /// that.
    pub(crate) fn check(&self, effects: &[SpaceEffect]) -> Result<(), Error> {
        if effects.is_empty() {
            return self.devices.values().try_for_each(|device| device.check([0; 3]));
        }
        let mut changes: BTreeMap<DeviceId, [i64; 3]> = BTreeMap::new();
        let (mut segments, mut leases) = (BTreeMap::new(), BTreeMap::new());
        for effect in effects {
            match *effect {
                SpaceEffect::SegmentFree { device, index, free } => {
                    let before = || self.devices.get(&device).map_or(0, |d| d.segment_free(index));
                    let old = segments.insert((device, index), free.blocks).unwrap_or_else(before);
                    changes.entry(device).or_default()[0] += free.blocks as i64 - old as i64;
                }
                SpaceEffect::Lease { session, device, index, blocks } => {
                    let key = (session, device, index);
                    let before = || self.leases.get(&key).copied().unwrap_or(0);
                    let old = leases.insert(key, blocks).unwrap_or_else(before);
                    changes.entry(device).or_default()[1] += blocks as i64 - old as i64;
                }
                SpaceEffect::Rest { device, blocks } => {
                    changes.entry(device).or_default()[2] += blocks as i64;
                }
                SpaceEffect::Rested { device, blocks } => {
                    changes.entry(device).or_default()[2] -= blocks as i64;
                }
                SpaceEffect::NextGrant { .. } | SpaceEffect::Unflushed { .. } => {}
            }
        }
        for (device, change) in changes {
            let known = self.devices.get(&device);
            known.ok_or(Error::Refused(Errno::ENODEV))?.check(change)?;
        }
        Ok(())
    }

    /// Adds a device, or updates its address and incarnation.
    pub(crate) fn add_device(&mut self, info: DeviceInfo, durability: Durability) {
        match self.devices.get_mut(&info.device) {
            Some(known) => {
                known.has_failed &= known.info.incarnation == info.incarnation;
                (known.info, known.durability) = (info, durability);
            }
            None => {
                self.devices.insert(info.device, DeviceSpace::new(info, durability));
            }
        }
    }

    /// Applies an effect of a finished transaction.
    pub(crate) fn apply(&mut self, effect: SpaceEffect) {
        match effect {
            SpaceEffect::SegmentFree { device, index, free } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    device.set_segment_free(index, free);
                }
            }
            SpaceEffect::Lease { session, device, index, blocks } => {
                let key = (session, device, index);
                let old = self.leases.remove(&key).unwrap_or(0);
                if blocks > 0 {
                    self.leases.insert(key, blocks);
                }
                if let Some(device) = self.devices.get_mut(&device) {
                    let leased = device.usage.leased;
                    assert!(
                        leased >= old,
                        "{session} leases {old} blocks in segment {index} of {}, all {leased}",
                        device.info.device
                    );
                    device.usage.leased = leased - old + blocks;
                }
            }
            SpaceEffect::Rest { device, blocks } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    device.usage.resting += blocks;
                }
            }
            SpaceEffect::Rested { device, blocks } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    let resting = device.usage.resting;
                    assert!(
                        resting >= blocks,
                        "{blocks} blocks of {} rest no longer, of {resting}",
                        device.info.device
                    );
                    device.usage.resting = resting - blocks;
                }
            }
            SpaceEffect::NextGrant { session, device, bytes } => {
                assert!(
                    (FIRST_GRANT_BYTES..=SEGMENT_BYTES).contains(&bytes),
                    "the next grant of {device} to {session} would be of {bytes} bytes"
                );
                self.next_grant.insert((session, device), bytes);
            }
            SpaceEffect::Unflushed { device, epoch } => {
                if let Some(device) = self.devices.get_mut(&device) {
                    let newest = device.durability.newest;
                    assert!(epoch >= newest, "flush epoch {epoch} comes after {newest}");
                    device.durability.newest = epoch;
                }
            }
        }
    }

    /// Asserts that the blocks of all states fit the device, and that its two indexes agree.
    pub(crate) fn assert_sums(&self) {
        for device in self.devices.values() {
            let (id, usage) = (device.info.device, &device.usage);
            assert!(
                usage.free + usage.leased + usage.resting <= usage.blocks,
                "more blocks of {id} have a state than there are: {usage:?}"
            );
            assert!(
                device.by_free.len() == device.free_of.len()
                    && device.touched <= device.segment_count(),
                "{} segments of {id} are ordered by their free blocks, {} have some, of {} touched",
                device.by_free.len(),
                device.free_of.len(),
                device.touched
            );
        }
    }

    /// Removes the counts of a session that has ended.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        let leased = self.leases_of(session, None);
        assert!(leased.is_empty(), "{session} has ended, and leases blocks in {leased:?}");
        self.next_grant.retain(|(holder, _), _| *holder != session);
    }

    /// Returns the bytes of the next grant.
    fn next_grant_bytes(&self, session: SessionId, device: DeviceId) -> u64 {
        self.next_grant.get(&(session, device)).copied().unwrap_or(FIRST_GRANT_BYTES)
    }

    /// Returns the segments in which a session leases space, of one device or of all.
    pub(crate) fn leases_of(
        &self,
        session: SessionId,
        device: Option<DeviceId>,
    ) -> Vec<(DeviceId, u64)> {
        let first = (session, device.unwrap_or(DeviceId(0)), 0);
        let last = (session, device.unwrap_or(DeviceId(u32::MAX)), u64::MAX);
        self.leases.range(first..=last).map(|((_, device, index), _)| (*device, *index)).collect()
    }

    /// Returns the number of a device's blocks in each state.
    pub(crate) fn usage(&self, device: DeviceId) -> Option<DeviceUse> {
        self.devices.get(&device).map(|device| device.usage)
    }

    /// Returns the result of `statfs`; blocks that rest or are leased count as free.
    pub(crate) fn pool_use(&self, inodes: u64) -> PoolUse {
        let mut total = PoolUse { inodes, ..PoolUse::default() };
        for device in self.devices.values() {
            let block_size = u64::from(device.info.block_size);
            let in_use = device.usage.allocated();
            total.total_bytes += device.info.blocks * block_size;
            total.free_bytes += (device.info.blocks - in_use) * block_size;
            total.reserved_bytes += device.usage.leased * block_size;
            total.dead_bytes += device.usage.resting * block_size;
        }
        total
    }

    /// Returns [`SpaceIndex::pool_use`] as an answer.
    pub(crate) fn answer(&self, inodes: u64) -> Answer {
        Answer::PoolUse(self.pool_use(inodes))
    }
}
