//! Answers that a client may not have got: what they opened stays open until the client has repeated
//! the call, or does not repeat it (rule L6 in `docs/protocol.md`).

use super::call::Work;
use super::outbox::ClientReply;
use super::shared::Shared;
use crate::sessions::Session;
use protocol::client::{Answer, Call, ChangeCall, Response, Slot};
use protocol::lease::Grant;
use protocol::{Errno, InodeId, Rights};

/// Heartbeats over a connection after which a client has repeated all that it will repeat. It
/// repeats its calls as soon as it has the connection. One heartbeat may come before them.
const HEARTBEATS: u32 = 2;

/// Returns the inode that an answer opened for the caller.
fn opened(call: &Call, response: &Response) -> Option<InodeId> {
    match (call, &response.result) {
        (Call::Change(ChangeCall::Create { rights, .. }), Ok(Answer::Entry(attr)))
            if rights.contains(Rights::OPEN) =>
        {
            Some(attr.inode)
        }
        _ => None,
    }
}

/// Returns the grants of an answer that its slot stores. Of the others a retry could have lost parts
/// by the time of its answer.
pub(super) fn stored_grants(call: &Call, response: &Response) -> Vec<Grant> {
    let Some(inode) = opened(call, response) else { return Vec::new() };
    let grants = response.grants.iter().filter(|grant| grant.inode == inode);
    grants.map(|grant| Grant { rights: Rights::OPEN, ..*grant }).collect()
}

impl Shared {
    /// Keeps open what the stored answers of a session opened, when it resumes.
    pub(super) fn note_unheard(&self, session: &Session) -> Result<(), Errno> {
        session.heartbeats.set(0);
        let opens = self.core.borrow().stored_opens(session.id).map_err(|e| e.to_errno())?;
        for (slot, inode) in opens {
            if !reactor::mutant!("unheard-open-dropped") {
                self.leases.borrow_mut().note_unheard(session.id, slot, inode);
            }
        }
        Ok(())
    }

    /// Keeps open what an answer opens that cannot be sent, because the connection is gone.
    pub(super) fn note_unsent(&self, work: &Work, slot: Slot, response: &Response) {
        let Some(inode) = opened(&work.request.call, response) else { return };
        if work.reply.borrow().as_ref().is_none_or(ClientReply::is_closed) {
            self.leases.borrow_mut().note_unheard(work.session.id, slot.slot, inode);
        }
    }

    /// Grants anew what a stored answer opened, for the answer to a retry.
    pub(super) fn open_again(&self, session: &Session, slot: Slot, stored: &[Grant]) -> Vec<Grant> {
        let mut grants = Vec::new();
        for Grant { inode, .. } in
            stored.iter().filter(|_| !reactor::mutant!("retry-opens-nothing"))
        {
            if self.core.borrow().attr(*inode).is_err() {
                continue;
            }
            let grant = self.leases.borrow_mut().grant(session.id, *inode, Rights::OPEN);
            self.note_open(session.id, *inode);
            // The stored answer may be older than what READ covers.
            grants
                .extend(grant.map(|grant| Grant { rights: grant.rights - Rights::READ, ..grant }));
        }
        self.heard(session, slot);
        grants
    }

    /// Ends the open of the answer in a slot.
    pub(super) fn heard(&self, session: &Session, slot: Slot) {
        let closed = self.leases.borrow_mut().heard(session.id, slot.slot);
        if let Some(inode) = closed {
            self.close_inode(session.id, inode);
        }
    }

    /// Ends the opens of answers whose calls the client does not repeat, as its heartbeat shows.
    pub(super) fn end_unrepeated(&self, session: &Session) {
        let is_reclaiming = session.reclaim_by.get().is_some();
        if is_reclaiming || !self.leases.borrow().has_unheard(session.id) {
            return;
        }
        session.heartbeats.set(session.heartbeats.get() + 1);
        if session.heartbeats.get() < HEARTBEATS || reactor::mutant!("unheard-open-kept") {
            return;
        }
        let closed = self.leases.borrow_mut().end_unheard(session.id);
        for inode in closed {
            self.close_inode(session.id, inode);
        }
    }
}
