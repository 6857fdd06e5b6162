//! Checksums of stored data, by which every read of it is verified.
//!
//! A record's data has one CRC-32C for each 4 KiB (records of more than that, since version 2 of
//! the segments), or one in all. With blocks, a small read of a large record costs the checksums of
//! the blocks that it touches, instead of the whole record.

use std::ops::Range;
use std::sync::Arc;

use super::record::crc;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 4096;

/// The checksums of a record's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// One of all of it.
    Whole(u32),
    /// One of each block; the last block may be shorter.
    Blocks(Arc<[u32]>),
}

impl Sums {
    /// The checksums of new data.
    pub(super) fn of(data: &[u8]) -> Self {
        match data.len() {
            0 => Self::Whole(0),
            1..=BLOCK_BYTES => Self::Whole(crc(&[data])),
            _ => Self::Blocks(data.chunks(BLOCK_BYTES).map(|block| crc(&[block])).collect()),
        }
    }

    /// Returns whether `data` is all that they were made of.
    pub(super) fn are_of(&self, data: &[u8]) -> bool {
        match self {
            Self::Whole(sum) => data.is_empty() || crc(&[data]) == *sum,
            Self::Blocks(sums) => are_blocks(sums, data),
        }
    }
}

fn are_blocks(sums: &[u32], data: &[u8]) -> bool {
    let mut blocks = data.chunks(BLOCK_BYTES);
    blocks.len() == sums.len()
        && blocks.by_ref().zip(sums).all(|(block, sum)| crc(&[block]) == *sum)
}

/// The data of one record in its segment, with its checksums: verifies what is read of it.
#[derive(Clone, Debug)]
pub struct Verifier {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) sums: Sums,
}

impl Verifier {
    /// Returns the part of the segment that must be read to verify `range` of it, which lies in the
    /// record's data: `range` or somewhat more.
    pub fn cover(&self, range: &Range<u64>) -> Range<u64> {
        let end = self.start + self.bytes;
        let Sums::Blocks(_) = self.sums else { return self.start..end };
        let block = BLOCK_BYTES as u64;
        let first = (range.start - self.start) / block * block;
        let last = (range.end - self.start).next_multiple_of(block);
        self.start + first..(self.start + last).min(end)
    }

    /// Returns whether `bytes`, read from the part `covered` that [`Self::cover`] returned, are
    /// those that were written.
    pub fn is_intact(&self, covered: &Range<u64>, bytes: &[u8]) -> bool {
        if reactor::mutant!("journal-reads-unchecked") {
            return true;
        }
        match &self.sums {
            Sums::Whole(sum) => bytes.len() as u64 == self.bytes && crc(&[bytes]) == *sum,
            Sums::Blocks(sums) => {
                let first = ((covered.start - self.start) / BLOCK_BYTES as u64) as usize;
                let count = bytes.len().div_ceil(BLOCK_BYTES);
                let is_all = bytes.len() as u64 == covered.end - covered.start;
                let known = sums.get(first..first + count);
                is_all && known.is_some_and(|sums| are_blocks(sums, bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Goal: any part of a record is verified by what has to be read for it, and a flipped bit
        // in any byte of the part is found.
        #[test]
        fn every_flip_is_found(bytes in 1usize..20_000, from: u16, length: u16, bit in 0u32..8) {
            let data: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
            let verifier = Verifier { start: 100, bytes: bytes as u64, sums: Sums::of(&data) };
            let from = usize::from(from) % bytes;
            let end = (from + 1 + usize::from(length)).min(bytes);
            let part = 100 + from as u64..100 + end as u64;
            let covered = verifier.cover(&part);
            prop_assert!(covered.start <= part.start && covered.end >= part.end);
            let range = (covered.start - 100) as usize..(covered.end - 100) as usize;
            let mut read = data[range.clone()].to_vec();
            prop_assert!(verifier.is_intact(&covered, &read));
            prop_assert!(!verifier.is_intact(&covered, &read[1..]));
            read[from - range.start] ^= 1 << bit;
            prop_assert!(!verifier.is_intact(&covered, &read));
            prop_assert!(verifier.sums.are_of(&data));
        }
    }
}
