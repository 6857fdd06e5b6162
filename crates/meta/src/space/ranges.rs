//! A set of blocks as ascending ranges that neither touch nor overlap.

use protocol::space::BlockRange;
use serde::{Deserialize, Serialize};

/// A set of blocks. It is stored as the gaps before its ranges, and their lengths: a segment of
/// 16384 blocks in which every second one is free takes 16 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct Ranges(Vec<BlockRange>);

impl From<Ranges> for Vec<(u64, u64)> {
    fn from(ranges: Ranges) -> Vec<(u64, u64)> {
        let mut end = 0;
        let stored = |range: BlockRange| {
            let gap = range.start - std::mem::replace(&mut end, range.end());
            (gap, range.count)
        };
        ranges.0.into_iter().map(stored).collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Ranges {
    type Error = &'static str;

    /// Accepts only ranges in the normal form of a stored record.
    fn try_from(stored: Vec<(u64, u64)>) -> Result<Ranges, &'static str> {
        let mut ranges = Vec::with_capacity(stored.len());
        let mut end = 0_u64;
        for (gap, count) in stored {
            let is_first = ranges.is_empty();
            let start = end.checked_add(gap).filter(|_| count > 0 && (gap > 0 || is_first));
            let after = start.and_then(|start| start.checked_add(count));
            match (start, after.filter(|after| *after < u64::MAX)) {
                (Some(start), Some(after)) => {
                    ranges.push(BlockRange { start, count });
                    end = after;
                }
                _ => return Err("block ranges are not ascending and apart"),
            }
        }
        Ok(Ranges(ranges))
    }
}

impl Ranges {
    /// Creates the set of one range's blocks.
    pub(crate) fn one(range: BlockRange) -> Ranges {
        Ranges(if range.count == 0 { Vec::new() } else { vec![range] })
    }

    /// Returns its ranges, ascending.
    pub(crate) fn as_slice(&self) -> &[BlockRange] {
        &self.0
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of its blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.iter().map(|range| range.count).sum()
    }

    /// Adds blocks; returns false, without any change, if the set has one of them already or the
    /// range is empty.
    pub(crate) fn insert(&mut self, range: BlockRange) -> bool {
        if range.count == 0 {
            return false;
        }
        let at = self.0.partition_point(|other| other.start < range.start);
        let previous = at.checked_sub(1).and_then(|i| self.0.get(i)).copied();
        let next = self.0.get(at).copied();
        let overlaps = previous.is_some_and(|p| p.end() > range.start)
            || next.is_some_and(|n| range.end() > n.start);
        if overlaps {
            return false;
        }
        let joins_previous = previous.is_some_and(|p| p.end() == range.start);
        let joins_next = next.is_some_and(|n| n.start == range.end());
        match (joins_previous, joins_next) {
            (true, true) => {
                self.0[at - 1].count += range.count + self.0[at].count;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].count += range.count,
            (false, true) => {
                self.0[at].start = range.start;
                self.0[at].count += range.count;
            }
            (false, false) => self.0.insert(at, range),
        }
        self.assert_normal_at(at.saturating_sub(1));
        true
    }

    /// Removes blocks; returns false, without any change, unless the set has them all.
    pub(crate) fn remove(&mut self, range: BlockRange) -> bool {
        let Some(at) = self.0.partition_point(|other| other.start <= range.start).checked_sub(1)
        else {
            return false;
        };
        let whole = self.0[at];
        if whole.end() < range.end() {
            return false;
        }
        let left = BlockRange { start: whole.start, count: range.start - whole.start };
        let right = BlockRange { start: range.end(), count: whole.end() - range.end() };
        let parts = [left, right].into_iter().filter(|part| part.count > 0);
        self.0.splice(at..=at, parts);
        self.assert_normal_at(at);
        true
    }

    /// Asserts that the ranges around an index are ascending and apart: otherwise the set would
    /// lose or double blocks, and its record could not be read again.
    fn assert_normal_at(&self, at: usize) {
        let near = &self.0[at.min(self.0.len())..self.0.len().min(at + 3)];
        let is_normal = near.windows(2).all(|pair| pair[0].end() < pair[1].start);
        assert!(is_normal && near.iter().all(|range| range.count > 0), "block ranges {near:?}");
    }

    /// Returns the number of blocks in ranges of at least `run_min` blocks.
    pub(crate) fn blocks_in_runs(&self, run_min: u64) -> u64 {
        self.0.iter().map(|range| range.count).filter(|count| *count >= run_min).sum()
    }

    /// Takes up to `blocks` blocks from the front, in at most `ranges_max` ranges, out of ranges
    /// that have at least `run_min`.
    pub(crate) fn take(&mut self, blocks: u64, ranges_max: usize, run_min: u64) -> Vec<BlockRange> {
        let mut taken = Vec::new();
        let mut left = blocks;
        for range in self.0.iter_mut().filter(|range| range.count >= run_min) {
            if left == 0 || taken.len() == ranges_max {
                break;
            }
            let count = range.count.min(left);
            taken.push(BlockRange { start: range.start, count });
            range.start += count;
            range.count -= count;
            left -= count;
        }
        self.0.retain(|range| range.count > 0);
        assert!(
            taken.iter().map(|range| range.count).sum::<u64>() == blocks - left,
            "{taken:?} are not {blocks} blocks less {left}"
        );
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Goal: the set behaves as a set of numbers does, and stays in its normal form.
        #[test]
        fn behaves_as_a_set(
            steps in prop::collection::vec((0u8..3, 0u64..60, 1u64..12), 1..80),
        ) {
            let mut ranges = Ranges::default();
            let mut model = BTreeSet::new();
            for (kind, start, count) in steps {
                let range = BlockRange { start, count };
                match kind {
                    0 => {
                        let fits = (start..start + count).all(|block| !model.contains(&block));
                        prop_assert_eq!(ranges.insert(range), fits);
                        if fits {
                            model.extend(start..start + count);
                        }
                    }
                    1 => {
                        let has = (start..start + count).all(|block| model.contains(&block));
                        prop_assert_eq!(ranges.remove(range), has);
                        if has {
                            (start..start + count).for_each(|block| { model.remove(&block); });
                        }
                    }
                    _ => {
                        let runs = ranges.blocks_in_runs(3);
                        let taken = ranges.take(count, 2, 3);
                        prop_assert!(taken.is_empty() == (runs == 0));
                        for taken in taken {
                            for block in taken.start..taken.end() {
                                prop_assert!(model.remove(&block));
                            }
                        }
                    }
                }
                let blocks: BTreeSet<u64> =
                    ranges.as_slice().iter().flat_map(|range| range.start..range.end()).collect();
                prop_assert_eq!(&blocks, &model);
                prop_assert_eq!(ranges.blocks(), model.len() as u64);
                let bytes = postcard::to_stdvec(&ranges).unwrap();
                prop_assert_eq!(postcard::from_bytes::<Ranges>(&bytes).unwrap(), ranges.clone());
                let normal = ranges.as_slice().windows(2).all(|pair| pair[0].end() < pair[1].start);
                prop_assert!(normal);
            }
        }
    }
}
