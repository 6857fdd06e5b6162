//! Sets of blocks as ascending ranges that do not touch, and the set operations that repairs need.

use protocol::space::BlockRange;
use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks that grows by many small sets.
#[derive(Debug, Default)]
pub(super) struct Growing(BTreeMap<u64, u64>);

impl Growing {
    /// Adds blocks; returns those that it did not contain before.
    pub(super) fn take(&mut self, set: &Set) -> Set {
        let mut new = Vec::new();
        for range in &set.0 {
            let before = self.0.range(..=range.start).next_back();
            let mut at = before.map_or(range.start, |(_, end)| range.start.max(*end));
            for (start, end) in self.0.range(range.start + 1..range.end) {
                if at < *start {
                    new.push(at..*start);
                }
                at = at.max(*end);
            }
            if at < range.end {
                new.push(at..range.end);
            }
        }
        self.0.extend(new.iter().map(|range| (range.start, range.end)));
        Set(new)
    }

    /// Returns all of its blocks.
    pub(super) fn into_set(self) -> Set {
        Set::of(self.0.into_iter().map(|(start, end)| start..end).collect())
    }
}

/// A set of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(Vec<Range<u64>>);

impl Set {
    /// Creates a set from any ranges.
    pub(super) fn of(mut ranges: Vec<Range<u64>>) -> Set {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let mut set: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match set.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => set.push(range),
            }
        }
        Set(set)
    }

    /// Creates a set from one range.
    pub(super) fn one(range: Range<u64>) -> Set {
        Set(if range.start < range.end { Vec::from([range]) } else { Vec::new() })
    }

    /// Returns the blocks of both sets.
    pub(super) fn with(&self, other: &Set) -> Set {
        Set::of(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// Returns the blocks that are in this set and not in the other.
    pub(super) fn without(&self, other: &Set) -> Set {
        let mut left = Vec::new();
        for range in &self.0 {
            let mut at = range.start;
            let first = other.0.partition_point(|other| other.end <= at);
            for other in other.0[first..].iter().take_while(|other| other.start < range.end) {
                if at < other.start {
                    left.push(at..other.start);
                }
                at = at.max(other.end);
            }
            if at < range.end {
                left.push(at..range.end);
            }
        }
        Set(left)
    }

    /// Returns the blocks that lie in a range.
    pub(super) fn within(&self, range: BlockRange) -> Set {
        let (start, end) = (range.start, range.end());
        let first = self.0.partition_point(|it| it.end <= start);
        let cut = self.0[first..].iter().take_while(|it| it.start < end);
        Set(cut.map(|it| it.start.max(start)..it.end.min(end)).collect())
    }

    /// Returns the ranges.
    pub(super) fn each(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// Returns whether the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns one past the last block.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blocks(set: &Set) -> Vec<u64> {
        set.each().flatten().collect()
    }

    proptest! {
        /// Goal: sets behave as sets of numbers do.
        #[test]
        fn sets_are_sets(
            a in prop::collection::vec((0u64..60, 0u64..9), 0..12),
            b in prop::collection::vec((0u64..60, 0u64..9), 0..12),
            range in (0u64..60, 0u64..30),
        ) {
            let set = |of: &[(u64, u64)]| Set::of(of.iter().map(|(at, count)| *at..at + count).collect());
            let plain = |of: &[(u64, u64)]| -> std::collections::BTreeSet<u64> {
                of.iter().flat_map(|(at, count)| *at..at + count).collect()
            };
            let (left, right) = (plain(&a), plain(&b));
            let expected: Vec<u64> = left.difference(&right).copied().collect();
            prop_assert_eq!(blocks(&set(&a).without(&set(&b))), expected);
            let expected: Vec<u64> = left.union(&right).copied().collect();
            prop_assert_eq!(blocks(&set(&a).with(&set(&b))), expected);
            let mut growing = Growing::default();
            prop_assert_eq!(&growing.take(&set(&a)), &set(&a));
            let expected: Vec<u64> = right.difference(&left).copied().collect();
            prop_assert_eq!(blocks(&growing.take(&set(&b))), expected);
            prop_assert_eq!(growing.into_set(), set(&a).with(&set(&b)));
            let within = BlockRange { start: range.0, count: range.1 };
            let expected: Vec<u64> =
                left.iter().copied().filter(|at| (range.0..range.0 + range.1).contains(at)).collect();
            prop_assert_eq!(blocks(&set(&a).within(within)), expected);
        }
    }
}
