//! The bound of blocks that were read in small pieces past the kernel's pages ([`crate::ahead::blocks`]):
//! a client keeps 32 MiB at most, and drops first what it read first.

use crate::ahead::blocks::BLOCK_BYTES;
use crate::inode::Inode;
use reactor::Shared;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// Most blocks that a client keeps.
const KEPT_MAX: usize = 8192;

/// Counts of blocks that were read in small pieces and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BlockCounts {
    /// Bytes that are kept now; each block counts as a full one.
    pub blocks_kept_bytes: u64,
    /// Bytes that readers got from kept blocks.
    pub blocks_used_bytes: u64,
}

/// The kept blocks of all files of a client.
#[derive(Debug, Default)]
pub(crate) struct AllBlocks {
    kept: Rc<Cell<usize>>,
    /// In the order in which they were read. Some may have been dropped since.
    order: RefCell<VecDeque<(Weak<Inode>, u64)>>,
    /// Bytes that readers got from blocks.
    used: Cell<u64>,
}

impl AllBlocks {
    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> BlockCounts {
        BlockCounts {
            blocks_kept_bytes: self.kept.get() as u64 * BLOCK_BYTES,
            blocks_used_bytes: self.used.get(),
        }
    }

    /// Counts bytes that a reader got from blocks.
    pub(crate) fn note_used(&self, length: u64) {
        self.used.set(self.used.get() + length);
    }

    /// Keeps blocks of a file from an offset on, which is a multiple of [`BLOCK_BYTES`].
    pub(crate) fn keep(&self, inode: &Rc<Inode>, offset: u64, bytes: &Shared) {
        assert_eq!(offset % BLOCK_BYTES, 0, "kept blocks of {} begin within one", inode.id);
        for start in (0..bytes.len()).step_by(BLOCK_BYTES as usize) {
            let end = bytes.len().min(start + BLOCK_BYTES as usize);
            let number = (offset + start as u64) / BLOCK_BYTES;
            inode.state.borrow_mut().ahead.blocks.insert(number, &bytes[start..end], &self.kept);
            self.order.borrow_mut().push_back((Rc::downgrade(inode), number));
        }
        self.drop_oldest();
    }

    /// Drops the oldest blocks beyond the bound, and forgets the order of dropped ones.
    fn drop_oldest(&self) {
        let mut order = self.order.borrow_mut();
        while self.kept.get() > KEPT_MAX || order.len() > 2 * KEPT_MAX {
            let Some((inode, number)) = order.pop_front() else { return };
            if let Some(inode) = inode.upgrade() {
                inode.state.borrow_mut().ahead.blocks.remove(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ahead::blocks::whole;
    use protocol::InodeId;
    use reactor::Buffer;
    use std::ops::Range;

    fn kept(all: &AllBlocks, inode: &Rc<Inode>, offset: u64, length: usize) {
        let bytes: Vec<u8> = (0..length).map(|at| ((offset as usize + at) / 7) as u8).collect();
        all.keep(inode, offset, &Buffer::copy_from(&bytes).freeze());
    }

    fn get(inode: &Inode, range: Range<u64>) -> Option<Vec<u8>> {
        let chunks = inode.state.borrow().ahead.blocks.get(&range)?;
        Some(chunks.iter().flat_map(|chunk| chunk.to_bytes().into_owned()).collect())
    }

    /// Goal: a range is returned whole or not at all, across blocks and up to a short last one.
    #[test]
    fn ranges_come_from_the_blocks_that_they_touch() {
        let (all, inode) = (AllBlocks::default(), Rc::new(Inode::new(InodeId(7))));
        kept(&all, &inode, 8192, 2 * 4096 + 100);
        for range in [8192..8193, 9000..13_000, 8192..16_484] {
            let wanted: Vec<u8> = range.clone().map(|at| (at / 7) as u8).collect();
            assert_eq!(get(&inode, range), Some(wanted));
        }
        for range in [8191..8193, 16_484..16_485, 12_000..16_485, 20_480..20_481] {
            assert_eq!(get(&inode, range), None);
        }
        assert_eq!(whole(&(8191..8193)), 4096..12_288);
        assert_eq!(whole(&(8192..12_288)), 8192..12_288);
    }

    /// Goal: the oldest blocks of any file go when there are too many, and those of files that are
    /// gone do not count. The order does not grow without bound.
    #[test]
    fn the_oldest_blocks_go() {
        let all = AllBlocks::default();
        let (one, two) = (Rc::new(Inode::new(InodeId(1))), Rc::new(Inode::new(InodeId(2))));
        kept(&all, &one, 0, 4096);
        kept(&all, &two, 0, KEPT_MAX * 4096);
        assert_eq!((get(&one, 0..1), all.kept.get()), (None, KEPT_MAX));
        drop(two);
        assert_eq!(all.kept.get(), 0);
        for _ in 0..3 * KEPT_MAX {
            kept(&all, &one, 4096, 10);
            one.state.borrow_mut().ahead.clear();
        }
        assert_eq!(all.kept.get(), 0);
        assert!(all.order.borrow().len() <= 2 * KEPT_MAX);
    }
}
