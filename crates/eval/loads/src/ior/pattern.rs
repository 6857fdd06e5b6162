//! What is written, so that a check finds what is not what was written, or not where it was written.
//!
//! Without `setTimeStampSignature` the words are our own: they encode part and offset, and are the same in
//! every run, so that a file can be checked later without the time of its writing. With it, they are those of
//! the script's version, byte for byte, and files of IOR can be checked. The shim (`shim/mpi_rank.c`) has the
//! same words.

use serde::{Deserialize, Serialize};

/// Distance in words between two that encode the offset: setting them costs next to nothing.
const WORDS_PER_TAG: u64 = 512;
const OWN_TAG: u64 = 0x7473_756d_7567_6921;
const OWN: u64 = 0x6921_7473_7567_6d75;

/// Kinds of words. The numbers are those of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatternKind {
    /// Ours.
    Own = 0,
    /// 2.10.3's: rank and time stamp, and place in the transfer.
    Old = 1,
    /// 2.10.3's with `storeFileOffset`: the offset instead of the place in the transfer.
    OldOffset = 2,
    /// 4's `timestamp`.
    New = 3,
    /// 4's `offset`.
    NewOffset = 4,
    /// Incompressible, the same in all transfers of a part. Not IOR's, which are all alike.
    Incompressible = 5,
    /// Incompressible, other in each transfer. Not IOR's.
    Random = 6,
}

/// The words of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Kind.
    pub kind: PatternKind,
    /// Time stamp, or seed.
    pub stamp: u32,
}

fn mixed(value: u64) -> u64 {
    let mut word = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Pattern {
    /// Word number `index` of a part's transfer at `offset`.
    pub(super) fn word(self, part: usize, offset: u64, index: u64) -> u64 {
        let (part, stamp) = (part as u64, u64::from(self.stamp));
        let is_tag = index.is_multiple_of(WORDS_PER_TAG);
        match self.kind {
            PatternKind::Old if index % 2 == 1 => 8 * index,
            PatternKind::OldOffset if index % 2 == 1 => offset + 8 * index,
            PatternKind::Old | PatternKind::OldOffset => (part << 32) | stamp,
            PatternKind::NewOffset if is_tag => {
                let factor = (1 + index / WORDS_PER_TAG) as u32;
                u64::from((offset as u32).wrapping_mul(factor)) | (part << 32)
            }
            PatternKind::New | PatternKind::NewOffset => (part << 32) | (stamp + index),
            PatternKind::Random => {
                mixed(mixed(stamp ^ (part << 32) ^ (offset << 8)).wrapping_add(index))
            }
            PatternKind::Incompressible if !is_tag => {
                mixed(mixed(stamp ^ (part << 32)).wrapping_add(index))
            }
            PatternKind::Own if !is_tag => (8 * index) ^ (part << 48) ^ OWN,
            PatternKind::Own | PatternKind::Incompressible => {
                (offset + 8 * index) ^ (part << 48) ^ OWN_TAG
            }
        }
    }

    /// From one word that follows from the offset to the next; `None` if none does.
    fn stride(self) -> Option<usize> {
        match self.kind {
            PatternKind::Old | PatternKind::New => None,
            PatternKind::OldOffset | PatternKind::Random => Some(1),
            _ => Some(WORDS_PER_TAG as usize),
        }
    }

    fn put(self, buffer: &mut [u8], part: usize, offset: u64, stride: usize) {
        for (index, chunk) in buffer.chunks_exact_mut(8).enumerate().step_by(stride) {
            chunk.copy_from_slice(&self.word(part, offset, index as u64).to_le_bytes());
        }
    }

    /// Fills a buffer once, before its first transfer.
    pub(super) fn fill(self, buffer: &mut [u8], part: usize) {
        self.put(buffer, part, 0, 1);
    }

    /// Makes a filled buffer that of a transfer.
    pub(super) fn mark(self, buffer: &mut [u8], part: usize, offset: u64) {
        if let Some(stride) = self.stride() {
            self.put(buffer, part, offset, stride);
        }
    }

    /// Number of wrong words in what was read at `offset`, and the offset of the first.
    pub(super) fn wrong(self, buffer: &[u8], part: usize, offset: u64) -> (u64, Option<u64>) {
        let mut wrong = (0, None);
        for (index, chunk) in buffer.chunks_exact(8).enumerate() {
            let index = index as u64;
            if *chunk != self.word(part, offset, index).to_le_bytes() {
                wrong.0 += 1;
                wrong.1.get_or_insert(offset + 8 * index);
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [PatternKind; 7] = [
        PatternKind::Own,
        PatternKind::Old,
        PatternKind::OldOffset,
        PatternKind::New,
        PatternKind::NewOffset,
        PatternKind::Incompressible,
        PatternKind::Random,
    ];

    /// Goal: each flipped bit is found with its offset, in all patterns, also in a buffer that was
    /// used for another transfer before.
    #[test]
    fn flipped_bits_are_found() {
        for kind in KINDS {
            let pattern = Pattern { kind, stamp: 99 };
            let mut buffer = vec![0; 16384];
            pattern.fill(&mut buffer, 3);
            pattern.mark(&mut buffer, 3, 1 << 20);
            pattern.mark(&mut buffer, 3, 16384);
            assert_eq!(pattern.wrong(&buffer, 3, 16384), (0, None), "{kind:?}");
            for at in [0, 8, 4095, 4096, 16383] {
                buffer[at] ^= 0x10;
                let found = (1, Some(16384 + (at as u64 & !7)));
                assert_eq!(pattern.wrong(&buffer, 3, 16384), found, "{kind:?} {at}");
                buffer[at] ^= 0x10;
            }
        }
    }

    /// Goal: data of another rank is found in all patterns, data of another offset in those that tell
    /// the offset; the patterns of IOR that do not are known.
    #[test]
    fn misplaced_data_is_found() {
        for kind in KINDS {
            let pattern = Pattern { kind, stamp: 99 };
            let mut buffer = vec![0; 8192];
            pattern.fill(&mut buffer, 3);
            pattern.mark(&mut buffer, 3, 8192);
            assert!(pattern.wrong(&buffer, 2, 8192).0 > 0, "{kind:?}");
            let tells = !matches!(kind, PatternKind::Old | PatternKind::New);
            assert_eq!(pattern.wrong(&buffer, 3, 16384).0 > 0, tells, "{kind:?}");
        }
    }
}
