//! Leasing space to sessions, using it for allocations, resting it, and making it free again.

use super::{DeviceSpace, SpaceEffect};
use crate::records::{Key, Resting, Segment, SpaceLease};
use crate::store::{Error, Scan};
use crate::tree::transaction::{Transaction, contradiction};
use protocol::space::{
    ALLOCATION_MAX_BYTES, BlockRange, FIRST_GRANT_BYTES, NewAllocation, SEGMENT_BYTES, SpaceGrant,
};
use protocol::{AllocationId, DeviceId, Errno, FreeEpoch, SessionId};
use std::collections::BTreeMap;

/// Most ranges in one grant: a fragmented segment is leased only in part.
const GRANT_RANGES_MAX: usize = 2048;

/// Most segments that contribute to one grant.
const GRANT_SEGMENTS_MAX: usize = 8;

/// Most resting records that one step makes free.
const RESTED_PER_STEP: usize = 32;

/// Most ranges of a resting record: bounds the segments whose records a step writes.
const RESTING_RANGES_MAX: usize = 256;

/// A step ends with the resting record that brings it to this number of ranges.
const RESTED_RANGES_PER_STEP: usize = 1024;

/// When less than one part in this number of a device is free, grants are no larger than requested.
const SCARCE_PARTS: u64 = 16;

impl DeviceSpace {
    /// Returns whether new data may be written to the device.
    fn takes_data(&self) -> bool {
        self.info.online && !self.has_failed
    }
}

impl Transaction<'_> {
    fn device(&self, device: DeviceId) -> Result<&DeviceSpace, Error> {
        self.base.space.devices.get(&device).ok_or(Error::Refused(Errno::ENODEV))
    }

    fn segment(&self, device: &DeviceSpace, index: u64) -> Result<Segment, Error> {
        let key = Key::Segment(device.info.device, index);
        match self.get::<Segment>(&key)? {
            Some(segment) if device.holds(index, &segment.free) => Ok(segment),
            Some(_) => Err(contradiction(&key, "it does not have the blocks that are free in it")),
            None => Ok(Segment { free: super::Ranges::one(device.segment_range(index)) }),
        }
    }

    /// Returns the lease of a session in a segment.
    fn lease(
        &self,
        session: SessionId,
        id: DeviceId,
        index: u64,
    ) -> Result<Option<SpaceLease>, Error> {
        let key = Key::SpaceLease(session, id, index);
        let lease: Option<SpaceLease> = self.get(&key)?;
        match &lease {
            Some(lease) if !self.device(id)?.holds(index, &lease.free) => {
                Err(contradiction(&key, "its segment does not have the blocks that are leased"))
            }
            _ => Ok(lease),
        }
    }

    fn put_segment(
        &mut self,
        device: DeviceId,
        index: u64,
        segment: &Segment,
    ) -> Result<(), Error> {
        let space = self.device(device)?;
        assert!(
            space.holds(index, &segment.free),
            "segment {index} of {device} would have free blocks of others: {segment:?}"
        );
        let free = space.free_in(&segment.free);
        self.space_effect(SpaceEffect::SegmentFree { device, index, free });
        self.put(&Key::Segment(device, index), segment)
    }

    fn put_lease(
        &mut self,
        session: SessionId,
        device: DeviceId,
        index: u64,
        lease: &SpaceLease,
    ) -> Result<(), Error> {
        let blocks = lease.free.blocks();
        let space = self.base.space.devices.get(&device);
        assert!(
            space.is_none_or(|space| space.holds(index, &lease.free)),
            "{session} would lease blocks of others in segment {index} of {device}: {lease:?}"
        );
        self.space_effect(SpaceEffect::Lease { session, device, index, blocks });
        let key = Key::SpaceLease(session, device, index);
        if lease.free.is_empty() {
            self.remove(&key);
            return Ok(());
        }
        self.put(&key, lease)
    }

    /// Leases space to a session: on the requested device, or, if that is full or takes no new data,
    /// on the device with the most free space. ENOSPC if no device has any, EIO if all that are online
    /// have failed.
    pub(crate) fn lease_space(
        &mut self,
        session: SessionId,
        wished: DeviceId,
        wanted_bytes: u64,
    ) -> Result<SpaceGrant, Error> {
        self.device(wished)?;
        let mut others: Vec<(u64, DeviceId)> = self
            .base
            .space
            .devices
            .iter()
            .filter(|(id, device)| **id != wished && device.takes_data())
            .map(|(id, device)| (device.usage.free * u64::from(device.info.block_size), *id))
            .collect();
        others.sort_unstable_by(|a, b| b.cmp(a));
        let order = std::iter::once(wished).chain(others.into_iter().map(|(_, id)| id));
        for id in order {
            if self.device(id)?.takes_data() && self.device(id)?.usage.free > 0 {
                return self.lease_on(session, id, wanted_bytes);
            }
        }
        let mut online =
            self.base.space.devices.values().filter(|device| device.info.online).peekable();
        let have_failed = online.peek().is_some() && online.all(|device| device.has_failed);
        Err(if have_failed { Errno::EIO } else { Errno::ENOSPC }.into())
    }

    fn lease_on(
        &mut self,
        session: SessionId,
        id: DeviceId,
        wanted_bytes: u64,
    ) -> Result<SpaceGrant, Error> {
        let space = &self.base.space;
        let device = self.device(id)?;
        let block_size = u64::from(device.info.block_size);
        let grown = space.next_grant_bytes(session, id);
        let is_scarce = device.usage.free < device.usage.blocks / SCARCE_PARTS;
        let bytes = if is_scarce { wanted_bytes.clamp(FIRST_GRANT_BYTES, grown) } else { grown };
        let mut left = (bytes / block_size).max(1);
        // Long runs first, from segments in use and then from an unused one. Shorter runs only
        // where there is nothing else: data that is written to them must be read in as many pieces.
        let used = device.by_free.iter().rev();
        let in_runs =
            used.clone().take_while(|(free, _)| free.in_runs > 0).map(|(_, index)| *index);
        let fresh = device.touched..device.segment_count();
        let long: Vec<u64> = in_runs.chain(fresh).take(GRANT_SEGMENTS_MAX).collect();
        let all: Vec<u64> = used.map(|(_, index)| *index).take(GRANT_SEGMENTS_MAX).collect();
        let runs = [device.run_blocks(), device.short_run_blocks(), 1];
        let incarnation = device.info.incarnation;
        let mut free = super::Ranges::default();
        for (segments, run_min) in [&long, &all, &all].into_iter().zip(runs) {
            if free.is_empty() {
                self.take_free((session, id), segments, (&mut left, run_min), &mut free)?;
            }
        }
        if free.is_empty() {
            return Err(Errno::ENOSPC.into());
        }
        let granted = free.blocks();
        let whole = (bytes / block_size).max(1);
        assert!(
            granted + left == whole,
            "{session} is granted {granted} blocks of {id}, with {left} of {whole} left"
        );
        let next = (grown * 2).min(SEGMENT_BYTES);
        self.space_effect(SpaceEffect::NextGrant { session, device: id, bytes: next });
        Ok(SpaceGrant { device: id, incarnation, free: free.as_slice().to_vec() })
    }

    /// Leases free runs of at least `run_min` blocks in segments, until no blocks are `left` to
    /// lease.
    fn take_free(
        &mut self,
        (session, id): (SessionId, DeviceId),
        segments: &[u64],
        (left, run_min): (&mut u64, u64),
        free: &mut super::Ranges,
    ) -> Result<(), Error> {
        for &index in segments {
            let room = GRANT_RANGES_MAX.saturating_sub(free.as_slice().len());
            if *left == 0 || room == 0 {
                break;
            }
            let mut segment = self.segment(self.device(id)?, index)?;
            let taken = segment.free.take(*left, room, run_min);
            if taken.is_empty() {
                continue;
            }
            let mut lease = self.lease(session, id, index)?.unwrap_or_default();
            for range in taken {
                *left -= range.count;
                if !lease.free.insert(range) || !free.insert(range) {
                    return Err(contradiction(&Key::Segment(id, index), "free and leased"));
                }
            }
            self.put_segment(id, index, &segment)?;
            self.put_lease(session, id, index, &lease)?;
        }
        Ok(())
    }

    /// Takes back leased blocks that the session did not name in a commit. EINVAL if the session
    /// does not lease all of them.
    pub(crate) fn return_space(
        &mut self,
        session: SessionId,
        id: DeviceId,
        ranges: &[BlockRange],
    ) -> Result<(), Error> {
        self.device(id)?;
        self.take_leased(session, id, ranges)?;
        self.free_blocks(id, ranges)?;
        let bytes = FIRST_GRANT_BYTES;
        self.space_effect(SpaceEffect::NextGrant { session, device: id, bytes });
        Ok(())
    }

    /// Frees all blocks that a session leases in one segment.
    pub(crate) fn release_lease(
        &mut self,
        session: SessionId,
        id: DeviceId,
        index: u64,
    ) -> Result<(), Error> {
        let lease = self.lease(session, id, index)?.unwrap_or_default();
        self.free_blocks(id, lease.free.as_slice())?;
        self.put_lease(session, id, index, &SpaceLease::default())
    }

    /// Checks the new allocations of a commit, and removes their blocks from the session's leases.
    pub(crate) fn take_allocations(
        &mut self,
        session: SessionId,
        allocations: &[NewAllocation],
    ) -> Result<(), Error> {
        let mut by_device: BTreeMap<DeviceId, Vec<BlockRange>> = BTreeMap::new();
        for new in allocations {
            let device = self.device(new.allocation.device)?;
            let bytes = u64::from(new.blocks) * u64::from(device.info.block_size);
            let range = BlockRange { start: new.allocation.block, count: u64::from(new.blocks) };
            if new.blocks == 0 || bytes > ALLOCATION_MAX_BYTES {
                return Err(Errno::EINVAL.into());
            }
            // Refused because the device may have lost the data; the client writes it again.
            let is_present = new.incarnation == device.info.incarnation;
            if !is_present && !reactor::mutant!("old-incarnation-committed") {
                return Err(Errno::EIO.into());
            }
            by_device.entry(new.allocation.device).or_default().push(range);
        }
        assert!(
            by_device.values().map(Vec::len).sum::<usize>() == allocations.len(),
            "{session} commits {} allocations, and {by_device:?} are checked",
            allocations.len()
        );
        for (id, ranges) in by_device {
            self.take_leased(session, id, &ranges)?;
        }
        Ok(())
    }

    /// Removes ranges from a session's leases. EINVAL if the leases do not contain all of them.
    fn take_leased(
        &mut self,
        session: SessionId,
        id: DeviceId,
        ranges: &[BlockRange],
    ) -> Result<(), Error> {
        let blocks = self.device(id)?.info.blocks;
        let mut leases: BTreeMap<u64, SpaceLease> = BTreeMap::new();
        for range in ranges {
            let is_inside = range.start.checked_add(range.count).is_some_and(|end| end <= blocks);
            if range.count == 0 || !is_inside {
                return Err(Errno::EINVAL.into());
            }
            for (index, part) in self.device(id)?.split(*range) {
                if let std::collections::btree_map::Entry::Vacant(entry) = leases.entry(index) {
                    let lease = self.lease(session, id, index)?;
                    entry.insert(lease.ok_or(Error::Refused(Errno::EINVAL))?);
                }
                let removed = leases.get_mut(&index).is_some_and(|lease| lease.free.remove(part));
                if !removed && !reactor::mutant!("unleased-committed") {
                    return Err(Errno::EINVAL.into());
                }
            }
        }
        for (index, lease) in leases {
            self.put_lease(session, id, index, &lease)?;
        }
        Ok(())
    }

    /// Adds blocks to the free blocks of their segments.
    fn free_blocks(&mut self, id: DeviceId, ranges: &[BlockRange]) -> Result<(), Error> {
        let blocks = self.device(id)?.info.blocks;
        let mut segments: BTreeMap<u64, Segment> = BTreeMap::new();
        for range in ranges {
            // The location of resting blocks comes from a record.
            let is_inside = range.start.checked_add(range.count).is_some_and(|end| end <= blocks);
            if range.count == 0 || !is_inside {
                return Err(contradiction(
                    &Key::Device(id),
                    "it does not have the blocks that are freed",
                ));
            }
            for (index, part) in self.device(id)?.split(*range) {
                if let std::collections::btree_map::Entry::Vacant(entry) = segments.entry(index) {
                    entry.insert(self.segment(self.device(id)?, index)?);
                }
                let inserted =
                    segments.get_mut(&index).is_some_and(|segment| segment.free.insert(part));
                if !inserted {
                    return Err(contradiction(&Key::Segment(id, index), "freed twice"));
                }
            }
        }
        for (index, segment) in segments {
            self.put_segment(id, index, &segment)?;
        }
        Ok(())
    }

    /// Writes the blocks that this transaction freed as resting, under the next free epochs.
    pub(crate) fn rest(&mut self, mut freed: Vec<(AllocationId, u32)>) -> Result<(), Error> {
        freed.sort_unstable();
        let end = |(first, blocks): &(AllocationId, u32)| first.block + u64::from(*blocks);
        let are_apart = |a: &(AllocationId, u32), b: &(AllocationId, u32)| {
            a.0.device < b.0.device || end(a) <= b.0.block
        };
        assert!(
            freed.windows(2).all(|pair| are_apart(&pair[0], &pair[1])),
            "blocks are freed twice in one transaction: {freed:?}"
        );
        for part in freed.chunks(RESTING_RANGES_MAX) {
            self.counters.free_epoch = FreeEpoch(self.counters.free_epoch.0 + 1);
            let epoch = self.counters.free_epoch;
            assert!(
                self.base.counters.free_epoch < epoch,
                "blocks would rest at {epoch:?}, which others rest at"
            );
            for (first, blocks) in part {
                let (device, blocks) = (first.device, u64::from(*blocks));
                self.space_effect(SpaceEffect::Rest { device, blocks });
            }
            self.put(&Key::Resting(epoch), &Resting { freed: part.to_vec() })?;
        }
        Ok(())
    }

    /// Frees some of the blocks that began to rest at an epoch of `from..=through`. Returns the
    /// epoch at which to continue, which is past `through` when nothing is left.
    pub(crate) fn free_rested(
        &mut self,
        from: FreeEpoch,
        through: FreeEpoch,
    ) -> Result<FreeEpoch, Error> {
        let first = Key::Resting(from).encode();
        let prefix = Key::Resting(from).prefix(0);
        let found = self.scan(Scan {
            prefix: &prefix,
            from: Some(&first),
            direction: crate::store::Direction::Forward,
            limit: RESTED_PER_STEP,
        })?;
        let mut by_device: BTreeMap<DeviceId, Vec<BlockRange>> = BTreeMap::new();
        let mut next = FreeEpoch(through.0 + 1);
        let is_all = found.len() < RESTED_PER_STEP;
        let mut ranges = 0;
        for (key, value) in found {
            let epoch = FreeEpoch(crate::records::key_number(&key, 0)?);
            if epoch > through || ranges >= RESTED_RANGES_PER_STEP {
                next = epoch;
                break;
            }
            if !is_all {
                next = FreeEpoch(epoch.0 + 1);
            }
            let resting: Resting = crate::records::decode(&key, &value)?;
            ranges += resting.freed.len();
            for (allocation, blocks) in resting.freed {
                let (device, count) = (allocation.device, u64::from(blocks));
                let range = BlockRange { start: allocation.block, count };
                by_device.entry(device).or_default().push(range);
                self.space_effect(SpaceEffect::Rested { device, blocks: count });
            }
            self.remove(&Key::Resting(epoch));
        }
        for (device, ranges) in by_device {
            self.free_blocks(device, &ranges)?;
        }
        Ok(next)
    }
}
