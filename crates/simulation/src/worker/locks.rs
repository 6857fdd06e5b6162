//! Steps that take file locks, and the check that no two hold what excludes the other.

use super::Worker;
use super::data::Open;
use crate::history::Held;
use crate::kernel::Locking;
use fuse::LockKind;
use protocol::lock::{LockFamily, LockOwner};
use ring::time::sleep;
use std::time::Duration;

/// Bytes that record locks are about.
const LOCKED_BYTES: u64 = 8;
/// How long a worker waits for a lock until a signal interrupts it.
const PATIENCE: Duration = Duration::from_secs(3);

impl Worker {
    /// Takes a lock on a file, holds it for a while and gives it back.
    pub(super) async fn lock(&mut self) {
        let access = *self.random.of(&[libc::O_RDONLY, libc::O_RDWR]);
        let Some(open) = self.some_open_file(access).await else { return };
        let family = *self.random.of(&[LockFamily::Flock, LockFamily::Posix]);
        let (start, last) = match family {
            LockFamily::Flock => (0, u64::MAX),
            LockFamily::Posix => {
                let start = self.random.below(LOCKED_BYTES);
                (start, self.random.between(start, LOCKED_BYTES))
            }
        };
        let kind = *self.random.of(&[LockKind::Read, LockKind::Write, LockKind::Write]);
        // fcntl(2) wants a file that is open for writing.
        let is_weak = family == LockFamily::Posix && !open.file.is_writable();
        let kind = if is_weak { LockKind::Read } else { kind };
        if self.random.chance(50) {
            self.read(&open).await;
        }
        let lock = Locking { is_flock: family == LockFamily::Flock, start, last, kind };
        if self.random.chance(30) {
            self.note("test lock");
            let found = self.kernel.test_lock(self.caller(), &open.file, lock).await;
            self.answered("test lock", &found);
        }
        let patience = self.random.chance(60).then_some(PATIENCE);
        self.hold(&open, family, lock, patience).await;
        self.close(&open).await;
    }

    async fn hold(
        &mut self,
        open: &Open,
        family: LockFamily,
        lock: Locking,
        patience: Option<Duration>,
    ) {
        let file = &open.file;
        let session = self.session();
        let asked = self.history().tick();
        self.note("lock");
        let inode = file.inode.number().0;
        self.on(|| format!(" {lock:?} of inode {inode}"));
        let taken = self.kernel.lock(self.caller(), file, lock, patience).await;
        self.answered("lock", &taken);
        if taken.is_err() {
            return;
        }
        let from = self.history().tick();
        if self.random.chance(70) {
            // Nothing is older under the lock than when it was asked for.
            let fresh = open.since(asked, session);
            self.read(&fresh).await;
        }
        let most_ms = *self.random.of(&[1, 20, 1_000]);
        sleep(Duration::from_millis(self.random.between(1, most_ms))).await;
        if self.random.chance(20) {
            // The close gives it back.
            return;
        }
        self.note("unlock");
        self.on(|| format!(" of inode {inode}"));
        let to = self.history().tick();
        let unlock = Locking { kind: LockKind::Unlock, ..lock };
        let released = self.kernel.lock(self.caller(), file, unlock, None).await;
        self.answered("unlock", &released);
        // The service knew the session to the end: nobody else can have been given the lock.
        if released.is_ok() && session.is_some() && session == self.session() {
            let owner = LockOwner(self.number as u64 + 1);
            let is_exclusive = lock.kind == LockKind::Write;
            let (start, last, actor) = (lock.start, lock.last, self.actor);
            let file = self.file(file.inode.number());
            let held = Held { file, family, start, last, is_exclusive, actor, owner, from, to };
            self.history().locks.push(held);
        }
    }
}
