//! Calls: each waits for its answer, over one connection after the other.

use crate::session::handler::Link;
use crate::session::life::SessionStamp;
use crate::session::slots::SlotGuard;
use crate::session::{RECONNECT_MIN, Session};
use metrics::{Family, Point};
use protocol::Errno;
use protocol::client::{Answer, Call, ChangeCall, Request, Response, SessionCall};
use reactor::local::oneshot;
use reactor::time::{now, timeout_at};
use rpc::RpcError;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Why a call has no usable answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For the caller.
    pub(crate) errno: Errno,
    /// Whether it was certainly not carried out, and will not be: it was not sent, or the service
    /// refused it.
    pub(crate) is_refusal: bool,
}

/// The progress of a call.
struct Progress {
    /// Whether its caller still waits.
    is_awaited: Cell<bool>,
    /// The session in which it was sent, if it was.
    sent_in: Cell<Option<SessionStamp>>,
}

impl Session {
    /// Runs a call until it is answered or
    /// [`Times::request_deadline`](protocol::times::Times::request_deadline) has passed. After a
    /// lost connection it asks again, with the same slot. A change that was sent and whose caller
    /// gives up is asked for until there is an answer, which goes to the
    /// [`Handler`](super::handler::Handler).
    ///
    /// # Errors
    /// The service's error, or ETIMEDOUT, or ESTALE after [`Session::end`].
    pub(crate) async fn call(self: &Rc<Self>, call: Call) -> Result<Answer, Errno> {
        self.call_or_failure(call).await.map_err(|failure| failure.errno)
    }

    /// Runs a call as [`Session::call`] does. The failure says whether the call may have been
    /// carried out all the same.
    pub(crate) async fn call_or_failure(self: &Rc<Self>, call: Call) -> Result<Answer, Failure> {
        let kind = call.kind();
        let point = Point::new(Family::Call, kind.index, kind.name);
        let counted = metrics::start(point, kind.inode);
        let answer = self.ask_in_time(call).await;
        counted.end(answer.as_ref().map_or_else(|failure| failure.errno.raw(), |_| 0));
        answer
    }

    /// Asks until the deadline, in a slot if the call is a change.
    async fn ask_in_time(self: &Rc<Self>, call: Call) -> Result<Answer, Failure> {
        let unbounded = matches!(call, Call::Change(ChangeCall::SetLock { wait: true, .. }));
        let deadline =
            now() + if unbounded { Duration::MAX } else { self.times().request_deadline };
        let guard = if call.changes() {
            let slot = timeout_at(deadline, self.slots.take(&call)).await;
            Some(slot.map_err(|_| Failure { errno: Errno::ETIMEDOUT, is_refusal: true })?)
        } else {
            None
        };
        let is_change = guard.is_some();
        let progress = Rc::new(Progress { is_awaited: Cell::new(true), sent_in: Cell::new(None) });
        let mut asking = Box::pin(Rc::clone(self).ask(call, guard, Rc::clone(&progress)));
        if let Ok(result) = timeout_at(deadline, &mut asking).await {
            return result;
        }
        progress.is_awaited.set(false);
        let is_refusal = progress.sent_in.get().is_none();
        if is_change && !is_refusal && !reactor::mutant!("given-up-unheard") {
            // The change may still be carried out, and only its answer shows this client what it
            // has changed: keep asking until the answer comes.
            drop(reactor::spawn(asking));
        }
        Err(Failure { errno: Errno::ETIMEDOUT, is_refusal })
    }

    /// Asks until there is an answer, over one connection after the other.
    async fn ask(
        self: Rc<Self>,
        call: Call,
        guard: Option<SlotGuard>,
        progress: Rc<Progress>,
    ) -> Result<Answer, Failure> {
        let slot = guard.as_ref().map(SlotGuard::slot);
        let traits = call.traits();
        // Blocks that a change frees are not used again until reads from before its answer have
        // ended.
        let epoch = traits.may_free.then(|| self.life.hold());
        // A report of locks belongs to its session: another session has other locks.
        let is_bound =
            slot.is_some() || matches!(call, Call::Session(SessionCall::ReportLocks { .. }));
        let request = Rc::new(Request { slot, call });
        loop {
            let is_lost =
                || progress.sent_in.get().is_some_and(|in_it| !self.life.is_present(in_it));
            let was_lost = is_lost();
            let link = self.linked().await.map_err(|errno| {
                let is_refusal = progress.sent_in.get().is_none();
                Failure { errno, is_refusal }
            })?;
            let is_lost =
                if reactor::mutant!("session-noted-early") { was_lost } else { is_lost() };
            if is_bound && is_lost && !reactor::mutant!("repeated-in-next-session") {
                // The lost session may or may not have carried it out.
                return Err(Failure { errno: Errno::EIO, is_refusal: false });
            }
            // If it was sent before, it may have been carried out. The answer to a commit that waits
            // for devices comes later than others.
            let is_in_order = progress.sent_in.get().is_none() && traits.made_durable.is_none();
            let in_order = epoch.as_ref().filter(|_| is_in_order);
            let unanswered = in_order.map(|epoch| self.life.await_answer(epoch));
            progress.sent_in.set(Some(self.life.stamp()));
            self.counts.borrow_mut().note(&request.call);
            let (sender, receiver) = oneshot();
            let (session, asked) = (Rc::clone(&self), Rc::clone(&request));
            // The slot is in use until the answer is there.
            let (guard, progress_then) = (guard.clone(), Rc::clone(&progress));
            link.call_then(&request, move |answer| {
                drop(unanswered);
                let outcome = answer.map(|response: Response| {
                    if let Some(handler) = session.handler() {
                        let is_awaited = progress_then.is_awaited.get() && !sender.is_closed();
                        handler.answered(&asked.call, &response, is_awaited);
                    }
                    response.result
                });
                drop(guard);
                let _ = sender.send(outcome);
            });
            match receiver.await {
                Ok(Ok(result)) => {
                    return result.map_err(|errno| Failure { errno, is_refusal: true });
                }
                // The connection was lost: ask again on the next one.
                Ok(Err(RpcError::Closed(_))) | Err(_) => {
                    if reactor::mutant!("given-up-unrepeated") && !progress.is_awaited.get() {
                        return Err(Failure { errno: Errno::EIO, is_refusal: false });
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a call could not be made");
                    if !progress.is_awaited.get() {
                        return Err(Failure { errno: Errno::EIO, is_refusal: false });
                    }
                    reactor::time::sleep(RECONNECT_MIN).await;
                }
            }
        }
    }

    /// Waits until there is a connection, and returns it.
    pub(crate) async fn linked(&self) -> Result<Link, Errno> {
        loop {
            let changed = self.changed.notified();
            if self.closed.get() {
                return Err(Errno::ESTALE);
            }
            if let Some(link) = &*self.link.borrow()
                && link.closed_reason().is_none()
            {
                return Ok(link.clone());
            }
            changed.await;
        }
    }
}
