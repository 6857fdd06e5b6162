//! The messages that leave the service, in order, once the store has their transactions.

use super::Shared;
use crate::leases::AskId;
use crate::sessions::Session;
use crate::store::Error;
use metrics::{Family, Point};
use protocol::client::{Push, PushAnswer, Response};
use protocol::connection::ConnectionError;
use protocol::{Errno, InodeId, LeaseStamp, Rights};
use reactor::local::{OneshotReceiver, oneshot};
use reactor::time::{now, timeout_at};
use rpc::{Acceptor, Client, Reply, RpcError};
use std::rc::Rc;
use std::time::Duration;

/// Interval between attempts to store changes while the disk is full.
const FLUSH_AGAIN: Duration = Duration::from_millis(100);

/// Most flushes in a row until nothing more is posted.
const FLUSHES_MAX: usize = 16;

/// The way back to a client.
pub(crate) type ClientReply = Reply<Acceptor<Client>>;

/// A closure that runs once changes are stored, or durable.
pub(super) type Then = Box<dyn FnOnce(&Rc<Shared>)>;

/// An action after the next flush.
pub(super) enum Outgoing {
    /// An answer.
    Answer(ClientReply, Response),
    /// An answer that also waits for a sync, and for the flush of an inode's data.
    Durable(ClientReply, Response, Option<InodeId>),
    /// A recall or invalidation.
    Ask(Rc<Session>, AskId, Push),
    /// Any other action.
    Then(Then),
}

/// The write of changes to the store, those of a loop turn together.
const STORE: Point = Point::new(Family::Serve, 128, "store_write");

/// Returns an answer that only reports that the call failed.
pub(super) fn refusal(errno: Errno) -> Response {
    Response { result: Err(errno), grants: Vec::new(), changed: Vec::new() }
}

/// Sends an answer; EIO if it is too long.
pub(super) fn send(reply: ClientReply, response: &Response) {
    if let Err((reply, error)) = reply.send(response) {
        tracing::warn!(%error, "an answer cannot be sent");
        if let Err((_, error)) = reply.send(&refusal(Errno::EIO)) {
            tracing::warn!(%error, "nor can its refusal");
        }
    }
}

/// Returns the trace point of a push.
fn point_of(push: &Push) -> Point {
    let (index, name) = match push {
        Push::Recall(_) => (0, "rights"),
        Push::Invalidate { .. } => (1, "names"),
        Push::Lost(_) => (2, "lost_device"),
        Push::Devices(_) => (3, "devices"),
        Push::Reclaim { .. } => (4, "space"),
    };
    Point::new(Family::Recall, index, name)
}

/// Returns the stamp and the rights of a recall, if the push is one.
fn recall_in(push: &Push) -> Option<(LeaseStamp, Rights)> {
    match push {
        Push::Recall(recall) => Some((recall.stamp, recall.rights)),
        Push::Invalidate { .. } | Push::Lost(_) | Push::Devices(_) | Push::Reclaim { .. } => None,
    }
}

impl Shared {
    /// Queues an action for after the next flush.
    pub(super) fn post(&self, outgoing: Outgoing) {
        let mut outbox = self.outbox.borrow_mut();
        outbox.push(outgoing);
        if outbox.len() == 1 {
            self.flush_wanted.notify();
        }
    }

    /// Flushes at the end of every loop turn that posted something.
    pub(super) async fn flush_loop(self: Rc<Self>) {
        loop {
            self.flush_wanted.notified().await;
            // Calls that are ready now share this flush.
            reactor::yield_now().await;
            self.flush();
        }
    }

    /// Stores executed changes, and sends the messages that waited for it.
    pub(super) fn flush(self: &Rc<Self>) {
        let has_changes = self.core.borrow().has_pending();
        let counted = has_changes.then(|| metrics::start(STORE, 0));
        let flushed = self.core.borrow_mut().flush();
        if let Some(counted) = counted {
            counted.end(if flushed.is_ok() { 0 } else { Errno::EIO.raw() });
        }
        let outbox = std::mem::take(&mut *self.outbox.borrow_mut());
        if let Err(Error::Full(_)) = flushed {
            // None of it may be sent before it is stored.
            *self.outbox.borrow_mut() = outbox;
            return self.flush_later();
        }
        if let Err(error) = flushed {
            drop(outbox);
            self.fail(error);
            return;
        }
        if has_changes {
            self.is_unsynced.set(true);
            self.reclaim_wanted.notify();
        }
        for outgoing in outbox {
            match outgoing {
                Outgoing::Answer(reply, response) => send(reply, &response),
                Outgoing::Durable(reply, response, inode) => {
                    self.answer_durable(reply, response, inode);
                }
                Outgoing::Ask(session, id, push) => self.send_ask(&session, id, push),
                Outgoing::Then(then) => then(self),
            }
        }
    }

    /// Stores executed changes and sends everything that waited for it, also what that posts. Returns
    /// whether nothing is left: the disk may be full.
    pub(super) fn flush_all(self: &Rc<Self>) -> bool {
        for _ in 0..FLUSHES_MAX {
            if self.outbox.borrow().is_empty() {
                return true;
            }
            self.flush();
        }
        self.outbox.borrow().is_empty()
    }

    /// Flushes again soon, when there may be room.
    fn flush_later(self: &Rc<Self>) {
        let shared = Rc::clone(self);
        reactor::spawn(async move {
            reactor::time::sleep(FLUSH_AGAIN).await;
            shared.flush_wanted.notify();
        });
    }

    /// Sends a recall, after earlier ones if the client has too many to answer. If the connection
    /// is lost, the ask stays open until the session has resumed or ended.
    fn send_ask(self: &Rc<Self>, session: &Rc<Session>, id: AskId, push: Push) {
        if session.connection().is_none() {
            return;
        }
        session.recalls.borrow_mut().add(id, push);
        self.send_recalls(session);
    }

    /// Sends as many of the waiting recalls as the client may have unanswered.
    fn send_recalls(self: &Rc<Self>, session: &Rc<Session>) {
        loop {
            let next = session.recalls.borrow_mut().next_to_send();
            let Some((id, push)) = next else { return };
            self.send_recall(session, id, &push);
        }
    }

    /// Sends a recall. If there is no answer in time, the service ends the session.
    fn send_recall(self: &Rc<Self>, session: &Rc<Session>, id: AskId, push: &Push) {
        let mut recalls = session.recalls.borrow_mut();
        let Some(connection) = session.connection() else {
            recalls.answered();
            return recalls.drop_waiting();
        };
        drop(recalls);
        self.count(|counts| counts.recalls += 1);
        let counted = metrics::start(point_of(push), session.id.0);
        let (asker, answered) = oneshot();
        let (shared, asked) = (Rc::clone(self), Rc::clone(session));
        // In the order of the stream: the session may give back a right right after this answer
        // keeps it, and the return must not be applied first.
        connection.call_then(push, move |answer| {
            let _ = asker.send(());
            counted.end(if answer.is_ok() { 0 } else { Errno::EIO.raw() });
            asked.recalls.borrow_mut().answered();
            shared.take_answer(&asked, id, answer);
        });
        let (shared, session, recall) = (Rc::clone(self), Rc::clone(session), recall_in(push));
        reactor::spawn(async move {
            let is_late = shared.is_late(&session, recall, answered).await;
            if is_late && !reactor::mutant!("unanswered-recall-waits") {
                tracing::warn!(session = session.id.0, "a recall was not answered");
                if reactor::mutant!("late-recall-forgiven") {
                    shared.leases.borrow_mut().answered(id, Rights::NONE);
                    return shared.go_on();
                }
                shared.end_session(&session, "it did not answer a recall in time");
            }
        });
    }

    /// Waits for the answer to a recall. Returns whether it did not come in time. The deadline
    /// counts from the last heartbeat by which the client works on the answer, because it may have
    /// to wait until a device is given up, or until another session has ended. A client that
    /// reports this for ever has a last deadline.
    async fn is_late(
        &self,
        session: &Session,
        recall: Option<(LeaseStamp, Rights)>,
        mut answered: OneshotReceiver<()>,
    ) -> bool {
        let begun = now();
        let mut deadline = begun + self.times.session_deadline;
        if let Some((stamp, _)) = recall {
            session.recalls.borrow_mut().follow(stamp);
        }
        let is_late = loop {
            if timeout_at(deadline, &mut answered).await.is_ok() {
                break false;
            }
            let excused = recall.and_then(|(stamp, rights)| {
                let worked_at = session.recalls.borrow().worked_at(stamp)?;
                let excused = worked_at + self.times.session_deadline;
                let last = begun + self.times.recall_max(rights);
                Some(if reactor::mutant!("work-is-endless") { excused } else { excused.min(last) })
            });
            match excused.filter(|later| *later > deadline && !reactor::mutant!("work-unexcused")) {
                Some(later) => deadline = later,
                None => break true,
            }
        };
        if let Some((stamp, _)) = recall {
            session.recalls.borrow_mut().unfollow(stamp);
        }
        is_late
    }

    /// Takes the answer to a recall.
    fn take_answer(
        self: &Rc<Self>,
        session: &Rc<Session>,
        id: AskId,
        answer: Result<PushAnswer, RpcError>,
    ) {
        let kept = match answer {
            Ok(PushAnswer::Recalled(recalled)) => recalled.kept,
            Ok(_) => Rights::NONE,
            Err(RpcError::Closed(_)) => return session.recalls.borrow_mut().drop_waiting(),
            // Other messages fill the connection. The session resumes over another one, and the
            // recalls are repeated.
            Err(RpcError::Protocol(error @ ConnectionError::TooManyCallsOut(_))) => {
                if let Some(connection) = session.connection() {
                    connection.close(&error.to_string());
                }
                return;
            }
            Err(error) => {
                tracing::warn!(session = session.id.0, %error, "a recall was not answered");
                self.end_session(session, "it did not answer a recall");
                return;
            }
        };
        let inode = self.leases.borrow().asked_of(id);
        let closed = self.leases.borrow_mut().answered(id, kept);
        if let Some(inode) = closed {
            self.close_inode(session.id, inode);
        }
        if let Some(inode) = inode.filter(|_| kept.contains(Rights::OPEN)) {
            self.note_open(session.id, inode);
        }
        self.go_on();
        self.send_recalls(session);
    }
}
