//! Leasing space; when none is free, all sessions are asked for what they do not use.

use super::call::Work;
use super::execute::Executed;
use super::shared::Shared;
use protocol::Errno;
use protocol::client::{Push, PushAnswer, Response};
use ring::local::Notify;
use ring::time::{Instant, now};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How long a round waits for sessions.
const ROUND_DEADLINE: Duration = Duration::from_secs(5);

/// A round that ended within this serves who asks now as well.
const ROUND_AGE_MAX: Duration = Duration::from_millis(500);

/// Asking all sessions for space: one round at a time, for all who wait.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    is_running: Cell<bool>,
    ended: Cell<Option<Instant>>,
    over: Notify,
}

impl Shared {
    /// `LeaseSpace`.
    pub(super) fn lease_space(self: &Rc<Self>, work: &Rc<Work>) -> Executed {
        let response = self.execute_in_core(work, &work.request.call);
        if response.result != Err(Errno::ENOSPC) {
            return Executed::Answer(response);
        }
        let is_fresh = |ended: Instant| ended.elapsed() < ROUND_AGE_MAX;
        if self.space.ended.get().is_some_and(is_fresh) && !self.space.is_running.get() {
            return Executed::Answer(response);
        }
        let (shared, work) = (Rc::clone(self), Rc::clone(work));
        ring::spawn(async move {
            let response = shared.lease_after_round(&work).await;
            shared.finish(&work, response);
        });
        Executed::Later
    }

    async fn lease_after_round(self: &Rc<Self>, work: &Rc<Work>) -> Response {
        if self.space.is_running.get() {
            while self.space.is_running.get() {
                self.space.over.notified().await;
            }
            self.space.over.notify();
        } else {
            self.space.is_running.set(true);
            self.round().await;
            self.space.is_running.set(false);
            self.space.ended.set(Some(now()));
            self.space.over.notify();
        }
        if !work.session.is_live() {
            return super::outbox::refusal(Errno::ESTALE);
        }
        self.execute_in_core(work, &work.request.call)
    }

    /// Asks all sessions to return what they do not use and to say which reads have ended, then
    /// frees what has rested long enough.
    async fn round(self: &Rc<Self>) {
        let free_epoch = self.core.borrow().free_epoch();
        let asked: Vec<_> = self
            .sessions
            .borrow()
            .all()
            .into_iter()
            .filter_map(|session| {
                let connection = session.connection()?;
                let answering =
                    connection.call(&Push::Reclaim { free_epoch }, Some(ROUND_DEADLINE));
                Some((session, answering))
            })
            .collect();
        for (session, answering) in asked {
            match answering.await {
                Ok(PushAnswer::Ended(through)) => {
                    self.core.borrow_mut().ended_through(session.id, through);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(session = session.id.0, %error, "space was not returned");
                }
            }
        }
        while self.reclaim_some() {
            ring::yield_now().await;
        }
    }
}
