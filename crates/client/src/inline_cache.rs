//! Bounds the memory of cached inline bytes.

use crate::client::Client;
use crate::inode::Inode;
use std::rc::Rc;

/// Most inodes whose inline bytes are cached: 32 MiB of the longest.
const HEADS_MAX: usize = 2048;

impl Client {
    /// Notes that inline bytes of an inode are cached. If there are many, drops those of the oldest
    /// inode.
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
