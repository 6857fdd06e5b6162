//! The live sessions: their connections, heart-beats, calls in their slots, and the order in which
//! they end.
//!
//! What must survive a restart (identifier, host, epoch, admissions, slots, locks) is the core's;
//! this is what a restart forgets.

use crate::service::WorkRef;
use protocol::client::Slot;
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Epoch, HostId, SessionId};
use reactor::local::Notify;
use reactor::time::Instant;
use rpc::{Acceptor, Client, Connection};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// The metadata service's end of a client's connection.
pub(crate) type ClientConnection = Connection<Acceptor<Client>>;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its calls are carried out.
    Live,
    /// It is being fenced: its calls are answered ESTALE, its rights are still nobody else's.
    Ending,
    /// All that it had is gone.
    Ended,
}

/// A session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) host: HostId,
    pub(crate) node: String,
    pub(crate) epoch: Epoch,
    pub(crate) connection: RefCell<Option<ClientConnection>>,
    /// Devices that have changed and that its client has not been told of.
    pub(crate) news: RefCell<BTreeMap<DeviceId, Rc<DeviceInfo>>>,
    /// When the last heartbeat or pulse was answered.
    pub(crate) last_heartbeat: Cell<Instant>,
    pub(crate) life: Cell<Life>,
    /// Its client does nothing more: it said so, or its process is dead. From then on nothing that it was
    /// granted is used, by a kernel that outlives it either.
    pub(crate) gone_at: Cell<Option<Instant>>,
    /// Devices that the store, come what may, says it was admitted at.
    pub(crate) kept_admissions: RefCell<Vec<DeviceId>>,
    /// Told when the session has ended.
    pub(crate) ended: Notify,
    /// Calls under way by slot, for retries that come before the answer.
    pub(crate) in_flight: RefCell<HashMap<u16, (u64, WorkRef)>>,
    /// Calls that wait for something.
    pub(crate) waiting: Cell<usize>,
    /// Calls that wait for file locks.
    pub(crate) lock_waits: Cell<usize>,
    /// After a resume: when it must have said what it holds.
    pub(crate) reclaim_by: Cell<Option<Instant>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Session");
        debug.field("id", &self.id).field("life", &self.life.get()).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(id: SessionId, host: HostId, node: String, epoch: Epoch) -> Rc<Session> {
        Rc::new(Session {
            id,
            host,
            node,
            epoch,
            connection: RefCell::new(None),
            news: RefCell::default(),
            last_heartbeat: Cell::new(reactor::time::now()),
            life: Cell::new(Life::Live),
            gone_at: Cell::new(None),
            kept_admissions: RefCell::default(),
            ended: Notify::new(),
            in_flight: RefCell::default(),
            waiting: Cell::new(0),
            lock_waits: Cell::new(0),
            reclaim_by: Cell::new(None),
        })
    }

    pub(crate) fn is_live(&self) -> bool {
        self.life.get() == Life::Live
    }

    /// The connection, if there is one.
    pub(crate) fn connection(&self) -> Option<ClientConnection> {
        self.connection.borrow().clone()
    }

    /// The unanswered call in a slot with the same sequence.
    pub(crate) fn retried(&self, slot: Slot) -> Option<WorkRef> {
        let in_flight = self.in_flight.borrow();
        let (sequence, work) = in_flight.get(&slot.slot)?;
        let is_same = *sequence == slot.sequence && !reactor::mutant!("retry-beside-first");
        is_same.then(|| Rc::clone(work))
    }
}

/// All sessions that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: BTreeMap<SessionId, Rc<Session>>,
    /// Sessions of before the restart that have not reclaimed what they held.
    grace: Vec<SessionId>,
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<Rc<Session>> {
        self.by_id.get(&id).cloned()
    }

    pub(crate) fn by_host(&self, host: HostId) -> Option<Rc<Session>> {
        self.by_id.values().find(|session| session.host == host).cloned()
    }

    pub(crate) fn insert(&mut self, session: Rc<Session>) {
        let id = session.id;
        let before = self.by_id.insert(id, session);
        assert!(before.is_none(), "a second {id} is made beside {before:?}");
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn all(&self) -> Vec<Rc<Session>> {
        self.by_id.values().cloned().collect()
    }

    /// A session of before the restart: grace lasts until it has reclaimed or ended.
    pub(crate) fn expect(&mut self, id: SessionId) {
        assert!(
            self.by_id.contains_key(&id) && !self.grace.contains(&id),
            "{id} is to reclaim, and is not there, or is awaited already"
        );
        self.grace.push(id);
    }

    /// Whether some session has yet to reclaim.
    pub(crate) fn in_grace(&self) -> bool {
        !self.grace.is_empty()
    }

    /// Whether the session has yet to reclaim.
    pub(crate) fn is_expected(&self, id: SessionId) -> bool {
        self.grace.contains(&id)
    }

    /// The session has reclaimed; whether that ended the grace.
    pub(crate) fn reclaimed(&mut self, id: SessionId) -> bool {
        let was_in_grace = self.in_grace();
        self.grace.retain(|expected| *expected != id && !reactor::mutant!("grace-ends-with-first"));
        was_in_grace && !self.in_grace()
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        let session = self.by_id.remove(&id);
        let life = session.map(|session| session.life.get());
        assert_eq!(life, Some(Life::Ended), "{id} is forgotten before it has ended");
    }

    /// Live sessions whose last heartbeat was before `limit`, or that should have reclaimed by now.
    pub(crate) fn silent_since(&self, limit: Instant) -> Vec<Rc<Session>> {
        let now = reactor::time::now();
        let is_late = |s: &Session| s.reclaim_by.get().is_some_and(|by| by < now);
        if reactor::mutant!("silence-unnoticed") {
            return Vec::new();
        }
        let is_silent =
            |s: &&Rc<Session>| s.is_live() && (s.last_heartbeat.get() < limit || is_late(s));
        self.by_id.values().filter(is_silent).cloned().collect()
    }
}
