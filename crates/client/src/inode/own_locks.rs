//! Which side decides about the locks of one inode: the service or this client.

use reactor::local::{Notify, Semaphore};
use std::cell::Cell;

/// Who decides about an inode's locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Decider {
    /// The service.
    #[default]
    Service,
    /// This client.
    Here {
        /// The service has other locks stored.
        is_changed: bool,
    },
    /// The service, as soon as it has the report.
    Reporting,
}

/// Who decides about an inode's locks, and what is under way.
#[derive(Debug)]
pub(crate) struct OwnLocks {
    pub(crate) decider: Cell<Decider>,
    /// Notified when a report has ended.
    pub(crate) reported: Notify,
    /// Held by who reports.
    pub(crate) turn: Semaphore,
    /// Lock calls under way, with those that nobody waits for any more.
    pub(crate) calls: Cell<u32>,
}

impl Default for OwnLocks {
    fn default() -> OwnLocks {
        OwnLocks {
            decider: Cell::default(),
            reported: Notify::new(),
            turn: Semaphore::new(1),
            calls: Cell::new(0),
        }
    }
}

impl OwnLocks {
    /// Whether the service may not know which locks there are.
    pub(crate) fn are_own(&self) -> bool {
        self.decider.get() != Decider::Service
    }

    /// The service decides.
    pub(crate) fn end(&self) {
        self.decider.set(Decider::Service);
        self.reported.notify();
    }
}
