//! Background work: silent sessions, renewals of admissions, freeing.

use super::outbox::Outgoing;
use super::shared::Shared;
use protocol::agent::Push;
use std::rc::Rc;
use std::time::Duration;

/// Records that background work writes before it lets calls run.
const RECLAIM_RECORDS: usize = 500;

/// Checks of sessions per session deadline.
const WATCHES_PER_DEADLINE: u32 = 20;

impl Shared {
    /// Ends sessions and disconnects agents that have been silent for too long.
    pub(super) async fn watch_sessions(self: Rc<Self>) {
        let deadline = self.times.session_deadline;
        let pause = deadline / WATCHES_PER_DEADLINE;
        let mut agents_may_be_silent_until = reactor::time::now();
        loop {
            let begun = reactor::time::now();
            reactor::time::sleep(pause).await;
            let stood_still = begun.elapsed().saturating_sub(pause);
            if stood_still > pause && !reactor::mutant!("own-pause-unexcused") {
                self.excuse(stood_still);
                agents_may_be_silent_until = reactor::time::now() + deadline;
            }
            let limit = reactor::time::now() - deadline;
            let silent = self.sessions.borrow().silent_since(limit);
            for session in silent {
                self.end_session(&session, "it was silent for too long");
            }
            for agent in self.agents.all() {
                if agent.last_heard() < limit
                    && reactor::time::now() >= agents_may_be_silent_until
                    && let Some(connection) = agent.connection()
                {
                    connection.close("the agent was silent for too long");
                }
            }
            self.tidy_connections();
        }
    }

    /// Excuses silence while this service did not run: its machine was suspended, or its process
    /// was stopped. Peers may have sent calls that the service did not receive, so this time does
    /// not count as silence. Waiting longer is safe, because clients stop themselves by their own
    /// clocks.
    fn excuse(&self, stood_still: Duration) {
        tracing::warn!(?stood_still, "the metadata service did not run for a while");
        let now = reactor::time::now();
        for session in self.sessions.borrow().all() {
            let heard = session.last_heartbeat.get() + stood_still;
            session.last_heartbeat.set(heard.min(now));
            if !reactor::mutant!("reclaim-unexcused") {
                session.reclaim_by.set(session.reclaim_by.get().map(|by| by + stood_still));
            }
        }
    }

    /// Renews the admissions at all targets.
    pub(super) async fn renew_admissions(self: Rc<Self>) {
        let lapse_ms = self.times.admission_lapse.as_millis() as u32;
        loop {
            reactor::time::sleep(self.times.admission_renewal).await;
            for agent in self.agents.all() {
                let Some(connection) = agent.connection() else { continue };
                let beat = self.agents.name(&agent, &agent.devices.borrow());
                let renewal = self.times.admission_renewal;
                let answering = connection.call(&Push::Renew { beat, lapse_ms }, Some(renewal));
                reactor::spawn(async move {
                    if let Err(error) = answering.await {
                        connection.close(&format!("a renewal was not answered: {error}"));
                    }
                });
            }
        }
    }

    /// Frees the data of deleted, truncated and punched files, in small steps between calls.
    pub(super) async fn reclaim_loop(self: Rc<Self>) {
        loop {
            self.reclaim_wanted.notified().await;
            while self.reclaim_some() {
                reactor::time::sleep(Duration::from_micros(200)).await;
            }
        }
    }

    /// Does one step of background work; returns whether more is left.
    pub(super) fn reclaim_some(&self) -> bool {
        let stepped = self.core.borrow_mut().reclaim_step(RECLAIM_RECORDS);
        self.wake_settled();
        match stepped {
            Ok(is_more) => {
                if self.core.borrow().has_pending() {
                    self.post(Outgoing::Then(Box::new(|_| {})));
                }
                is_more
            }
            Err(error) => {
                tracing::error!(%error, "background work failed");
                false
            }
        }
    }

    /// Wakes the calls that waited for a removal that is complete.
    fn wake_settled(&self) {
        let core = self.core.borrow();
        for work in self.waiting.borrow().values().filter(|work| work.awaits_removal.get()) {
            if !core.awaits_removal(&work.request.call) {
                work.wake.notify();
            }
        }
    }
}
