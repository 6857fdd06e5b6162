//! Changes of attributes that wait for the next commit.

use protocol::attr::{AttrChanges, Deferred, without_privileges};
use protocol::{Attr, Timestamp};

/// Changes of an inode's attributes that the service has not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    waiting: Option<Deferred>,
    /// The changes that the running commit carries.
    sent: Option<Deferred>,
    /// Whether a commit is running: it ends SOLE, so no more changes wait for the next one.
    pub(crate) is_under_way: bool,
}

impl Deferral {
    /// Returns whether the service has all changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none() && self.sent.is_none()
    }

    /// Returns whether changes wait for the next commit.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Adds changes that come after all earlier ones.
    pub(crate) fn add(&mut self, changes: &AttrChanges, now: Timestamp) {
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

    /// Notes a write after the waiting changes: its time counts, and it may clear suid and sgid.
    pub(crate) fn written(&mut self, kills_privileges: bool) {
        let Some(waiting) = &mut self.waiting else { return };
        waiting.changes.mtime = None;
        if kills_privileges {
            waiting.changes.mode = waiting.changes.mode.map(without_privileges);
        }
    }

    /// Takes out the changes for a commit that is about to be sent.
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

    /// Notes that the commit was answered, or has failed.
    pub(crate) fn answered(&mut self) {
        self.sent = None;
        self.is_under_way = false;
    }

    /// Forgets changes that no user can see any more, or that went with the session.
    pub(crate) fn clear(&mut self) {
        self.waiting = None;
        self.sent = None;
    }

    /// Applies the changes of the running commit to attributes.
    pub(crate) fn show_sent(&self, attr: &mut Attr) {
        self.sent.iter().for_each(|sent| show(sent, attr));
    }

    /// Applies the waiting changes to attributes.
    pub(crate) fn show_waiting(&self, attr: &mut Attr) {
        self.waiting.iter().for_each(|waiting| show(waiting, attr));
    }
}

/// Applies changes as the service will.
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
