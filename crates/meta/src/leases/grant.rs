//! Granting rights, giving them back, and the end of a session.

use super::{CallId, EVICTION_LOOK_MAX, EVICTIONS_MAX, Holder, Holders, Leases};
use protocol::lease::{Grant, Return};
use protocol::{InodeId, Rights, SessionId};

/// Most inodes over which sessions hold SOLE: each call that shows attributes walks them.
const SOLES_MAX: usize = 1024;

/// Asserts that SIZE and LOCKS over an inode have one holder each. Two holders of SIZE would append
/// at the same offset; two holders of LOCKS would grant the same lock.
pub(super) fn assert_one_holder(inode: InodeId, holders: &[Holder]) {
    for right in [Rights::SIZE, Rights::LOCKS] {
        let count = holders.iter().filter(|holder| holder.rights.contains(right)).count();
        assert!(count <= 1, "{count} sessions hold {right:?} over {inode}: {holders:?}");
    }
}

/// All rights, in the order in which they are granted one by one.
const EACH: [Rights; 6] =
    [Rights::READ, Rights::WRITE, Rights::SIZE, Rights::OPEN, Rights::SOLE, Rights::LOCKS];

impl Leases {
    /// Grants the available part of `rights`, and returns all rights that the session then holds;
    /// `None` if none of `rights` is available. A right is not available while another session's
    /// call bars it, or another session holds SIZE; READ is not while another session holds SOLE.
    pub fn grant(&mut self, session: SessionId, inode: InodeId, rights: Rights) -> Option<Grant> {
        let mut granted = Rights::NONE;
        for right in EACH {
            if rights.contains(right) && self.may_grant(session, inode, right) {
                granted |= right;
            }
        }
        if granted.is_empty() {
            return None;
        }
        // A right that is being recalled is on its way back: the answer does not name it as held,
        // unless it is granted anew. The same is true of READ while a call bars it, because the
        // client must not cache the data of this answer.
        let mut leaving = self.leaving(session, inode, granted);
        if self.is_barred(session, inode, Rights::READ) && !reactor::mutant!("told-under-bar") {
            leaving |= Rights::READ;
        }
        let stamp = self.next_stamp();
        let holders = self.holders.entry(inode).or_default();
        let held = self.sessions.entry(session).or_default();
        let rights = if let Some(holder) = holders.iter_mut().find(|h| h.session == session) {
            let known_as = held.by_stamp.remove(&holder.stamp);
            assert!(
                known_as == Some(inode) && holder.stamp < stamp,
                "{session} holds {holder:?} over {inode}, its stamp is of {known_as:?}, and {stamp:?} is granted"
            );
            holder.rights |= granted;
            holder.stamp = stamp;
            holder.rights - leaving
        } else {
            holders.push(Holder { session, rights: granted, stamp });
            granted
        };
        let other = held.by_stamp.insert(stamp, inode);
        assert!(other.is_none(), "{stamp:?} is of grants over {inode} and {other:?}");
        assert!(
            !rights.intersects(leaving),
            "{session} gets {rights:?} over {inode} while {leaving:?} are being recalled"
        );
        if granted.intersects(Rights::SIZE | Rights::LOCKS) {
            assert_one_holder(inode, holders);
        }
        let is_many = held.by_stamp.len() > self.holdings_max;
        if granted.contains(Rights::SOLE) {
            self.note_sole(session, inode);
        }
        if is_many {
            self.make_room(session);
        }
        Some(Grant { inode, rights, stamp })
    }

    pub(super) fn may_grant(&self, session: SessionId, inode: InodeId, right: Rights) -> bool {
        if right == Rights::OPEN {
            return true;
        }
        if self.is_barred(session, inode, right) && !reactor::mutant!("granted-under-bar") {
            return false;
        }
        let is_full = || {
            self.sessions.get(&session).is_some_and(|h| h.by_stamp.len() >= 2 * self.holdings_max)
        };
        match right {
            Rights::READ => !is_full() && !self.is_sole(session, inode),
            Rights::SOLE => {
                let is_only = |holders: &Holders| holders.iter().all(|h| h.session == session);
                self.soles.len() < SOLES_MAX && self.holders.get(&inode).is_none_or(is_only)
            }
            Rights::SIZE => self.holders.get(&inode).is_none_or(|holders| {
                let others = || holders.iter().filter(|h| h.session != session);
                reactor::mutant!("size-shared")
                    || !others().any(|h| h.rights.contains(Rights::SIZE))
            }),
            Rights::LOCKS => self.holders.get(&inode).is_none_or(|holders| {
                let mut others = holders.iter().filter(|h| h.session != session);
                !others.any(|h| h.rights.contains(Rights::LOCKS))
            }),
            _ => true,
        }
    }

    /// Takes LOCKS from a session that has reported its locks of the inode. While it held LOCKS, it
    /// may have opened the inode without a report: `is_open` is whether it has it open.
    pub fn end_locks(&mut self, session: SessionId, inode: InodeId, is_open: bool) {
        let holder = self
            .holders
            .get_mut(&inode)
            .and_then(|all| all.iter_mut().find(|holder| holder.session == session));
        if let Some(holder) = holder {
            holder.rights = holder.rights - Rights::LOCKS;
            if is_open {
                holder.rights |= Rights::OPEN;
            }
        }
        self.drop_if_empty(session, inode);
    }

    /// Returns the session's rights that are being recalled. A right that is granted anew while a
    /// recall only makes room is removed from that recall.
    fn leaving(&mut self, session: SessionId, inode: InodeId, granted: Rights) -> Rights {
        let mut leaving = Rights::NONE;
        let Some(busy) = self.busy.get(&inode) else { return leaving };
        for id in &busy.asks {
            if let Some(open) = self.asks.get_mut(id)
                && open.session == session
            {
                open.rights = open.rights - granted;
                leaving |= open.rights;
            }
        }
        leaving
    }

    /// Recalls the oldest READ of a session that holds too many.
    fn make_room(&mut self, session: SessionId) {
        let Some(held) = self.sessions.get(&session) else { return };
        if held.evictions >= EVICTIONS_MAX {
            return;
        }
        let oldest = held.by_stamp.values().take(EVICTION_LOOK_MAX).copied();
        let can_go = |inode: &InodeId| {
            self.rights(session, *inode).contains(Rights::READ) && !self.busy.contains_key(inode)
        };
        let Some(inode) = oldest.into_iter().find(can_go) else { return };
        self.recall(None, session, inode, Rights::READ);
        if let Some(held) = self.sessions.get_mut(&session) {
            held.evictions += 1;
            assert!(
                held.evictions <= EVICTIONS_MAX,
                "{session} has {} recalls to make room",
                held.evictions
            );
        }
    }

    /// Takes rights that the session gives back without a recall. Returns whether the session had
    /// the inode open and has closed it.
    pub fn give_back(&mut self, session: SessionId, back: Return) -> bool {
        let Some(holders) = self.holders.get_mut(&back.inode) else { return false };
        let Some(holder) = holders.iter_mut().find(|h| h.session == session) else { return false };
        if holder.stamp > back.stamp && !reactor::mutant!("return-takes-newer") {
            return false;
        }
        let had_open = holder.rights.contains(Rights::OPEN);
        holder.rights = holder.rights - back.rights;
        let has_open = holder.rights.contains(Rights::OPEN);
        self.note_sole(session, back.inode);
        self.drop_if_empty(session, back.inode);
        had_open && !has_open
    }

    pub(super) fn drop_if_empty(&mut self, session: SessionId, inode: InodeId) {
        let Some(holders) = self.holders.get_mut(&inode) else { return };
        let Some(at) = holders.iter().position(|h| h.session == session) else { return };
        if !holders[at].rights.is_empty() {
            return;
        }
        let holder = holders.swap_remove(at);
        if holders.is_empty() {
            self.holders.remove(&inode);
        }
        if let Some(held) = self.sessions.get_mut(&session) {
            let known_as = held.by_stamp.remove(&holder.stamp);
            assert_eq!(known_as, Some(inode), "{session} held {holder:?} over {inode}");
        }
    }

    /// Ends a session: it holds nothing, and no answer is expected from it. Its own calls must be
    /// given up with [`Leases::done`].
    pub fn end_session(&mut self, session: SessionId) {
        let held = self.sessions.remove(&session).unwrap_or_default();
        self.soles.retain(|_, holder| *holder != session);
        self.end_unheard(session);
        for inode in held.by_stamp.into_values() {
            if let Some(holders) = self.holders.get_mut(&inode) {
                let before = holders.len();
                holders.retain(|h| h.session != session);
                assert!(
                    holders.len() + 1 == before,
                    "{session} has held {inode} {} times: {holders:?}",
                    before - holders.len()
                );
                if holders.is_empty() {
                    self.holders.remove(&inode);
                }
            }
        }
        for id in self.asks_of(session) {
            self.close_ask(id);
        }
        assert!(
            !self.sessions.contains_key(&session),
            "{session} has ended, and is known to hold rights"
        );
    }

    /// Returns whether a call waits.
    pub fn is_waiting(&self, call: CallId) -> bool {
        self.waiting.contains_key(&call)
    }
}
