//! Advisory locks across nodes: all of them are kept by the metadata service.

use crate::client::Client;
use protocol::client::{Answer, Call};
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
        self.session.call(Call::SetLock { lock, wait }).await.map(drop)
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
        self.session.call(Call::CancelLock { inode, family, owner }).await.map(drop)
    }

    /// Releases the range of a lock.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn unlock(self: &Rc<Self>, lock: Lock) -> Result<(), Errno> {
        self.session.call(Call::Unlock(lock)).await.map(drop)
    }

    /// The first lock of somebody else that conflicts with this one.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn test_lock(self: &Rc<Self>, lock: Lock) -> Result<Option<Lock>, Errno> {
        match self.session.call(Call::TestLock(lock)).await? {
            Answer::Lock(lock) => Ok(lock),
            _ => Err(Errno::EPROTO),
        }
    }
}
