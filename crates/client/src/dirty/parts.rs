//! The runs and extents that one commit call names.

use crate::dirty::Dirty;
use crate::dirty::fill::{CUT_MAX, FillId, FillPlace, FillState};
use crate::extent_map::Place;
use crate::extent_map::Run;
use protocol::Extent;
use protocol::sums::SUMS_PER_MESSAGE_MAX;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// How far the parts of a commit have come: the next one begins at this fill, and at this place in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    fill: FillId,
    at: u32,
}

impl Dirty {
    /// Of the runs that a commit is asked for: those of its next part, ascending, and where the one after
    /// it begins, if there may be more. Only runs whose bytes the devices have, and all of a fill in one
    /// part, if it has no more than `count_max`. Else it is cut between blocks: once a part has named a
    /// block, others may overwrite what it named, and then the block is gone. (The exception are blocks
    /// with more runs than two further parts would take.) The extents of pieces count as runs. The blocks of
    /// all fills of a part are as many as a message may have sums, or fewer.
    pub(crate) fn committable(
        &self,
        asked: &[Run<FillPlace>],
        from: Cursor,
        count_max: usize,
    ) -> (Vec<Run<FillPlace>>, Option<Cursor>) {
        let mut by_fill: BTreeMap<FillId, Vec<Run<FillPlace>>> = BTreeMap::new();
        for &run in asked {
            let FillPlace { fill: id, at } = run.place;
            let is_left = id > from.fill || (id == from.fill && at >= from.at);
            let fill = self.fills.get(&id).filter(|_| is_left);
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
                let taken = fill.cut(&runs, count_max);
                next = runs.get(taken).map(|run| Cursor { fill: id, at: run.place.at });
                runs.truncate(taken);
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

    /// The extents that a written run becomes: one for each allocation it lies in.
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
        // A byte without a block would be committed as a hole. (What failed to be written has no blocks
        // at all: it is not committed, and its failure is kept.)
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
