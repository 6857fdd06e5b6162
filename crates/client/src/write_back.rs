//! The files that the background commits, several at once.
//!
//! A commit may wait for a device that does not answer, or for the right of a session that is dead.
//! Such a file waits alone. The other files are committed meanwhile, and so is every file that
//! becomes dirty later. Commits of different files have no order among each other, and those that
//! are made at once reach the service together.

use crate::inode::Inode;
use crate::session::LOCK_WAITS_MAX;
use protocol::InodeId;
use protocol::client::SLOTS_PER_SESSION;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Most files that are committed at once. Each commit that waits at the service has a reply slot.
/// This number leaves slots to other calls, even while the most locks wait.
const COMMITS_MAX: usize = 64;

/// Most files that are made durable at once when all are.
pub(crate) const SYNCS_MAX: usize = 16;

const _: () =
    assert!(COMMITS_MAX + SYNCS_MAX + LOCK_WAITS_MAX < SLOTS_PER_SESSION as usize * 7 / 8);

/// The files that the background commits.
#[derive(Debug, Default)]
pub(crate) struct WriteBack {
    /// Files to commit, the first one first.
    due: RefCell<VecDeque<Rc<Inode>>>,
    /// Files that are due or being committed.
    listed: RefCell<BTreeSet<InodeId>>,
    /// Files that are being committed.
    running: Cell<usize>,
}

impl WriteBack {
    /// Adds a file unless it is in the list.
    pub(crate) fn add(&self, inode: &Rc<Inode>) {
        if self.listed.borrow_mut().insert(inode.id) {
            self.due.borrow_mut().push_back(Rc::clone(inode));
        }
    }

    /// Takes the next file, if one more may be committed.
    pub(crate) fn begin(&self) -> Option<Rc<Inode>> {
        if self.running.get() == COMMITS_MAX {
            return None;
        }
        let inode = self.due.borrow_mut().pop_front()?;
        self.running.set(self.running.get() + 1);
        Some(inode)
    }

    /// Notes the end of a commit. Returns the next file.
    pub(crate) fn end(&self, id: InodeId) -> Option<Rc<Inode>> {
        let was_listed = self.listed.borrow_mut().remove(&id);
        assert!(was_listed && self.running.get() > 0, "{id} ends a commit that nothing began");
        self.running.set(self.running.get() - 1);
        self.begin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files are committed in their order, at most so many at once, and none twice.
    #[test]
    fn commits_are_bounded_and_none_is_made_twice() {
        let files = COMMITS_MAX as u64 + 2;
        let list = WriteBack::default();
        for _ in 0..2 {
            (0..files).for_each(|id| list.add(&Rc::new(Inode::new(InodeId(id)))));
        }
        let mut begun: Vec<InodeId> = std::iter::from_fn(|| list.begin()).map(|of| of.id).collect();
        assert_eq!(begun.len(), COMMITS_MAX);
        list.add(&Rc::new(Inode::new(InodeId(0))));
        let ended = begun.clone();
        begun.extend(ended.iter().filter_map(|id| list.end(*id)).map(|of| of.id));
        assert_eq!(begun, (0..files).map(InodeId).collect::<Vec<_>>());
    }
}
