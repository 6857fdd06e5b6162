//! Waits for locks: a bounded number at the service, the further ones here.
//!
//! Each wait at the service keeps a reply slot, and there have to be some for the calls that end the
//! waits. The further waits get a turn in the order of their arrival. Until then they try from time
//! to time: the holder of the lock that all others wait for may wait here for another one.

use crate::client::Client;
use crate::inode::Inode;
use crate::session::LOCK_WAITS_MAX;
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{Errno, InodeId};
use reactor::local::{OneshotReceiver, OneshotSender, Permit, Semaphore, oneshot};
use reactor::time::sleep;
use reactor::{Either3, race3};
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pause between the attempts of a wait that has no turn yet.
const RETRY: Duration = Duration::from_secs(1);

/// The waits of one client.
#[derive(Debug)]
pub(crate) struct LockWaits {
    turns: Semaphore,
    queued: RefCell<Vec<Queued>>,
}

/// A wait without a turn.
#[derive(Debug)]
struct Queued {
    lock: Lock,
    cancel: OneshotSender<()>,
}

impl Default for LockWaits {
    fn default() -> LockWaits {
        LockWaits { turns: Semaphore::new(LOCK_WAITS_MAX), queued: RefCell::default() }
    }
}

impl LockWaits {
    /// Notes a wait without a turn. The returned value completes when it is cancelled.
    fn enter(&self, lock: Lock) -> OneshotReceiver<()> {
        let (cancel, cancelled) = oneshot();
        let mut queued = self.queued.borrow_mut();
        queued.retain(|wait| !wait.cancel.is_closed());
        queued.push(Queued { lock, cancel });
        cancelled
    }

    /// Ends an owner's waits that have no turn. Returns whether there was one.
    pub(super) fn cancel(&self, inode: InodeId, family: LockFamily, owner: LockOwner) -> bool {
        let mut queued = self.queued.borrow_mut();
        let is_meant =
            |lock: &Lock| (lock.inode, lock.family, lock.owner) == (inode, family, owner);
        let mut has_ended = false;
        for wait in queued.extract_if(.., |wait| is_meant(&wait.lock)) {
            has_ended |= wait.cancel.send(()).is_ok();
        }
        has_ended
    }
}

impl Client {
    /// Waits for a turn to wait at the service. Returns none if the lock is taken already.
    ///
    /// # Errors
    /// EINTR after [`Client::cancel_lock`], those of a lock.
    pub(super) async fn turn_to_wait(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        lock: Lock,
    ) -> Result<Option<Permit>, Errno> {
        if let Some(turn) = self.lock_waits.turns.try_acquire(1) {
            return Ok(Some(turn));
        }
        let mut turn = self.lock_waits.turns.acquire(1);
        let mut cancelled = self.lock_waits.enter(lock);
        loop {
            match race3(&mut cancelled, &mut turn, pin!(sleep(RETRY))).await {
                Either3::First(_) => return Err(Errno::EINTR),
                Either3::Second(turn) => return Ok(Some(turn)),
                Either3::Third(()) => match Box::pin(self.set_lock(inode, lock, false)).await {
                    // Waits have no deadline.
                    Err(Errno::EAGAIN | Errno::ETIMEDOUT) => {}
                    taken => return taken.map(|()| None),
                },
            }
        }
    }
}
