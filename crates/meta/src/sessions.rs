//! The live sessions: their connections, heartbeats, calls in their slots, and the order of their
//! end.
//!
//! State that survives a restart (identifier, host, epoch, admissions, slots, locks) belongs to the
//! core; this is the state that a restart forgets.

use crate::leases::AskId;
use crate::service::WorkRef;
use protocol::client::{Push, Slot};
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Epoch, HostId, LeaseStamp, SessionId};
use reactor::local::Notify;
use reactor::time::Instant;
use rpc::{Acceptor, Client, Connection};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

/// Most recalls that a client may have unanswered; further ones wait. It is less than the calls
/// that a connection allows, so that other messages have room beside them.
pub(crate) const RECALLS_MAX: usize = 1024;

/// The metadata service's end of a client's connection.
pub(crate) type ClientConnection = Connection<Acceptor<Client>>;

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its calls are executed.
    Live,
    /// It is being fenced: its calls are answered ESTALE, and no other session gets its rights yet.
    Ending,
    /// It has lost everything that it had.
    Ended,
}

/// The recalls of a session over its present connection.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// Number of those that were sent and have no answer yet.
    unanswered: usize,
    /// Those of rights among them, by their stamps, each with the time of the last heartbeat by
    /// which the client works on its answer.
    worked_on: BTreeMap<LeaseStamp, Option<Instant>>,
    /// Those that are sent when earlier ones are answered, in their order.
    waiting: VecDeque<(AskId, Push)>,
}

impl Recalls {
    /// Adds a recall behind all others.
    pub(crate) fn add(&mut self, id: AskId, push: Push) {
        self.waiting.push_back((id, push));
    }

    /// Takes the next recall to send, unless the client must answer others first.
    pub(crate) fn next_to_send(&mut self) -> Option<(AskId, Push)> {
        if self.unanswered >= RECALLS_MAX {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.unanswered += 1;
        Some(next)
    }

    /// Records that a recall was answered, or that its connection is gone.
    pub(crate) fn answered(&mut self) {
        assert!(self.unanswered > 0, "a recall is answered that was not sent: {self:?}");
        self.unanswered -= 1;
    }

    /// Follows what the client reports of a recall of rights, until it is answered.
    pub(crate) fn follow(&mut self, stamp: LeaseStamp) {
        self.worked_on.insert(stamp, None);
    }

    /// Ends [`Recalls::follow`].
    pub(crate) fn unfollow(&mut self, stamp: LeaseStamp) {
        self.worked_on.remove(&stamp);
    }

    /// Notes that the client works on the answers to these recalls now. It ignores others.
    pub(crate) fn note_work(&mut self, stamps: &[LeaseStamp]) {
        let now = reactor::time::now();
        for stamp in stamps {
            if let Some(worked_at) = self.worked_on.get_mut(stamp) {
                *worked_at = Some(now);
            }
        }
    }

    /// Returns when the client last reported that it works on the answer to a recall.
    pub(crate) fn worked_at(&self, stamp: LeaseStamp) -> Option<Instant> {
        self.worked_on.get(&stamp).copied().flatten()
    }

    /// Drops the recalls that were not sent: their connection is gone, and the lease table repeats
    /// those that still matter when the session has resumed.
    pub(crate) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }
}

/// A session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) host: HostId,
    pub(crate) node: String,
    pub(crate) epoch: Epoch,
    pub(crate) connection: RefCell<Option<ClientConnection>>,
    /// Its recalls that are not answered yet.
    pub(crate) recalls: RefCell<Recalls>,
    /// Changed devices that its client does not know yet.
    pub(crate) news: RefCell<BTreeMap<DeviceId, Rc<DeviceInfo>>>,
    /// Time of the last answer to a heartbeat or pulse.
    pub(crate) last_heartbeat: Cell<Instant>,
    pub(crate) life: Cell<Life>,
    /// Its client does nothing more, because it has ended the session or its process is dead. From
    /// this time on nothing uses what it was granted, not even a kernel that outlives it.
    pub(crate) gone_at: Cell<Option<Instant>>,
    /// Devices at which it is admitted according to the synced store.
    pub(crate) kept_admissions: RefCell<Vec<DeviceId>>,
    /// Notified when the session has ended.
    pub(crate) ended: Notify,
    /// Calls under way by slot, for retries that come before the answer.
    pub(crate) in_flight: RefCell<HashMap<u16, (u64, WorkRef)>>,
    /// Number of waiting calls.
    pub(crate) waiting: Cell<usize>,
    /// Number of calls that wait for file locks.
    pub(crate) lock_waits: Cell<usize>,
    /// After a resume: the deadline for reporting its rights.
    pub(crate) reclaim_by: Cell<Option<Instant>>,
    /// Heartbeats since then, as long as they are counted.
    pub(crate) heartbeats: Cell<u32>,
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
            recalls: RefCell::default(),
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
            heartbeats: Cell::new(0),
        })
    }

    pub(crate) fn is_live(&self) -> bool {
        self.life.get() == Life::Live
    }

    /// Returns the connection, if there is one.
    pub(crate) fn connection(&self) -> Option<ClientConnection> {
        self.connection.borrow().clone()
    }

    /// Returns the unanswered call in a slot with the same sequence.
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
    /// Sessions of before the restart that have not reclaimed their rights.
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

    /// Adds a session of before the restart: grace lasts until it has reclaimed or ended.
    pub(crate) fn expect(&mut self, id: SessionId) {
        assert!(
            self.by_id.contains_key(&id) && !self.grace.contains(&id),
            "{id} must reclaim, but does not exist or is awaited already"
        );
        self.grace.push(id);
    }

    /// Returns whether some session has not reclaimed yet.
    pub(crate) fn in_grace(&self) -> bool {
        !self.grace.is_empty()
    }

    /// Returns whether this session has not reclaimed yet.
    pub(crate) fn is_expected(&self, id: SessionId) -> bool {
        self.grace.contains(&id)
    }

    /// Records that the session has reclaimed; returns whether that ended the grace.
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

    /// Returns live sessions whose last heartbeat was before `limit`, or whose deadline to reclaim
    /// has passed.
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
