//! A signal that something is due.

use std::cell::Cell;

use reactor::local::Notify;

/// Something is due, until it is taken.
#[derive(Debug, Default)]
pub(crate) struct DueSignal {
    /// The calls of `changed` alone do not show this, since a pause receives them too.
    is_due: Cell<bool>,
    /// Something is due, or the end is near.
    changed: Notify,
}

impl DueSignal {
    /// Raises it.
    pub(crate) fn raise(&self) {
        if !self.is_due.replace(true) {
            self.changed.notify();
        }
    }

    /// Returns whether something is due.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due.get()
    }

    /// Sets whether something is due, without waking a task.
    pub(crate) fn set_due(&self, is_due: bool) {
        self.is_due.set(is_due);
    }

    /// Wakes all tasks that wait for it.
    pub(crate) fn wake(&self) {
        self.changed.notify();
    }

    /// Completes when it is raised or its tasks are woken.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }
}
