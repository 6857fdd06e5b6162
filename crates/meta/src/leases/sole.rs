//! SOLE: the inodes that only the session that made them has seen.
//!
//! Few are held at any time, as the first commit ends them. So a call that shows attributes first
//! checks whether any other session holds one at all.

use super::Leases;
use protocol::{InodeId, Rights, SessionId};

impl Leases {
    /// Returns whether another session than this one holds SOLE over anything.
    pub fn is_any_sole(&self, session: SessionId) -> bool {
        self.soles.values().any(|holder| *holder != session)
    }

    /// Returns whether another session than this one holds SOLE over the inode.
    pub fn is_sole(&self, session: SessionId, inode: InodeId) -> bool {
        self.soles.get(&inode).is_some_and(|holder| *holder != session)
    }

    /// Ends SOLE after a commit of the session has brought the changes that it held back.
    pub fn end_sole(&mut self, session: SessionId, inode: InodeId) {
        if self.soles.get(&inode) != Some(&session) {
            return;
        }
        let holder = self
            .holders
            .get_mut(&inode)
            .and_then(|all| all.iter_mut().find(|holder| holder.session == session));
        if let Some(holder) = holder {
            holder.rights = holder.rights - Rights::SOLE;
        }
        self.note_sole(session, inode);
        self.drop_if_empty(session, inode);
    }

    /// Updates the holders of SOLE after a change of the session's rights over an inode.
    pub(super) fn note_sole(&mut self, session: SessionId, inode: InodeId) {
        if self.rights(session, inode).contains(Rights::SOLE) {
            let other = self.soles.insert(inode, session).filter(|holder| *holder != session);
            assert!(other.is_none(), "both {session} and {other:?} hold SOLE over {inode}");
        } else if self.soles.get(&inode) == Some(&session) {
            self.soles.remove(&inode);
        }
    }
}
