//! The service's state, its start and its end.

use super::call::Work;
use super::handshakes::Handshakes;
use super::outbox::Outgoing;
use super::sync::Syncing;
use super::{ServeError, Times};
use crate::admission::Agents;
use crate::leases::{Asked, CallId, HOLDINGS_PER_SESSION, Leases};
use crate::sessions::{Session, Sessions};
use crate::store::Error;
use crate::tree::Core;
use locks::LockTable;
use protocol::admin::MetaCounts;
use protocol::auth::Role;
use protocol::client::Push;
use protocol::connection::Limits;
use protocol::{InodeId, SessionId};
use reactor::local::Notify;
use reactor::{JoinHandle, Sparse};
use rpc::Guard;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tls::JobKey;

/// Pause after a failed `accept`, which fails when descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time that a clean end waits for answers to leave.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// Limits log lines that strangers can cause.
static ACCEPT_FAILED: Sparse = Sparse::new();
static REFUSED: Sparse = Sparse::new();

/// Closes a connection if the reason is not empty; returns whether it is open afterwards.
type Closer = Rc<dyn Fn(&str) -> bool>;

/// All of the service's state, owned by one thread.
pub(crate) struct Shared {
    pub(super) guard: Guard,
    /// See [`super::Config::data_keys`].
    pub(super) data_keys: Option<JobKey>,
    pub(super) times: Times,
    pub(super) core: RefCell<Core>,
    pub(super) leases: RefCell<Leases>,
    pub(super) locks: RefCell<LockTable>,
    pub(super) lock_contention: super::lock::Contention,
    pub(super) sessions: RefCell<Sessions>,
    pub(super) agents: Agents,
    pub(super) outbox: RefCell<Vec<Outgoing>>,
    pub(super) flush_wanted: Notify,
    /// Notified when a session has pending changes of devices.
    pub(super) news_wanted: Notify,
    pub(super) reclaim_wanted: Notify,
    /// Changes have been flushed since the last sync.
    pub(super) is_unsynced: Cell<bool>,
    pub(super) syncing: Syncing,
    /// Waiting calls, by their number.
    pub(super) waiting: RefCell<BTreeMap<CallId, Rc<Work>>>,
    pub(super) next_call: Cell<u64>,
    pub(super) space: super::space::Rounds,
    pub(super) flushing: super::durable::Flushing,
    /// A check of all records is under way.
    pub(super) is_checking: Cell<bool>,
    counts: Cell<MetaCounts>,
    /// Open connections, which the end of the service closes.
    closers: RefCell<Vec<Closer>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    end: RefCell<Option<Result<(), Error>>>,
    end_wanted: Notify,
    pub(super) is_stopping: Cell<bool>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counts", &self.counts.get()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(
        core: Core,
        guard: Guard,
        data_keys: Option<JobKey>,
        times: Times,
    ) -> Result<Rc<Shared>, ServeError> {
        let mut sessions = Sessions::default();
        let mut locks = LockTable::default();
        for (session, lock) in core.locks()? {
            if !reactor::mutant!("locks-forgotten") && !locks.restore(session, lock) {
                let reason = format!("{session} holds a lock that ends before it begins: {lock:?}");
                return Err(crate::store::Error::Corrupt { key: String::new(), reason }.into());
            }
        }
        for (id, record) in core.sessions() {
            let session = Session::new(id, record.host, record.node.clone(), record.epoch);
            sessions.insert(session);
            sessions.expect(id);
        }
        let stamps_from = core.stamps_from();
        let syncing = Syncing::start(core.syncer()).map_err(ServeError::Thread)?;
        Ok(Rc::new(Shared {
            guard,
            data_keys,
            times,
            core: RefCell::new(core),
            leases: RefCell::new(Leases::new(stamps_from, HOLDINGS_PER_SESSION)),
            locks: RefCell::new(locks),
            lock_contention: super::lock::Contention::default(),
            sessions: RefCell::new(sessions),
            agents: Agents::new(),
            outbox: RefCell::default(),
            flush_wanted: Notify::new(),
            news_wanted: Notify::new(),
            reclaim_wanted: Notify::new(),
            is_unsynced: Cell::new(true),
            syncing,
            waiting: RefCell::default(),
            next_call: Cell::new(1),
            space: super::space::Rounds::default(),
            flushing: super::durable::Flushing::default(),
            is_checking: Cell::new(false),
            counts: Cell::default(),
            closers: RefCell::default(),
            tasks: RefCell::default(),
            end: RefCell::new(None),
            end_wanted: Notify::new(),
            is_stopping: Cell::new(false),
        }))
    }

    /// Starts the tasks.
    pub(super) fn run(self: &Rc<Self>, listener: rpc::Listener) {
        let tasks = [
            reactor::spawn(Rc::clone(self).accept_loop(listener)),
            reactor::spawn(Rc::clone(self).flush_loop()),
            reactor::spawn(Rc::clone(self).sync_loop()),
            reactor::spawn(Rc::clone(self).sync_ticks()),
            reactor::spawn(Rc::clone(self).flush_ticks()),
            reactor::spawn(Rc::clone(self).watch_sessions()),
            reactor::spawn(Rc::clone(self).renew_admissions()),
            reactor::spawn(Rc::clone(self).send_news()),
            reactor::spawn(Rc::clone(self).reclaim_loop()),
        ];
        self.tasks.borrow_mut().extend(tasks);
        self.offline_unserved();
        self.end_void_sessions();
    }

    /// Accepts connections. Each proves itself in a task of its own and waits for no other. When
    /// too many connections are unproved, the peer with the most of them loses its oldest.
    async fn accept_loop(self: Rc<Self>, listener: rpc::Listener) {
        let handshakes = Rc::new(Handshakes::new());
        loop {
            let knock = match listener.accept().await {
                Ok(knock) => knock,
                Err(error) => {
                    if let Some(suppressed) = ACCEPT_FAILED.pass() {
                        tracing::warn!(%error, suppressed, "cannot accept a connection");
                    }
                    handshakes.make_room();
                    reactor::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let address = knock.address();
            let Some(id) = handshakes.enter(address.ip()) else { continue };
            let (shared, these) = (Rc::clone(&self), Rc::clone(&handshakes));
            let task = reactor::spawn(async move {
                let result = knock.authenticate(&shared.guard, Limits::default()).await;
                these.leave(id);
                match result {
                    Ok(_) if shared.is_stopping.get() => {}
                    Ok(peer) => match peer.role() {
                        Role::Client => shared.serve_client(peer),
                        Role::Agent => shared.serve_agent(peer),
                        Role::Admin => shared.serve_admin(peer),
                    },
                    Err(error) => {
                        if let Some(suppressed) = REFUSED.pass() {
                            tracing::warn!(%address, %error, suppressed, "a connection is refused");
                        }
                    }
                }
            });
            handshakes.keep(id, task);
        }
    }

    /// Stores the closer of a connection; `close` returns whether it was open.
    pub(super) fn remember(&self, close: Closer) {
        self.closers.borrow_mut().push(close);
    }

    /// Forgets connections that are closed.
    pub(super) fn tidy_connections(&self) {
        self.closers.borrow_mut().retain(|close| close(""));
    }

    /// Sends the recalls of the lease table, and wakes the calls that it made ready.
    pub(super) fn go_on(&self) {
        let (asks, ready) = {
            let mut leases = self.leases.borrow_mut();
            (leases.take_outbox(), leases.take_ready())
        };
        for ask in asks {
            // An ended session has no rights left, so it needs no message.
            let Some(session) = self.sessions.borrow().get(ask.session) else { continue };
            self.post(Outgoing::Ask(session, ask.id, push_of(ask.what)));
        }
        for call in ready {
            if let Some(work) = self.waiting.borrow().get(&call) {
                work.wake.notify();
            }
        }
    }

    /// Records that a session has an inode without a name open.
    pub(super) fn note_open(&self, session: SessionId, inode: InodeId) {
        if let Err(error) = self.core.borrow_mut().note_open(session, inode) {
            tracing::error!(%error, session = session.0, inode = inode.0, "cannot note an open");
        }
    }

    /// Records that a session has closed an inode, unless an answer that it may not have got has
    /// opened it.
    pub(super) fn close_inode(&self, session: SessionId, inode: InodeId) {
        if self.leases.borrow().is_unheard(session, inode) {
            return;
        }
        let closed = self.core.borrow_mut().close(session, inode);
        if let Err(error) = closed {
            tracing::error!(%error, session = session.0, inode = inode.0, "cannot close an inode");
        }
        self.post(Outgoing::Then(Box::new(|_| {})));
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut MetaCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn counts(&self) -> MetaCounts {
        MetaCounts { transactions: self.core.borrow().transactions(), ..self.counts.get() }
    }

    /// Ends the service after a failure of the store: nothing that is unsent may be sent.
    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "the metadata service ends");
        self.abort("the metadata store failed");
        self.want_end(Err(error));
    }

    pub(super) fn want_end(&self, result: Result<(), Error>) {
        let mut end = self.end.borrow_mut();
        if end.is_none() {
            *end = Some(result);
        }
        self.end_wanted.notify();
    }

    pub(super) async fn ended(&self) -> Result<(), ServeError> {
        loop {
            if let Some(result) = self.end.borrow_mut().take() {
                return result.map_err(ServeError::Store);
            }
            self.end_wanted.notified().await;
        }
    }

    /// Ends everything at once.
    pub(super) fn abort(&self, reason: &str) {
        self.is_stopping.set(true);
        for task in std::mem::take(&mut *self.tasks.borrow_mut()) {
            task.abort();
        }
        self.outbox.borrow_mut().clear();
        for work in std::mem::take(&mut *self.waiting.borrow_mut()).into_values() {
            work.give_up();
        }
        let closers = std::mem::take(&mut *self.closers.borrow_mut());
        for close in closers {
            close(reason);
        }
    }

    pub(super) async fn stop(self: &Rc<Self>) -> Result<(), ServeError> {
        self.is_stopping.set(true);
        self.flush();
        let sessions = self.sessions.borrow().all();
        let flushed = async {
            for session in sessions {
                if let Some(connection) = session.connection() {
                    connection.flushed().await;
                }
            }
        };
        // Clients ask again after the next start for answers that do not leave in time.
        let _ = reactor::time::timeout(FLUSH_DEADLINE, flushed).await;
        self.abort("the metadata service ends");
        let mut core = self.core.borrow_mut();
        core.flush()?;
        // Nothing else runs any more, so this thread may wait for the disk.
        Ok(core.sync()?)
    }
}

/// Returns the message that carries an ask to a client.
pub(super) fn push_of(what: Asked) -> Push {
    match what {
        Asked::Recall(recall) => Push::Recall(recall),
        Asked::Forget { inode, names, stamp } => Push::Invalidate { inode, names, stamp },
    }
}
