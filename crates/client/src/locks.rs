//! Advisory locks across nodes: all of them are kept by the metadata service.
//!
//! Locks are points of synchronisation. What was written to a file through any handle of this client is
//! committed before a lock on it is released, weakened or taken. After a grant nothing is read that is
//! older than it: what this client caches is valid under READ, whose recall was answered before a commit
//! of another session was carried out, and the stream delivers that recall before the grant. The
//! kernel's pages are dropped after a recall was answered, so a grant waits until they are
//! ([`Client::freshen`]).

use crate::client::Client;
use protocol::client::{Answer, Call, ChangeCall, ReadCall, SessionCall};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::{Errno, InodeId};
use std::rc::Rc;

impl Client {
    /// Takes a lock; with `wait`, when it is free.
    ///
    /// # Errors
    /// EAGAIN if it is not free, EDEADLK, EINTR after [`Client::cancel_lock`], ENOLCK, those of a
    /// call.
    pub async fn lock(self: &Rc<Self>, lock: Lock, wait: bool) -> Result<(), Errno> {
        if !ring::mutant!("downgrade-unpublished") {
            self.publish(lock.inode).await;
        }
        self.session.call(Call::Change(ChangeCall::SetLock { lock, wait })).await?;
        self.inode(lock.inode).was_locked.set(!ring::mutant!("lock-forgotten-with-session"));
        self.freshen(lock.inode).await;
        Ok(())
    }

    /// Commits what was written to an inode. A failure stays with the inode and shows at the next fsync or
    /// close of each handle: it keeps no lock held.
    async fn publish(self: &Rc<Self>, id: InodeId) {
        if let Some(inode) = self.known_inode(id) {
            let _ = self.commit(&inode, false).await;
        }
    }

    /// Ends this owner's wait for a lock.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn cancel_lock(
        self: &Rc<Self>,
        inode: InodeId,
        family: LockFamily,
        owner: LockOwner,
    ) -> Result<(), Errno> {
        self.session
            .call(Call::Session(SessionCall::CancelLock { inode, family, owner }))
            .await
            .map(drop)
    }

    /// Releases the range of a lock, after what was written to the file is committed.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn unlock(self: &Rc<Self>, lock: Lock) -> Result<(), Errno> {
        if !ring::mutant!("unlock-unpublished") {
            self.publish(lock.inode).await;
        }
        self.session.call(Call::Change(ChangeCall::Unlock(lock))).await.map(drop)
    }

    /// The first lock of somebody else that conflicts with this one.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn test_lock(self: &Rc<Self>, lock: Lock) -> Result<Option<Lock>, Errno> {
        match self.session.call(Call::Read(ReadCall::TestLock(lock))).await? {
            Answer::Lock(lock) => Ok(lock),
            _ => Err(Errno::EPROTO),
        }
    }
}
