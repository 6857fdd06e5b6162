//! Counting the extents that touch each block, and freeing the blocks that none touches any more.
//!
//! Changes are gathered over all pages that a transaction rewrites and settled once at its end,
//! chunk by chunk, so that cutting an extent in two and joining it again costs nothing. See
//! [`crate::space::live`].

use super::transaction::{Transaction, contradiction};
use crate::records::Key;
use crate::space::live::{CHUNK_BLOCKS, Chunk, ChunkId, Live, blocks_of, chunk_of, chunks_of};
use crate::store::Error;
use protocol::{AllocationId, DeviceId, Errno, Extent, InodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The new blocks of a commit, by device and first block.
#[derive(Debug, Default)]
pub(crate) struct NewBlocks(BTreeMap<(DeviceId, u64), NewRun>);

/// Adjacent new blocks.
#[derive(Debug)]
struct NewRun {
    /// One past the last.
    end: u64,
    /// The state of each of them, without its sum.
    live: Live,
    /// The sum of each, or none.
    sums: Vec<u32>,
}

/// New blocks of a chunk, by their indexes in it, with the sum of each, or none.
type NewPart = (Range<usize>, Live, Vec<u32>);

impl NewBlocks {
    /// Adds blocks that lie apart from the others, with the sum of each, or without sums.
    pub(crate) fn add(&mut self, device: DeviceId, blocks: Range<u64>, live: Live, sums: &[u32]) {
        assert!(
            sums.is_empty() || sums.len() as u64 == blocks.end - blocks.start,
            "blocks {blocks:?} of {device} have {} sums",
            sums.len()
        );
        let run = NewRun { end: blocks.end, live, sums: sums.to_vec() };
        self.0.insert((device, blocks.start), run);
    }

    /// Returns one past the last of the adjacent new blocks around a block, if it is new.
    fn end_at(&self, device: DeviceId, block: u64) -> Option<u64> {
        let (_, run) = self.0.range((device, 0)..=(device, block)).next_back()?;
        (block < run.end).then_some(run.end)
    }

    /// Returns the newest flush epoch of the blocks.
    pub(crate) fn newest_epoch(&self) -> u64 {
        self.0.values().map(|run| run.live.flush_epoch).max().unwrap_or(0)
    }
}

/// Changed blocks: the changes of their counts, and the new ones among them.
#[derive(Debug, Default)]
pub(crate) struct References {
    changes: BTreeMap<ChunkId, Vec<(Range<usize>, i64)>>,
    new: BTreeMap<ChunkId, Vec<NewPart>>,
}

impl References {
    /// Starts with the new blocks of a commit.
    pub(crate) fn of_commit(new: NewBlocks) -> References {
        let mut references = References::default();
        for ((device, start), NewRun { end, live, sums }) in new.0 {
            let mut left = sums.as_slice();
            for (chunk, part) in chunks_of(device, start..end) {
                let (here, after) = left.split_at(part.len().min(left.len()));
                left = after;
                references.new.entry(chunk).or_default().push((part, live, here.to_vec()));
            }
        }
        references
    }
}

/// The chunk of the last look-up.
#[derive(Default)]
pub(crate) struct LastChunk(Option<(ChunkId, Chunk)>);

impl Transaction<'_> {
    /// Returns the record of a block, if it is live.
    pub(crate) fn live_block(
        &self,
        last: &mut LastChunk,
        device: DeviceId,
        block: u64,
    ) -> Result<Option<Live>, Error> {
        let (id, at) = chunk_of(device, block);
        if last.0.as_ref().is_none_or(|(known, _)| *known != id) {
            let chunk = self.get(&Key::Blocks(id.0, id.1))?;
            last.0 = Some((id, chunk.unwrap_or_default()));
        }
        Ok(last.0.as_ref().and_then(|(_, chunk)| chunk.get(at)).copied())
    }

    /// Returns EINVAL unless a commit to an inode may name an extent's blocks: new ones, or live
    /// ones that the inode named first.
    pub(crate) fn check_named(
        &self,
        owner: InodeId,
        extent: &Extent,
        new: &NewBlocks,
        last: &mut LastChunk,
    ) -> Result<(), Error> {
        let id = extent.place.allocation.device;
        let device = self.base.space.devices.get(&id).ok_or(Errno::ENODEV)?;
        let blocks = blocks_of(extent, device.info.block_size).ok_or(Errno::EINVAL)?;
        if blocks.end > device.info.blocks {
            return Err(Errno::EINVAL.into());
        }
        let mut at = blocks.start;
        while at < blocks.end {
            if let Some(end) = new.end_at(id, at) {
                at = end;
                continue;
            }
            let live = self.live_block(last, id, at)?.ok_or(Errno::EINVAL)?;
            if live.owner != owner && !reactor::mutant!("foreign-allocation-named") {
                return Err(Errno::EINVAL.into());
            }
            at += 1;
        }
        Ok(())
    }

    /// Counts the blocks of a page's old content once less, and those of its new content once more.
    pub(crate) fn count_page(
        &self,
        references: &mut References,
        old: &[Extent],
        new: &[Extent],
    ) -> Result<(), Error> {
        let is_miscounted = reactor::mutant!("references-miscounted") && !old.is_empty();
        let (mut old, mut new) = (old, new);
        loop {
            match (old.first(), new.first()) {
                (Some(same), Some(other)) if same == other => (old, new) = (&old[1..], &new[1..]),
                (Some(gone), other) if other.is_none_or(|other| gone.offset <= other.offset) => {
                    self.count(references, gone, -1)?;
                    old = &old[1..];
                }
                (_, Some(put)) => {
                    if !is_miscounted {
                        self.count(references, put, 1)?;
                    }
                    new = &new[1..];
                }
                (_, None) => return Ok(()),
            }
        }
    }

    fn count(&self, references: &mut References, extent: &Extent, by: i64) -> Result<(), Error> {
        let AllocationId { device: id, block } = extent.place.allocation;
        let device = self.base.space.devices.get(&id);
        let blocks = device.and_then(|device| {
            let blocks = blocks_of(extent, device.info.block_size)?;
            (blocks.end <= device.info.blocks).then_some(blocks)
        });
        let Some(blocks) = blocks else {
            let key = Key::Blocks(id, block / CHUNK_BLOCKS);
            return Err(contradiction(
                &key,
                "an extent names blocks that its device does not have",
            ));
        };
        for (chunk, part) in chunks_of(id, blocks) {
            references.changes.entry(chunk).or_default().push((part, by));
        }
        Ok(())
    }

    /// Writes changed counts, and frees blocks that no extent touches any more.
    pub(crate) fn settle_references(&mut self, references: References) -> Result<(), Error> {
        let References { mut changes, mut new } = references;
        let chunks: BTreeSet<ChunkId> = changes.keys().chain(new.keys()).copied().collect();
        for id in chunks {
            let mut sums = [0; CHUNK_BLOCKS as usize];
            for (part, by) in changes.remove(&id).unwrap_or_default() {
                sums[part].iter_mut().for_each(|sum| *sum += by);
            }
            let new = new.remove(&id).unwrap_or_default();
            if !new.is_empty() || sums.iter().any(|sum| *sum != 0) {
                self.settle_chunk(id, &sums, new)?;
            }
        }
        Ok(())
    }

    fn settle_chunk(&mut self, id: ChunkId, sums: &[i64], new: Vec<NewPart>) -> Result<(), Error> {
        let key = Key::Blocks(id.0, id.1);
        let mut chunk: Chunk = self.get(&key)?.unwrap_or_default();
        for (part, live, sums) in new {
            assert_eq!(live.count, 0, "new blocks {part:?} of {id:?} are named: {live:?}");
            for (index, at) in part.enumerate() {
                if chunk.get(at).is_some() && !reactor::mutant!("unleased-committed") {
                    return Err(contradiction(&key, "a live block was leased"));
                }
                chunk.set(at, Some(Live { sum: sums.get(index).copied(), ..live }));
            }
        }
        let first = id.1 * CHUNK_BLOCKS;
        for (at, sum) in sums.iter().enumerate() {
            let Some(live) = chunk.get(at).copied() else {
                if *sum != 0 {
                    return Err(contradiction(&key, "an extent names a block that is not live"));
                }
                continue;
            };
            let Some(count) = live.count.checked_add_signed(*sum) else {
                return Err(contradiction(&key, "a block has fewer references than extents"));
            };
            if count > 0 && !(*sum < 0 && reactor::mutant!("first-reference-frees")) {
                let flush_epoch = self.present_epoch(id.0, live.flush_epoch);
                let is_lost = *sum != 0 && reactor::mutant!("sum-lost-on-recount");
                let kept = if is_lost { None } else { live.sum };
                chunk.set(at, Some(Live { count, flush_epoch, sum: kept, ..live }));
                continue;
            }
            chunk.set(at, None);
            self.free(AllocationId { device: id.0, block: first + at as u64 }, 1);
        }
        if chunk.is_empty() {
            self.remove(&key);
            return Ok(());
        }
        self.put(&key, &chunk)
    }

    /// Returns the flush epoch to store for a commit in `epoch`: 0 once it is durable, so that
    /// blocks that were written at different times can share a run.
    fn present_epoch(&self, device: DeviceId, epoch: u64) -> u64 {
        let device = self.base.space.devices.get(&device);
        let is_durable = device.is_some_and(|device| device.has_durable(epoch));
        if is_durable { 0 } else { epoch }
    }
}
