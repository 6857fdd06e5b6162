//! A set of block numbers as pages of bits; pages without marks take no memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Size of a page in bytes.
pub(super) const PAGE_BYTES: usize = 4096;
/// Number of blocks of a page.
const PAGE_BLOCKS: u64 = PAGE_BYTES as u64 * 8;

/// The bits of consecutive blocks, the lowest block in the lowest bit of the first byte.
pub(super) type Page = Box<[u8; PAGE_BYTES]>;

/// A set of block numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    pages: BTreeMap<u64, Page>,
    count: u64,
}

impl Bits {
    /// Returns the number of blocks in the set.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a page that was read, unless it is empty.
    pub(super) fn insert(&mut self, number: u64, page: Page) {
        let count = count(&page);
        if count > 0 {
            self.count += count;
            self.pages.insert(number, page);
        }
    }

    /// Returns whether one of the blocks is in the set.
    pub(super) fn any(&self, blocks: Range<u64>) -> bool {
        let numbers = blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS);
        self.pages.range(numbers).any(|(&number, page)| {
            within(number, &blocks).any(|bit| page[bit / 8] & (1 << (bit % 8)) != 0)
        })
    }

    /// Adds or removes blocks.
    pub(super) fn set(&mut self, blocks: Range<u64>, is_in: bool) {
        for number in blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS) {
            if !is_in && !self.pages.contains_key(&number) {
                continue;
            }
            let page = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE_BYTES]));
            let before = count(page);
            set(page, within(number, &blocks), is_in);
            let after = count(page);
            self.count = self.count - before + after;
            if after == 0 {
                self.pages.remove(&number);
            }
        }
    }

    /// Returns the pages with these blocks, and their numbers, without the blocks of `removed`.
    pub(super) fn pages(
        &self,
        blocks: &Range<u64>,
        removed: Option<&Range<u64>>,
    ) -> Vec<(u64, Page)> {
        let page = |number| {
            let mut page: Page =
                self.pages.get(&number).cloned().unwrap_or_else(|| Box::new([0; PAGE_BYTES]));
            if let Some(removed) = removed {
                set(&mut page, within(number, removed), false);
            }
            (number, page)
        };
        (blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS)).map(page).collect()
    }
}

/// Returns the bits of a page that belong to these blocks.
fn within(number: u64, blocks: &Range<u64>) -> Range<usize> {
    let first = number * PAGE_BLOCKS;
    let bit = |block: u64| (block.clamp(first, first + PAGE_BLOCKS) - first) as usize;
    bit(blocks.start)..bit(blocks.end)
}

fn set(page: &mut Page, bits: Range<usize>, is_in: bool) {
    for bit in bits {
        let mask = 1 << (bit % 8);
        if is_in {
            page[bit / 8] |= mask;
        } else {
            page[bit / 8] &= !mask;
        }
    }
}

fn count(page: &Page) -> u64 {
    page.iter().map(|byte| u64::from(byte.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: the set has the blocks that a plain set has, within pages and across their borders,
    /// and no memory is left for blocks that were removed.
    #[test]
    fn blocks_are_set_and_removed() {
        let (mut bits, mut plain) = (Bits::default(), BTreeSet::new());
        for (range, is_in) in [
            (5..9, true),
            (PAGE_BLOCKS - 3..PAGE_BLOCKS + 2, true),
            (7..8, false),
            (PAGE_BLOCKS..PAGE_BLOCKS + 1, false),
            (1 << 40..(1 << 40) + 1, true),
        ] {
            bits.set(range.clone(), is_in);
            for block in range {
                if is_in {
                    plain.insert(block)
                } else {
                    plain.remove(&block)
                };
            }
            assert_eq!(bits.count(), plain.len() as u64);
            for block in [0, 4, 5, 6, 7, 8, 9, 1 << 40, PAGE_BLOCKS - 1, PAGE_BLOCKS] {
                assert_eq!(bits.any(block..block + 1), plain.contains(&block), "{block}");
            }
        }
        assert!(bits.any(0..6) && !bits.any(0..5) && !bits.any(9..PAGE_BLOCKS - 3));
        let mut copy = Bits::default();
        for (number, page) in bits.pages(&(0..2 * PAGE_BLOCKS), Some(&(0..6))) {
            copy.insert(number, page);
        }
        assert!(!copy.any(0..6) && copy.any(6..7) && copy.any(PAGE_BLOCKS + 1..PAGE_BLOCKS + 2));
        bits.set(0..1 << 20, false);
        assert_eq!((bits.count(), bits.pages.len()), (1, 1));
    }
}
