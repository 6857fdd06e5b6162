//! Steps that take file locks, and the check that no two hold what excludes the other.

use super::Worker;
use crate::history::Held;
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use ring::time::sleep;
use std::time::Duration;

/// Bytes that record locks are about.
const LOCKED_BYTES: u64 = 8;

impl Worker {
    /// Takes a lock on a file, holds it for a while and gives it back.
    pub(super) async fn lock(&mut self) {
        let Some(inode) = self.some_file().await else { return };
        let file = self.file(inode);
        let family = *self.random.of(&[LockFamily::Flock, LockFamily::Posix]);
        let (start, last) = match family {
            LockFamily::Flock => (0, u64::MAX),
            LockFamily::Posix => {
                let start = self.random.below(LOCKED_BYTES);
                (start, self.random.between(start, LOCKED_BYTES))
            }
        };
        let mode = *self.random.of(&[LockMode::Shared, LockMode::Exclusive, LockMode::Exclusive]);
        let owner = LockOwner(self.number as u64 + 1);
        let pid = self.number as u32 + 100;
        let lock = Lock { inode, family, owner, start, last, mode, pid };
        if self.random.chance(30) {
            self.note("test lock");
            let found = self.client.test_lock(lock).await;
            self.answered("test lock", &found);
        }
        let waits = self.random.chance(60);
        let session = self.session();
        self.note("lock");
        self.on(|| format!(" {family:?} {mode:?} {start}..={last} of inode {}", inode.0));
        let taken =
            if waits { self.lock_patiently(lock).await } else { self.take(lock, false).await };
        if !taken {
            return;
        }
        let from = self.history().tick();
        let most_ms = *self.random.of(&[1, 20, 1_000]);
        sleep(Duration::from_millis(self.random.between(1, most_ms))).await;
        self.note("unlock");
        self.on(|| format!(" {family:?} {start}..={last} of inode {}", inode.0));
        let to = self.history().tick();
        let released = self.client.unlock(lock).await;
        self.answered("unlock", &released);
        // The service knew the session to the end: nobody else can have been given the lock.
        if released.is_ok() && session.is_some() && session == self.session() {
            let is_exclusive = mode == LockMode::Exclusive;
            let actor = self.actor;
            let held = Held { file, family, start, last, is_exclusive, actor, owner, from, to };
            self.history().locks.push(held);
        }
    }

    async fn take(&self, lock: Lock, waits: bool) -> bool {
        let result = self.client.lock(lock, waits).await;
        self.answered("lock", &result);
        result.is_ok()
    }

    /// Waits for a lock; gives up after a while, as an application interrupted by a signal does.
    async fn lock_patiently(&self, lock: Lock) -> bool {
        let patience = Duration::from_secs(3);
        let waiting = self.take(lock, true);
        let mut waiting = std::pin::pin!(waiting);
        if let Ok(taken) = ring::time::timeout(patience, waiting.as_mut()).await {
            return taken;
        }
        let cancelled = self.client.cancel_lock(lock.inode, lock.family, lock.owner).await;
        self.answered("cancel lock", &cancelled);
        waiting.await
    }
}
