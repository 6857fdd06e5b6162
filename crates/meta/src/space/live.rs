//! Which blocks of a device hold live data, counted block by block.
//!
//! A device is cut into *chunks* of [`CHUNK_BLOCKS`] blocks. A chunk with a live block has a record: for
//! each live block the number of extents that touch it, the inode that may name it again, and the flush
//! epoch of its commit. What an extent's place is called does not matter here, only where its bytes lie:
//! so a block is free when *it* is dead, whatever it was written together with.
//!
//! A record is stored as runs of equal blocks. A file that was written in sequence has one run in each
//! chunk, about ten bytes; a chunk in which each block differs from its neighbours takes 3 KiB at most.

use crate::records::Record;
use protocol::{DeviceId, Extent, InodeId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Blocks of a chunk: 1 MiB of blocks of 4 KiB.
pub(crate) const CHUNK_BLOCKS: u64 = 256;

/// What is known of a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Live {
    /// Extents that touch it. Zero only within a transaction.
    pub(crate) count: u64,
    /// The inode whose commit named it first; only commits to that inode may name it again.
    pub(crate) owner: InodeId,
    /// The flush epoch in which it was committed; 0 if it was durable by then.
    pub(crate) flush_epoch: u64,
}

/// The live blocks of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Run>", into = "Vec<Run>")]
pub(crate) struct Chunk {
    blocks: Vec<Option<Live>>,
}

impl Record for Chunk {}

/// Equal live blocks side by side.
#[derive(Serialize, Deserialize)]
struct Run {
    /// Blocks that are not live before these.
    gap: u16,
    /// How many.
    count: u16,
    live: Live,
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk { blocks: vec![None; CHUNK_BLOCKS as usize] }
    }
}

impl From<Chunk> for Vec<Run> {
    fn from(chunk: Chunk) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut gap = 0;
        for same in chunk.blocks.chunk_by(|a, b| a == b) {
            let count = same.len() as u16;
            match same[0] {
                Some(live) => runs.push(Run { gap: std::mem::take(&mut gap), count, live }),
                None => gap = count,
            }
        }
        runs
    }
}

impl TryFrom<Vec<Run>> for Chunk {
    type Error = &'static str;

    /// Takes only what a stored record can be.
    fn try_from(runs: Vec<Run>) -> Result<Chunk, &'static str> {
        let mut blocks = Vec::with_capacity(CHUNK_BLOCKS as usize);
        for Run { gap, count, live } in runs {
            if count == 0 || live.count == 0 {
                return Err("a run of live blocks has none");
            }
            let end = blocks.len() + usize::from(gap) + usize::from(count);
            if end > CHUNK_BLOCKS as usize {
                return Err("live blocks reach past their chunk");
            }
            blocks.resize(blocks.len() + usize::from(gap), None);
            blocks.resize(end, Some(live));
        }
        blocks.resize(CHUNK_BLOCKS as usize, None);
        Ok(Chunk { blocks })
    }
}

impl Chunk {
    /// A block, by its place in the chunk.
    pub(crate) fn get(&self, at: usize) -> Option<&Live> {
        self.blocks.get(at).and_then(Option::as_ref)
    }

    /// Replaces a block.
    pub(crate) fn set(&mut self, at: usize, live: Option<Live>) {
        assert!(at < self.blocks.len(), "block {at} lies in no chunk");
        self.blocks[at] = live;
    }

    /// Whether no block of it is live.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.iter().all(Option::is_none)
    }

    /// Its live blocks, with their places in the chunk.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u64, &Live)> {
        (0..).zip(&self.blocks).filter_map(|(at, live)| live.as_ref().map(|live| (at, live)))
    }
}

/// A chunk's name.
pub(crate) type ChunkId = (DeviceId, u64);

/// The chunk of a block, and the block's place in it.
pub(crate) fn chunk_of(device: DeviceId, block: u64) -> (ChunkId, usize) {
    ((device, block / CHUNK_BLOCKS), (block % CHUNK_BLOCKS) as usize)
}

/// The blocks that an extent touches; `None` if they would lie past all devices.
pub(crate) fn blocks_of(extent: &Extent, block_size: u32) -> Option<Range<u64>> {
    let block_size = u64::from(block_size);
    let start = extent.place.allocation.block.checked_mul(block_size)?;
    let first = start.checked_add(u64::from(extent.place.at))?;
    let end = first.checked_add(u64::from(extent.length))?;
    Some(first / block_size..end.div_ceil(block_size))
}

/// The parts of a range of blocks that lie in one chunk each, with their places in it.
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
        Live { count, owner: InodeId(owner), flush_epoch }
    }

    /// Goal: what was written in sequence takes a few bytes, and the worst record 3 KiB.
    #[test]
    fn records_are_small() {
        let mut chunk = Chunk::default();
        (0..256).for_each(|at| chunk.set(at, Some(live(1, 5000, 70_000))));
        assert!(postcard::to_stdvec(&chunk).unwrap().len() <= 12);
        (0..256).for_each(|at| chunk.set(at, Some(live(1 + at as u64 % 2, 5000, 70_000_000))));
        assert!(postcard::to_stdvec(&chunk).unwrap().len() <= 3072);
    }

    /// Goal: records that no service writes are refused.
    #[test]
    fn damaged_records_are_refused() {
        let run = |gap, count, live| vec![Run { gap, count, live }];
        assert!(Chunk::try_from(run(0, 256, live(1, 1, 1))).is_ok());
        for bad in [run(1, 256, live(1, 1, 1)), run(0, 0, live(1, 1, 1)), run(0, 1, live(0, 1, 1))]
        {
            assert!(Chunk::try_from(bad).is_err());
        }
    }

    proptest! {
        /// Goal: storing a chunk loses nothing.
        #[test]
        fn records_are_invertible(counts in prop::collection::vec((0u64..3, 1u64..3, 0u64..2), 256)) {
            let mut chunk = Chunk::default();
            for (at, (count, owner, epoch)) in counts.into_iter().enumerate() {
                chunk.set(at, (count > 0).then_some(live(count, owner, epoch)));
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
