//! Counting the opens of an inode, and reporting them to the service.
//!
//! The service keeps an inode without a name for as long as a session has it open. A [`Pin`] keeps
//! an inode alive that a caller has found by walking a path.

use crate::client::Client;
use crate::inode::Inode;
use protocol::client::{Call, SessionCall};
use protocol::lease::Return;
use protocol::{Errno, InodeId, Rights};
use std::rc::Rc;

/// Keeps an inode alive, even when it loses its names.
pub struct Pin {
    client: Rc<Client>,
    inode: Rc<Inode>,
    is_kept: bool,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("inode", &self.inode.id).finish_non_exhaustive()
    }
}

impl Pin {
    /// Returns the inode.
    pub fn inode(&self) -> InodeId {
        self.inode.id
    }

    /// Leaves the end of the open to [`Client::end_open`].
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.is_kept {
            self.client.end_open(&self.inode);
        }
    }
}

impl Client {
    /// Counts an open of an inode.
    pub(crate) fn begin_open(&self, inode: &Inode) {
        inode.state.borrow_mut().opens += 1;
        self.open_files.set(self.open_files.get() + 1);
    }

    /// Ends a counted open. After the last one, returns OPEN to the service if it may count it.
    pub(crate) fn end_open(&self, inode: &Inode) {
        let open_files = self.open_files.get();
        assert!(open_files > 0, "a handle of {} is closed, and none is open", inode.id);
        self.open_files.set(open_files - 1);
        let mut state = inode.state.borrow_mut();
        assert!(state.opens > 0, "a handle of {} is closed that is not counted", inode.id);
        state.opens -= 1;
        if state.opens > 0 {
            return;
        }
        state.ahead.reset();
        let may_be_counted = std::mem::take(&mut state.may_be_counted);
        // Without READ no recall would ask whether it is still open: report that it is not.
        if may_be_counted
            || state.rights.contains(Rights::OPEN)
            || !state.rights.contains(Rights::READ)
        {
            state.rights = state.rights - Rights::OPEN;
            let (inode, rights, stamp) = (inode.id, Rights::OPEN, state.stamp);
            self.returns.borrow_mut().push(Return { inode, rights, stamp });
        }
        drop(state);
        self.drop_if_idle(inode);
    }

    /// Counts an open of an inode until the returned pin is dropped.
    pub(crate) fn begin_pin(self: &Rc<Self>, inode: &Rc<Inode>) -> Pin {
        self.begin_open(inode);
        Pin { client: Rc::clone(self), inode: Rc::clone(inode), is_kept: false }
    }

    /// Keeps an inode of any kind alive.
    ///
    /// # Errors
    /// ESTALE if it is gone, those of a call.
    pub async fn pin(self: &Rc<Self>, id: InodeId) -> Result<Pin, Errno> {
        let pin = self.begin_pin(&self.inode(id));
        self.report_open(&pin.inode).await?;
        Ok(pin)
    }

    /// Reports to the service that an inode of any kind is open here.
    pub(crate) async fn report_open(self: &Rc<Self>, inode: &Inode) -> Result<(), Errno> {
        let rounds = self.rounds();
        while inode.state.borrow().lacks(Rights::OPEN) {
            rounds.begin()?;
            self.session
                .call(Call::Session(SessionCall::Acquire { inode: inode.id, rights: Rights::OPEN }))
                .await?;
        }
        Ok(())
    }
}
