//! File locks: the lock table's results as answers to calls, and their storage.

mod right;

use super::call::Work;
use super::execute::{Executed, answer};
use super::outbox::refusal;
use super::shared::Shared;
use crate::leases::CallId;
use locks::{WaitId, Wish};
use protocol::client::{Answer, Response};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{Errno, InodeId, SessionId};
pub(super) use right::Contention;
use std::rc::Rc;

/// Most waits for locks of one session; more are refused ENOLCK.
const LOCK_WAITS_MAX: usize = 1024;

impl Shared {
    /// `SetLock`.
    pub(super) fn set_lock(self: &Rc<Self>, work: &Rc<Work>, lock: Lock, wait: bool) -> Executed {
        let session = &work.session;
        if lock.start > lock.last {
            return Executed::Answer(refusal(Errno::EINVAL));
        }
        if let Err(errno) = self.core.borrow().attr(lock.inode) {
            return Executed::Answer(refusal(errno));
        }
        if wait && session.lock_waits.get() >= LOCK_WAITS_MAX {
            return Executed::Answer(refusal(Errno::ENOLCK));
        }
        let id = wait.then_some(WaitId(work.id.0));
        let wish = self.locks.borrow_mut().set(session.id, lock, id);
        match wish {
            Wish::Granted => {
                let response = self.lock_held(session.id, lock);
                Executed::Answer(self.with_right(work, lock.inode, response))
            }
            Wish::Conflict => {
                self.lock_contention.note(lock.inode);
                Executed::Answer(refusal(Errno::EAGAIN))
            }
            Wish::Deadlock => Executed::Answer(refusal(Errno::EDEADLK)),
            Wish::TooMany => Executed::Answer(refusal(Errno::ENOLCK)),
            Wish::Waits => {
                self.lock_contention.note(lock.inode);
                session.lock_waits.set(session.lock_waits.get() + 1);
                self.store_locks(session.id, lock);
                self.leases.borrow_mut().done(work.id);
                // The wait has no deadline: its owner ends it, or the end of its session.
                self.waiting.borrow_mut().insert(work.id, Rc::clone(work));
                self.wake_lock_waiters();
                reactor::spawn(Rc::clone(self).await_lock(Rc::clone(work), lock));
                Executed::Later
            }
        }
    }

    async fn await_lock(self: Rc<Self>, work: Rc<Work>, lock: Lock) {
        let session = Rc::clone(&work.session);
        loop {
            work.wake.notified().await;
            if work.is_given_up.get() {
                break;
            }
            let response = if !session.is_live() {
                refusal(Errno::ESTALE)
            } else if work.is_lock_granted.get() {
                self.lock_held(session.id, lock)
            } else if work.is_lock_cancelled.get() {
                refusal(Errno::EINTR)
            } else {
                continue;
            };
            self.finish(&work, response);
            break;
        }
        let place = (lock.inode, lock.family);
        self.locks.borrow_mut().give_up(place, WaitId(work.id.0));
        let waits = session.lock_waits.get();
        assert!(waits > 0, "{} has waited for {lock:?} uncounted", session.id);
        session.lock_waits.set(waits - 1);
    }

    /// Stores an owner's locks, and wakes the owners that get theirs now.
    fn lock_held(&self, session: SessionId, lock: Lock) -> Response {
        let response = match self.store_locks(session, lock) {
            Some(errno) => refusal(errno),
            None => answer(Answer::Done),
        };
        self.wake_lock_waiters();
        response
    }

    fn store_locks(&self, session: SessionId, lock: Lock) -> Option<Errno> {
        self.store_owner(session, lock.inode, (lock.family, lock.owner))
    }

    /// Stores the changes of an owner's locks on an inode.
    fn store_owner(
        &self,
        session: SessionId,
        inode: InodeId,
        owner: (LockFamily, LockOwner),
    ) -> Option<Errno> {
        let place = (inode, owner.0);
        let changes = self.locks.borrow().changes(session, place, owner.1);
        let stored = self.core.borrow_mut().change_locks(session, inode, owner, &changes);
        if let Err(error) = stored {
            tracing::error!(%error, session = session.0, "cannot store locks");
            return Some(error.to_errno());
        }
        self.locks.borrow_mut().stored(session, place, owner.1);
        None
    }

    /// `Unlock`.
    pub(super) fn unlock(&self, session: SessionId, lock: Lock) -> Executed {
        if lock.start > lock.last {
            return Executed::Answer(refusal(Errno::EINVAL));
        }
        self.locks.borrow_mut().unlock(session, lock);
        if reactor::mutant!("unlock-unstored") {
            self.wake_lock_waiters();
            return Executed::Answer(answer(Answer::Done));
        }
        Executed::Answer(self.lock_held(session, lock))
    }

    /// `CancelLock`.
    pub(super) fn cancel_lock(
        &self,
        session: SessionId,
        inode: InodeId,
        family: LockFamily,
        owner: LockOwner,
    ) {
        let ended = self.locks.borrow_mut().cancel(session, (inode, family), owner);
        for id in ended {
            if let Some(work) = self.waiting.borrow().get(&CallId(id.0)) {
                work.is_lock_cancelled.set(true);
                work.wake.notify();
            }
        }
    }

    /// Wakes the waiters that were granted their locks.
    pub(super) fn wake_lock_waiters(&self) {
        let granted = self.locks.borrow_mut().take_granted();
        for id in granted {
            if let Some(work) = self.waiting.borrow().get(&CallId(id.0)) {
                work.is_lock_granted.set(true);
                work.wake.notify();
            }
        }
    }
}
