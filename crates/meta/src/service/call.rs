//! The processing of a client's call: slots, grace, conflicts, recalls, waiting.

use super::execute::Executed;
use super::outbox::{ClientReply, Outgoing, refusal, send};
use super::shared::Shared;
use super::unheard::stored_grants;
use crate::leases::{CallId, Clearance, Demand};
use crate::sessions::Session;
use crate::tree::{Conflict, ConflictKind, SlotState};
use metrics::{Family, Point};
use protocol::client::{Answer, Call, ChangeCall, ReadCall, Request, Response, SessionCall};
use protocol::{Errno, InodeId, Rights, SessionId};
use reactor::local::Notify;
use reactor::time::{Instant, now, timeout_at};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most calls of one session that may wait for recalls, grace or locks at once; more are refused
/// EAGAIN.
const WAITING_MAX: usize = 2048;

/// A call under way.
pub(crate) struct Work {
    pub(super) id: CallId,
    pub(super) session: Rc<Session>,
    pub(super) request: Request,
    /// The way back for the answer: on the newest connection that sent the call.
    pub(super) reply: RefCell<Option<ClientReply>>,
    /// Counts the call until it is answered.
    pub(super) counted: RefCell<Option<metrics::Operation>>,
    /// Notified when another attempt may succeed.
    pub(super) wake: Notify,
    pub(super) is_given_up: Cell<bool>,
    /// For a wait for a file lock: the lock is held.
    pub(super) is_lock_granted: Cell<bool>,
    /// For a wait for a file lock: its owner has cancelled the wait.
    pub(super) is_lock_cancelled: Cell<bool>,
    /// It waits until what was cut out of a file is removed.
    pub(super) awaits_removal: Cell<bool>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Work {
    /// Returns whether its connection is gone and the call will not be sent again: no client would
    /// receive its grants.
    fn is_abandoned(&self) -> bool {
        let is_gone = self.reply.borrow().as_ref().is_none_or(ClientReply::is_closed);
        self.request.slot.is_none() && is_gone
    }

    /// Lets its task end without an answer.
    pub(super) fn give_up(&self) {
        self.is_given_up.set(true);
        self.reply.borrow_mut().take();
        self.wake.notify();
    }
}

/// The result of an attempt.
pub(super) enum Try {
    /// The answer is posted.
    Done,
    /// The call must wait until it is woken, and then be attempted again.
    Wait,
}

impl Shared {
    /// Takes a session's call.
    pub(super) fn begin(
        self: &Rc<Self>,
        session: &Rc<Session>,
        request: Request,
        reply: ClientReply,
    ) {
        if self.is_stopping.get() {
            // The client sends it again after the next start.
            return;
        }
        if !session.is_live() && !reactor::mutant!("ended-served") {
            return self.post(Outgoing::Answer(reply, refusal(Errno::ESTALE)));
        }
        if request.slot.is_some() != request.call.changes() {
            return self.post(Outgoing::Answer(reply, refusal(Errno::EPROTO)));
        }
        if let Some(slot) = request.slot {
            if let Some(work) = session.retried(slot) {
                *work.reply.borrow_mut() = Some(reply);
                return;
            }
            let state = self.core.borrow().check_slot(session.id, slot);
            match state {
                Ok(SlotState::New) => self.heard(session, slot),
                Ok(SlotState::Repeated(response)) => {
                    let grants = self.open_again(session, slot, &response.grants);
                    self.repeat(&request, reply, Response { grants, ..*response });
                    return self.go_on();
                }
                Err(errno) => return self.post(Outgoing::Answer(reply, refusal(errno))),
            }
        }
        if let Some(errno) = request.call.traits().when_full
            && !self.core.borrow_mut().has_room()
        {
            // This answer depends on no unstored change, and storing may have to wait.
            return send(reply, &refusal(errno));
        }
        let kind = request.call.kind();
        let point = Point::new(Family::Serve, kind.index, kind.name);
        let counted = metrics::start(point, kind.inode);
        let id = CallId(self.next_call.get());
        self.next_call.set(id.0 + 1);
        let work = Rc::new(Work {
            id,
            session: Rc::clone(session),
            request,
            reply: RefCell::new(Some(reply)),
            counted: RefCell::new(Some(counted)),
            wake: Notify::new(),
            is_given_up: Cell::new(false),
            is_lock_granted: Cell::new(false),
            is_lock_cancelled: Cell::new(false),
            awaits_removal: Cell::new(false),
        });
        if let Some(slot) = work.request.slot {
            let in_flight = (slot.sequence, Rc::clone(&work));
            let before = session.in_flight.borrow_mut().insert(slot.slot, in_flight);
            // A later sequence in the same slot comes from a client that has given the earlier call
            // up.
            assert!(
                before.as_ref().is_none_or(|(sequence, _)| *sequence != slot.sequence)
                    || reactor::mutant!("retry-beside-first"),
                "{slot:?} of {} is worked on twice",
                session.id
            );
        }
        if let Try::Wait = self.attempt(&work) {
            self.wait(work);
        }
    }

    /// Answers a retry with the stored answer.
    fn repeat(&self, request: &Request, reply: ClientReply, response: Response) {
        self.count(|counts| counts.repeated += 1);
        // The first answer may have been lost before its sync.
        self.post(match request.call.traits().made_durable {
            Some(inode) if response.result.is_ok() => Outgoing::Durable(reply, response, inode),
            _ => Outgoing::Answer(reply, response),
        });
    }

    /// Tries to execute a call now.
    pub(super) fn attempt(self: &Rc<Self>, work: &Rc<Work>) -> Try {
        let session = &work.session;
        if !session.is_live() && !reactor::mutant!("ended-served") {
            self.finish(work, refusal(Errno::ESTALE));
            return Try::Done;
        }
        if self.is_held_by_grace(session.id, &work.request.call) {
            return Try::Wait;
        }
        work.awaits_removal.set(self.core.borrow().awaits_removal(&work.request.call));
        if work.awaits_removal.get() {
            self.reclaim_wanted.notify();
            return Try::Wait;
        }
        match self.clear(work) {
            Ok(Clearance::Clear) => {}
            Ok(Clearance::Wait) => {
                self.go_on();
                return Try::Wait;
            }
            Err(errno) => {
                self.finish(work, refusal(errno));
                return Try::Done;
            }
        }
        assert!(
            !work.is_given_up.get(),
            "{:?} of {} is carried out, and was given up: {:?}",
            work.id,
            session.id,
            work.request.call
        );
        match self.execute(work) {
            Executed::Answer(response) => {
                self.finish(work, response);
                Try::Done
            }
            Executed::Later => Try::Done,
        }
    }

    fn clear(&self, work: &Work) -> Result<Clearance, Errno> {
        let has_waited = || self.waiting.borrow().contains_key(&work.id);
        if reactor::mutant!("conflicts-sought-once") && has_waited() {
            return Ok(Clearance::Clear);
        }
        let call = &work.request.call;
        let id = work.session.id;
        let shows = matches!(call, Call::Read(read) if !matches!(read, ReadCall::TestLock(_)));
        // Nearly always: reading waits for nothing.
        if shows && !self.leases.borrow().is_any_sole(id) {
            return Ok(Clearance::Clear);
        }
        let mut conflicts = self.core.borrow().conflicts(id, call)?;
        if shows {
            conflicts.retain(|conflict| self.leases.borrow().is_sole(id, conflict.inode));
        }
        let demands = match demands_of(conflicts) {
            demands if demands.is_empty() && acquired(call).is_none() => {
                return Ok(Clearance::Clear);
            }
            demands => demands,
        };
        let wants =
            acquired(call).map(|(inode, rights)| (inode, rights & (Rights::WRITE | Rights::SIZE)));
        let mut leases = self.leases.borrow_mut();
        Ok(leases.clear(work.id, id, &demands, wants.as_slice()))
    }

    /// Returns whether a call has to wait until the sessions of before a restart have reclaimed.
    fn is_held_by_grace(&self, session: SessionId, call: &Call) -> bool {
        if !self.sessions.borrow().in_grace() || reactor::mutant!("grace-skipped") {
            return false;
        }
        match call {
            Call::Session(call) => match call {
                SessionCall::Acquire { .. } | SessionCall::CancelLock { .. } => true,
                SessionCall::Start { .. }
                | SessionCall::Reclaim { .. }
                | SessionCall::Heartbeat { .. }
                | SessionCall::Pulse { .. }
                | SessionCall::End
                | SessionCall::Devices
                | SessionCall::Admit(_)
                | SessionCall::GiveBack(_)
                | SessionCall::Sync(_)
                | SessionCall::ReportLocks { .. } => false,
            },
            // The holder of LOCKS over the inode may not have reclaimed it yet.
            Call::Read(ReadCall::TestLock(_)) => !reactor::mutant!("grace-shows-locks"),
            Call::Read(call) => self.is_kept_back(session, call),
            Call::Change(ChangeCall::Commit { inode, .. }) => {
                !self.leases.borrow().rights(session, *inode).contains(Rights::WRITE)
            }
            Call::Change(_) => true,
        }
    }

    /// Returns whether a call shows an inode while a session that has not reclaimed yet may hold
    /// back changes of it.
    fn is_kept_back(&self, session: SessionId, call: &ReadCall) -> bool {
        let sessions = self.sessions.borrow();
        let is_kept = |holder: &SessionId| *holder != session && sessions.is_expected(*holder);
        !reactor::mutant!("grace-shows-sole")
            && self.core.borrow().soles_shown(call).iter().any(is_kept)
    }

    /// Lets a call wait in a task of its own.
    fn wait(self: &Rc<Self>, work: Rc<Work>) {
        let waiting = work.session.waiting.get();
        if waiting >= WAITING_MAX {
            return self.finish(&work, refusal(Errno::EAGAIN));
        }
        work.session.waiting.set(waiting + 1);
        self.waiting.borrow_mut().insert(work.id, Rc::clone(&work));
        let shared = Rc::clone(self);
        let deadline = now() + self.times.request_deadline;
        reactor::spawn(async move {
            shared.try_until(&work, deadline).await;
            let waiting = work.session.waiting.get();
            assert!(waiting > 0, "{:?} of {} waited uncounted", work.id, work.session.id);
            work.session.waiting.set(waiting - 1);
        });
    }

    async fn try_until(self: &Rc<Self>, work: &Rc<Work>, deadline: Instant) {
        loop {
            let wait = self.count_wait(work);
            let woken = timeout_at(deadline, work.wake.notified()).await;
            wait.end(0);
            if woken.is_err() {
                tracing::warn!(call = ?work.request.call, "a call waited too long");
                return self.finish(work, refusal(Errno::ETIMEDOUT));
            }
            if work.is_given_up.get() {
                return;
            }
            if work.is_abandoned() {
                return self.finish(work, refusal(Errno::ETIMEDOUT));
            }
            if let Try::Done = self.attempt(work) {
                return;
            }
        }
    }

    /// Counts a call's wait, by its reason.
    fn count_wait(&self, work: &Work) -> metrics::Operation {
        let asked = self.leases.borrow().asked_for(work.id);
        let (index, name) = match asked {
            Some(_) => (8, "wait_for_rights"),
            None if self.is_held_by_grace(work.session.id, &work.request.call) => {
                (9, "wait_for_grace")
            }
            None => (10, "wait_for_others"),
        };
        let counted = work.counted.borrow();
        let _inside = counted.as_ref().map(metrics::Operation::enter);
        let session = asked.map_or(0, |session| session.0);
        metrics::start(Point::new(Family::Recall, index, name), session)
    }

    /// Stores a call's answer in its slot, posts it, and lets other calls continue.
    pub(super) fn finish(self: &Rc<Self>, work: &Rc<Work>, response: Response) {
        self.record(work, &response);
        self.leases.borrow_mut().done(work.id);
        self.waiting.borrow_mut().remove(&work.id);
        let is_late = is_late_commit(&work.request.call, &response);
        self.count(|counts| {
            counts.calls += 1;
            counts.late_commits += u64::from(is_late);
        });
        if let Some(counted) = work.counted.borrow_mut().take() {
            counted.end(response.result.as_ref().map_or_else(|errno| errno.raw(), |_| 0));
        }
        let reply = work.reply.borrow_mut().take();
        if let Some(reply) = reply {
            self.post(match work.request.call.traits().made_durable {
                Some(inode) if response.result.is_ok() => Outgoing::Durable(reply, response, inode),
                _ => Outgoing::Answer(reply, response),
            });
        }
        self.go_on();
    }

    /// Stores the answer with the change. Most grants would be outdated in the answer to a retry.
    fn record(&self, work: &Rc<Work>, response: &Response) {
        let Some(slot) = work.request.slot else { return };
        if reactor::mutant!("answers-unstored") {
            work.session.in_flight.borrow_mut().remove(&slot.slot);
            return;
        }
        {
            let mut in_flight = work.session.in_flight.borrow_mut();
            if in_flight.get(&slot.slot).is_some_and(|(sequence, _)| *sequence == slot.sequence) {
                in_flight.remove(&slot.slot);
            }
        }
        if !work.session.is_live() {
            return;
        }
        let grants = stored_grants(&work.request.call, response);
        let stored = Response { grants, ..response.clone() };
        self.note_unsent(work, slot, response);
        let recorded = self.core.borrow_mut().record_reply(work.session.id, slot, &stored);
        if let Err(error) = recorded {
            tracing::error!(%error, session = work.session.id.0, "cannot record a reply");
        }
    }
}

/// Returns whether an answer reports that a truncation came before a commit.
fn is_late_commit(call: &Call, response: &Response) -> bool {
    match (call, &response.result) {
        (Call::Change(ChangeCall::Commit { generation, .. }), Ok(Answer::Attr(attr))) => {
            *generation < attr.generation
        }
        _ => false,
    }
}

/// Returns the rights that a call acquires.
fn acquired(call: &Call) -> Option<(InodeId, Rights)> {
    match call {
        Call::Session(SessionCall::Acquire { inode, rights }) => Some((*inode, *rights)),
        Call::Session(_) | Call::Read(_) | Call::Change(_) => None,
    }
}

fn demands_of(conflicts: Vec<Conflict>) -> Vec<Demand> {
    let demand = |conflict: Conflict| match conflict.kind {
        ConflictKind::Recall(rights) => Demand::Give(conflict.inode, rights),
        ConflictKind::Invalidate(names) => Demand::Forget(conflict.inode, names),
        ConflictKind::AskCaller => Demand::ReportOpen(conflict.inode),
    };
    conflicts.into_iter().map(demand).collect()
}
