//! A client's connection: its first call, and the dispatch of the others.

use super::execute::answer;
use super::outbox::{ClientReply, Outgoing, refusal, send};
use super::shared::Shared;
use crate::sessions::{ClientConnection, Session};
use protocol::client::{Answer, Call, Request, Response, SessionCall};
use protocol::{Errno, HostId, InodeId, Rights, SessionId};
use rpc::{Acceptor, Authenticated, Client, Handler, Standing};
use std::cell::RefCell;
use std::rc::Rc;

/// Most sessions that may live at once.
const SESSIONS_MAX: usize = 4096;

/// Longest name of a node, in bytes.
pub(super) const NODE_MAX_BYTES: usize = 255;

/// One client's connection.
struct ClientPeer {
    shared: Rc<Shared>,
    standing: Standing,
    connection: RefCell<Option<ClientConnection>>,
    session: RefCell<Option<Rc<Session>>>,
}

impl Handler<Acceptor<Client>> for ClientPeer {
    fn called(&self, request: Request, reply: ClientReply) {
        let session = self.session.borrow().clone();
        match (session, request) {
            (
                None,
                Request {
                    call: Call::Session(SessionCall::Start { node, host, resume }),
                    slot: None,
                },
            ) => {
                self.start(node, host, resume, reply);
            }
            (
                None,
                Request { call: Call::Session(SessionCall::Pulse { session, host }), slot: None },
            ) => {
                let response = self.shared.pulse(&self.standing, session, host);
                self.shared.post(Outgoing::Answer(reply, response));
            }
            (Some(session), request) => self.shared.begin(&session, request, reply),
            (None, _) => self.shared.post(Outgoing::Answer(reply, refusal(Errno::EPROTO))),
        }
    }

    fn closed(&self, reason: &str) {
        let connection = self.connection.borrow_mut().take();
        let Some(session) = self.session.borrow_mut().take() else { return };
        tracing::debug!(session = session.id.0, reason, "a client's connection is gone");
        let is_its = match (&connection, &*session.connection.borrow()) {
            (Some(gone), Some(present)) => gone.is_same(present),
            _ => false,
        };
        if is_its {
            session.connection.borrow_mut().take();
        }
    }
}

impl ClientPeer {
    fn start(&self, node: String, host: HostId, resume: Option<SessionId>, reply: ClientReply) {
        if node.len() > NODE_MAX_BYTES {
            return self.shared.post(Outgoing::Answer(reply, refusal(Errno::EINVAL)));
        }
        if !self.standing.is_node(&node) {
            tracing::warn!(node, "a client is refused: its key is that of another node");
            return self.shared.post(Outgoing::Answer(reply, refusal(Errno::EACCES)));
        }
        let started = self.shared.start_session(node, host, resume);
        let (session, resumed) = match started {
            Ok(started) => started,
            Err(errno) => return self.shared.post(Outgoing::Answer(reply, refusal(errno))),
        };
        let before = session.connection.replace(self.connection.borrow().clone());
        if let Some(before) = before {
            before.close("the session goes on over another connection");
        }
        session.recalls.borrow_mut().drop_waiting();
        *self.session.borrow_mut() = Some(Rc::clone(&session));
        // `Welcome` contains all devices.
        session.news.take();
        let core = self.shared.core.borrow();
        let welcome = Answer::Welcome {
            session: session.id,
            epoch: session.epoch,
            resumed,
            file_system: core.file_system(),
            devices: core.devices(),
            free_epoch: core.free_epoch(),
        };
        if reactor::mutant!("welcome-unstored") {
            return send(reply, &answer(welcome));
        }
        self.shared.post(Outgoing::Answer(reply, answer(welcome)));
    }
}

impl Shared {
    /// Serves an authenticated client.
    pub(super) fn serve_client(self: &Rc<Self>, authenticated: Authenticated) {
        let peer = Rc::new(ClientPeer {
            shared: Rc::clone(self),
            standing: authenticated.standing(),
            connection: RefCell::new(None),
            session: RefCell::new(None),
        });
        let connection = authenticated.start::<Client>(Rc::clone(&peer) as Rc<_>);
        *peer.connection.borrow_mut() = Some(connection);
        let weak = Rc::downgrade(&peer);
        self.remember(Rc::new(move |reason| {
            let connection = weak.upgrade().and_then(|peer| peer.connection.borrow().clone());
            close_unless_empty(connection.as_ref(), reason)
        }));
    }

    /// `Pulse`: keeps the session alive while its process lives, if the service can recall its
    /// rights.
    fn pulse(&self, standing: &Standing, id: SessionId, host: HostId) -> Response {
        let session = self.sessions.borrow().get(id);
        let is_its = |s: &Rc<Session>| s.is_live() && s.host == host && standing.is_node(&s.node);
        let Some(session) = session.filter(is_its) else {
            return refusal(Errno::ESTALE);
        };
        if session.connection().is_none() && !reactor::mutant!("pulse-without-connection") {
            return refusal(Errno::EAGAIN);
        }
        session.last_heartbeat.set(reactor::time::now());
        let core = self.core.borrow();
        let (free_epoch, takes_inline) = (core.free_epoch(), core.takes_inline());
        answer(Answer::Alive { free_epoch, takes_inline })
    }

    /// Returns a new session or the one to resume, and whether it is resumed.
    fn start_session(
        self: &Rc<Self>,
        node: String,
        host: HostId,
        resume: Option<SessionId>,
    ) -> Result<(Rc<Session>, bool), Errno> {
        let is_its = |s: &Rc<Session>| s.host == host && s.node == node;
        let known = resume.and_then(|id| self.sessions.borrow().get(id)).filter(is_its);
        if let Some(session) = known.filter(|s| s.is_live() || reactor::mutant!("ending-resumed")) {
            self.note_unheard(&session)?;
            session.last_heartbeat.set(reactor::time::now());
            session.reclaim_by.set(Some(reactor::time::now() + self.times.session_deadline));
            self.leases.borrow_mut().resume(session.id);
            self.go_on();
            return Ok((session, true));
        }
        // A `Start` whose answer was lost: nothing has been done in that session yet.
        let by_host = self.sessions.borrow().by_host(host);
        if let Some(session) = by_host {
            return if session.is_live() && resume.is_none() && session.node == node {
                session.last_heartbeat.set(reactor::time::now());
                // Its client has nothing to reclaim, and does not know that there was a restart.
                if !reactor::mutant!("unanswered-start-holds-grace") {
                    self.end_grace_of(session.id);
                }
                Ok((session, false))
            } else {
                // A host identifier that is being fenced cannot be admitted again.
                Err(Errno::EBUSY)
            };
        }
        if self.sessions.borrow().len() >= SESSIONS_MAX {
            return Err(Errno::EAGAIN);
        }
        let started = self.core.borrow_mut().create_session(&node, host);
        let (id, epoch) = started.map_err(|error| error.to_errno())?;
        tracing::info!(session = id.0, node, %host, "a session starts");
        let session = Session::new(id, host, node, epoch);
        self.sessions.borrow_mut().insert(Rc::clone(&session));
        Ok((session, false))
    }

    /// `Reclaim`: takes the rights that a resumed session reports.
    pub(super) fn reclaim_rights(
        self: &Rc<Self>,
        session: &Rc<Session>,
        held: &[(InodeId, Rights)],
        done: bool,
    ) -> Response {
        let mut response = answer(Answer::Done);
        for (inode, rights) in held {
            // A missing inode cannot be held; an inode without a name stays because of its stored
            // opens.
            let Ok(maker) = self.core.borrow().maker(*inode) else { continue };
            let mut rights = *rights;
            if self.locks.borrow().is_shared(session.id, *inode) {
                rights = rights - Rights::LOCKS;
            }
            // SOLE ends with the first commit, which the client may not know to be executed.
            if maker != Some(session.id) {
                rights = rights - Rights::SOLE;
            }
            let grant = self.leases.borrow_mut().reclaim(session.id, *inode, rights);
            if grant.is_some_and(|grant| grant.rights.contains(Rights::OPEN)) {
                self.note_open(session.id, *inode);
            }
            response.grants.extend(grant);
        }
        if done {
            session.reclaim_by.set(None);
            let closed = self.leases.borrow_mut().end_reclaim(session.id);
            for inode in closed {
                self.close_inode(session.id, inode);
            }
            self.close_forgotten(session);
            self.end_grace_of(session.id);
            self.go_on();
        }
        response
    }

    /// Closes inodes without a name that the session had open according to the store, but has not
    /// reclaimed.
    fn close_forgotten(&self, session: &Session) {
        let orphans = self.core.borrow().open_orphans();
        for (inode, openers) in orphans {
            let is_open = self.leases.borrow().rights(session.id, inode).contains(Rights::OPEN);
            if openers.contains(&session.id) && !is_open {
                self.close_inode(session.id, inode);
            }
        }
    }

    /// Ends the grace of a session that has reclaimed or ended; if it was the last one, all calls
    /// continue.
    pub(super) fn end_grace_of(&self, session: SessionId) {
        if self.sessions.borrow_mut().reclaimed(session) {
            tracing::info!("the grace after the restart is over");
            for work in self.waiting.borrow().values() {
                work.wake.notify();
            }
        }
    }
}

/// Closes a connection if `reason` is not empty; returns whether it is open afterwards.
pub(super) fn close_unless_empty<S: rpc::Side>(
    connection: Option<&rpc::Connection<S>>,
    reason: &str,
) -> bool {
    let Some(connection) = connection else { return false };
    if !reason.is_empty() {
        connection.close(reason);
    }
    connection.closed_reason().is_none()
}
