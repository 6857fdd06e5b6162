//! Starting, keeping and ending the session: connections, resuming, reclaiming, heartbeats.

use crate::session::handler::{Handler, Link, PushReply};
use crate::session::pulse;
use crate::session::{Identity, RECONNECT_MIN, Session, new_host};
use protocol::Errno;
use protocol::client::{Answer, Call, Push, Request, Response, SessionCall};
use reactor::local::oneshot;
use reactor::time::{now, sleep, timeout_at};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Attempts to connect at the start, and the pause between two.
const START_TRIES: u32 = 5;
const START_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between two attempts to connect again.
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Inodes in one part of a reclaim.
const RECLAIM_PART: usize = 1024;

impl Session {
    /// Starts the session and the task that keeps it.
    ///
    /// # Errors
    /// A text that says why the first connection failed.
    pub(crate) async fn start(self: &Rc<Self>, handler: Weak<dyn Handler>) -> Result<(), String> {
        *self.handler.borrow_mut() = handler;
        let link = self.first_link().await.map_err(|error| {
            format!("cannot start a session with the metadata service at {}: {error}; is it up, and is the key file that of this job?", self.config.meta)
        })?;
        self.life.contact.serve();
        pulse::start(&self.life.contact, &self.config)
            .map_err(|error| format!("cannot start the thread for heartbeats: {error}"))?;
        reactor::spawn(Rc::clone(self).keep(link));
        reactor::spawn(Rc::clone(self).heartbeat());
        Ok(())
    }

    /// Connects for the first time. An attempt may end early if many strangers connect to the
    /// service, because it then closes its oldest silent connections.
    async fn first_link(self: &Rc<Self>) -> Result<Link, String> {
        let mut tries = START_TRIES;
        loop {
            tries -= 1;
            match self.connect().await {
                Ok(link) => return Ok(link),
                Err(error) if tries == 0 => return Err(error),
                Err(error) => {
                    tracing::info!(error, "no session yet, trying on");
                    sleep(START_PAUSE).await;
                }
            }
        }
    }

    /// Connects, authenticates, starts or resumes the session, and reclaims rights.
    async fn connect(self: &Rc<Self>) -> Result<Link, String> {
        if !reactor::mutant!("resumed-before-taken-back") {
            self.taking_back.wait_zero().await;
        }
        let config = &self.config;
        let receiver = Rc::new(Receiver { session: Rc::downgrade(self) });
        let limits = rpc::Limits::default();
        let link =
            Link::connect(config.meta, &config.sockets, &config.credential, limits, receiver).await;
        let link = link.map_err(|error| error.to_string())?;
        let identity = self.identity.get();
        let sent = now();
        let start = Call::Session(SessionCall::Start {
            node: config.node.clone(),
            host: identity.host,
            resume: identity.session,
        });
        let answer = match self.first_call(&link, start).await {
            Err(error) if error == refused(Errno::EBUSY) => {
                // The service is fencing the old session, and with it its host identifier: continue
                // with another one.
                self.identity.set(Identity { host: new_host(), ..identity });
                return Err(error);
            }
            answer => answer?,
        };
        let Answer::Welcome { session, epoch, resumed, file_system, free_epoch, .. } = answer
        else {
            return Err(format!("{answer:?} is no welcome"));
        };
        let handler = self.handler();
        if !resumed && identity.session.is_some() {
            tracing::error!(%session, "the session was lost; data not yet committed is lost");
            if let Some(handler) = &handler {
                handler.lost();
            }
        }
        self.identity.set(Identity { session: Some(session), epoch, file_system, ..identity });
        self.life.contact.follow(session, identity.host);
        self.life.heard(sent, free_epoch);
        if resumed {
            let held = handler.map(|handler| handler.held()).unwrap_or_default();
            let mut parts = held.chunks(RECLAIM_PART).peekable();
            let mut done = false;
            while !done {
                let held = parts.next().unwrap_or_default().to_vec();
                done = parts.peek().is_none();
                self.first_call(&link, Call::Session(SessionCall::Reclaim { held, done })).await?;
            }
        }
        Ok(link)
    }

    /// Makes a call before any other on a connection. What its answer reports of the pool's devices
    /// is passed on at once, like a push: a push that follows it in the stream is newer, and must
    /// not be undone when the task that waits here wakes.
    async fn first_call(self: &Rc<Self>, link: &Link, call: Call) -> Result<Answer, String> {
        let deadline = now() + self.times().session_deadline;
        let (sender, receiver) = oneshot();
        let session = Rc::clone(self);
        let request = Request { slot: None, call };
        let asked = request.call.clone();
        link.call_then(&request, move |answer| {
            if let (Ok(response), Some(handler)) = (&answer, session.handler()) {
                // Grants answer a reclaim; rights that are returned later must name their stamps.
                Rc::clone(&handler).answered(&asked, response, true);
                if let Ok(Answer::Welcome { devices, .. }) = &response.result {
                    handler.devices(devices.clone());
                }
            }
            let _ = sender.send(answer.map(|response: Response| response.result));
        });
        match timeout_at(deadline, receiver).await {
            Ok(Ok(answer)) => answer.map_err(|error| error.to_string())?.map_err(refused),
            Ok(Err(_)) => Err("the connection was closed".into()),
            Err(_) => Err("no answer in time".into()),
        }
    }

    /// Runs one connection after the other until the session is closed.
    async fn keep(self: Rc<Self>, first: Link) {
        let mut link = Some(first);
        let mut pause = RECONNECT_MIN;
        while !self.closed.get() {
            let Some(current) = link.take() else {
                match self.connect().await {
                    Ok(new) => link = Some(new),
                    Err(error) => {
                        tracing::warn!(error, "no contact with the metadata service, trying on");
                        sleep(pause).await;
                        pause = (pause * 2).min(RECONNECT_MAX);
                    }
                }
                continue;
            };
            pause = RECONNECT_MIN;
            *self.link.borrow_mut() = Some(current.clone());
            self.changed.notify();
            let reason = current.closed().await;
            if self.link.borrow_mut().take().is_some() {
                self.counts.borrow_mut().add(current.traffic());
            }
            if !self.closed.get() {
                tracing::warn!(%reason, "lost the connection to the metadata service");
            }
        }
    }

    /// Reports to the service which reads have ended, which recalls this client works on, and that
    /// this thread lives. ([`pulse`] reports that the process lives.)
    async fn heartbeat(self: Rc<Self>) {
        let serving = pulse::Serving(Arc::clone(&self.life.contact));
        while !self.closed.get() {
            serving.0.serve();
            sleep(self.times().heartbeat).await;
            let sent = now();
            let ended_through = self.life.ended_through();
            let working_on = self.handler().map(|h| h.working_on()).unwrap_or_default();
            let call =
                self.call(Call::Session(SessionCall::Heartbeat { ended_through, working_on }));
            match reactor::time::timeout(self.times().self_stop, Box::pin(call)).await {
                Ok(Ok(Answer::Alive { free_epoch, takes_inline })) => {
                    self.life.heard(sent, free_epoch);
                    self.takes_inline.set(takes_inline || reactor::mutant!("inline-limit-ignored"));
                }
                Ok(Err(Errno::ESTALE)) if !self.closed.get() && !self.ending.get() => {
                    self.drop_link("the service says that the session has ended");
                }
                Ok(_) => {}
                // Without an answer for this long the connection is of no use, even if TCP keeps
                // it.
                Err(_) => self.drop_link("a heartbeat was not answered"),
            }
        }
    }

    /// Ends the session in order.
    pub(crate) async fn end(self: &Rc<Self>) {
        self.ending.set(true);
        if let Err(error) = self.call(Call::Session(SessionCall::End)).await {
            tracing::warn!(%error, "the session could not be ended in order; it will time out");
        }
        self.closed.set(true);
        if let Some(link) = self.link.borrow_mut().take() {
            self.counts.borrow_mut().add(link.traffic());
            link.close("the session has ended");
        }
        self.changed.notify();
    }

    /// Closes the connection.
    pub(crate) fn drop_link(&self, reason: &str) {
        let link = self.link.borrow().clone();
        if let Some(link) = link {
            link.close(reason);
        }
    }
}

/// Returns the text for an error of the service.
fn refused(errno: Errno) -> String {
    format!("the service answers {errno}")
}

/// Passes on what a connection receives.
struct Receiver {
    session: Weak<Session>,
}

impl rpc::Handler<rpc::Connector<rpc::Client>> for Receiver {
    fn called(&self, push: Push, reply: PushReply) {
        if let Some(handler) = self.session.upgrade().and_then(|session| session.handler()) {
            handler.pushed(push, reply);
        }
    }

    fn closed(&self, _reason: &str) {
        let Some(session) = self.session.upgrade() else { return };
        if let Some(handler) = session.handler() {
            handler.disconnected();
        }
    }
}
