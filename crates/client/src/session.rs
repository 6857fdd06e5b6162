//! The session with the metadata service.
//!
//! Answers and pushes go to the [`Handler`] *in the order of the stream, as they are parsed*. The
//! task that waits for an answer wakes only after that. So a grant is always applied before a
//! recall that follows it.
//!
//! | module | content |
//! | --- | --- |
//! | `config`, `handler` | how to reach the service; the interface to the rest of the client |
//! | `keep` | connecting, resuming after a lost connection, heartbeats, ending |
//! | `call`, `slots` | one call until its answer, over any number of connections; reply slots |
//! | `life`, `contact`, `pulse` | whether the session may act; heartbeats from another thread |
//! | `counts` | calls and bytes |

pub(crate) mod call;
pub(crate) mod config;
mod contact;
pub(crate) mod counts;
pub(crate) mod handler;
mod keep;
pub(crate) mod life;
mod pulse;
mod slots;

use crate::session::config::SessionConfig;
pub(crate) use crate::session::counts::CallCounts;
pub(crate) use crate::session::handler::{Handler, Link, NoHandler};
use crate::session::life::Life;
pub(crate) use crate::session::slots::LOCK_WAITS_MAX;
use crate::session::slots::Slots;
use protocol::times::Times;
use protocol::{Epoch, FreeEpoch, HostId, SessionId};
use reactor::SocketOptions;
use reactor::local::{Notify, WaitGroup};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// First pause before connecting again; it doubles up to a second.
const RECONNECT_MIN: Duration = Duration::from_millis(20);

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
    /// Whether the service takes inline data, by its last answer.
    pub(crate) takes_inline: Cell<bool>,
    /// What is being taken back since the connection was lost. The service counts it as dropped
    /// once the session goes on.
    pub(crate) taking_back: WaitGroup,
    /// Whether the session is being ended: then the service's answer that it has ended is no loss.
    ending: Cell<bool>,
    /// Counts of calls sent, and of the traffic of lost connections.
    counts: RefCell<CallCounts>,
}

/// This client's identity towards the service and targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) session: Option<SessionId>,
    pub(crate) host: HostId,
    pub(crate) epoch: Epoch,
    pub(crate) file_system: uuid::Uuid,
}

/// Returns a new random host identifier.
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

    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> CallCounts {
        let mut counts = self.counts.borrow().clone();
        if let Some(link) = &*self.link.borrow() {
            counts.add(link.traffic());
        }
        counts
    }

    /// Returns this client's identity.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.get()
    }

    /// Returns the times that apply in the pool.
    pub(crate) fn times(&self) -> &Times {
        &self.config.times
    }

    /// Returns the options of sockets.
    pub(crate) fn sockets(&self) -> &SocketOptions {
        &self.config.sockets
    }

    /// Returns whether the session was ended in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns the handler, if it still lives.
    fn handler(&self) -> Option<Rc<dyn Handler>> {
        self.handler.borrow().upgrade()
    }

    /// Notes the newest free epoch that an answer carried.
    pub(crate) fn note_epoch(&self, epoch: FreeEpoch) {
        self.life.note_epoch(epoch);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
