//! Blocks that were read in small pieces, kept for those that read past the kernel's pages.
//!
//! A file that is open for writing past the pages (such as a database that its program has created)
//! is read by a request for each call, also where bytes were read before. Without these blocks each
//! request would be a device command.
//!
//! A block belongs to the committed extents that it was read by, as a piece that was read ahead
//! does ([`super`]): it is dropped when these change or get lost. The blocks of all files are bounded
//! (`crate::small_reads`).

use protocol::Extent;
use reactor::{Buffer, Chunk, Shared};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a block; the last one of a file may be shorter.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// The kept blocks of one file.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_number: BTreeMap<u64, Block>,
    /// How often blocks were dropped because the file changed, or may have.
    changes: u64,
}

#[derive(Debug)]
struct Block {
    bytes: Shared,
    _counted: Counted,
}

/// Counts a block while it is kept.
#[derive(Debug)]
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Blocks {
    /// Returns a number that changes when blocks are dropped because the file changed, or may have.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Drops all blocks.
    pub(crate) fn clear(&mut self) {
        self.changes += 1;
        self.by_number.clear();
    }

    /// Drops the blocks that extents touch.
    pub(crate) fn forget(&mut self, extents: &[Extent]) {
        self.changes += 1;
        for extent in extents {
            let touched = extent.offset / BLOCK_BYTES..extent.end().div_ceil(BLOCK_BYTES);
            if self.by_number.range(touched.clone()).next().is_some() {
                self.by_number.retain(|number, _| !touched.contains(number));
            }
        }
    }

    /// Keeps a block, and counts it in `count` for as long.
    pub(crate) fn insert(&mut self, number: u64, bytes: &[u8], count: &Rc<Cell<usize>>) {
        // Copied: a view would keep all bytes of its read in memory.
        let bytes = Buffer::copy_from(bytes).freeze();
        self.by_number.insert(number, Block { bytes, _counted: Counted::new(count) });
    }

    /// Drops a block, to make room.
    pub(crate) fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// Returns the bytes of a range, if all of them are kept.
    pub(crate) fn get(&self, range: &Range<u64>) -> Option<Vec<Chunk>> {
        let mut chunks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let number = at / BLOCK_BYTES;
            let bytes = &self.by_number.get(&number)?.bytes;
            let start = (at % BLOCK_BYTES) as usize;
            let end = (range.end - number * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
            if end > bytes.len() {
                return None;
            }
            chunks.push(Chunk::Shared(bytes.slice(start..end)));
            at = (number + 1) * BLOCK_BYTES;
        }
        Some(chunks)
    }
}

/// Returns a range of a file with the rest of the blocks that it touches.
pub(crate) fn whole(range: &Range<u64>) -> Range<u64> {
    let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
    start..range.end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}
