//! The live blocks of a device, counted block by block.
//!
//! A device is divided into *chunks* of [`CHUNK_BLOCKS`] blocks. A chunk with a live block has a
//! record. For each live block it has the number of extents that touch it, the inode that may name
//! it again, the flush epoch of its commit, and the checksum of its bytes, if its writer made one.
//! A live block is write-once, so its checksum never changes, and is removed when the block is
//! freed. Only the position of an extent's bytes matters here, not the allocation that it names. So
//! a block becomes free when *it* is dead, even if other blocks of the same write live on.
//!
//! A record is stored as runs of blocks that are equal except for their checksums, followed by the
//! checksums. A file that was written in sequence has one run of about ten bytes in each chunk. A
//! chunk in which each block differs from its neighbours takes 3 KiB at most. Checksums take up to
//! 1 KiB more.

use crate::records::Record;
use protocol::sums::Sums;
use protocol::{DeviceId, Extent, InodeId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Blocks of a chunk: 1 MiB of blocks of 4 KiB.
pub(crate) const CHUNK_BLOCKS: u64 = 256;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Live {
    /// Number of extents that touch it. Zero only within a transaction.
    pub(crate) count: u64,
    /// The inode whose commit named it first; only commits to that inode may name it again.
    pub(crate) owner: InodeId,
    /// The flush epoch in which it was committed; 0 if it was durable by then.
    pub(crate) flush_epoch: u64,
    /// The CRC-32C of its bytes, if its writer made one.
    pub(crate) sum: Option<u32>,
}

/// The live blocks of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(crate) struct Chunk {
    blocks: Vec<Option<Live>>,
}

impl Record for Chunk {
    const VERSION: u8 = 2;
}

/// Adjacent live blocks that are equal except for their checksums.
#[derive(Serialize, Deserialize)]
struct Run {
    /// Number of blocks before these that are not live.
    gap: u16,
    /// Number of blocks in the run.
    count: u16,
    /// As in [`Live`].
    references: u64,
    owner: InodeId,
    flush_epoch: u64,
    has_sums: bool,
}

/// A chunk as it is stored: its live blocks, and the checksums of those that have one.
#[derive(Serialize, Deserialize)]
struct Stored {
    runs: Vec<Run>,
    sums: Sums,
}

/// Returns whether blocks can share a run.
fn are_alike(a: Option<&Live>, b: Option<&Live>) -> bool {
    let but_sum = |live: &Live| Live { sum: live.sum.map(|_| 0), ..*live };
    a.map(but_sum) == b.map(but_sum)
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk { blocks: vec![None; CHUNK_BLOCKS as usize] }
    }
}

impl From<Chunk> for Stored {
    fn from(chunk: Chunk) -> Stored {
        let mut runs: Vec<Run> = Vec::new();
        let mut gap = 0;
        for same in chunk.blocks.chunk_by(|a, b| are_alike(a.as_ref(), b.as_ref())) {
            let count = same.len() as u16;
            let Some(Live { count: references, owner, flush_epoch, sum }) = same[0] else {
                gap = count;
                continue;
            };
            let (gap, has_sums) = (std::mem::take(&mut gap), sum.is_some());
            runs.push(Run { gap, count, references, owner, flush_epoch, has_sums });
        }
        let sums = chunk.blocks.iter().flatten().filter_map(|live| live.sum);
        Stored { runs, sums: Sums(sums.collect()) }
    }
}

impl TryFrom<Stored> for Chunk {
    type Error = &'static str;

    /// Accepts only valid stored records.
    fn try_from(stored: Stored) -> Result<Chunk, &'static str> {
        let mut blocks = Vec::with_capacity(CHUNK_BLOCKS as usize);
        let mut sums = stored.sums.0.into_iter();
        for Run { gap, count, references, owner, flush_epoch, has_sums } in stored.runs {
            if count == 0 || references == 0 {
                return Err("a run of live blocks has none");
            }
            let end = blocks.len() + usize::from(gap) + usize::from(count);
            if end > CHUNK_BLOCKS as usize {
                return Err("live blocks reach past their chunk");
            }
            blocks.resize(blocks.len() + usize::from(gap), None);
            for _ in 0..count {
                let sum = if has_sums { sums.next() } else { None };
                if has_sums && sum.is_none() {
                    return Err("checksums of live blocks are missing");
                }
                blocks.push(Some(Live { count: references, owner, flush_epoch, sum }));
            }
        }
        if sums.next().is_some() {
            return Err("there are more checksums than live blocks");
        }
        blocks.resize(CHUNK_BLOCKS as usize, None);
        Ok(Chunk { blocks })
    }
}

impl Chunk {
    /// Returns a block, by its index in the chunk.
    pub(crate) fn get(&self, at: usize) -> Option<&Live> {
        self.blocks.get(at).and_then(Option::as_ref)
    }

    /// Replaces a block.
    pub(crate) fn set(&mut self, at: usize, live: Option<Live>) {
        assert!(at < self.blocks.len(), "block {at} lies in no chunk");
        self.blocks[at] = live;
    }

    /// Returns whether the chunk has no live block.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.iter().all(Option::is_none)
    }

    /// Returns the live blocks, with their indexes in the chunk.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, &Live)> {
        (0..).zip(&self.blocks).filter_map(|(at, live)| live.as_ref().map(|live| (at, live)))
    }
}

/// The identifier of a chunk.
pub(crate) type ChunkId = (DeviceId, u64);

/// Returns the chunk of a block, and the block's index in it.
pub(crate) fn chunk_of(device: DeviceId, block: u64) -> (ChunkId, usize) {
    ((device, block / CHUNK_BLOCKS), (block % CHUNK_BLOCKS) as usize)
}

/// Returns the blocks that an extent touches; `None` if they would lie past all devices.
pub(crate) fn blocks_of(extent: &Extent, block_size: u32) -> Option<Range<u64>> {
    let block_size = u64::from(block_size);
    let start = extent.place.allocation.block.checked_mul(block_size)?;
    let first = start.checked_add(u64::from(extent.place.at))?;
    let end = first.checked_add(u64::from(extent.length))?;
    Some(first / block_size..end.div_ceil(block_size))
}

/// Splits a range of blocks at the borders of chunks; returns the parts with their indexes in the
/// chunk.
pub(crate) fn chunks_of(
    device: DeviceId,
    blocks: Range<u64>,
) -> impl Iterator<Item = (ChunkId, Range<usize>)> {
    let mut at = blocks.start;
    std::iter::from_fn(move || {
        if at >= blocks.end {
            return None;
        }
        let (chunk, from) = chunk_of(device, at);
        let end = ((chunk.1 + 1) * CHUNK_BLOCKS).min(blocks.end);
        let to = from + (end - at) as usize;
        at = end;
        Some((chunk, from..to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn live(count: u64, owner: u64, flush_epoch: u64) -> Live {
        Live { count, owner: InodeId(owner), flush_epoch, sum: None }
    }

    fn summed(sum: usize, live: Live) -> Live {
        Live { sum: Some(sum as u32), ..live }
    }

    /// Goal: a file that was written in sequence takes a few bytes, and the largest record 3 KiB;
    /// checksums take four bytes each besides.
    #[test]
    fn records_are_small() {
        let mut chunk = Chunk::default();
        (0..256).for_each(|at| chunk.set(at, Some(live(1, 5000, 70_000))));
        assert!(postcard::to_stdvec(&chunk).unwrap().len() <= 14);
        (0..256).for_each(|at| chunk.set(at, Some(summed(at, live(1, 5000, 70_000)))));
        assert!(postcard::to_stdvec(&chunk).unwrap().len() <= 15 + 1024);
        (0..256).for_each(|at| chunk.set(at, Some(live(1 + at as u64 % 2, 5000, 70_000_000))));
        assert!(postcard::to_stdvec(&chunk).unwrap().len() <= 3072);
    }

    /// Goal: records that no service writes are refused.
    #[test]
    fn damaged_records_are_refused() {
        let stored = |gap, count, references, has_sums, sums| {
            let (owner, flush_epoch) = (InodeId(1), 1);
            let runs = vec![Run { gap, count, references, owner, flush_epoch, has_sums }];
            Stored { runs, sums: Sums(vec![7; sums]) }
        };
        assert!(Chunk::try_from(stored(0, 256, 1, false, 0)).is_ok());
        assert!(Chunk::try_from(stored(0, 256, 1, true, 256)).is_ok());
        for bad in [
            stored(1, 256, 1, false, 0),
            stored(0, 0, 1, false, 0),
            stored(0, 1, 0, false, 0),
            stored(0, 2, 1, true, 1),
            stored(0, 2, 1, true, 3),
            stored(0, 2, 1, false, 2),
        ] {
            assert!(Chunk::try_from(bad).is_err());
        }
    }

    proptest! {
        /// Goal: storing a chunk loses nothing.
        #[test]
        fn records_are_invertible(
            counts in prop::collection::vec((0u64..3, 1u64..3, 0u64..2, 0usize..3), 256),
        ) {
            let mut chunk = Chunk::default();
            for (at, (count, owner, epoch, sum)) in counts.into_iter().enumerate() {
                let live = live(count, owner, epoch);
                let live = if sum > 0 { summed(sum, live) } else { live };
                chunk.set(at, (count > 0).then_some(live));
            }
            let bytes = postcard::to_stdvec(&chunk).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Chunk>(&bytes).unwrap(), chunk);
        }

        /// Goal: parts of a range cover it once, each in its chunk.
        #[test]
        fn ranges_are_cut_at_chunks(start in 0u64..1000, count in 0u64..1000) {
            let mut at = start;
            for ((_, chunk), part) in chunks_of(DeviceId(0), start..start + count) {
                prop_assert_eq!(chunk * CHUNK_BLOCKS + part.start as u64, at);
                prop_assert!(part.start < part.end && part.end <= CHUNK_BLOCKS as usize);
                at += part.len() as u64;
            }
            prop_assert_eq!(at, start + count);
        }
    }
}
