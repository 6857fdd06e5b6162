//! A volume's table in memory: for each of its clusters the pool's cluster.
//!
//! Readers load words without a lock; words change only under the pool's lock. Parts of the table
//! without mapped clusters use no memory.

use crate::layout::ENTRIES;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Marks a cluster that other volumes may have too: a write must copy it to another one.
const SHARED: u32 = 1 << 31;

/// The entry of one cluster of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    pub(crate) const UNMAPPED: Self = Self(0);

    /// Returns an entry for a cluster of the volume's own.
    pub(crate) fn own(cluster: u32) -> Self {
        Self(cluster + 1)
    }

    /// Returns an entry for a cluster that others may have.
    pub(crate) fn shared(cluster: u32) -> Self {
        Self((cluster + 1) | SHARED)
    }

    /// Returns the pool's cluster, if there is one.
    pub(crate) fn cluster(self) -> Option<u32> {
        (self.0 & !SHARED).checked_sub(1)
    }

    pub(crate) fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// Returns the entry in the form of a map page.
    pub(crate) fn stored(self) -> u32 {
        self.0 & !SHARED
    }

    /// Whether a write may change the cluster in place.
    fn is_own(self) -> bool {
        self.0 != 0 && (self.0 & SHARED == 0 || reactor::mutant!("volume-shared-ignored"))
    }
}

/// The state of a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// Mapped to consecutive clusters of the pool, from this one on.
    Whole(u32),
    /// Not mapped at all.
    Hole,
    /// Anything else.
    Mixed,
}

type Part = [AtomicU32; ENTRIES];

/// Number of parts that are allocated together.
const SEGMENT: usize = 64;

type Segment = [OnceLock<Box<Part>>; SEGMENT];

/// A volume's table. When a volume grows while it is in use, its new table shares the words of the
/// former one.
#[derive(Debug)]
pub(crate) struct Map {
    segments: Box<[Arc<Segment>]>,
    parts: usize,
}

impl Map {
    /// Returns the table of a volume of `clusters` clusters, without mapped clusters.
    pub(crate) fn new(clusters: u32) -> Self {
        let parts = (clusters as usize).div_ceil(ENTRIES);
        let segment = |_| Arc::new(std::array::from_fn(|_| OnceLock::new()));
        Self { segments: (0..parts.div_ceil(SEGMENT)).map(segment).collect(), parts }
    }

    /// Returns the table of the same volume with `clusters` clusters, not fewer than now. Both
    /// tables share their words, because commands that began before the volume grew continue with
    /// the former.
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

    /// Returns the number of parts; each has one map page.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the part of a cluster.
    pub(crate) fn part_of(cluster: u32) -> usize {
        cluster as usize / ENTRIES
    }

    /// Returns the entry of one cluster of the volume.
    ///
    /// # Panics
    /// If it is past the volume's end.
    #[inline]
    pub(crate) fn entry(&self, cluster: u32) -> Entry {
        let (part, at) = (cluster as usize / ENTRIES, cluster as usize % ENTRIES);
        let part = self.part(part).get();
        // Sequentially consistent with the counters of lanes, see there.
        part.map_or(Entry::UNMAPPED, |part| Entry(part[at].load(Ordering::SeqCst)))
    }

    /// Changes the entry of a cluster; under the pool's lock.
    pub(crate) fn set(&self, cluster: u32, entry: Entry) {
        let (part, at) = (cluster as usize / ENTRIES, cluster as usize % ENTRIES);
        assert!(part < self.parts, "part {part} of {}", self.parts);
        let part =
            self.part(part).get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU32::new(0))));
        part[at].store(entry.0, Ordering::SeqCst);
    }

    /// Returns all mapped clusters of a part, with their numbers in the volume.
    pub(crate) fn mapped(&self, part: usize) -> impl Iterator<Item = (u32, Entry)> + '_ {
        let first = (part * ENTRIES) as u32;
        let words = self.part(part).get().into_iter().flat_map(|part| part.iter());
        let entries = words.map(|word| Entry(word.load(Ordering::SeqCst)));
        (first..).zip(entries).filter(|(_, entry)| entry.cluster().is_some())
    }

    /// Returns all mapped clusters, with their numbers in the volume.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        (0..self.parts()).flat_map(|part| self.mapped(part))
    }

    /// Returns a part in the form of a map page.
    pub(crate) fn stored(&self, part: usize) -> Vec<u32> {
        let mut entries = vec![0; ENTRIES];
        for (cluster, entry) in self.mapped(part) {
            entries[cluster as usize % ENTRIES] = entry.stored();
        }
        entries
    }

    /// Returns the state of a range, for reads or (`is_write`) for writes, which may not change
    /// shared clusters.
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
