//! Which blocks of a fill commits have named.
//!
//! A commit names just those blocks that its extents touch. What later writes have covered before it is
//! named by none: it is free for this client again once the fill is no longer needed.

use super::{At, Dirty, Fill, FillId, FillState};
use crate::extent_map::Run;
use crate::space::Allocated;
use crate::sums::Checks;
use protocol::space::NewAllocation;
use protocol::{AllocationId, DeviceId};
use std::ops::Range;

/// What a commit names for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// As the commit says it.
    pub(crate) allocations: Vec<NewAllocation>,
    /// The sums of their blocks, if sums are made.
    pub(crate) sums: Vec<u32>,
    /// The same as blocks of fills.
    blocks: Vec<(FillId, Range<u32>)>,
}

/// What is left of a range without others, which are ascending.
fn without(range: Range<u32>, others: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut left = Vec::new();
    let mut at = range.start;
    for other in others.iter().filter(|other| other.end > range.start && other.start < range.end) {
        if at < other.start {
            left.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        left.push(at..range.end);
    }
    left
}

impl Fill {
    /// The blocks that a run of its bytes touches.
    pub(super) fn blocks_of(&self, run: &Run<At>) -> Range<u32> {
        let end = run.place.at + run.length as u32;
        run.place.at / self.block_size..end.div_ceil(self.block_size)
    }

    /// Its pieces, with the blocks of it that each has.
    fn pieces_by_block(&self) -> impl Iterator<Item = (Range<u32>, &Allocated)> {
        self.pieces.iter().map(|(start, piece)| {
            let first = start / self.block_size;
            (first..first + piece.blocks, piece)
        })
    }

    /// The blocks that no commit has named.
    pub(crate) fn unnamed(&self) -> Vec<Allocated> {
        let mut unnamed = Vec::new();
        for (blocks, piece) in self.pieces_by_block() {
            for part in without(blocks.clone(), &self.named) {
                unnamed.push(cut(piece, &blocks, &part));
            }
        }
        unnamed
    }
}

/// A part of a piece which has these blocks of a fill.
fn cut(piece: &Allocated, blocks: &Range<u32>, part: &Range<u32>) -> Allocated {
    let AllocationId { device, block } = piece.allocation;
    let allocation = AllocationId { device, block: block + u64::from(part.start - blocks.start) };
    Allocated { allocation, blocks: part.end - part.start, incarnation: piece.incarnation }
}

impl Dirty {
    /// The blocks that a commit of runs names for the first time, which it then has named. `is_flushed`
    /// says of a device and the number of a write whether a flush has covered it.
    pub(crate) fn name(
        &mut self,
        runs: &[Run<At>],
        is_flushed: impl Fn(DeviceId, u64) -> bool,
    ) -> Named {
        let mut named = Named::default();
        let mut runs: Vec<&Run<At>> = runs.iter().collect();
        runs.sort_unstable_by_key(|run| (run.place.fill, run.place.at));
        for runs in runs.chunk_by(|a, b| a.place.fill == b.place.fill) {
            let id = runs[0].place.fill;
            let Some(fill) = self.fills.get_mut(&id) else { continue };
            assert!(
                matches!(fill.state, FillState::Written),
                "{id:?} is named in a commit before {} has it: {:?}",
                fill.device,
                fill.state
            );
            let is_flushed = is_flushed(fill.device, fill.number);
            let fresh = fill.fresh(runs);
            for (blocks, piece) in fill.pieces_by_block() {
                for part in &fresh {
                    let part = part.start.max(blocks.start)..part.end.min(blocks.end);
                    if part.start < part.end {
                        let Allocated { allocation, blocks, incarnation } =
                            cut(piece, &blocks, &part);
                        let new = NewAllocation { allocation, blocks, incarnation, is_flushed };
                        named.allocations.push(new);
                        if let Some(sums) = fill.sums.get(part.start as usize..part.end as usize) {
                            named.sums.extend_from_slice(sums);
                        }
                    }
                }
            }
            fill.named.extend(fresh.iter().cloned());
            fill.named.sort_unstable_by_key(|range| range.start);
            assert!(
                fill.named.windows(2).all(|pair| pair[0].end <= pair[1].start),
                "blocks of {id:?} are named twice: {:?}",
                fill.named
            );
            named.blocks.extend(fresh.into_iter().map(|range| (id, range)));
        }
        named
    }

    /// Adds the sums of the blocks that a written run lies in to what a read checks.
    pub(crate) fn add_sums(&self, run: &Run<At>, checks: &mut Checks) {
        let Some(fill) = self.fills.get(&run.place.fill) else { return };
        let touched = fill.blocks_of(run);
        for (blocks, piece) in fill.pieces_by_block() {
            for at in touched.start.max(blocks.start)..touched.end.min(blocks.end) {
                let AllocationId { device, block } = piece.allocation;
                if let Some(sum) = fill.sums.get(at as usize) {
                    checks.push(device, block + u64::from(at - blocks.start), *sum);
                }
            }
        }
    }

    /// A commit was not carried out: what it named is unnamed again.
    pub(crate) fn unname(&mut self, named: &Named) {
        for (id, range) in &named.blocks {
            if let Some(fill) = self.fills.get_mut(id) {
                fill.named.retain(|other| other != range);
            }
        }
    }
}

impl Fill {
    /// The blocks that runs of it, ascending, touch and that are not named yet.
    fn fresh(&self, runs: &[&Run<At>]) -> Vec<Range<u32>> {
        let mut touched: Vec<Range<u32>> = Vec::new();
        for run in runs {
            let blocks = self.blocks_of(run);
            match touched.last_mut() {
                Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
                _ => touched.push(blocks),
            }
        }
        touched.into_iter().flat_map(|range| without(range, &self.named)).collect()
    }
}
