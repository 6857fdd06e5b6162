//! Locks that this client decides about itself, under LOCKS.
//!
//! The right comes with all locks that the session holds on the inode, in the answer to one of its
//! lock calls. It is of use only if no other lock call of this client about the inode was running
//! then: the effect of a later call would be missing here. No caller waits for a lock under the
//! right, because only the service sees circles of waits over several inodes and sessions. So
//! before a wait this client reports the locks and returns the right. It also reports them when the
//! right is recalled, and when the file is no longer open.

use crate::client::Client;
use crate::inode::Inode;
use crate::inode::own_locks::Decider;
use crate::session::call::Failure;
use locks::Wish;
use protocol::client::{Answer, Call, ChangeCall, Response, SessionCall};
use protocol::lock::Lock;
use protocol::{Errno, InodeId, Rights, SessionId};
use reactor::time::sleep;
use std::rc::Rc;
use std::time::Duration;

/// Session number of all owners here: they belong to one session.
const OWN: SessionId = SessionId(0);

/// Locks in one part of a report.
const REPORT_PART: usize = 4096;

/// Pause before a report that the service could not store is sent again.
const RETRY: Duration = Duration::from_millis(100);

/// Notes that this client has changed locks of an inode itself.
fn note_change(inode: &Inode) {
    let rights = inode.state.borrow().rights;
    assert!(
        rights.contains(Rights::LOCKS),
        "locks of {} are decided about under {rights:?}",
        inode.id
    );
    let is_changed = !reactor::mutant!("own-locks-unreported");
    inode.locks.decider.set(Decider::Here { is_changed });
}

impl Client {
    /// Returns whether this client decides about an inode's locks now. Waits while a report is
    /// running.
    ///
    /// # Errors
    /// ETIMEDOUT without contact to the service for long.
    pub(super) async fn decides_locks(&self, inode: &Inode) -> Result<bool, Errno> {
        loop {
            match inode.locks.decider.get() {
                Decider::Service => return Ok(false),
                Decider::Here { .. } if !inode.state.borrow().rights.contains(Rights::LOCKS) => {
                    tracing::error!(inode = inode.id.0, "the service has taken locks away");
                    self.forget_own_locks(inode);
                }
                Decider::Here { .. } if self.session.life.is_alive() => return Ok(true),
                Decider::Here { .. } if reactor::mutant!("locks-without-contact") => {
                    return Ok(true);
                }
                Decider::Here { .. } => self.session.life.alive().await?,
                Decider::Reporting => inode.locks.reported.notified().await,
            }
        }
    }

    /// Sets a lock, unless another one conflicts.
    pub(super) fn set_own(&self, inode: &Inode, lock: Lock) -> Wish {
        let mut locks = self.own_locks.borrow_mut();
        let wish = locks.set(OWN, lock, None);
        if wish == Wish::Granted {
            locks.stored(OWN, (lock.inode, lock.family), lock.owner);
            drop(locks);
            note_change(inode);
        }
        wish
    }

    /// Releases a range.
    pub(super) fn unlock_own(&self, inode: &Inode, lock: Lock) {
        let mut locks = self.own_locks.borrow_mut();
        locks.unlock(OWN, lock);
        locks.stored(OWN, (lock.inode, lock.family), lock.owner);
        drop(locks);
        note_change(inode);
    }

    /// Returns the first of this client's locks that conflicts with one.
    pub(super) fn test_own(&self, lock: &Lock) -> Option<Lock> {
        self.own_locks.borrow().test(OWN, lock)
    }

    /// Makes a call that changes locks of an inode.
    pub(super) async fn call_lock(
        self: &Rc<Self>,
        inode: &Inode,
        call: ChangeCall,
    ) -> Result<(), Errno> {
        let calls = &inode.locks.calls;
        calls.set(calls.get() + 1);
        let result = self.session.call_or_failure(Call::Change(call)).await;
        // A call that was given up may still be carried out: from now on the service decides.
        let is_over = |failure: &Failure| failure.is_refusal || failure.errno != Errno::ETIMEDOUT;
        if result.as_ref().err().is_none_or(is_over) {
            assert!(calls.get() > 0, "a lock call about {} has ended uncounted", inode.id);
            calls.set(calls.get() - 1);
        }
        result.map(drop).map_err(|failure| failure.errno)
    }

    /// Notes, in the order of the stream, which side decides about locks after an answer.
    pub(crate) fn note_locks(&self, call: &Call, response: &Response) {
        match (call, &response.result) {
            (Call::Change(ChangeCall::SetLock { lock, .. }), Ok(Answer::Locks(held))) => {
                let is_granted = |grant: &protocol::lease::Grant| {
                    grant.inode == lock.inode && grant.rights.contains(Rights::LOCKS)
                };
                if response.grants.iter().any(is_granted) {
                    self.take_locks(&self.inode(lock.inode), held);
                }
            }
            (Call::Session(SessionCall::ReportLocks { inode, is_last: true, .. }), result) => {
                let Some(inode) = self.known_inode(*inode) else { return };
                // The service asks again for a report that it cannot store.
                if matches!(result, Ok(_) | Err(Errno::ESTALE | Errno::EINVAL)) {
                    self.forget_own_locks(&inode);
                }
            }
            _ => {}
        }
    }

    /// Takes over all locks that the session holds, which came with a grant of LOCKS.
    fn take_locks(&self, inode: &Inode, held: &[Lock]) {
        let is_granted = inode.state.borrow().rights.contains(Rights::LOCKS);
        if inode.locks.calls.get() != 1 && !reactor::mutant!("locks-taken-beside-calls")
            || !is_granted
            || inode.locks.are_own()
        {
            return;
        }
        let mut locks = self.own_locks.borrow_mut();
        locks.clear(OWN, inode.id);
        let is_sound = held.iter().all(|lock| lock.inode == inode.id && locks.report(OWN, *lock));
        for (family, owner) in locks.unstored(OWN, inode.id) {
            locks.stored(OWN, (inode.id, family), owner);
        }
        if is_sound {
            drop(locks);
            self.locked_inodes.borrow_mut().insert(inode.id);
            inode.locks.decider.set(Decider::Here { is_changed: false });
        } else {
            tracing::error!(inode = inode.id.0, "the service grants locks that exclude each other");
            locks.clear(OWN, inode.id);
        }
    }

    /// Drops the locks of an inode: the service decides about them again.
    fn forget_own_locks(&self, inode: &Inode) {
        inode.end_locks();
        let mut locks = self.own_locks.borrow_mut();
        locks.clear(OWN, inode.id);
        for (family, owner) in locks.unstored(OWN, inode.id) {
            locks.stored(OWN, (inode.id, family), owner);
        }
        self.locked_inodes.borrow_mut().remove(&inode.id);
    }

    /// Drops all locks, because the session is lost.
    pub(crate) fn lose_locks(&self) {
        self.own_locks.borrow_mut().end_session(OWN);
        self.locked_inodes.borrow_mut().clear();
    }

    /// Stops deciding about an inode's locks. Returns whether a report has to follow.
    pub(crate) fn begin_report(&self, inode: &Inode) -> bool {
        match inode.locks.decider.get() {
            Decider::Service => false,
            Decider::Here { is_changed: false } if inode.is_leaving(Rights::LOCKS) => {
                // The service has all locks.
                self.forget_own_locks(inode);
                false
            }
            Decider::Here { .. } => {
                inode.locks.decider.set(Decider::Reporting);
                // From now on an open of the file has to be reported if no other right is held.
                inode.drop_locks_right();
                true
            }
            Decider::Reporting => true,
        }
    }

    /// Reports an inode's locks, and returns LOCKS with the last of them. Completes when the
    /// service has them, or the session is lost.
    pub(crate) async fn report_locks(self: &Rc<Self>, inode: &Inode) {
        let _turn = inode.locks.turn.acquire(1).await;
        while inode.locks.decider.get() == Decider::Reporting {
            let held = self.own_locks.borrow().held(OWN, inode.id);
            let mut parts = held.chunks(REPORT_PART).peekable();
            let mut is_first = true;
            loop {
                let locks = parts.next().unwrap_or_default().to_vec();
                let is_last = parts.peek().is_none();
                let (id, is_open) = (inode.id, inode.state.borrow().is_open());
                let call =
                    SessionCall::ReportLocks { inode: id, locks, is_first, is_last, is_open };
                is_first = false;
                if let Err(error) = self.session.call(Call::Session(call)).await {
                    tracing::warn!(inode = inode.id.0, %error, "the locks could not be reported");
                    break;
                }
                if is_last {
                    break;
                }
            }
            if self.session.is_closed() {
                // The locks have ended with the session; waiting callers get an error.
                inode.locks.end();
                return;
            }
            if inode.locks.decider.get() == Decider::Reporting {
                sleep(RETRY).await;
            }
        }
    }

    /// Reports the locks of files that are no longer open, and returns LOCKS.
    pub(crate) fn return_idle_locks(self: &Rc<Self>) {
        let inodes: Vec<InodeId> = self.locked_inodes.borrow().iter().copied().collect();
        let inodes = inodes.into_iter().filter_map(|id| self.known_inode(id));
        let is_idle = |inode: &Rc<Inode>| !inode.state.borrow().is_open();
        for inode in inodes.filter(is_idle).collect::<Vec<_>>() {
            if inode.locks.decider.get() == Decider::Reporting || !self.begin_report(&inode) {
                continue;
            }
            let client = Rc::clone(self);
            reactor::spawn(async move {
                client.report_locks(&inode).await;
                client.drop_if_idle(&inode);
            });
        }
    }
}
