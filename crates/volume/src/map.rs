//! A volume's table in memory: for each of its clusters the pool's cluster.
//!
//! Readers load words and take no lock; words change only under the pool's lock. Parts of the table in
//! which nothing is mapped take no memory.

use crate::layout::ENTRIES;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Marks a cluster that other volumes may name too: a write has to take another one.
const SHARED: u32 = 1 << 31;

/// What a cluster of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    pub(crate) const UNMAPPED: Self = Self(0);

    /// A cluster of the volume's own.
    pub(crate) fn own(cluster: u32) -> Self {
        Self(cluster + 1)
    }

    /// A cluster that others may name.
    pub(crate) fn shared(cluster: u32) -> Self {
        Self((cluster + 1) | SHARED)
    }

    /// The pool's cluster, if there is one.
    pub(crate) fn cluster(self) -> Option<u32> {
        (self.0 & !SHARED).checked_sub(1)
    }

    pub(crate) fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// As a map page stores it.
    pub(crate) fn stored(self) -> u32 {
        self.0 & !SHARED
    }

    /// Whether a write may go to the cluster as it is.
    fn is_own(self) -> bool {
        self.0 != 0 && (self.0 & SHARED == 0 || reactor::mutant!("volume-shared-ignored"))
    }
}

/// What a range of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// One after the other in the pool, from this cluster on.
    Whole(u32),
    /// Not mapped at all.
    Hole,
    /// Anything else.
    Mixed,
}

type Part = [AtomicU32; ENTRIES];

/// Parts that are kept together.
const SEGMENT: usize = 64;

type Segment = [OnceLock<Box<Part>>; SEGMENT];

/// A volume's table. That of a volume that grew while it was in use has its words in common with the former one.
#[derive(Debug)]
pub(crate) struct Map {
    segments: Box<[Arc<Segment>]>,
    parts: usize,
}

impl Map {
    /// The table of a volume of `clusters` clusters, in which nothing is mapped.
    pub(crate) fn new(clusters: u32) -> Self {
        let parts = (clusters as usize).div_ceil(ENTRIES);
        let segment = |_| Arc::new(std::array::from_fn(|_| OnceLock::new()));
        Self { segments: (0..parts.div_ceil(SEGMENT)).map(segment).collect(), parts }
    }

    /// The table of the same volume with `clusters` clusters, which are no fewer. What is changed by one of the two is
    /// seen by the other: commands that began before the volume grew go on with the former.
    pub(crate) fn grown(&self, clusters: u32) -> Self {
        let longer = Self::new(clusters);
        assert!(longer.parts >= self.parts, "a table does not become shorter");
        let (own, new) = (self.segments.iter(), longer.segments.iter().skip(self.segments.len()));
        Self { segments: own.chain(new).cloned().collect(), ..longer }
    }

    #[inline]
    fn part(&self, part: usize) -> &OnceLock<Box<Part>> {
        &self.segments[part / SEGMENT][part % SEGMENT]
    }

    /// Number of parts, each of which a map page holds.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// The part that a cluster is in.
    pub(crate) fn part_of(cluster: u32) -> usize {
        cluster as usize / ENTRIES
    }

    /// One cluster of the volume.
    ///
    /// # Panics
    /// If it is past the volume's end.
    #[inline]
    pub(crate) fn entry(&self, cluster: u32) -> Entry {
        let (part, at) = (cluster as usize / ENTRIES, cluster as usize % ENTRIES);
        let part = self.part(part).get();
        // In one order with the counts of lanes: see there.
        part.map_or(Entry::UNMAPPED, |part| Entry(part[at].load(Ordering::SeqCst)))
    }

    /// Changes a cluster of the volume; under the pool's lock.
    pub(crate) fn set(&self, cluster: u32, entry: Entry) {
        let (part, at) = (cluster as usize / ENTRIES, cluster as usize % ENTRIES);
        assert!(part < self.parts, "part {part} of {}", self.parts);
        let part =
            self.part(part).get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU32::new(0))));
        part[at].store(entry.0, Ordering::SeqCst);
    }

    /// All mapped clusters of a part, with their numbers in the volume.
    pub(crate) fn mapped(&self, part: usize) -> impl Iterator<Item = (u32, Entry)> + '_ {
        let first = (part * ENTRIES) as u32;
        let words = self.part(part).get().into_iter().flat_map(|part| part.iter());
        let entries = words.map(|word| Entry(word.load(Ordering::SeqCst)));
        (first..).zip(entries).filter(|(_, entry)| entry.cluster().is_some())
    }

    /// All mapped clusters with their numbers in the volume.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        (0..self.parts()).flat_map(|part| self.mapped(part))
    }

    /// A part as a map page stores it.
    pub(crate) fn stored(&self, part: usize) -> Vec<u32> {
        let mut entries = vec![0; ENTRIES];
        for (cluster, entry) in self.mapped(part) {
            entries[cluster as usize % ENTRIES] = entry.stored();
        }
        entries
    }

    /// What a range is, for reads or (`is_write`) for writes, to which shared clusters are closed.
    #[inline]
    pub(crate) fn range(&self, first: u32, last: u32, is_write: bool) -> Range {
        let start = self.entry(first);
        let is_open = |entry: Entry| !is_write || entry.is_own();
        let Some(base) = start.cluster() else {
            let is_hole = (first + 1..=last).all(|at| self.entry(at).cluster().is_none());
            return if is_hole { Range::Hole } else { Range::Mixed };
        };
        let is_whole = is_open(start)
            && (first + 1..=last).all(|at| {
                let entry = self.entry(at);
                entry.cluster() == Some(base + (at - first)) && is_open(entry)
            });
        if is_whole { Range::Whole(base) } else { Range::Mixed }
    }
}
