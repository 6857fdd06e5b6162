//! Opens that stored answers granted, while their clients may not have got these answers.
//!
//! Such an open belongs to the answer in its slot, not to the rights of the session: the client
//! does not report what it has not heard of, neither when it reclaims nor when it is asked.

use super::Leases;
use protocol::{InodeId, Rights, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The opens by slot, and the same by inode.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    by_slot: BTreeMap<(SessionId, u16), InodeId>,
    by_inode: BTreeSet<(InodeId, SessionId, u16)>,
}

impl Unheard {
    fn insert(&mut self, session: SessionId, slot: u16, inode: InodeId) {
        self.remove(session, slot);
        self.by_slot.insert((session, slot), inode);
        self.by_inode.insert((inode, session, slot));
    }

    fn remove(&mut self, session: SessionId, slot: u16) -> Option<InodeId> {
        let inode = self.by_slot.remove(&(session, slot))?;
        let was_there = self.by_inode.remove(&(inode, session, slot));
        assert!(was_there, "an open of {inode} is noted for slot {slot} of {session} only");
        Some(inode)
    }

    fn slots_of(&self, session: SessionId) -> Vec<u16> {
        let all = self.by_slot.range((session, 0)..=(session, u16::MAX));
        all.map(|((_, slot), _)| *slot).collect()
    }

    /// Returns the sessions with an answer that opened the inode; one of several answers is named
    /// several times.
    pub(super) fn openers(&self, inode: InodeId) -> impl Iterator<Item = SessionId> {
        let first = (inode, SessionId(0), 0);
        let last = (inode, SessionId(u64::MAX), u16::MAX);
        self.by_inode.range(first..=last).map(|(_, session, _)| *session)
    }
}

impl Leases {
    /// Notes that the answer in a slot granted OPEN over an inode, and may be lost.
    pub fn note_unheard(&mut self, session: SessionId, slot: u16, inode: InodeId) {
        self.unheard.insert(session, slot, inode);
    }

    /// Ends the open of the answer in a slot: the client has repeated the call, or has got the
    /// answer. Returns the inode if the session does not have it open any more.
    pub fn heard(&mut self, session: SessionId, slot: u16) -> Option<InodeId> {
        let inode = self.unheard.remove(session, slot)?;
        (!self.is_open(session, inode)).then_some(inode)
    }

    /// Ends the opens of all answers of a session: the client does not repeat the calls. Returns
    /// the inodes that the session does not have open any more.
    pub fn end_unheard(&mut self, session: SessionId) -> Vec<InodeId> {
        let slots = self.unheard.slots_of(session);
        slots.into_iter().filter_map(|slot| self.heard(session, slot)).collect()
    }

    /// Returns whether a session has opens of answers that it may not have got.
    pub fn has_unheard(&self, session: SessionId) -> bool {
        self.unheard.by_slot.range((session, 0)..=(session, u16::MAX)).next().is_some()
    }

    /// Returns whether a session has an inode open by an answer that it may not have got.
    pub fn is_unheard(&self, session: SessionId, inode: InodeId) -> bool {
        self.unheard.openers(inode).any(|opener| opener == session)
    }

    fn is_open(&self, session: SessionId, inode: InodeId) -> bool {
        self.rights(session, inode).contains(Rights::OPEN) || self.is_unheard(session, inode)
    }
}
