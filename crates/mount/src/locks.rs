//! POSIX and flock locks.

use crate::lock_owners::{Owned, Releasing};
use crate::server::Server;
use fuse::{LockKind, LockRequest, Request, Response};
use protocol::lock::{Lock, LockMode, LockOwner};
use protocol::{Errno, InodeId};
use reactor::Either;
use reactor::time::sleep;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pause before a wait is cancelled again.
const CANCEL_RETRY: Duration = Duration::from_millis(100);

/// Pause before an unlock that has failed is sent again.
const UNLOCK_RETRY: Duration = Duration::from_secs(1);

/// The end of the file in FUSE's locks.
const END: u64 = i64::MAX as u64;

fn lock(id: InodeId, request: &LockRequest) -> Lock {
    Lock {
        inode: id,
        family: owned(id, request).family(),
        owner: LockOwner(request.owner.0),
        start: request.start,
        last: if request.end >= END { u64::MAX } else { request.end },
        mode: match request.kind {
            LockKind::Read => LockMode::Shared,
            LockKind::Write | LockKind::Unlock => LockMode::Exclusive,
        },
        pid: request.pid,
    }
}

fn owned(inode: InodeId, request: &LockRequest) -> Owned {
    Owned { inode, is_flock: request.is_flock, owner: request.owner.0 }
}

/// Returns a lock of everything that an owner may hold.
fn whole(owned: Owned) -> Lock {
    Lock {
        inode: owned.inode,
        family: owned.family(),
        owner: LockOwner(owned.owner),
        start: 0,
        last: u64::MAX,
        mode: LockMode::Exclusive,
        pid: 0,
    }
}

impl Server {
    /// Returns the lock that conflicts with another one.
    pub(crate) async fn test_lock(
        self: &Rc<Self>,
        id: InodeId,
        wanted: &LockRequest,
    ) -> Result<Response, Errno> {
        let found = self.client.test_lock(lock(id, wanted)).await?;
        Ok(Response::Lock(match found {
            Some(lock) => fuse::Lock {
                start: lock.start,
                end: lock.last.min(END),
                kind: match lock.mode {
                    LockMode::Shared => LockKind::Read,
                    LockMode::Exclusive => LockKind::Write,
                },
                pid: lock.pid,
            },
            None => {
                fuse::Lock { start: wanted.start, end: wanted.end, kind: LockKind::Unlock, pid: 0 }
            }
        }))
    }

    /// Takes or releases a lock.
    pub(crate) async fn set_lock(
        self: &Rc<Self>,
        request: &Request,
        wanted: &LockRequest,
        wait: bool,
    ) -> Result<Response, Errno> {
        let id = self.inode(request.node);
        if wanted.kind == LockKind::Unlock {
            Box::pin(self.client.unlock(lock(id, wanted))).await?;
            return Ok(Response::Done);
        }
        if !wanted.is_flock {
            self.closes.note_lock(self.file(wanted.handle)?.mode.write);
        }
        let owned = owned(id, wanted);
        let released = pin!(self.lock_owners.released(owned));
        let cancelled = pin!(request.cancellation.cancelled());
        if let Either::Second(()) = reactor::race(released, cancelled).await {
            return Err(Errno::EINTR);
        }
        self.lock_owners.enter(owned, wanted.handle);
        Box::pin(self.take(request, (owned, lock(id, wanted)), wait)).await?;
        Ok(Response::Done)
    }

    /// Takes a lock. If the wait is interrupted, this ends it at the metadata service; the
    /// service's answer says whether the lock was taken in the end.
    async fn take(
        self: &Rc<Self>,
        request: &Request,
        (owned, lock): (Owned, Lock),
        wait: bool,
    ) -> Result<(), Errno> {
        if !wait {
            return self.client.lock(lock, false).await;
        }
        let client = Rc::clone(&self.client);
        let mut locking = Box::pin(async move { client.lock(lock, true).await });
        let cancelled = pin!(request.cancellation.cancelled());
        if let Either::First(result) = reactor::race(&mut locking, cancelled).await {
            return result;
        }
        while self.client.cancel_lock(lock.inode, lock.family, lock.owner).await.is_ok() {
            // The wait may not have begun: written data is published and locks are reported before
            // it.
            match reactor::race(&mut locking, pin!(sleep(CANCEL_RETRY))).await {
                Either::First(result) => return result,
                Either::Second(()) => {}
            }
        }
        let releasing = self.lock_owners.begin_release(owned);
        reactor::spawn(Rc::clone(self).abandon(locking, lock, releasing));
        Err(Errno::EINTR)
    }

    /// Ends a wait for a lock whose caller no longer waits. Releases the lock if it was granted all
    /// the same.
    async fn abandon(
        self: Rc<Self>,
        mut locking: impl Future<Output = Result<(), Errno>> + Unpin,
        lock: Lock,
        releasing: Releasing,
    ) {
        let taken = loop {
            match reactor::race(&mut locking, pin!(sleep(CANCEL_RETRY))).await {
                Either::First(taken) => break taken,
                // Tried again after the pause.
                Either::Second(()) => {
                    let cancelled = self.client.cancel_lock(lock.inode, lock.family, lock.owner);
                    let _ = cancelled.await;
                }
            }
        };
        if taken.is_ok()
            && let Err(error) = self.release_locks(lock, releasing).await
        {
            tracing::warn!(inode = lock.inode.0, %error, "a lock that came late is released later");
        }
    }

    /// Releases the POSIX locks that an owner holds on a file, because it has closed the file (as
    /// POSIX requires).
    pub(crate) async fn release_posix(
        self: &Rc<Self>,
        inode: InodeId,
        owner: fuse::LockOwner,
    ) -> Result<(), Errno> {
        let owned = Owned { inode, is_flock: false, owner: owner.0 };
        if !self.lock_owners.remove(owned) {
            return Ok(());
        }
        let releasing = self.lock_owners.begin_release(owned);
        Box::pin(self.release_locks(whole(owned), releasing)).await
    }

    /// Releases the locks that belong to an open file, because the file has been released.
    pub(crate) async fn release_own(self: &Rc<Self>, id: InodeId, handle: fuse::FileHandle) {
        let left = self.lock_owners.leave(id, handle).into_iter();
        // Before the first wait: the next open file may get this handle.
        let left: Vec<_> =
            left.map(|owned| (whole(owned), self.lock_owners.begin_release(owned))).collect();
        for (lock, releasing) in left {
            if let Err(error) = Box::pin(self.release_locks(lock, releasing)).await {
                tracing::warn!(inode = id.0, %error, "a lock could not be released at close");
            }
        }
    }

    /// Releases locks that no open file has any more. After a failure a task tries again until the
    /// session with these locks has ended: no later call would release them.
    async fn release_locks(self: &Rc<Self>, lock: Lock, releasing: Releasing) -> Result<(), Errno> {
        let session = self.client.session_id();
        let released = self.client.unlock(lock).await;
        if released.is_err() {
            let server = Rc::clone(self);
            reactor::spawn(async move {
                while server.client.session_id() == session {
                    sleep(UNLOCK_RETRY).await;
                    // ESTALE: this client or the file is gone.
                    if matches!(server.client.unlock(lock).await, Ok(()) | Err(Errno::ESTALE)) {
                        break;
                    }
                }
                drop(releasing);
            });
        }
        released
    }
}
