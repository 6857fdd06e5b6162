//! The end of a session: first it is fenced, then it loses everything that it had.

use super::call::Work;
use super::execute::{Executed, answer};
use super::outbox::Outgoing;
use super::shared::Shared;
use crate::sessions::{Life, Session};
use protocol::client::Answer;
use std::rc::Rc;

impl Shared {
    /// Starts to end a session; it loses what it had once it is fenced everywhere.
    pub(super) fn end_session(self: &Rc<Self>, session: &Rc<Session>, reason: &str) {
        if !session.is_live() {
            return;
        }
        tracing::info!(session = session.id.0, reason, "a session ends");
        session.life.set(Life::Ending);
        // Its waiting calls are answered ESTALE.
        for work in self.waiting.borrow().values() {
            if work.session.id == session.id {
                work.wake.notify();
            }
        }
        let noted = self.core.borrow_mut().note_ending(session.id);
        if let Err(error) = noted {
            return self.fail(error);
        }
        let session = Rc::clone(session);
        self.post(Outgoing::Then(Box::new(move |shared| {
            reactor::spawn(Rc::clone(shared).fence_and_end(session));
        })));
    }

    async fn fence_and_end(self: Rc<Self>, session: Rc<Session>) {
        if reactor::mutant!("locks-before-fence") {
            self.locks.borrow_mut().end_session(session.id);
            self.wake_lock_waiters();
        }
        let admitted = {
            let core = self.core.borrow();
            core.session(session.id).map(|record| record.admitted.clone()).unwrap_or_default()
        };
        let fences: Vec<_> = admitted
            .into_iter()
            .filter(|_| !reactor::mutant!("end-unfenced"))
            .map(|device| reactor::spawn(Rc::clone(&self).fence(Rc::clone(&session), device)))
            .collect();
        for fence in fences {
            if fence.await.is_err() {
                return;
            }
        }
        // Until it stops itself, the session, or the kernel of a dead one, may still serve cached
        // data.
        let cut = if reactor::mutant!("self-stop-cut-short") { 2 } else { 1 };
        let stops_at = session.last_heartbeat.get() + self.times.self_stop / cut;
        let stops_at = session.gone_at.get().map_or(stops_at, |gone_at| gone_at.min(stops_at));
        if !reactor::mutant!("rights-before-self-stop") {
            reactor::time::sleep_until(stops_at).await;
        }
        if !reactor::mutant!("rights-outlive-session") {
            self.leases.borrow_mut().end_session(session.id);
        }
        if !reactor::mutant!("locks-outlive-session") {
            self.locks.borrow_mut().end_session(session.id);
        }
        let ended = self.core.borrow_mut().end_session(session.id);
        if let Err(error) = ended {
            return self.fail(error);
        }
        self.count(|counts| counts.fenced += 1);
        let done = Rc::clone(&session);
        self.post(Outgoing::Then(Box::new(move |shared| {
            done.life.set(Life::Ended);
            shared.sessions.borrow_mut().remove(done.id);
            if !reactor::mutant!("ended-holds-grace") {
                shared.end_grace_of(done.id);
            }
            done.ended.notify();
        })));
        self.wake_lock_waiters();
        self.go_on();
        self.reclaim_wanted.notify();
    }

    /// `End`: answered at once. The client has ended its I/O and will do no more. Its rights and
    /// locks still go to other sessions only after the fence, which an unreachable target can
    /// delay.
    pub(super) fn end_at_its_wish(self: &Rc<Self>, work: &Rc<Work>) -> Executed {
        work.session.gone_at.set(Some(reactor::time::now()));
        self.end_session(&work.session, "its client ended it");
        let reply = work.reply.borrow_mut().take();
        self.leases.borrow_mut().done(work.id);
        if let Some(reply) = reply {
            self.post(Outgoing::Answer(reply, answer(Answer::Done)));
        }
        Executed::Later
    }

    /// Completes when the session is fenced and gone.
    pub(super) async fn until_ended(&self, session: &Session) {
        while session.life.get() != Life::Ended {
            session.ended.notified().await;
        }
        // Other tasks may wait too.
        session.ended.notify();
    }

    /// Ends sessions that were being fenced, and sessions whose acknowledged changes may be lost.
    pub(super) fn end_void_sessions(self: &Rc<Self>) {
        for session in self.sessions.borrow().all() {
            let is_void = self.core.borrow().session(session.id).is_some_and(|r| r.is_void);
            if is_void && !reactor::mutant!("void-not-ended") {
                self.end_session(&session, "it must not be resumed: it was being fenced, or the store's machine was restarted");
            }
        }
    }
}
