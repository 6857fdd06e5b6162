//! An ordered map from file offsets to extents, in which later entries overwrite earlier ones.
//!
//! It serves twice: for committed extents under a READ right, with the ranges that are known at all
//! ([`RangeSet`]), and, with another kind of place, for data that is written but not committed.

use std::collections::BTreeMap;
use std::ops::Range;

/// The place of a run of bytes. Each part of the run has a place too.
pub(crate) trait Place: Copy + PartialEq {
    /// Returns the place of the bytes that start `skipped` bytes further.
    fn advance(self, skipped: u64) -> Self;
}

impl Place for protocol::Place {
    fn advance(self, skipped: u64) -> Self {
        protocol::Place { allocation: self.allocation, at: self.at + skipped as u32 }
    }
}

/// A run of bytes and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<P> {
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Place of the first byte.
    pub(crate) place: P,
}

impl<P: Place> Run<P> {
    /// Returns one past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Returns the part within `start..end`, if any.
    pub(crate) fn clip(&self, start: u64, end: u64) -> Option<Self> {
        let from = self.offset.max(start);
        let to = self.end().min(end);
        (from < to).then(|| Run {
            offset: from,
            length: to - from,
            place: self.place.advance(from - self.offset),
        })
    }
}

/// Runs by offset; they do not overlap.
#[derive(Clone, Debug)]
pub(crate) struct ExtentMap<P> {
    runs: BTreeMap<u64, (u64, P)>,
}

impl<P> Default for ExtentMap<P> {
    fn default() -> Self {
        ExtentMap { runs: BTreeMap::new() }
    }
}

impl<P: Place> ExtentMap<P> {
    /// Returns whether there is no run.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns one past the last byte that has a place.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(offset, (length, _))| offset + length)
    }

    /// Inserts a run over everything that was there. Joins it to the run before it if that ends
    /// where this one starts, both in the file and, by `joins`, in its place.
    pub(crate) fn insert(&mut self, run: Run<P>, joins: impl Fn(Run<P>, Run<P>) -> bool) {
        // A run of no bytes would hide the run that begins there.
        assert!(run.length > 0, "a run of no bytes would be put at {}", run.offset);
        self.remove(run.offset..run.end());
        let after = self.runs.range(run.offset..).next().map(|(&offset, _)| offset);
        assert!(
            after.is_none_or(|offset| offset >= run.end()),
            "a run to {} would reach into the one at {after:?}",
            run.end()
        );
        let before = self.runs.range_mut(..run.offset).next_back();
        if let Some((&offset, (length, place))) = before {
            let end = offset + *length;
            assert!(end <= run.offset, "a run to {end} reaches into the one at {}", run.offset);
            let previous = Run { offset, length: *length, place: *place };
            if previous.end() == run.offset && joins(previous, run) {
                *length += run.length;
                return;
            }
        }
        self.runs.insert(run.offset, (run.length, run.place));
    }

    /// Removes a range, splitting the runs at its edges.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.runs.range(..range.start).next_back().map(|(&offset, _)| offset);
        if let Some(offset) = first {
            let (length, place) = self.runs[&offset];
            let run = Run { offset, length, place };
            assert!(
                offset < range.start && length > 0,
                "a run of {length} bytes at {offset} is cut at {}",
                range.start
            );
            if run.end() > range.start {
                self.runs.insert(offset, (range.start - offset, place));
                self.put_tail(&run, range.end);
            }
        }
        while let Some((&offset, &(length, place))) = self.runs.range(range.clone()).next() {
            self.runs.remove(&offset);
            self.put_tail(&Run { offset, length, place }, range.end);
        }
    }

    /// Puts back the part of a removed run that starts at `from`.
    fn put_tail(&mut self, run: &Run<P>, from: u64) {
        if let Some(tail) = run.clip(from, u64::MAX) {
            self.runs.insert(tail.offset, (tail.length, tail.place));
        }
    }

    /// Returns the runs within a range, clipped to it, ascending.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Run<P>> + '_ {
        let before = self.runs.range(..range.start).next_back();
        let after = self.runs.range(range.start..range.end.max(range.start));
        before.into_iter().chain(after).filter_map(move |(&offset, &(length, place))| {
            Run { offset, length, place }.clip(range.start, range.end)
        })
    }

    /// Returns all runs, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Run<P>> + '_ {
        self.runs.iter().map(|(&offset, &(length, place))| Run { offset, length, place })
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

/// Ranges, merged where they touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        assert!(
            start <= range.start && range.end <= end,
            "{range:?} is not in {start}..{end}, which stands for it"
        );
        self.ranges.insert(start, end);
    }

    /// Returns whether the set contains all of a range.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &e)| e >= range.end)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct At(u64);

    impl Place for At {
        fn advance(self, skipped: u64) -> Self {
            At(self.0 + skipped)
        }
    }

    fn joins(a: Run<At>, b: Run<At>) -> bool {
        a.place.0 + a.length == b.place.0
    }

    proptest! {
        /// Goal: the map agrees for every byte with an array of bytes.
        #[test]
        fn behaves_like_an_array(
            steps in prop::collection::vec((0u64..100, 1u64..30, any::<bool>()), 1..40),
            window in (0u64..120, 0u64..40),
        ) {
            let mut map = ExtentMap::default();
            let mut model = [None; 200];
            let mut next = 1000;
            for (offset, length, put) in steps {
                if put {
                    map.insert(Run { offset, length, place: At(next) }, joins);
                } else {
                    map.remove(offset..offset + length);
                }
                for i in 0..length {
                    model[(offset + i) as usize] = put.then_some(next + i);
                }
                next += length + u64::from(next % 3 == 0);
            }
            let (start, end) = (window.0, window.0 + window.1);
            let mut seen = [None; 200];
            let mut last = 0;
            for run in map.within(start..end) {
                prop_assert!(run.offset >= last.max(start) && run.end() <= end && run.length > 0);
                last = run.end();
                for i in 0..run.length {
                    seen[(run.offset + i) as usize] = Some(run.place.0 + i);
                }
            }
            for i in start..end {
                prop_assert_eq!(seen[i as usize], model[i as usize]);
            }
            let known: u64 = map.iter().map(|r| r.length).sum();
            prop_assert_eq!(known, model.iter().flatten().count() as u64);
        }

        /// Goal: a set of ranges contains a range if and only if it contains each of its bytes.
        #[test]
        fn range_set_behaves_like_bits(
            ranges in prop::collection::vec((0u64..60, 0u64..15), 0..12),
            asked in (0u64..80, 0u64..20),
        ) {
            let mut set = RangeSet::default();
            let mut bits = [false; 100];
            for (start, length) in ranges {
                set.insert(start..start + length);
                bits[start as usize..(start + length) as usize].fill(true);
            }
            let range = asked.0..asked.0 + asked.1;
            let all = bits[range.start as usize..range.end as usize].iter().all(|&b| b);
            prop_assert_eq!(set.contains(&range), all);
        }
    }
}
