//! A session that continues over a new connection: it reports its rights, and has no READ.

use super::{Ask, AskId, Asked, Holder, Leases};
use protocol::lease::{Grant, Recall};
use protocol::{InodeId, Rights, SessionId};
use std::collections::HashSet;

/// Rights that a session may reclaim.
const RECLAIMABLE: Rights =
    Rights(Rights::WRITE.0 | Rights::SIZE.0 | Rights::OPEN.0 | Rights::SOLE.0 | Rights::LOCKS.0);

impl Leases {
    /// Continues a session over a new connection. It has dropped its caches, so its READ rights are
    /// gone, and the entries that it had to forget are forgotten. It keeps its other rights until
    /// [`Leases::end_reclaim`].
    pub fn resume(&mut self, session: SessionId) {
        for inode in self.inodes_of(session) {
            self.cut(session, inode, RECLAIMABLE);
        }
        for id in self.asks_of(session) {
            if self.asks.get(&id).is_some_and(|open| !open.rights.intersects(RECLAIMABLE)) {
                self.close_ask(id);
            }
        }
        assert!(
            !self.asks_of(session).iter().any(|id| self.asks[id].is_eviction),
            "{session} has resumed with a recall to make room from its last connection"
        );
        let held = self.sessions.entry(session).or_default();
        held.evictions = 0;
        held.reclaiming = Some(HashSet::new());
    }

    /// Takes the rights that the session reports over an inode. It keeps those that the table
    /// knows. It gets the others (the table lost them in a restart of the service) unless they
    /// conflict with the rights of other sessions.
    pub fn reclaim(&mut self, session: SessionId, inode: InodeId, rights: Rights) -> Option<Grant> {
        let rights = rights & RECLAIMABLE;
        let had = self.rights(session, inode);
        let mut kept = had & rights;
        for right in [Rights::WRITE, Rights::SIZE, Rights::OPEN, Rights::SOLE, Rights::LOCKS] {
            let is_free =
                self.may_grant(session, inode, right) || reactor::mutant!("reclaimed-from-others");
            if rights.contains(right) && is_free {
                kept |= right;
            }
        }
        if kept.is_empty() {
            return None;
        }
        let stamp = self.next_stamp();
        let holders = self.holders.entry(inode).or_default();
        let held = self.sessions.entry(session).or_default();
        if let Some(holder) = holders.iter_mut().find(|h| h.session == session) {
            let known_as = held.by_stamp.remove(&holder.stamp);
            assert_eq!(known_as, Some(inode), "{session} holds {holder:?} over {inode}");
            *holder = Holder { session, rights: kept, stamp };
        } else {
            holders.push(Holder { session, rights: kept, stamp });
        }
        let other = held.by_stamp.insert(stamp, inode);
        assert!(other.is_none(), "{stamp:?} is of grants over {inode} and {other:?}");
        super::grant::assert_one_holder(inode, holders);
        held.reclaiming.get_or_insert_default().insert(inode);
        self.note_sole(session, inode);
        Some(Grant { inode, rights: kept, stamp })
    }

    /// Ends the reclaim: the session loses the rights that it has not reported. Returns the inodes
    /// that it had open and has closed. Unanswered recalls go to the outbox again.
    pub fn end_reclaim(&mut self, session: SessionId) -> Vec<InodeId> {
        let held = self.sessions.entry(session).or_default();
        let Some(reclaimed) = held.reclaiming.take() else { return Vec::new() };
        let mut closed = Vec::new();
        for inode in self.inodes_of(session) {
            if reclaimed.contains(&inode) {
                continue;
            }
            if self.rights(session, inode).contains(Rights::OPEN) {
                closed.push(inode);
            }
            // READ may have been granted since the resume.
            if !reactor::mutant!("unclaimed-kept") {
                self.cut(session, inode, Rights::READ);
            }
        }
        for id in self.asks_of(session) {
            self.repeat_ask(id);
        }
        closed
    }

    /// Repeats an ask, or closes it if the session does not hold the rights.
    fn repeat_ask(&mut self, id: AskId) {
        let Some(open) = self.asks.get(&id) else { return };
        let (session, inode) = (open.session, open.inode);
        let rights = open.rights & self.rights(session, inode);
        if open.is_forget {
            // Created after the resume, so it was sent over the new connection.
            return;
        }
        if rights.is_empty() {
            self.close_ask(id);
            return;
        }
        let stamp = self.next_stamp();
        if let Some(open) = self.asks.get_mut(&id) {
            assert!(open.stamp < stamp, "{open:?} is asked again with {stamp:?}");
            open.stamp = stamp;
            open.rights = rights;
        }
        let what = Asked::Recall(Recall { inode, rights, stamp });
        self.outbox.push(Ask { id, session, what });
    }

    /// Leaves a session no more than `rights` over an inode.
    fn cut(&mut self, session: SessionId, inode: InodeId, rights: Rights) {
        let Some(holders) = self.holders.get_mut(&inode) else { return };
        if let Some(holder) = holders.iter_mut().find(|h| h.session == session) {
            holder.rights = holder.rights & rights;
        }
        self.note_sole(session, inode);
        self.drop_if_empty(session, inode);
    }

    fn inodes_of(&self, session: SessionId) -> Vec<InodeId> {
        let held = self.sessions.get(&session);
        held.map(|held| held.by_stamp.values().copied().collect()).unwrap_or_default()
    }

    pub(super) fn asks_of(&self, session: SessionId) -> Vec<AskId> {
        let mut asks: Vec<AskId> = self
            .asks
            .iter()
            .filter(|(_, open)| open.session == session)
            .map(|(id, _)| *id)
            .collect();
        asks.sort_unstable();
        asks
    }
}
