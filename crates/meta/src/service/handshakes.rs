//! Connections that have not yet proved that they know a key of the job.

use reactor::JoinHandle;
use reactor::net::{Entered, Entrance, EntranceLimits};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most connections that may be in their handshake at once.
const HANDSHAKES_MAX: usize = 128;

/// The handshakes under way. A connection whose handshake has ended is not counted: it knows a key.
#[derive(Debug)]
pub(super) struct Handshakes {
    entrance: RefCell<Entrance>,
    tasks: RefCell<BTreeMap<u64, JoinHandle<()>>>,
}

impl Handshakes {
    pub(super) fn new() -> Self {
        let limits = EntranceLimits {
            total_max: HANDSHAKES_MAX,
            silent_max: HANDSHAKES_MAX,
            peer_max: HANDSHAKES_MAX,
        };
        Self { entrance: RefCell::new(Entrance::new(limits)), tasks: RefCell::default() }
    }

    /// Adds a new connection; ends another one if there are too many.
    pub(super) fn enter(&self, address: IpAddr) -> Option<u64> {
        let entered = self.entrance.borrow_mut().enter(address);
        match entered {
            Entered::Kept { id, ending } => {
                if let Some(ending) = ending {
                    self.end(ending);
                }
                Some(id)
            }
            Entered::Busy | Entered::Full | Entered::PeerFull => None,
        }
    }

    /// Stores the task of a new connection.
    pub(super) fn keep(&self, id: u64, task: JoinHandle<()>) {
        if !task.is_finished() {
            self.tasks.borrow_mut().insert(id, task);
        }
    }

    /// Removes a connection whose handshake has ended.
    pub(super) fn leave(&self, id: u64) {
        self.entrance.borrow_mut().leave(id);
        self.tasks.borrow_mut().remove(&id);
    }

    /// Ends a handshake, if there is one, to free a descriptor.
    pub(super) fn make_room(&self) {
        let ending = self.entrance.borrow_mut().make_room();
        if let Some(ending) = ending {
            self.end(ending);
        }
    }

    fn end(&self, id: u64) {
        let task = self.tasks.borrow_mut().remove(&id);
        if let Some(task) = task {
            task.abort();
        }
        self.entrance.borrow_mut().leave(id);
    }
}
