//! The session with the metadata service: one connection at a time, calls with deadlines and reply
//! slots, heart-beats, and what happens when contact is lost.
//!
//! Answers and pushes are handed to the [`Handler`] *in the order of the stream, as they are
//! parsed*; the task that waits for an answer is woken only after that. So a grant is always
//! applied before a recall that follows it.

mod counts;
mod life;
mod pulse;
mod slots;

pub use counts::CallCounts;
pub(crate) use life::{Life, ReadGuard, SessionStamp};
use metrics::{Family, Point};
use protocol::client::{Answer, Call, ChangeCall, Push, Request, Response, SessionCall};
use protocol::space::DeviceInfo;
use protocol::times::Times;
use protocol::{Epoch, Errno, FreeEpoch, HostId, InodeId, Rights, SessionId};
use reactor::SocketOptions;
use reactor::local::{Notify, WaitGroup, oneshot};
use reactor::time::{now, sleep, timeout_at};
use rpc::{Credential, RpcError};
use slots::{SlotGuard, Slots};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Attempts to connect at the start, and the pause between two.
const START_TRIES: u32 = 5;
const START_PAUSE: Duration = Duration::from_millis(100);

/// Pause before connecting again, doubled up to [`RECONNECT_MAX`].
const RECONNECT_MIN: Duration = Duration::from_millis(20);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Inodes in one part of a reclaim.
const RECLAIM_PART: usize = 1024;

/// How to reach the metadata service, and as whom.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Address of the metadata service.
    pub meta: SocketAddr,
    /// What it proves itself with.
    pub credential: Credential,
    /// The node this client runs on.
    pub node: String,
    /// The times that the pool goes by.
    pub times: Times,
    /// How sockets are made.
    pub sockets: SocketOptions,
}

/// What is told of the session, in the order of its stream.
pub(crate) trait Handler {
    /// An answer came to `call`, whose caller waits for it or has given it up.
    fn answered(self: Rc<Self>, call: &Call, response: &Response, is_awaited: bool);
    /// The service asks for something.
    fn pushed(self: Rc<Self>, push: Push, reply: PushReply);
    /// The connection is gone, the session may go on. READ rights are void.
    fn disconnected(self: Rc<Self>);
    /// What to reclaim after a resume.
    fn held(&self) -> Vec<(InodeId, Rights)>;
    /// The session is gone with everything it held.
    fn lost(&self);
    /// The pool's devices, at every start.
    fn devices(&self, devices: Vec<DeviceInfo>);
}

/// The connection to the service.
type Link = rpc::Connection<rpc::Connector<rpc::Client>>;

/// The way back for the answer to a [`Push`].
pub(crate) type PushReply = rpc::Reply<rpc::Connector<rpc::Client>>;

/// The session.
pub(crate) struct Session {
    config: SessionConfig,
    handler: RefCell<Weak<dyn Handler>>,
    link: RefCell<Option<Link>>,
    /// Notified when the state of the link changes.
    changed: Notify,
    slots: Slots,
    pub(crate) life: Life,
    identity: Cell<Identity>,
    closed: Cell<bool>,
    /// Whether the service takes inline data, as it said last.
    pub(crate) takes_inline: Cell<bool>,
    /// What is being taken back since the connection was lost: the service counts it as dropped once the
    /// session goes on.
    pub(crate) taking_back: WaitGroup,
    /// It is being ended: that the service says so is no loss.
    ending: Cell<bool>,
    /// Of calls sent and of connections lost.
    counts: RefCell<CallCounts>,
}

/// Who this client is to the service and to targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) session: Option<SessionId>,
    pub(crate) host: HostId,
    pub(crate) epoch: Epoch,
    pub(crate) file_system: uuid::Uuid,
}

/// Why a call has no answer to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For the caller.
    pub(crate) errno: Errno,
    /// It was not carried out, and will not be: it was not sent, or the service says so.
    pub(crate) is_refusal: bool,
}

/// How far a call has come.
struct Progress {
    /// Its caller has not given it up.
    is_awaited: Cell<bool>,
    /// The session in which it was sent, if it was.
    sent_in: Cell<Option<SessionStamp>>,
}

fn new_host() -> HostId {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    HostId(*uuid::Builder::from_random_bytes(bytes).as_uuid().as_bytes())
}

impl Session {
    pub(crate) fn new(config: SessionConfig) -> Rc<Session> {
        Rc::new(Session {
            life: Life::new(config.times),
            config,
            handler: RefCell::new(Weak::<NoHandler>::new()),
            link: RefCell::default(),
            changed: Notify::default(),
            slots: Slots::new(),
            identity: Cell::new(Identity {
                session: None,
                host: new_host(),
                epoch: Epoch(0),
                file_system: uuid::Uuid::nil(),
            }),
            takes_inline: Cell::new(true),
            closed: Cell::new(false),
            taking_back: WaitGroup::new(),
            ending: Cell::new(false),
            counts: RefCell::default(),
        })
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> CallCounts {
        let mut counts = self.counts.borrow().clone();
        if let Some(link) = &*self.link.borrow() {
            counts.add(link.traffic());
        }
        counts
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity.get()
    }

    /// The times that the pool goes by.
    pub(crate) fn times(&self) -> &Times {
        &self.config.times
    }

    pub(crate) fn sockets(&self) -> &SocketOptions {
        &self.config.sockets
    }

    /// Starts the session and the task that keeps it.
    ///
    /// # Errors
    /// What stood in the way of the first connection, in words.
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

    /// Connects for the first time. An attempt may end early where many strangers knock at the service,
    /// whose oldest silent connections give way.
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

    /// Whether the session was ended in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
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

    /// Runs calls until they are answered or [`Times::request_deadline`] has passed; goes through
    /// lost connections by asking again, with the same slot. A change that was sent and is given up is
    /// asked for until there is an answer, which the [`Handler`] is told.
    ///
    /// # Errors
    /// The service's error, or ETIMEDOUT, or ESTALE after [`Session::end`].
    pub(crate) async fn call(self: &Rc<Self>, call: Call) -> Result<Answer, Errno> {
        self.call_or_know(call).await.map_err(|failure| failure.errno)
    }

    /// As [`Session::call`], for callers to whom it matters whether a call that failed was carried
    /// out all the same.
    pub(crate) async fn call_or_know(self: &Rc<Self>, call: Call) -> Result<Answer, Failure> {
        let kind = call.kind();
        let point = Point::new(Family::Call, kind.index, kind.name);
        let counted = metrics::start(point, kind.inode);
        let answer = self.ask_in_time(call).await;
        counted.end(answer.as_ref().map_or_else(|failure| failure.errno.raw(), |_| 0));
        answer
    }

    async fn ask_in_time(self: &Rc<Self>, call: Call) -> Result<Answer, Failure> {
        let unbounded = matches!(call, Call::Change(ChangeCall::SetLock { wait: true, .. }));
        let deadline =
            now() + if unbounded { Duration::MAX } else { self.times().request_deadline };
        let guard = if call.changes() {
            let slot = timeout_at(deadline, self.slots.take()).await;
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
            // It may yet be carried out. Nobody but its answer tells this client what it has changed: until
            // then it is asked for.
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
        // Blocks that a change frees rest until reads from before its answer have ended.
        let _epoch = call.traits().may_free.then(|| self.life.hold());
        // Another session's locks are not those that are reported.
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
                // Nobody knows whether the lost session carried it out.
                return Err(Failure { errno: Errno::EIO, is_refusal: false });
            }
            progress.sent_in.set(Some(self.life.stamp()));
            self.counts.borrow_mut().note(&request.call);
            let (sender, receiver) = oneshot();
            let (session, asked) = (Rc::clone(&self), Rc::clone(&request));
            // The slot is in use until the answer is there.
            let (guard, progress_then) = (guard.clone(), Rc::clone(&progress));
            link.call_then(&request, move |answer| {
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

    /// The link, once there is one.
    async fn linked(&self) -> Result<Link, Errno> {
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

    fn handler(&self) -> Option<Rc<dyn Handler>> {
        self.handler.borrow().upgrade()
    }

    /// Connects, proves itself, starts or resumes the session, reclaims.
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
                // The old session is being fenced, and its host identifier with it: go on as another.
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

    /// Makes a call before anything else goes over a connection. What its answer says of the pool's
    /// devices is handed on at once, like a push: one that follows it in the stream is newer, and
    /// must not be undone when the task that waits here is woken.
    async fn first_call(self: &Rc<Self>, link: &Link, call: Call) -> Result<Answer, String> {
        let deadline = now() + self.times().session_deadline;
        let (sender, receiver) = oneshot();
        let session = Rc::clone(self);
        let request = Request { slot: None, call };
        let asked = request.call.clone();
        link.call_then(&request, move |answer| {
            if let (Ok(response), Some(handler)) = (&answer, session.handler()) {
                // A reclaim is answered by grants: what is returned later must name their stamps.
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

    /// Runs one link after the other until the session is closed.
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

    /// Tells the service which reads have ended, and that this thread lives (that the process does
    /// is told by [`pulse`]).
    async fn heartbeat(self: Rc<Self>) {
        let serving = pulse::Serving(Arc::clone(&self.life.contact));
        while !self.closed.get() {
            serving.0.serve();
            sleep(self.times().heartbeat).await;
            let sent = now();
            let ended_through = self.life.ended_through();
            let call = self.call(Call::Session(SessionCall::Heartbeat { ended_through }));
            match reactor::time::timeout(self.times().self_stop, Box::pin(call)).await {
                Ok(Ok(Answer::Alive { free_epoch, takes_inline })) => {
                    self.life.heard(sent, free_epoch);
                    self.takes_inline.set(takes_inline || reactor::mutant!("inline-limit-ignored"));
                }
                Ok(Err(Errno::ESTALE)) if !self.closed.get() && !self.ending.get() => {
                    self.drop_link("the service says that the session has ended");
                }
                Ok(_) => {}
                // No answer for so long: the connection is of no use, whatever TCP thinks of it.
                Err(_) => self.drop_link("a heartbeat was not answered"),
            }
        }
    }

    fn drop_link(&self, reason: &str) {
        let link = self.link.borrow().clone();
        if let Some(link) = link {
            link.close(reason);
        }
    }

    /// The newest free epoch that an answer carried.
    pub(crate) fn note_epoch(&self, epoch: FreeEpoch) {
        self.life.note_epoch(epoch);
    }
}

fn refused(errno: Errno) -> String {
    format!("the service answers {errno}")
}

/// Hands on what a link receives.
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

/// Stands in until [`Session::start`] names the real one.
struct NoHandler;

impl Handler for NoHandler {
    fn answered(self: Rc<Self>, _: &Call, _: &Response, _: bool) {}
    fn pushed(self: Rc<Self>, _: Push, _: PushReply) {}
    fn disconnected(self: Rc<Self>) {}
    fn held(&self) -> Vec<(InodeId, Rights)> {
        Vec::new()
    }
    fn lost(&self) {}
    fn devices(&self, _: Vec<DeviceInfo>) {}
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
