//! Changing attributes, at once or with the next commit.
//!
//! A program that unpacks an archive sets times, owner and mode of each file before it closes it.
//! While no other session has seen the file ([`Rights::SOLE`]) these changes stay here and travel
//! in the commit that the close makes anyway, or within a second. The service asks for them before
//! it shows the file to another session.

use crate::attributes::attr_of;
use crate::client::Client;
use crate::inode::Inode;
use protocol::attr::AttrChanges;
use protocol::client::{Call, ChangeCall};
use protocol::{Attr, Errno, InodeId, Rights, Timestamp};
use std::rc::Rc;

impl Client {
    /// Changes attributes other than the size (for that see [`Client::truncate`]).
    ///
    /// # Errors
    /// EPERM, EINVAL, those of a call.
    pub async fn set_attr(
        self: &Rc<Self>,
        id: InodeId,
        changes: AttrChanges,
    ) -> Result<Attr, Errno> {
        let inode = self.inode(id);
        if let Some(attr) = self.defer(&inode, &changes) {
            return Ok(attr);
        }
        // Times of uncommitted writes must not come later and overwrite what is set now; nor may
        // their clearing of suid and sgid.
        let (clean, kills, waits) = {
            let dirty = inode.dirty.borrow();
            (dirty.is_clean(), dirty.kill_privileges, !dirty.deferral.is_empty())
        };
        let is_before = changes.mtime.is_some() || changes.layout.is_some() || waits;
        if !clean && (is_before || kills && changes.mode.is_some()) {
            self.commit(&inode, false).await?;
        }
        let before = self.commits.get();
        let answer =
            self.session.call(Call::Change(ChangeCall::SetAttr { inode: id, changes })).await?;
        self.shown(attr_of(&answer)?, before).await
    }

    /// Lets changes wait for the next commit, if they may. Returns the attributes with these
    /// changes then.
    pub(crate) fn defer(&self, inode: &Rc<Inode>, changes: &AttrChanges) -> Option<Attr> {
        // The service decides what is refused, and about data and layout.
        let is_plain = changes.size.is_none()
            && changes.layout.is_none()
            && changes.mode.is_none_or(|mode| mode & !0o7777 == 0);
        let attr = inode.committed_attr().filter(|_| is_plain && self.session.life.is_alive())?;
        {
            let state = inode.state.borrow();
            let may_wait = state.rights.contains(Rights::SOLE | Rights::WRITE | Rights::READ)
                && state.opens > 0
                && state.has_no_xattrs;
            if !may_wait || inode.dirty.borrow().deferral.is_under_way {
                return None;
            }
        }
        let mut dirty = inode.dirty.borrow_mut();
        dirty.set_attributes(changes, Timestamp(reactor::time::system_time() as i64));
        drop(dirty);
        if !reactor::mutant!("deferred-not-written-back") {
            self.dirty_inodes.borrow_mut().insert(inode.id, Rc::clone(inode));
        }
        Some(inode.local_attr(attr))
    }

    /// Returns SOLE when the file's last writer here closes it and no commit has ended it.
    pub(crate) fn end_sole(&self, inode: &Inode) {
        let mut state = inode.state.borrow_mut();
        if !state.rights.contains(Rights::SOLE) || !inode.dirty.borrow().is_clean() {
            return;
        }
        state.rights = state.rights - Rights::SOLE;
        let (inode, rights, stamp) = (inode.id, Rights::SOLE, state.stamp);
        self.returns.borrow_mut().push(protocol::lease::Return { inode, rights, stamp });
    }

    /// Returns whether changes of an inode's attributes wait for a commit.
    pub fn defers(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| inode.dirty.borrow().deferral.is_waiting())
    }
}
