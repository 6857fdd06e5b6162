//! LOCKS: a session that alone uses an inode's locks decides about them itself.
//!
//! The session's locks stay in the store as they were when it got the right. They count again if
//! the session never received the grant; otherwise its report replaces them before any other
//! session sees them.

use super::super::call::Work;
use super::super::execute::answer;
use super::super::outbox::refusal;
use super::super::shared::Shared;
use crate::sessions::Session;
use protocol::client::Call;
use protocol::client::{Answer, ChangeCall, Response};
use protocol::lock::Lock;
use protocol::{Errno, InodeId, Rights};
use reactor::time::{Instant, now};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

/// Span for which no session gets LOCKS over an inode after two sessions wanted its locks at the
/// same time: moving the right between them costs more than asking the service.
const QUIET: Duration = Duration::from_secs(1);

/// Most locks that move with the right: a session with more of them keeps asking the service.
const TRAVELLERS_MAX: usize = 256;

/// Number of noted inodes at which those without recent contention are removed.
const SWEPT: usize = 4096;

/// Inodes with contention for their locks, and the time of its last occurrence.
#[derive(Debug, Default)]
pub(in crate::service) struct Contention(RefCell<HashMap<InodeId, Instant>>);

impl Contention {
    /// Notes that two owners wanted conflicting locks of the inode.
    pub(super) fn note(&self, inode: InodeId) {
        let mut noted = self.0.borrow_mut();
        if noted.len() >= SWEPT {
            noted.retain(|_, at| at.elapsed() < QUIET);
        }
        noted.insert(inode, now());
    }

    fn is_quiet(&self, inode: InodeId) -> bool {
        self.0.borrow().get(&inode).is_none_or(|at| at.elapsed() >= QUIET)
    }
}

impl Shared {
    /// Adds to the answer about a held lock the right to decide about the inode's locks, if no
    /// other session uses them.
    pub(super) fn with_right(&self, work: &Work, inode: InodeId, response: Response) -> Response {
        if response.result.is_err() {
            return response;
        }
        if self.waiting.borrow().contains_key(&work.id) {
            // Another session had the right.
            self.lock_contention.note(inode);
        }
        let session = &work.session;
        let alone = self.locks.borrow().alone(session.id, inode, TRAVELLERS_MAX);
        let alone = alone.or_else(|| {
            let is_planted = reactor::mutant!("locks-right-beside-others");
            is_planted.then(|| self.locks.borrow().held(session.id, inode))
        });
        let Some(held) = alone else {
            self.lock_contention.note(inode);
            return response;
        };
        if !self.lock_contention.is_quiet(inode) || self.awaits_answer(session, inode) {
            return response;
        }
        let grant = self.leases.borrow_mut().grant(session.id, inode, Rights::LOCKS);
        let Some(grant) = grant.filter(|grant| grant.rights.contains(Rights::LOCKS)) else {
            return response;
        };
        Response { grants: vec![grant], ..answer(Answer::Locks(held)) }
    }

    /// Returns whether a wait of the session for a lock of the inode has no answer yet.
    fn awaits_answer(&self, session: &Session, inode: InodeId) -> bool {
        session.lock_waits.get() > 0
            && self.waiting.borrow().values().any(|work| {
                let is_of = |call: &Call| matches!(call, Call::Change(ChangeCall::SetLock { lock, .. }) if lock.inode == inode);
                work.session.id == session.id && is_of(&work.request.call)
            })
    }

    /// `ReportLocks`.
    pub(in crate::service) fn report_locks(
        &self,
        session: &Session,
        inode: InodeId,
        reported: &[Lock],
        is_first: bool,
    ) -> Response {
        if !self.leases.borrow().rights(session.id, inode).contains(Rights::LOCKS) {
            return refusal(Errno::ESTALE);
        }
        let mut is_sound = true;
        if !reactor::mutant!("report-ignored") {
            let mut locks = self.locks.borrow_mut();
            if is_first && !reactor::mutant!("report-added") {
                locks.clear(session.id, inode);
            }
            for lock in reported {
                is_sound &= lock.inode == inode && locks.report(session.id, *lock);
            }
        }
        let unstored = self.locks.borrow().unstored(session.id, inode);
        let unstored = unstored.into_iter().filter(|_| !reactor::mutant!("report-unstored"));
        for owner in unstored {
            if let Some(errno) = self.store_owner(session.id, inode, owner) {
                return refusal(errno);
            }
        }
        if is_sound { answer(Answer::Done) } else { refusal(Errno::EINVAL) }
    }
}
