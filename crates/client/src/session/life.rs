//! Whether the session may still act, and which reads keep freed blocks from being used again.

use crate::session::contact::Contact;
use protocol::times::Times;
use protocol::{Errno, FreeEpoch};
use reactor::local::Notify;
use reactor::time::{Instant, now, timeout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
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
    /// Changes without an answer, whose answers come in the order of their execution.
    unanswered: BTreeMap<u64, ReadGuard>,
    /// The number of the next such call.
    next_call: u64,
}

impl Epochs {
    fn enter(&mut self, epoch: FreeEpoch) {
        *self.under_way.entry(epoch).or_default() += 1;
    }

    fn leave(&mut self, epoch: FreeEpoch) {
        let count = self.under_way.get_mut(&epoch).filter(|count| **count > 0);
        // Without the count, blocks that it reads would be reported as free of readers.
        let Some(count) = count else { panic!("a read under {epoch:?} is not counted") };
        *count -= 1;
        if *count == 0 {
            self.under_way.remove(&epoch);
        }
    }
}

/// The epoch of a read.
struct Hold {
    epoch: Cell<FreeEpoch>,
    epochs: Rc<RefCell<Epochs>>,
}

/// Marks a read as running until all clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct ReadGuard(Rc<Hold>);

/// Marks a change as one that has no answer, until it is dropped.
#[derive(Debug)]
pub(super) struct Unanswered {
    call: u64,
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
        self.epochs.borrow_mut().enter(epoch);
        ReadGuard(Rc::new(Hold { epoch: Cell::new(epoch), epochs: Rc::clone(&self.epochs) }))
    }

    /// Notes that a change waits for its answer, which will come in the order of its execution.
    pub(super) fn await_answer(&self, change: &ReadGuard) -> Unanswered {
        let mut epochs = self.epochs.borrow_mut();
        let call = epochs.next_call;
        epochs.next_call += 1;
        epochs.unanswered.insert(call, change.clone());
        Unanswered { call, epochs: Rc::clone(&self.epochs) }
    }

    /// Takes a free epoch that the service has sent after the answers to all changes that it has
    /// carried out. It will carry out the others under this epoch or a later one, so they hold no
    /// blocks back that were freed before. (They may wait for others who wait for these blocks.)
    pub(crate) fn advance(&self, epoch: FreeEpoch) {
        self.note_epoch(epoch);
        if reactor::mutant!("unanswered-hold-space") {
            return;
        }
        let unanswered: Vec<_> = self.epochs.borrow().unanswered.values().cloned().collect();
        for change in unanswered {
            change.0.advance(epoch);
        }
    }

    /// Returns an epoch such that every read that began before it has ended.
    pub(crate) fn ended_through(&self) -> FreeEpoch {
        let epochs = self.epochs.borrow();
        let oldest = epochs.under_way.first_key_value().map(|(&epoch, _)| epoch);
        let oldest = oldest.filter(|_| !reactor::mutant!("reads-uncounted"));
        oldest.map_or(epochs.latest, |oldest| oldest.min(epochs.latest))
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.epoch.get()).finish()
    }
}

impl Hold {
    fn advance(&self, epoch: FreeEpoch) {
        let before = self.epoch.get();
        if before < epoch {
            let mut epochs = self.epochs.borrow_mut();
            epochs.enter(epoch);
            epochs.leave(before);
            self.epoch.set(epoch);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.epochs.borrow_mut().leave(self.epoch.get());
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let change = self.epochs.borrow_mut().unanswered.remove(&self.call);
        // Its end borrows the epochs.
        drop(change);
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

    /// Goal: a change that was not carried out holds no blocks back that were freed before, and one
    /// that has its answer does.
    #[test]
    fn an_unanswered_change_moves_on() {
        let life = Life::new(Times::default());
        life.note_epoch(FreeEpoch(5));
        let (waiting, answered) = (life.hold(), life.hold());
        let unanswered = life.await_answer(&waiting);
        drop(life.await_answer(&answered));
        life.advance(FreeEpoch(9));
        assert_eq!(life.ended_through(), FreeEpoch(5));
        drop(answered);
        assert_eq!(life.ended_through(), FreeEpoch(9), "it waits, and holds blocks back");
        life.note_epoch(FreeEpoch(12));
        drop(unanswered);
        life.advance(FreeEpoch(15));
        assert_eq!(life.ended_through(), FreeEpoch(9), "it is carried out");
        drop(waiting);
        assert_eq!(life.ended_through(), FreeEpoch(15));
    }
}
