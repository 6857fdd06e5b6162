//! Which part a rank works on, and in which order: IOR's own shifts and shuffles.

use super::libc_random::LibcRandom;
use super::phase::{Order, Phase};

/// Offsets of a rank's calls.
#[derive(Clone, Debug)]
pub(super) struct Offsets {
    shuffled: Option<Vec<u64>>,
    per_segment: u64,
    all: u64,
    start: u64,
    span: u64,
    transfer: u64,
}

impl Offsets {
    /// Those of a part.
    pub(super) fn of(phase: &Phase, part: usize) -> Self {
        let shuffled = (phase.order != Order::Sequential).then(|| shuffled(phase, part));
        let per_segment = match &shuffled {
            Some(offsets) => offsets.len() as u64,
            None => phase.block_bytes / phase.transfer_bytes,
        };
        let segments = if phase.order == Order::RandomInFile { 1 } else { phase.segments };
        Self {
            per_segment,
            all: per_segment * segments,
            start: phase.start(part),
            span: phase.span_bytes(),
            transfer: phase.transfer_bytes,
            shuffled,
        }
    }

    /// Number of calls.
    pub(super) fn len(&self) -> u64 {
        self.all
    }

    /// Offset of call number `index`, which is below [`Self::len`].
    pub(super) fn get(&self, index: u64) -> u64 {
        let (segment, within) = (index / self.per_segment, index % self.per_segment);
        match &self.shuffled {
            Some(offsets) => segment * self.span + offsets[within as usize],
            None => segment * self.span + self.start + within * self.transfer,
        }
    }
}

/// A shared file's transfers are dealt to the ranks at random, and each shuffles what it got; with a
/// file of its own, a rank shuffles all of them.
fn shuffled(phase: &Phase, part: usize) -> Vec<u64> {
    let (mut bytes, mut seed) = (phase.span_bytes(), phase.seed);
    if phase.order == Order::RandomInFile {
        bytes *= phase.segments;
    } else if phase.has_own_files {
        seed = seed.wrapping_add(part as u32);
    }
    let mut random = LibcRandom::new(seed);
    let mut offsets = Vec::new();
    for index in 0..bytes / phase.transfer_bytes {
        if phase.has_own_files || random.below(phase.ranks as u64) == part as u64 {
            offsets.push(index * phase.transfer_bytes);
        }
    }
    for index in 0..offsets.len() {
        let other = random.below(offsets.len() as u64) as usize;
        offsets.swap(other, index);
    }
    offsets
}

/// How readers are shifted against writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reorder {
    /// Not.
    None,
    /// All by the same number of ranks: reading, checking after writing, checking what is read.
    Constant([usize; 3]),
    /// Each by a random number of ranks, at least `min`.
    Random { seed: i64, min: usize },
    /// By one random permutation (version 4, `reorderTasksRandom=2`).
    Shuffled { seed: i64 },
}

impl Reorder {
    /// The part of each rank, for reading (`which` 0), checking after writing (1) or checking what
    /// is read (2), in a repetition.
    pub(super) fn parts(self, ranks: usize, which: usize, repetition: u32) -> Vec<usize> {
        let seed_of = |seed: i64| {
            let seed = if seed < 0 { -seed + i64::from(repetition) } else { seed };
            seed as u32
        };
        match self {
            Self::Constant(shifts) => {
                (0..ranks).map(|rank| (rank + shifts[which]) % ranks).collect()
            }
            Self::Random { seed, min } if which == 0 => (0..ranks)
                .map(|rank| {
                    let mut random = LibcRandom::new(seed_of(seed).wrapping_add(rank as u32));
                    let mut draw = || random.below(ranks as u64) as usize;
                    let mut shift = draw();
                    while shift < min {
                        shift = draw();
                    }
                    (rank + shift) % ranks
                })
                .collect(),
            Self::Shuffled { seed } if which == 0 => {
                let mut random = LibcRandom::new(seed_of(seed));
                let mut parts: Vec<usize> = (0..ranks).collect();
                for index in 0..ranks {
                    let other = index + random.below((ranks - index) as u64) as usize;
                    parts.swap(other, index);
                }
                parts
            }
            _ => (0..ranks).collect(),
        }
    }
}
