//! Space: each block of each device is live, leased, resting or free. A live block counts the
//! extents that touch it.
//!
//! A block that has lost its state, or that had a wrong count, rests until all present sessions
//! have ended. Until then one of them may still write or read it.

use super::Repair;
use super::data::Data;
use super::ranges::{Growing, Set};
use super::sessions::Known;
use crate::records::{Inode, Key, Resting, Segment, SpaceLease, key_number};
use crate::space::live::{CHUNK_BLOCKS, Chunk, ChunkId, Live};
use crate::space::{DeviceSpace, FIRST_FLUSH_EPOCH, Ranges, SpaceIndex};
use crate::store::Error;
use protocol::space::BlockRange;
use protocol::{AllocationId, DeviceId, FreeEpoch, InodeId, SessionId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most ranges of one record of resting blocks.
const RESTING_RANGES_MAX: usize = 1024;

/// Blocks by device.
type Sets = BTreeMap<DeviceId, Set>;

/// Numbers of blocks whose counts or states were corrected.
#[derive(Default)]
struct Counts {
    changed: u64,
    freed: u64,
    added: u64,
}

impl Repair {
    /// Repairs the states of blocks, live ones first.
    pub(super) fn space(
        &mut self,
        devices: &SpaceIndex,
        data: &Data,
        sessions: &Known,
    ) -> Result<(), Error> {
        let live = self.live(devices, data)?;
        let leased = self.leases(devices, &live, sessions)?;
        let has_no_session = sessions.leases.iter().any(|(key, _)| {
            key_number(key, 0).is_ok_and(|id| !sessions.all.contains(&SessionId(id)))
        });
        let is_unfenced = sessions.is_partly_unknown || has_no_session;
        let resting = self.resting(devices, [&live, &leased], sessions)?;
        let mut gaps = Vec::new();
        let mut segments = self.segments(devices)?;
        for (id, device) in &devices.devices {
            let of = |sets: &Sets| sets.get(id).cloned().unwrap_or_default();
            let used = of(&live).with(&of(&leased)).with(&of(&resting));
            let stored = segments.remove(id).unwrap_or_default();
            let gap = self.free(device, &used, &stored)?;
            gaps.extend(gap.each().map(|range| (*id, range)));
        }
        // Some of them may hold unreadable data, or a session that no fence reaches may still write
        // to them.
        if data.is_partly_unknown || is_unfenced { Ok(()) } else { self.rest(gaps) }
    }

    /// Marks files as damaged that count more bytes than they have, and still own blocks. A page of
    /// their extents is missing, and the blocks stay for a recovery by hand.
    pub(super) fn suspect(&mut self, data: &mut Data) -> Result<(), Error> {
        let mut owners = BTreeSet::new();
        for (key, chunk) in self.all::<Chunk>(&Key::Blocks(DeviceId(0), 0), 2)?.sound {
            let named = data.references.get(&chunk_id(&key)?);
            let is_named = |at: u64| named.is_some_and(|counts| counts[at as usize] > 0);
            owners
                .extend(chunk.each().filter(|(at, _)| !is_named(*at)).map(|(_, live)| live.owner));
        }
        for (_, inode) in self.all::<Inode>(&Key::Inode(InodeId(0)), 1)?.sound {
            let held = data.held.entry(inode.attr.inode).or_default();
            let bytes = held.bytes.saturating_add(u64::from(held.inline.unwrap_or(0)));
            held.is_damaged |=
                owners.contains(&inode.attr.inode) && inode.attr.allocated_bytes > bytes;
        }
        Ok(())
    }

    fn live(&mut self, devices: &SpaceIndex, data: &Data) -> Result<Sets, Error> {
        let records = self.all::<Chunk>(&Key::Blocks(DeviceId(0), 0), 2)?;
        let mut chunks: BTreeMap<ChunkId, Chunk> = BTreeMap::new();
        let is_in_place = |key: &[u8]| -> Result<Option<ChunkId>, Error> {
            let id = chunk_id(key)?;
            Ok((Key::Blocks(id.0, id.1).encode() == key).then_some(id))
        };
        for (key, chunk) in records.sound {
            match is_in_place(&key)? {
                Some(id) => drop(chunks.insert(id, chunk)),
                None => drop(self.remove(&key)?),
            }
        }
        self.remove_bad(&records.bad, "live blocks")?;
        let stored = self.stored_counters()?.map_or(FIRST_FLUSH_EPOCH, |it| it.flush_epoch);
        let epoch = stored.max(self.found.flush_epoch);
        let missing = missing(&chunks, data);
        let owners = self.owners(devices, &missing)?;
        for id in data.references.keys() {
            chunks.entry(*id).or_default();
        }
        let (mut live, mut counts) =
            (BTreeMap::<DeviceId, Vec<Range<u64>>>::new(), Counts::default());
        for (id, mut chunk) in chunks {
            let blocks = devices.devices.get(&id.0).map_or(0, |device| device.info.blocks);
            let first = id.1.saturating_mul(CHUNK_BLOCKS);
            for at in 0..CHUNK_BLOCKS {
                let block = first.saturating_add(at);
                let named = data.references.get(&id).map_or(0, |all| all[at as usize]);
                let owner = owners.get(&(id.0, block)).copied();
                let kept = settle(chunk.get(at as usize), named.into(), data, &mut counts)
                    .or(owner.map(|owner| Live {
                        count: named.into(),
                        owner,
                        flush_epoch: epoch,
                        sum: None,
                    }))
                    .filter(|_| block < blocks);
                if let Some(kept) = &kept {
                    self.found.flush_epoch = self.found.flush_epoch.max(kept.flush_epoch);
                    match live.entry(id.0).or_default() {
                        ranges if ranges.last().is_some_and(|last| last.end == block) => {
                            ranges.last_mut().iter_mut().for_each(|last| last.end += 1);
                        }
                        ranges => ranges.push(block..block + 1),
                    }
                }
                chunk.set(at as usize, kept);
            }
            let key = Key::Blocks(id.0, id.1);
            let _ = if chunk.is_empty() {
                self.remove(&key.encode())?
            } else {
                self.put(&key, &chunk)?
            };
        }
        counts.added = missing.len() as u64;
        let Counts { changed, freed, added } = counts;
        if changed + freed + added > 0 {
            self.note(format!(
                "the extents of {changed} blocks were recounted, {added} became live, {freed} became free"
            ));
        }
        Ok(live.into_iter().map(|(id, ranges)| (id, Set::of(ranges))).collect())
    }

    fn leases(
        &mut self,
        devices: &SpaceIndex,
        live: &Sets,
        sessions: &Known,
    ) -> Result<Sets, Error> {
        let mut leased = BTreeMap::<DeviceId, Growing>::new();
        for (key, lease) in &sessions.leases {
            let session = SessionId(key_number(key, 0)?);
            let (id, index) = (device_of(key, 1)?, key_number(key, 2)?);
            let device = devices.devices.get(&id).filter(|_| sessions.all.contains(&session));
            let here = device.map_or_else(Set::default, |device| {
                set_of(&lease.free).within(device.segment_range(index))
            });
            let kept = leased.entry(id).or_default().take(&without(&here, live.get(&id)));
            if kept != set_of(&lease.free) {
                self.note(format!("a lease of space of {session} on {id} was corrected"));
            }
            if kept.is_empty() {
                self.remove(key)?;
            } else {
                self.put(
                    &Key::SpaceLease(session, id, index),
                    &SpaceLease { free: ranges_of(&kept) },
                )?;
            }
        }
        Ok(leased.into_iter().map(|(id, all)| (id, all.into_set())).collect())
    }

    fn resting(
        &mut self,
        devices: &SpaceIndex,
        used: [&Sets; 2],
        sessions: &Known,
    ) -> Result<Sets, Error> {
        let mut resting = BTreeMap::<DeviceId, Growing>::new();
        for (key, record) in &sessions.resting {
            let mut kept = Vec::new();
            for (first, blocks) in &record.freed {
                let id = first.device;
                let all = devices.devices.get(&id).map_or(0, |device| device.info.blocks);
                let end = first.block.saturating_add(u64::from(*blocks)).min(all);
                let mut here = Set::one(first.block..end);
                for sets in used {
                    here = without(&here, sets.get(&id));
                }
                here = resting.entry(id).or_default().take(&here);
                kept.extend(here.each().flat_map(|range| allocations(id, range)));
            }
            if kept == record.freed {
                continue;
            }
            self.note("freed space was corrected");
            if kept.is_empty() {
                self.remove(key)?;
            } else {
                self.put(&Key::Resting(FreeEpoch(key_number(key, 0)?)), &Resting { freed: kept })?;
            }
        }
        Ok(resting.into_iter().map(|(id, all)| (id, all.into_set())).collect())
    }

    /// Reads the records of segments; an unreadable segment has no free blocks.
    fn segments(
        &mut self,
        devices: &SpaceIndex,
    ) -> Result<BTreeMap<DeviceId, BTreeMap<u64, Set>>, Error> {
        let records = self.all::<Segment>(&Key::Segment(DeviceId(0), 0), 2)?;
        let mut segments: BTreeMap<DeviceId, BTreeMap<u64, Set>> = BTreeMap::new();
        let bad = records.bad.into_iter().map(|key| (key, Segment::default()));
        for (key, segment) in records.sound.into_iter().chain(bad) {
            let place = device_of(&key, 0).and_then(|id| Ok((id, key_number(&key, 1)?)));
            let known = place.ok().filter(|(id, index)| {
                let device = devices.devices.get(id);
                let is_there = device.is_some_and(|it| it.segment_range(*index).count > 0);
                is_there && Key::Segment(*id, *index).encode() == key
            });
            match known {
                Some((id, index)) => {
                    segments.entry(id).or_default().insert(index, set_of(&segment.free));
                }
                None => drop(self.remove(&key)?),
            }
        }
        Ok(segments)
    }

    /// Writes the segments of a device; returns the blocks that have no state.
    fn free(
        &mut self,
        device: &DeviceSpace,
        used: &Set,
        stored: &BTreeMap<u64, Set>,
    ) -> Result<Set, Error> {
        let touched = stored.keys().last().map_or(0, |last| last + 1);
        let needed = used.end().div_ceil(device.segment_blocks());
        let (mut gap, mut written) = (Vec::new(), 0);
        for index in 0..touched.max(needed) {
            let range = device.segment_range(index);
            let whole = Set::one(range.start..range.end());
            let known = match stored.get(&index) {
                Some(free) => free.within(range),
                None if index >= touched => whole.clone(),
                None => Set::default(),
            };
            let used = used.within(range);
            let free = known.without(&used);
            gap.extend(whole.without(&used).without(&free).each());
            let segment = Segment { free: ranges_of(&free) };
            written += usize::from(self.put(&Key::Segment(device.info.device, index), &segment)?);
        }
        if written > 0 {
            self.note(format!(
                "free space of {} was corrected in {written} segments",
                device.info.device
            ));
        }
        Ok(Set::of(gap))
    }

    /// Turns blocks into resting ones.
    fn rest(&mut self, gaps: Vec<(DeviceId, Range<u64>)>) -> Result<(), Error> {
        let stored = self.stored_counters()?.map_or(1, |counters| counters.free_epoch.0);
        self.found.free_epoch = self.found.free_epoch.max(stored);
        let all: Vec<_> = gaps.into_iter().flat_map(|(id, range)| allocations(id, range)).collect();
        let blocks: u64 = all.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
        for part in all.chunks(RESTING_RANGES_MAX) {
            self.found.free_epoch += 1;
            let key = Key::Resting(FreeEpoch(self.found.free_epoch));
            self.put(&key, &Resting { freed: part.to_vec() })?;
        }
        if blocks > 0 {
            self.note(format!("{blocks} blocks without a state will become free"));
        }
        Ok(())
    }
}

/// Returns the blocks that extents touch and that are not live.
fn missing(chunks: &BTreeMap<ChunkId, Chunk>, data: &Data) -> BTreeSet<(DeviceId, u64)> {
    let mut missing = BTreeSet::new();
    for ((device, index), counts) in &data.references {
        let chunk = chunks.get(&(*device, *index));
        for (at, _) in (0..).zip(counts).filter(|(_, count)| **count > 0) {
            if chunk.is_none_or(|chunk| chunk.get(at as usize).is_none()) {
                missing.insert((*device, index * CHUNK_BLOCKS + at));
            }
        }
    }
    missing
}

/// Returns the corrected state of a live block.
fn settle(live: Option<&Live>, named: u64, data: &Data, counts: &mut Counts) -> Option<Live> {
    let live = live?;
    let is_kept =
        data.is_partly_unknown || data.held.get(&live.owner).is_some_and(|held| held.is_damaged);
    if named == live.count || is_kept && named < live.count {
        return Some(*live);
    }
    if named == 0 {
        counts.freed += 1;
        return None;
    }
    counts.changed += 1;
    Some(Live { count: named, ..*live })
}

fn device_of(key: &[u8], place: usize) -> Result<DeviceId, Error> {
    Ok(DeviceId(key_number(key, place)? as u32))
}

fn chunk_id(key: &[u8]) -> Result<ChunkId, Error> {
    Ok((device_of(key, 0)?, key_number(key, 1)?))
}

fn without(set: &Set, other: Option<&Set>) -> Set {
    other.map_or_else(|| set.clone(), |other| set.without(other))
}

fn set_of(ranges: &Ranges) -> Set {
    Set::of(ranges.as_slice().iter().map(|range| range.start..range.end()).collect())
}

fn ranges_of(set: &Set) -> Ranges {
    let mut ranges = Ranges::default();
    for range in set.each() {
        ranges.insert(BlockRange { start: range.start, count: range.end - range.start });
    }
    ranges
}

/// Returns a range in the form of records of resting blocks.
fn allocations(device: DeviceId, range: Range<u64>) -> Vec<(AllocationId, u32)> {
    let most = u64::from(u32::MAX);
    let cut = |from: u64| {
        let blocks = (range.end - from).min(most) as u32;
        (AllocationId { device, block: from }, blocks)
    };
    (range.start..range.end).step_by(most as usize).map(cut).collect()
}
