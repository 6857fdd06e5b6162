//! The runs and extents that one commit call names.

use crate::dirty::Dirty;
use crate::dirty::fill::{CUT_MAX, FillId, FillPlace, FillState};
use crate::extent_map::Place;
use crate::extent_map::Run;
use protocol::Extent;
use protocol::sums::SUMS_PER_MESSAGE_MAX;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Where the next part of a commit begins: at this fill, and at this place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    fill: FillId,
    at: u32,
}

impl Cursor {
    /// Returns what the part that begins here, and those after it, have of a run.
    fn rest_of(self, run: Run<FillPlace>) -> Option<Run<FillPlace>> {
        let FillPlace { fill, at } = run.place;
        if fill != self.fill {
            return (fill > self.fill).then_some(run);
        }
        run.clip(run.offset + u64::from(self.at.saturating_sub(at)), run.end())
    }
}

impl Dirty {
    /// Returns the runs of a commit's next part, ascending, out of those in `asked`, and where the
    /// part after it begins, if there may be one.
    ///
    /// A part has only runs whose bytes the devices have. It has all of a fill if those are at most
    /// `count_max` runs; the extents of pieces count as runs. A larger fill is cut between blocks,
    /// also within a run: once a part has named a block, others may overwrite what it named, and
    /// then the block is gone. (A block with more runs than two further parts would take is the
    /// exception. In 4096 bytes there are at most 2048.) All fills
    /// of a part together have at most as many blocks as a message may have checksums.
    pub(crate) fn committable(
        &self,
        asked: &[Run<FillPlace>],
        from: Cursor,
        count_max: usize,
    ) -> (Vec<Run<FillPlace>>, Option<Cursor>) {
        let mut by_fill: BTreeMap<FillId, Vec<Run<FillPlace>>> = BTreeMap::new();
        for &run in asked {
            let id = run.place.fill;
            let Some(run) = from.rest_of(run) else { continue };
            let fill = self.fills.get(&id);
            if fill.is_some_and(|fill| matches!(fill.state, FillState::Written)) {
                by_fill.entry(id).or_default().push(run);
            }
        }
        let mut part: Vec<Run<FillPlace>> = Vec::new();
        let mut next = None;
        let (mut count, mut blocks) = (0, 0);
        for (id, mut runs) in by_fill {
            let fill = &self.fills[&id];
            count += runs.len() + fill.pieces.len();
            blocks += fill.used.div_ceil(fill.block_size) as usize;
            if (count > count_max || blocks > SUMS_PER_MESSAGE_MAX) && !part.is_empty() {
                next = Some(Cursor { fill: id, at: 0 });
                break;
            }
            if runs.len() > count_max {
                runs.sort_unstable_by_key(|run| run.place.at);
                next = fill.cut(&mut runs, count_max).map(|at| Cursor { fill: id, at });
            }
            part.append(&mut runs);
            if next.is_some() {
                break;
            }
        }
        part.sort_unstable_by_key(|run| run.offset);
        assert!(
            part.len() <= count_max * CUT_MAX
                && part.windows(2).all(|pair| pair[0].end() <= pair[1].offset),
            "a commit of at most {count_max} runs would be of {part:?}"
        );
        assert!(next.is_none_or(|next| next > from), "a commit goes on at {next:?} after {from:?}");
        (part, next)
    }

    /// Returns the extents that a written run becomes: one for each allocation it lies in.
    pub(crate) fn extents(&self, run: &Run<FillPlace>) -> SmallVec<[Extent; 1]> {
        let mut extents = SmallVec::new();
        let Some(fill) = self.fills.get(&run.place.fill) else { return extents };
        let mut covered = 0;
        for (start, allocated) in &fill.pieces {
            let length = allocated.blocks * fill.block_size;
            let from = run.place.at.max(*start);
            let to = (run.place.at + run.length as u32).min(start + length);
            if from < to {
                covered += u64::from(to - from);
                extents.push(Extent {
                    offset: run.offset + u64::from(from - run.place.at),
                    length: to - from,
                    place: protocol::Place { allocation: allocated.allocation, at: from - start },
                });
            }
        }
        // A byte without a block would be committed as a hole. (Bytes whose write failed have no
        // blocks at all: they are not committed, and the failure is kept.)
        assert!(
            covered == run.length || fill.pieces.is_empty(),
            "{run:?} is not all in {:?} of {}",
            fill.pieces,
            fill.device
        );
        extents
    }

    /// Removes runs that were committed, unless later writes took their place.
    pub(crate) fn committed(&mut self, runs: &[Run<FillPlace>]) {
        for run in runs {
            let same: Vec<Run<FillPlace>> = self
                .runs
                .within(run.offset..run.end())
                .filter(|now| now.place == run.place.advance(now.offset - run.offset))
                .collect();
            for now in same {
                self.runs.remove(now.offset..now.end());
            }
        }
    }
}
