//! Small files: their data travels in commits, and lies with the metadata service.
//!
//! One call then makes a file's data and attributes known, and no device is waited for; whoever reads it
//! gets its bytes with the answer that would else name its extents.

use crate::client::Client;
use crate::dirty::At;
use crate::extent_map::Run;
use crate::inode::Inode;
use protocol::Attr;
use protocol::inline::{Bytes, INLINE_MAX_BYTES, InlineRun};
use protocol::sums::checksum;
use std::rc::Rc;

/// Inodes of which inline bytes are cached at most: 32 MiB of the longest.
const HEADS_MAX: usize = 2048;

/// Runs that one commit carries at most: who writes more of them into so little makes extents.
const RUNS_MAX: usize = 64;

impl Client {
    /// What is dirty of an inode, with its bytes, if all of it is in memory and the file is small.
    pub(crate) fn small_runs(&self, inode: &Inode) -> Option<(Vec<Run<At>>, Vec<InlineRun>)> {
        let dirty = inode.dirty.borrow();
        if !self.session.takes_inline.get() {
            return None;
        }
        let size = inode.committed_attr()?.size.max(dirty.end());
        let runs = if size <= self.inline_bytes { dirty.present() } else { return None };
        if runs.is_empty() || runs.len() > RUNS_MAX || !dirty.is_all_gathering() {
            return None;
        }
        let carried = runs.iter().map(|run| {
            let bytes = Bytes(dirty.gathered(run)?.to_vec());
            let sum = self.checksum.then(|| checksum(&bytes.0));
            Some(InlineRun { offset: run.offset as u32, bytes, sum })
        });
        let carried: Option<Vec<InlineRun>> = carried.collect();
        carried.map(|carried| (runs, carried))
    }

    /// All bytes of a small file, for the kernel to put into its pages as somebody opens it to read it: if they are
    /// cached, the kernel knows where the file ends, and nobody else has it open here.
    pub fn bytes_for_pages(&self, attr: &Attr) -> Option<Vec<u8>> {
        let inode = self.known_inode(attr.inode)?;
        let knows_end =
            self.kernel_knows_end(inode.id) || reactor::mutant!("stored-past-known-end");
        let state = inode.state.borrow();
        // Pages of a file that is open may be locked, by reads that this thread would have to answer.
        let is_alone = state.opens <= 1 || reactor::mutant!("stored-beside-others");
        let (committed, extents) = state.extents(0, attr.size)?;
        let is_whole = (1..=INLINE_MAX_BYTES).contains(&attr.size)
            && extents.is_empty()
            && committed == *attr
            && inode.dirty.borrow().is_clean();
        if !(is_alone && knows_end && is_whole && self.session.life.is_alive()) {
            return None;
        }
        let mut bytes = state.head().to_vec();
        bytes.resize(attr.size as usize, 0);
        inode.pages.note_read();
        Some(bytes)
    }

    /// Inline bytes of an inode are cached: those of the oldest go when there are many.
    pub(crate) fn note_head(&self, inode: &Rc<Inode>) {
        if inode.state.borrow().head().is_empty() {
            return;
        }
        let mut heads = self.heads.borrow_mut();
        if heads.back() != Some(&inode.id) {
            heads.push_back(inode.id);
        }
        if heads.len() <= HEADS_MAX {
            return;
        }
        let oldest = heads.pop_front().and_then(|id| self.known_inode(id));
        if let Some(oldest) = oldest.filter(|oldest| oldest.id != inode.id) {
            let mut state = oldest.state.borrow_mut();
            if !state.head().is_empty() {
                state.forget_extents();
            }
        }
    }
}
