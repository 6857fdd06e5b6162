//! Changes of attributes that wait for the next commit.

use protocol::attr::{AttrChanges, Deferred, without_privileges};
use protocol::{Attr, Timestamp};

/// What of an inode's attributes has been changed and not answered by the service yet.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    waiting: Option<Deferred>,
    /// What the commit under way carries.
    sent: Option<Deferred>,
    /// A commit is under way: it ends SOLE, so nothing more waits for the next one.
    pub(crate) is_under_way: bool,
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
