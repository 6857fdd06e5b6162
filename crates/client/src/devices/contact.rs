//! Whether a device answers.

use protocol::{Errno, InodeId};
use reactor::local::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Whether a device answers.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    pub(crate) is_lost: Cell<bool>,
    /// Whether a probe is running.
    pub(crate) is_probed: Cell<bool>,
    /// The files that the log has named since contact was lost.
    pub(crate) named: RefCell<BTreeSet<InodeId>>,
    /// Notified when contact begins anew, so that a waiting probe ends.
    pub(crate) renewed: Notify,
}

impl Contact {
    /// Returns whether the device is out of contact.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Forgets what was found: the device is back or has moved, or this client begins another
    /// session. The next command waits for its own deadline.
    pub(super) fn begin_anew(&self) {
        self.is_lost.set(false);
        self.named.borrow_mut().clear();
        self.renewed.notify();
    }

    /// Fails if the device is out of contact.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_lost() { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// Returns whether a command failed for lack of contact rather than by an answer.
pub(crate) fn is_of_contact(error: &block::Error) -> bool {
    let block::Error::Io { source, .. } = error else { return false };
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<host::Error>());
    cause.is_some_and(is_silence)
}

/// Returns whether an error of the host means that it did not reach the target.
pub(super) fn is_silence(error: &host::Error) -> bool {
    error.is_connection_error()
        || matches!(error, host::Error::DeadlineExceeded(_) | host::Error::ControllerLost(_))
}
