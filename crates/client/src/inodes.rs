//! The table of inodes: references, forgetting, and rights that go back to the service.

use crate::client::Client;
use crate::inode::Inode;
use protocol::client::{Call, SessionCall};
use protocol::lease::Return;
use protocol::{InodeId, Rights};
use std::rc::Rc;

/// Most inodes that are kept without a use.
const IDLE_INODES_MAX: usize = 200_000;

impl Client {
    /// Returns the inode, and creates it if this client does not know it.
    pub(crate) fn inode(&self, id: InodeId) -> Rc<Inode> {
        let mut inodes = self.inodes.borrow_mut();
        Rc::clone(inodes.entry(id).or_insert_with(|| Rc::new(Inode::new(id))))
    }

    /// Returns the inode, if this client knows it.
    pub(crate) fn known_inode(&self, id: InodeId) -> Option<Rc<Inode>> {
        self.inodes.borrow().get(&id).cloned()
    }

    /// Takes a reference to an inode, which [`Client::forget`] returns.
    pub fn refer(&self, id: InodeId) {
        self.inode(id).state.borrow_mut().references += 1;
    }

    /// Drops `count` of the references that the user of the library holds to an inode.
    pub fn forget(&self, id: InodeId, count: u64) {
        let Some(inode) = self.known_inode(id) else { return };
        let unused = {
            let mut state = inode.state.borrow_mut();
            state.references = state.references.saturating_sub(count);
            state.references == 0
        };
        if unused {
            self.drop_if_idle(&inode);
        }
    }

    /// Returns how many references the user of the library holds to all inodes together.
    pub fn references(&self) -> u64 {
        self.inodes.borrow().values().map(|inode| inode.state.borrow().references).sum()
    }

    /// Forgets an inode if it is not in use.
    pub(crate) fn drop_if_idle(&self, inode: &Inode) {
        if inode.is_unused() {
            self.drop_inode(inode.id);
        }
    }

    /// Drops an unused inode and queues the return of its rights.
    pub(crate) fn drop_inode(&self, id: InodeId) {
        let Some(inode) = self.inodes.borrow_mut().remove(&id) else { return };
        let state = inode.state.borrow();
        if !state.rights.is_empty() {
            // The service may count a right of an answer that was lost.
            let rights = state.rights | Rights::OPEN | Rights::SOLE;
            self.returns.borrow_mut().push(Return { inode: id, rights, stamp: state.stamp });
        }
    }

    /// Forgets unused inodes when there are very many.
    pub(crate) fn evict(&self) {
        let surplus = self.inodes.borrow().len().saturating_sub(IDLE_INODES_MAX);
        if surplus == 0 {
            return;
        }
        let idle: Vec<InodeId> = {
            let inodes = self.inodes.borrow();
            let idle = inodes.iter().filter(|(_, inode)| inode.is_unused());
            idle.map(|(&id, _)| id).take(surplus).collect()
        };
        for id in idle {
            self.drop_inode(id);
        }
    }

    /// Returns the rights of forgotten and closed inodes to the service now.
    pub(crate) async fn give_back(self: &Rc<Self>) {
        let returns = self.returns.take();
        for part in returns.chunks(1024) {
            let part: Vec<_> = part.iter().filter_map(|back| self.still_due(*back)).collect();
            if part.is_empty() {
                continue;
            }
            if let Err(error) = self.session.call(Call::Session(SessionCall::GiveBack(part))).await
            {
                tracing::debug!(%error, "rights could not be given back");
            }
        }
    }

    /// Takes OPEN out of a return if the inode was opened again since it was closed. The answer to
    /// a recall may have reported that open to the service meanwhile.
    fn still_due(&self, mut back: Return) -> Option<Return> {
        if let Some(inode) = self.known_inode(back.inode)
            && back.rights.contains(Rights::OPEN)
        {
            let mut state = inode.state.borrow_mut();
            // An inode that was forgotten in between has no stamp, and reports its open anew.
            if state.is_open() && state.stamp >= back.stamp {
                back.rights = back.rights - Rights::OPEN;
                state.may_be_counted = true;
            }
        }
        (!back.rights.is_empty()).then_some(back)
    }
}
