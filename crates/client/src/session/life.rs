//! Whether the session may still act, and which reads keep freed blocks from being used again.

use crate::session::contact::Contact;
use protocol::times::Times;
use protocol::{Errno, FreeEpoch};
use reactor::local::Notify;
use reactor::time::{Instant, now, timeout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Number of a session among those that a client has one after the other. What belongs to a session
/// carries its stamp, and only [`Life`] compares that with the present session: what began in an
/// older session must not end in a newer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionStamp(u64);

/// The session's life.
#[derive(Debug)]
pub(crate) struct Life {
    times: Times,
    pub(super) contact: Arc<Contact>,
    /// The stamp of the present session.
    stamp: Cell<SessionStamp>,
    revived: Notify,
    epochs: Rc<RefCell<Epochs>>,
}

#[derive(Debug, Default)]
struct Epochs {
    latest: FreeEpoch,
    /// Running reads (and changes), by the epoch they began under.
    under_way: BTreeMap<FreeEpoch, usize>,
}

/// Marks a read as running until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadGuard {
    epoch: FreeEpoch,
    epochs: Rc<RefCell<Epochs>>,
}

impl Life {
    pub(super) fn new(times: Times) -> Life {
        Life {
            times,
            contact: Arc::default(),
            stamp: Cell::default(),
            revived: Notify::default(),
            epochs: Rc::default(),
        }
    }

    /// Notes that a heartbeat sent at `sent` has been answered.
    pub(super) fn heard(&self, sent: Instant, free_epoch: FreeEpoch) {
        self.contact.heard(sent);
        self.note_epoch(free_epoch);
        self.revived.notify();
    }

    /// Notes the service's free epoch.
    pub(super) fn note_epoch(&self, epoch: FreeEpoch) {
        let mut epochs = self.epochs.borrow_mut();
        epochs.latest = epochs.latest.max(epoch);
    }

    /// Notes that the session was lost.
    pub(crate) fn lose(&self) {
        self.stamp.set(SessionStamp(self.stamp.get().0 + 1));
    }

    /// Returns the stamp for what begins in the present session.
    pub(crate) fn stamp(&self) -> SessionStamp {
        self.stamp.get()
    }

    /// Returns whether this stamp is of the present session.
    pub(crate) fn is_present(&self, stamp: SessionStamp) -> bool {
        let present = self.stamp.get();
        assert!(stamp <= present, "{stamp:?} is of a session after the present one, {present:?}");
        stamp == present
    }

    /// Fails with ESTALE if this stamp is of a session that is lost.
    pub(crate) fn check(&self, stamp: SessionStamp) -> Result<(), Errno> {
        if self.is_present(stamp) { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Returns whether I/O may start, and bytes that were read may be returned.
    pub(crate) fn is_alive(&self) -> bool {
        self.contact.is_alive(&self.times)
    }

    /// Returns until when a cache that cannot ask may use what it has.
    pub(crate) fn trusted_until(&self) -> Instant {
        self.contact.trusted_until(&self.times)
    }

    /// Waits until the session is alive.
    ///
    /// # Errors
    /// ETIMEDOUT after [`Times::request_deadline`].
    pub(crate) async fn alive(&self) -> Result<(), Errno> {
        let deadline = now() + self.times.request_deadline;
        while !self.is_alive() {
            if now() >= deadline {
                return Err(Errno::ETIMEDOUT);
            }
            // The pulse thread cannot notify this one, so this looks now and then.
            let _ = timeout(self.times.heartbeat / 4, self.revived.notified()).await;
        }
        Ok(())
    }

    /// Begins a read under the newest epoch known.
    pub(crate) fn hold(&self) -> ReadGuard {
        let latest = self.epochs.borrow().latest;
        self.hold_at(latest)
    }

    /// Begins a read under extents that held at `epoch`.
    pub(crate) fn hold_at(&self, epoch: FreeEpoch) -> ReadGuard {
        *self.epochs.borrow_mut().under_way.entry(epoch).or_default() += 1;
        ReadGuard { epoch, epochs: Rc::clone(&self.epochs) }
    }

    /// Returns an epoch such that every read that began before it has ended.
    pub(crate) fn ended_through(&self) -> FreeEpoch {
        let epochs = self.epochs.borrow();
        let oldest = epochs.under_way.first_key_value().map(|(&epoch, _)| epoch);
        let oldest = oldest.filter(|_| !reactor::mutant!("reads-uncounted"));
        oldest.map_or(epochs.latest, |oldest| oldest.min(epochs.latest))
    }
}

impl Drop for ReadGuard {
    fn drop(&mut self) {
        let mut epochs = self.epochs.borrow_mut();
        let count = epochs.under_way.get_mut(&self.epoch).filter(|count| **count > 0);
        // Without the count, blocks that it reads would be reported as free of readers.
        let Some(count) = count else { panic!("a read under {:?} is not counted", self.epoch) };
        *count -= 1;
        if *count == 0 {
            epochs.under_way.remove(&self.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: freed blocks are not used again while a read from before their release continues.
    #[test]
    fn the_oldest_read_holds_the_epoch_back() {
        let life = Life::new(Times::default());
        life.note_epoch(FreeEpoch(5));
        let old = life.hold();
        life.note_epoch(FreeEpoch(9));
        let new = life.hold();
        assert_eq!(life.ended_through(), FreeEpoch(5));
        drop(old);
        assert_eq!(life.ended_through(), FreeEpoch(9));
        life.note_epoch(FreeEpoch(12));
        assert_eq!(life.ended_through(), FreeEpoch(9));
        drop(new);
        assert_eq!(life.ended_through(), FreeEpoch(12));
    }
}
