//! Leasing space. When none is free, the service asks all sessions for their unused space.

use super::call::Work;
use super::execute::Executed;
use super::shared::Shared;
use protocol::client::{Push, PushAnswer, Response};
use protocol::{DeviceId, Errno, FreeEpoch, Incarnation};
use reactor::local::Notify;
use reactor::time::{Instant, now};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A round that ended within this time also serves later calls.
const ROUND_AGE_MAX: Duration = Duration::from_millis(500);

/// Pause between rounds while a session that may hold space does not answer.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// Rounds of asking all sessions for space: one at a time, for all waiting calls.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    is_running: Cell<bool>,
    /// The end of the last round, and the free epoch at that time.
    ended: Cell<Option<(Instant, FreeEpoch)>>,
    over: Notify,
}

impl Shared {
    /// `LeaseSpace`.
    pub(super) fn lease_space(self: &Rc<Self>, work: &Rc<Work>) -> Executed {
        let response = self.try_lease(work);
        if response.result != Err(Errno::ENOSPC) || reactor::mutant!("space-not-asked-for") {
            return Executed::Answer(response);
        }
        let is_fresh = |(ended, epoch): (Instant, FreeEpoch)| {
            let core = self.core.borrow();
            // A deleted file gives its space up soon, once its close is reported.
            ended.elapsed() < ROUND_AGE_MAX
                && epoch == core.free_epoch()
                && !core.has_work()
                && core.open_orphans().is_empty()
        };
        if self.space.ended.get().is_some_and(is_fresh) && !self.space.is_running.get() {
            return Executed::Answer(response);
        }
        let (shared, work) = (Rc::clone(self), Rc::clone(work));
        reactor::spawn(async move {
            let response = shared.lease_after_round(&work).await;
            shared.finish(&work, response);
        });
        Executed::Later
    }

    /// Leases free space. The result of a round says nothing about space that is granted after it:
    /// the grantee may write to it, and its commit may free other blocks.
    fn try_lease(&self, work: &Rc<Work>) -> Response {
        let response = self.execute_in_core(work, &work.request.call);
        if response.result.is_ok() && !reactor::mutant!("round-outlives-grant") {
            self.space.ended.set(None);
        }
        response
    }

    /// Tries again after a round, and after further rounds while sessions that did not answer may
    /// still hold space: they answer, or are ended, in time. The pool counts as full only after two
    /// complete rounds, because the first one gives up files that were just closed and deleted.
    async fn lease_after_round(self: &Rc<Self>, work: &Rc<Work>) -> Response {
        let deadline = now() + self.times.request_deadline;
        let mut complete = 0;
        loop {
            if self.space.is_running.get() {
                self.until_no_round().await;
            } else {
                self.run_round().await;
            }
            if !work.session.is_live() {
                return super::outbox::refusal(Errno::ESTALE);
            }
            if reactor::mutant!("space-not-tried-again") {
                return super::outbox::refusal(Errno::ENOSPC);
            }
            let response = self.try_lease(work);
            complete += u32::from(self.space.ended.get().is_some());
            let is_final = complete == 2 || now() >= deadline;
            if response.result != Err(Errno::ENOSPC) || is_final {
                return response;
            }
            reactor::time::sleep(ROUND_PAUSE).await;
        }
    }

    /// Leases no space on a device that has failed a flush, and asks all sessions to return what they
    /// lease there: what they would write is lost with the next flush that fails.
    pub(super) fn exclude_device(self: &Rc<Self>, device: DeviceId, incarnation: Incarnation) {
        if !self.core.borrow_mut().exclude_device(device, incarnation) {
            return;
        }
        tracing::error!(%device, "a device failed a flush: it gets no new data until its node restarts");
        let shared = Rc::clone(self);
        reactor::spawn(async move {
            // The messages of a round under way may have gone out before.
            shared.until_no_round().await;
            shared.run_round().await;
        });
    }

    async fn until_no_round(&self) {
        while self.space.is_running.get() {
            self.space.over.notified().await;
        }
        // Other tasks may wait too.
        self.space.over.notify();
    }

    async fn run_round(self: &Rc<Self>) {
        self.space.is_running.set(true);
        let is_complete = self.round().await;
        self.space.is_running.set(false);
        let ended = (now(), self.core.borrow().free_epoch());
        self.space.ended.set(is_complete.then_some(ended));
        self.space.over.notify();
    }

    /// Runs one round: finishes pending frees, asks all sessions to return unused space and to
    /// report which reads have ended, then frees the blocks that have rested long enough. Returns
    /// whether all sessions have answered.
    async fn round(self: &Rc<Self>) -> bool {
        while self.reclaim_some() {
            reactor::yield_now().await;
        }
        // A session that gets the free epoch counts calls without an answer as not carried out (P4).
        if !self.flush_all() {
            return false;
        }
        let mut is_complete = true;
        let free_epoch = self.core.borrow().free_epoch();
        let asked: Vec<_> = self
            .sessions
            .borrow()
            .all()
            .into_iter()
            .filter_map(|session| {
                let Some(connection) = session.connection().filter(|_| session.is_live()) else {
                    is_complete = false;
                    return None;
                };
                let answering =
                    connection.call(&Push::Reclaim { free_epoch }, Some(self.times.space_deadline));
                Some((session, answering))
            })
            .collect();
        for (session, answering) in asked {
            match answering.await {
                Ok(PushAnswer::Ended(through)) => {
                    is_complete &= through >= free_epoch;
                    self.core.borrow_mut().ended_through(session.id, through);
                }
                Ok(_) => {}
                Err(error) => {
                    is_complete = false;
                    tracing::warn!(session = session.id.0, %error, "space was not returned");
                }
            }
        }
        if self.core.borrow().awaits_sync() {
            self.flush();
            // A failure ends the service.
            let _ = self.sync_now().await;
        }
        while self.reclaim_some() {
            reactor::yield_now().await;
        }
        // Blocks that were freed meanwhile still rest, and need another round.
        is_complete && self.core.borrow().free_epoch() == free_epoch
    }
}
