//! Changes of attributes that wait for the next commit.
//!
//! Who unpacks an archive sets times, owner and mode of each file before it closes it. While nobody else
//! has seen the file ([`protocol::Rights::SOLE`]) these changes stay here and travel in the commit that
//! the close makes anyway, or within a second. The service asks for them before it shows the file to
//! another session.

use crate::client::Client;
use crate::inode::Inode;
use protocol::attr::{AttrChanges, Deferred, without_privileges};
use protocol::{Attr, InodeId, Rights, Timestamp};
use std::rc::Rc;

/// What of an inode's attributes has been changed and not answered by the service yet.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    waiting: Option<Deferred>,
    /// What the commit under way carries.
    sent: Option<Deferred>,
    /// A commit is under way: it ends SOLE, so nothing more waits for the next one.
    is_under_way: bool,
}

impl Deferral {
    /// Whether nothing is left to be made known.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none() && self.sent.is_none()
    }

    /// Whether something waits for the next commit.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Adds changes that come after all before.
    fn add(&mut self, changes: &AttrChanges, now: Timestamp) {
        let waiting = self
            .waiting
            .get_or_insert_with(|| Deferred { changes: AttrChanges::default(), ctime: now });
        waiting.ctime = waiting.ctime.max(now);
        let all = &mut waiting.changes;
        if changes.kill_privileges || changes.is_chown() {
            all.kill_privileges = true;
            all.mode = all.mode.map(without_privileges);
        }
        all.mode = changes.mode.or(all.mode);
        all.uid = changes.uid.or(all.uid);
        all.gid = changes.gid.or(all.gid);
        all.atime = changes.atime.or(all.atime);
        all.mtime = changes.mtime.or(all.mtime);
    }

    /// A write comes after what waits: its time counts, and it takes privileges away.
    pub(crate) fn written(&mut self, kills_privileges: bool) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.changes.mtime = None;
        if kills_privileges {
            waiting.changes.mode = waiting.changes.mode.map(without_privileges);
        }
    }

    /// A commit goes out: what it carries of this.
    pub(crate) fn send(&mut self) -> Option<Deferred> {
        assert!(!self.is_under_way, "two commits of an inode are under way: {self:?}");
        self.is_under_way = true;
        let waiting = self.waiting.take();
        if reactor::mutant!("deferred-left-out") {
            return None;
        }
        self.sent = waiting;
        self.sent
    }

    /// The commit was answered, or has failed.
    pub(crate) fn answered(&mut self) {
        self.sent = None;
        self.is_under_way = false;
    }

    /// Forgets what nobody can see any more, or has gone with the session.
    pub(crate) fn clear(&mut self) {
        self.waiting = None;
        self.sent = None;
    }

    /// Shows attributes with what is on its way.
    pub(crate) fn show_sent(&self, attr: &mut Attr) {
        self.sent.iter().for_each(|sent| show(sent, attr));
    }

    /// Shows attributes with what waits.
    pub(crate) fn show_waiting(&self, attr: &mut Attr) {
        self.waiting.iter().for_each(|waiting| show(waiting, attr));
    }
}

/// As the service will make the changes.
fn show(deferred: &Deferred, attr: &mut Attr) {
    let changes = &deferred.changes;
    if changes.kill_privileges {
        attr.mode = attr.without_privileges();
    }
    attr.mode = changes.mode.unwrap_or(attr.mode);
    attr.uid = changes.uid.unwrap_or(attr.uid);
    attr.gid = changes.gid.unwrap_or(attr.gid);
    attr.atime = changes.atime.unwrap_or(attr.atime);
    attr.mtime = changes.mtime.unwrap_or(attr.mtime);
    attr.ctime = attr.ctime.max(deferred.ctime);
}

impl Client {
    /// Lets changes wait for the next commit if they may: the attributes with them then.
    pub(crate) fn defer(&self, inode: &Rc<Inode>, changes: &AttrChanges) -> Option<Attr> {
        // The service answers for what is refused, and for data and layout.
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

    /// The file's last writer here closes it, and no commit has ended SOLE: it is given back.
    pub(crate) fn end_sole(&self, inode: &Inode) {
        let mut state = inode.state.borrow_mut();
        if !state.rights.contains(Rights::SOLE) || !inode.dirty.borrow().is_clean() {
            return;
        }
        state.rights = state.rights - Rights::SOLE;
        let (inode, rights, stamp) = (inode.id, Rights::SOLE, state.stamp);
        self.returns.borrow_mut().push(protocol::lease::Return { inode, rights, stamp });
    }

    /// Whether changes of an inode's attributes wait for a commit.
    pub fn defers(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| inode.dirty.borrow().deferral.is_waiting())
    }
}

impl crate::dirty::Dirty {
    /// Changes attributes after all that was written before.
    fn set_attributes(&mut self, changes: &AttrChanges, now: Timestamp) {
        self.deferral.add(changes, now);
        if changes.mtime.is_some() {
            // The time that was set counts, not that of the write before it.
            self.take_mtime();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirty::Dirty;
    use protocol::{FileKind, Generation, Layout};

    fn attr(mode: u16) -> Attr {
        Attr {
            inode: InodeId(7),
            kind: FileKind::File,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated_bytes: 0,
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            version: 1,
            data_version: 1,
            generation: Generation(0),
            layout: Layout::NEAR,
        }
    }

    /// Goal: of changes and writes in any order what came last counts: a mode that was set after a new
    /// owner stays, one before it loses its privileges; a write after a time that was set renews it.
    #[test]
    fn what_came_last_counts() {
        let mode = |mode| AttrChanges { mode: Some(mode), ..AttrChanges::default() };
        let owner = AttrChanges { uid: Some(5), ..AttrChanges::default() };
        let time = AttrChanges { mtime: Some(Timestamp(3)), ..AttrChanges::default() };
        let mut dirty = Dirty::default();
        dirty.set_attributes(&mode(0o4755), Timestamp(1));
        dirty.set_attributes(&owner, Timestamp(2));
        let mut shown = attr(0o600);
        dirty.deferral.show_waiting(&mut shown);
        assert_eq!((shown.mode, shown.uid, shown.ctime), (0o755, 5, Timestamp(2)));
        dirty.set_attributes(&mode(0o4755), Timestamp(3));
        dirty.set_attributes(&time, Timestamp(3));
        dirty.deferral.show_waiting(&mut shown);
        assert_eq!((shown.mode, shown.mtime), (0o4755, Timestamp(3)));
        dirty.touch(Timestamp(9), true);
        let sent = dirty.deferral.send().unwrap();
        assert_eq!((sent.changes.mode, sent.changes.mtime), (Some(0o755), None));
        assert_eq!(dirty.take_mtime(), Some(Timestamp(9)));
        assert!(!dirty.is_clean(), "what is on its way may still be lost");
        dirty.deferral.answered();
        assert!(dirty.is_clean() || dirty.kill_privileges);
    }

    /// Goal: a time that is set after a write is the one that counts.
    #[test]
    fn a_time_that_is_set_replaces_that_of_the_write() {
        let time = AttrChanges { mtime: Some(Timestamp(3)), ..AttrChanges::default() };
        let mut dirty = Dirty::default();
        dirty.touch(Timestamp(9), false);
        dirty.set_attributes(&time, Timestamp(10));
        assert_eq!(dirty.take_mtime(), None);
        assert_eq!(dirty.deferral.send().unwrap().changes.mtime, Some(Timestamp(3)));
    }
}
