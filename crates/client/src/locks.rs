//! Advisory locks across nodes.
//!
//! The metadata service keeps them. Where only this client uses an inode's locks, the service may
//! grant LOCKS, and this client decides about them itself ([`own`]).
//!
//! Locks are points of synchronisation. What was written to a file through any handle of this
//! client is committed before a lock on it is released, weakened or taken. After a grant no read
//! returns data older than the grant. What this client caches is valid under READ, and a commit of
//! another session is carried out only after the recall of READ was answered. The stream delivers
//! that recall before the grant, and before LOCKS. The kernel's pages are dropped after the answer
//! to a recall, so a grant waits until they are ([`Client::freshen`]).

mod own;
pub(crate) mod waits;

use crate::client::Client;
use crate::inode::Inode;
use locks::Wish;
use protocol::client::{Answer, Call, ChangeCall, ReadCall, SessionCall};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{Errno, InodeId};
use std::rc::Rc;

impl Client {
    /// Takes a lock. With `wait`, waits until it is free.
    ///
    /// # Errors
    /// EAGAIN if it is not free, EDEADLK, EINTR after [`Client::cancel_lock`], ENOLCK, EINVAL for
    /// an empty
    /// range, those of a call.
    pub async fn lock(self: &Rc<Self>, lock: Lock, wait: bool) -> Result<(), Errno> {
        if lock.start > lock.last {
            return Err(Errno::EINVAL);
        }
        let inode = self.inode(lock.inode);
        if !reactor::mutant!("downgrade-unpublished") {
            self.publish(&inode).await;
        }
        // Held until the wait ends.
        let turn = if wait { self.turn_to_wait(&inode, lock).await? } else { None };
        if wait && turn.is_none() {
            return Ok(());
        }
        self.set_lock(&inode, lock, wait).await
    }

    /// Takes a lock, here or with the service.
    async fn set_lock(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        lock: Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        while self.decides_locks(inode).await? {
            match self.set_own(inode, lock) {
                Wish::Granted => {
                    self.freshen(lock.inode).await;
                    return Ok(());
                }
                Wish::Conflict if wait && reactor::mutant!("own-wait-polled") => {
                    reactor::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                Wish::Conflict if wait && !reactor::mutant!("own-wait-refused") => {
                    // Only the service makes lock requests wait: it sees circles over all sessions.
                    if self.begin_report(inode) {
                        self.report_locks(inode).await;
                    }
                }
                Wish::Conflict => return Err(Errno::EAGAIN),
                Wish::TooMany => return Err(Errno::ENOLCK),
                Wish::Waits | Wish::Deadlock => unreachable!("nobody waits here"),
            }
        }
        self.call_lock(inode, ChangeCall::SetLock { lock, wait }).await?;
        inode.was_locked.set(!reactor::mutant!("lock-forgotten-with-session"));
        self.freshen(lock.inode).await;
        Ok(())
    }

    /// Commits what was written to an inode. A failure stays with the inode and shows at the next
    /// fsync or close of each handle. It does not keep a lock from being released.
    async fn publish(self: &Rc<Self>, inode: &Rc<Inode>) {
        if !inode.dirty.borrow().is_clean() {
            let _ = Box::pin(self.commit(inode, false)).await;
        }
    }

    /// Ends this owner's wait for a lock, if it waits for its turn or at the service by now.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn cancel_lock(
        self: &Rc<Self>,
        inode: InodeId,
        family: LockFamily,
        owner: LockOwner,
    ) -> Result<(), Errno> {
        if self.lock_waits.cancel(inode, family, owner) {
            return Ok(());
        }
        self.session
            .call(Call::Session(SessionCall::CancelLock { inode, family, owner }))
            .await
            .map(drop)
    }

    /// Releases the range of a lock, after what was written to the file is committed.
    ///
    /// # Errors
    /// EINVAL for an empty range, those of a call.
    pub async fn unlock(self: &Rc<Self>, lock: Lock) -> Result<(), Errno> {
        if lock.start > lock.last {
            return Err(Errno::EINVAL);
        }
        let inode = self.inode(lock.inode);
        if !reactor::mutant!("unlock-unpublished") {
            self.publish(&inode).await;
        }
        if self.decides_locks(&inode).await? {
            self.unlock_own(&inode, lock);
            return Ok(());
        }
        self.call_lock(&inode, ChangeCall::Unlock(lock)).await
    }

    /// Returns the first lock of another owner that conflicts with this one.
    ///
    /// # Errors
    /// EINVAL for an empty range, those of a call.
    pub async fn test_lock(self: &Rc<Self>, lock: Lock) -> Result<Option<Lock>, Errno> {
        if lock.start > lock.last {
            return Err(Errno::EINVAL);
        }
        let inode = self.inode(lock.inode);
        if self.decides_locks(&inode).await? {
            return Ok(self.test_own(&lock));
        }
        match self.session.call(Call::Read(ReadCall::TestLock(lock))).await? {
            Answer::Lock(lock) => Ok(lock),
            _ => Err(Errno::EPROTO),
        }
    }
}
