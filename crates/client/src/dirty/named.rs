//! The blocks of a fill that commits have named.
//!
//! A commit names just those blocks that its extents touch. No commit names a block whose bytes
//! later writes have all covered: this client may use it again once the fill is no longer needed.

use crate::dirty::Dirty;
use crate::dirty::fill::{FillId, FillPlace, FillState, cut};
use crate::extent_map::Run;
use crate::space::Allocated;
use crate::sums::Checks;
use protocol::space::NewAllocation;
use protocol::{AllocationId, DeviceId};
use std::ops::Range;

/// The blocks that a commit names for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// The blocks as the commit names them.
    pub(crate) allocations: Vec<NewAllocation>,
    /// The checksums of these blocks, if this client makes checksums.
    pub(crate) sums: Vec<u32>,
    /// The same blocks by their fills.
    blocks: Vec<(FillId, Range<u32>)>,
}

impl Dirty {
    /// Returns the blocks that a commit of these runs names for the first time, and marks them as
    /// named. `is_flushed` returns whether a flush has covered the write of this number on a
    /// device.
    pub(crate) fn name(
        &mut self,
        runs: &[Run<FillPlace>],
        is_flushed: impl Fn(DeviceId, u64) -> bool,
    ) -> Named {
        let mut named = Named::default();
        let mut runs: Vec<&Run<FillPlace>> = runs.iter().collect();
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

    /// Adds the checksums of the blocks that a written run lies in to those that a read compares.
    pub(crate) fn add_sums(&self, run: &Run<FillPlace>, checks: &mut Checks) {
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

    /// Takes the marks back, because the commit was not carried out.
    pub(crate) fn unname(&mut self, named: &Named) {
        for (id, range) in &named.blocks {
            if let Some(fill) = self.fills.get_mut(id) {
                fill.named.retain(|other| other != range);
            }
        }
    }
}
