//! POSIX and flock locks.

use crate::server::Server;
use fuse::{LockKind, LockRequest, Request, Response};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{Errno, InodeId};
use reactor::Either;
use reactor::time::sleep;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pause before a wait is cancelled again.
const CANCEL_RETRY: Duration = Duration::from_millis(100);

/// The end of the file in FUSE's locks.
const END: u64 = i64::MAX as u64;

fn lock(id: InodeId, request: &LockRequest) -> Lock {
    Lock {
        inode: id,
        family: if request.is_flock { LockFamily::Flock } else { LockFamily::Posix },
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

/// Returns a lock of everything that an owner may hold of an inode by flock.
pub(crate) fn whole_flock(id: InodeId, owner: fuse::LockOwner) -> Lock {
    Lock {
        inode: id,
        family: LockFamily::Flock,
        owner: LockOwner(owner.0),
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
            let mut owners = self.posix_owners.borrow_mut();
            let handles = owners.entry((id, wanted.owner.0)).or_default();
            if !handles.contains(&wanted.handle) {
                handles.push(wanted.handle);
            }
        }
        Box::pin(self.take(request, lock(id, wanted), wait)).await?;
        Ok(Response::Done)
    }

    /// Takes a lock. If the wait is interrupted, this ends it at the metadata service; the
    /// service's answer says whether the lock was taken in the end.
    async fn take(self: &Rc<Self>, request: &Request, lock: Lock, wait: bool) -> Result<(), Errno> {
        if !wait {
            return self.client.lock(lock, false).await;
        }
        let mut locking = pin!(self.client.lock(lock, true));
        let cancelled = pin!(request.cancellation.cancelled());
        match reactor::race(locking.as_mut(), cancelled).await {
            Either::First(result) => result,
            Either::Second(()) => loop {
                self.client.cancel_lock(lock.inode, lock.family, lock.owner).await?;
                // The wait may not have begun: written data is published and locks are reported
                // before it.
                match reactor::race(locking.as_mut(), pin!(sleep(CANCEL_RETRY))).await {
                    Either::First(result) => return result,
                    Either::Second(()) => {}
                }
            },
        }
    }

    /// Releases the POSIX locks that an owner holds on a file, because it has closed the file (as
    /// POSIX requires).
    pub(crate) async fn release_posix(
        self: &Rc<Self>,
        id: InodeId,
        owner: fuse::LockOwner,
    ) -> Result<(), Errno> {
        if self.posix_owners.borrow_mut().remove(&(id, owner.0)).is_none() {
            return Ok(());
        }
        let family = LockFamily::Posix;
        Box::pin(self.client.unlock(Lock { family, ..whole_flock(id, owner) })).await
    }

    /// Releases the locks that belong to an open file, because the file has been released.
    pub(crate) async fn release_own(self: &Rc<Self>, id: InodeId, handle: fuse::FileHandle) {
        let owners: Vec<u64> = {
            let owners = self.posix_owners.borrow();
            let of_file = owners.range((id, 0)..=(id, u64::MAX));
            of_file.filter(|(_, all)| all.contains(&handle)).map(|((_, owner), _)| *owner).collect()
        };
        for owner in owners {
            if let Err(error) = self.release_posix(id, fuse::LockOwner(owner)).await {
                tracing::warn!(inode = id.0, %error, "a lock could not be released at close");
            }
        }
    }
}
