//! Which side decides about the locks of one inode: the service or this client.

use reactor::local::{Notify, Semaphore};
use std::cell::Cell;

/// The side that decides about an inode's locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Decider {
    /// The service.
    #[default]
    Service,
    /// This client.
    Here {
        /// Whether the service has other locks stored.
        is_changed: bool,
    },
    /// The service, once it has the report.
    Reporting,
}

/// Which side decides about an inode's locks, and what is running.
#[derive(Debug)]
pub(crate) struct OwnLocks {
    pub(crate) decider: Cell<Decider>,
    /// Notified when a report has ended.
    pub(crate) reported: Notify,
    /// Held by the task that reports.
    pub(crate) turn: Semaphore,
    /// Lock calls that are running, including those whose caller has given up.
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
    /// Returns whether the service may not know which locks there are.
    pub(crate) fn are_own(&self) -> bool {
        self.decider.get() != Decider::Service
    }

    /// Leaves the decision to the service.
    pub(crate) fn end(&self) {
        self.decider.set(Decider::Service);
        self.reported.notify();
    }
}
