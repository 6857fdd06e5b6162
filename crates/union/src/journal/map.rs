//! Where each byte of a partial file is: a map of runs.
//!
//! Ordered runs instead of a bitmap or a pointer per chunk: the memory follows what was touched,
//! not the file's size, and runs have byte precision, so a write need not be rounded to chunks.
//! Bytes that are not mapped are the lower file's below the lower limit, and zero from there on.

use std::collections::BTreeMap;
use std::ops::Range;

use super::types::SegmentId;

/// The content of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes of a segment, from this position on.
    Stored { segment: SegmentId, position: u32 },
    /// Zeros that hide the lower's bytes.
    Zero,
    /// Bytes that were stored and are lost.
    Damaged,
}

impl Content {
    /// Returns the content that begins `skip` bytes later.
    fn skip(self, skip: u64) -> Self {
        match self {
            Self::Stored { segment, position } => {
                Self::Stored { segment, position: position + skip as u32 }
            }
            other => other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    content: Content,
}

/// A run of a file as [`RunMap::overlapping`] gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) range: Range<u64>,
    pub(super) content: Content,
}

/// The runs of one file, ordered and disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct RunMap {
    runs: BTreeMap<u64, Run>,
}

impl RunMap {
    /// Returns the number of runs, to bound memory by.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Replaces what `range` is; calls `freed` for each part of a segment that is no longer named.
    pub(super) fn set(
        &mut self,
        range: Range<u64>,
        content: Option<Content>,
        mut freed: impl FnMut(SegmentId, u64),
    ) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, &run)) = self.runs.range(range.clone()).next() {
            assert!(run.end <= range.end, "{run:?} at {start} reaches out of {range:?}");
            if let Content::Stored { segment, .. } = run.content {
                freed(segment, run.end - start);
            }
            self.runs.remove(&start);
        }
        let mapped = self.overlapping(range.clone()).next();
        assert!(mapped.is_none(), "{mapped:?} is left where {range:?} was cleared");
        if let Some(content) = content {
            self.insert(range, content);
        }
    }

    /// Adds a run where nothing is mapped; joins it to a like neighbour on the left.
    fn insert(&mut self, range: Range<u64>, content: Content) {
        if let Some((&start, run)) = self.runs.range_mut(..range.start).next_back() {
            assert!(
                start < run.end && run.end <= range.start,
                "{run:?} at {start} reaches into {range:?}"
            );
            let continues = run.content.skip_wide(range.start - start) == Some(content);
            if run.end == range.start && continues {
                run.end = range.end;
                return;
            }
        }
        self.runs.insert(range.start, Run { end: range.end, content });
    }

    /// Makes a run border at `at`.
    fn split(&mut self, at: u64) {
        if let Some((&start, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            assert!(start < at, "{run:?} at {start} is cut at {at}");
            let rest = Run { end: run.end, content: run.content.skip(at - start) };
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Returns the runs that touch `range`, cut to it, in order.
    pub(super) fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Mapped> + '_ {
        let first = self
            .runs
            .range(..range.start)
            .next_back()
            .filter(|(_, run)| run.end > range.start)
            .map_or(range.start, |(&start, _)| start);
        let until = range.end.max(first);
        self.runs.range(first..until).map(move |(&start, run)| {
            let from = start.max(range.start);
            Mapped { range: from..run.end.min(range.end), content: run.content.skip(from - start) }
        })
    }

    /// Returns the parts of `range` that no run covers.
    pub(super) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for mapped in self.overlapping(range.clone()) {
            if mapped.range.start > at {
                gaps.push(at..mapped.range.start);
            }
            at = mapped.range.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

impl Content {
    /// As [`Self::skip`], or `None` where the position would leave the segment.
    fn skip_wide(self, skip: u64) -> Option<Self> {
        match self {
            Self::Stored { segment, position } => {
                let position = u32::try_from(u64::from(position) + skip).ok()?;
                Some(Self::Stored { segment, position })
            }
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    // Goal: any sequence of changes gives, byte for byte, what a plain array gives; the runs stay
    // disjoint, and each stored byte is given back exactly once.
    proptest! {
        #[test]
        fn equals_an_array(ops in prop::collection::vec((0u64..200, 0u64..60, 0u8..4), 1..60)) {
            let mut map = RunMap::default();
            let mut array: Vec<Option<Content>> = vec![None; 300];
            let mut live: HashMap<u32, i64> = HashMap::new();
            for (number, (start, len, kind)) in ops.into_iter().enumerate() {
                let segment = SegmentId(number as u32);
                let content = match kind {
                    0 => None,
                    1 => Some(Content::Zero),
                    _ => Some(Content::Stored { segment, position: 1000 }),
                };
                if kind > 1 {
                    live.insert(segment.0, len as i64);
                }
                let range = start..start + len;
                map.set(range.clone(), content, |segment, bytes| {
                    *live.get_mut(&segment.0).unwrap() -= bytes as i64;
                });
                for at in range {
                    array[at as usize] = content.map(|content| content.skip(at - start));
                }
                check(&map, &array);
            }
            for (segment, bytes) in live {
                let named = array.iter().flatten().filter(
                    |content| matches!(content, Content::Stored { segment: s, .. } if s.0 == segment));
                prop_assert_eq!(named.count() as i64, bytes);
            }
        }
    }

    fn check(map: &RunMap, array: &[Option<Content>]) {
        let mut seen: Vec<Option<Content>> = vec![None; array.len()];
        for mapped in map.overlapping(0..array.len() as u64) {
            for at in mapped.range.clone() {
                assert!(seen[at as usize].is_none());
                seen[at as usize] = Some(mapped.content.skip(at - mapped.range.start));
            }
        }
        assert_eq!(&seen, array);
        let holes: u64 =
            map.gaps(0..array.len() as u64).iter().map(|gap| gap.end - gap.start).sum();
        assert_eq!(holes as usize, array.iter().filter(|content| content.is_none()).count());
    }
}
