//! The execution of a call that has no conflicts.

use super::call::Work;
use super::outbox::refusal;
use super::shared::Shared;
use crate::tree::{Context, Outcome};
use protocol::client::{Answer, Call, ChangeCall, ReadCall, Response, SessionCall};
use protocol::lease::{Grant, Return};
use protocol::{Errno, InodeId, Rights, Timestamp};
use std::rc::Rc;

/// The result of an execution.
#[allow(clippy::large_enum_variant, reason = "it is moved once, and most are answers")]
pub(super) enum Executed {
    /// The answer.
    Answer(Response),
    /// The answer comes later, from another task.
    Later,
}

/// Returns an answer without grants.
pub(super) fn answer(answer: Answer) -> Response {
    Response { result: Ok(answer), grants: Vec::new(), changed: Vec::new() }
}

fn done() -> Executed {
    Executed::Answer(answer(Answer::Done))
}

impl Shared {
    /// Executes a call.
    pub(super) fn execute(self: &Rc<Self>, work: &Rc<Work>) -> Executed {
        let call = &work.request.call;
        match call {
            Call::Session(call) => self.execute_session(work, call),
            Call::Read(read) => match read {
                ReadCall::TestLock(lock) if lock.start > lock.last => {
                    Executed::Answer(refusal(Errno::EINVAL))
                }
                ReadCall::TestLock(lock) => {
                    let found = self.locks.borrow().test(work.session.id, lock);
                    Executed::Answer(answer(Answer::Lock(found)))
                }
                ReadCall::PoolUse
                | ReadCall::Lookup { .. }
                | ReadCall::GetAttr(_)
                | ReadCall::ReadDir { .. }
                | ReadCall::ReadLink(_)
                | ReadCall::GetXattr { .. }
                | ReadCall::ListXattr(_)
                | ReadCall::ReadExtents { .. }
                | ReadCall::ReadFiles(_) => Executed::Answer(self.execute_in_core(work, call)),
            },
            Call::Change(change) => match change {
                ChangeCall::LeaseSpace { .. } => self.lease_space(work),
                ChangeCall::SetLock { lock, wait } => self.set_lock(work, *lock, *wait),
                ChangeCall::Unlock(lock) => self.unlock(work.session.id, *lock),
                ChangeCall::SetAttr { .. }
                | ChangeCall::Create { .. }
                | ChangeCall::CreateFiles { .. }
                | ChangeCall::Link { .. }
                | ChangeCall::Unlink { .. }
                | ChangeCall::Rmdir { .. }
                | ChangeCall::Rename { .. }
                | ChangeCall::SetXattr { .. }
                | ChangeCall::RemoveXattr { .. }
                | ChangeCall::Commit { .. }
                | ChangeCall::Fallocate { .. }
                | ChangeCall::CopyRange { .. }
                | ChangeCall::Compact { .. }
                | ChangeCall::ReturnSpace { .. } => {
                    Executed::Answer(self.execute_in_core(work, call))
                }
            },
        }
    }

    fn execute_session(self: &Rc<Self>, work: &Rc<Work>, call: &SessionCall) -> Executed {
        let session = &work.session;
        match call {
            SessionCall::Start { .. } | SessionCall::Pulse { .. } => {
                Executed::Answer(refusal(Errno::EPROTO))
            }
            SessionCall::Reclaim { held, done } => {
                Executed::Answer(self.reclaim_rights(session, held, *done))
            }
            SessionCall::Heartbeat { ended_through, working_on } => {
                session.last_heartbeat.set(reactor::time::now());
                self.end_unrepeated(session);
                session.recalls.borrow_mut().note_work(working_on);
                self.core.borrow_mut().ended_through(session.id, *ended_through);
                self.reclaim_wanted.notify();
                let core = self.core.borrow();
                let (free_epoch, takes_inline) = (core.free_epoch(), core.takes_inline());
                Executed::Answer(answer(Answer::Alive { free_epoch, takes_inline }))
            }
            SessionCall::End => self.end_at_its_wish(work),
            SessionCall::Devices => {
                let devices = self.core.borrow().devices();
                Executed::Answer(answer(Answer::Devices(devices)))
            }
            SessionCall::Admit(device) => self.admit(work, *device),
            SessionCall::GiveBack(returns) => {
                for back in returns {
                    self.give_back(work, *back);
                }
                self.go_on();
                done()
            }
            SessionCall::Sync(_) => done(),
            SessionCall::Acquire { .. } => {
                Executed::Answer(self.execute_in_core(work, &work.request.call))
            }
            SessionCall::CancelLock { inode, family, owner } => {
                self.cancel_lock(session.id, *inode, *family, *owner);
                done()
            }
            SessionCall::ReportLocks { inode, locks, is_first, is_last, is_open } => {
                let response = self.report_locks(session, *inode, locks, *is_first);
                if *is_last && matches!(response.result, Ok(_) | Err(Errno::EINVAL)) {
                    self.leases.borrow_mut().end_locks(session.id, *inode, *is_open);
                }
                Executed::Answer(response)
            }
        }
    }

    fn give_back(&self, work: &Work, back: Return) {
        let closed = self.leases.borrow_mut().give_back(work.session.id, back);
        if closed {
            self.close_inode(work.session.id, back.inode);
        }
    }

    /// Executes a call on the tree, data or space, and grants the rights that come with it.
    pub(super) fn execute_in_core(&self, work: &Work, call: &Call) -> Response {
        let outcome = {
            let leases = self.leases.borrow();
            let openers = |inode: InodeId| leases.openers(inode);
            let context = Context {
                session: work.session.id,
                now: Timestamp(reactor::time::system_time() as i64),
                openers: &openers,
            };
            self.core.borrow_mut().execute(&context, call)
        };
        if let (Call::Change(ChangeCall::Commit { inode, .. }), Ok(_)) = (call, &outcome) {
            self.leases.borrow_mut().end_sole(work.session.id, *inode);
        }
        // The bars of other calls stand, its own do not.
        self.leases.borrow_mut().done(work.id);
        assert!(
            !self.leases.borrow().is_waiting(work.id),
            "{:?} was carried out, and waits: {call:?}",
            work.id
        );
        match outcome {
            Ok(outcome) => self.respond(work, call, outcome),
            Err(errno) => refusal(errno),
        }
    }

    fn respond(&self, work: &Work, call: &Call, outcome: Outcome) -> Response {
        // A recall of these grants could overtake an answer that waits for a sync.
        let is_late = call.traits().made_durable.is_some();
        let grants = if is_late { Vec::new() } else { self.grant(work, &outcome.grants) };
        Response { result: Ok(outcome.answer), grants, changed: outcome.changed }
    }

    fn grant(&self, work: &Work, wishes: &[(InodeId, Rights)]) -> Vec<Grant> {
        let mut leases = self.leases.borrow_mut();
        let grants = wishes
            .iter()
            .filter_map(|(inode, rights)| leases.grant(work.session.id, *inode, *rights));
        grants.collect()
    }
}
