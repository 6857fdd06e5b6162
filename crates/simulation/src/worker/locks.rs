//! Steps that take file locks, test them, write and read under them, and release them.

use super::data::Open;
use super::{SHARED, Worker};
use crate::history::Tick;
use crate::kernel::Locking;
use crate::linear::{Answer, Lockable, Op};
use crate::plan::Focus;
use fuse::LockKind;
use protocol::{Errno, InodeId, SessionId};
use reactor::time::sleep;
use std::time::Duration;

/// Number of bytes on which workers take record locks.
const LOCKED_BYTES: u64 = 8;
/// How long a worker waits for a lock until a signal interrupts it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest time (ms) for which a worker holds a lock while a fault lasts.
const LONG_MS: u64 = 25_000;
/// How long a file stays open after its lock was released.
const OPEN_FOR: Duration = Duration::from_millis(20);
/// How long a weakened lock is held.
const WEAK_FOR: Duration = Duration::from_millis(20);
/// Separates owners of flock locks from those of record locks in the history.
const FLOCK_OWNERS: u64 = 1 << 20;
/// The shifts of a session and of its machine in the number of a lock owner in the history.
const SESSION_SHIFT: u32 = 32;
const MACHINE_SHIFT: u32 = 28;

/// A lock that a worker holds.
struct Taken {
    lock: Locking,
    /// The call that ends the lock. It counts as lost until the worker makes it, because the lock
    /// may end with its session at any time.
    ending: usize,
    session: Option<SessionId>,
}

impl Worker {
    /// Takes a lock on a file, holds it for a while and releases it.
    pub(super) async fn lock(&mut self) {
        let access = *self.random.of(&[libc::O_RDONLY, libc::O_RDWR]);
        let shared_percent = self.shared.plan.shared_percent().max(80);
        let is_shared =
            self.shared.plan.focus == Focus::Locks && self.random.chance(shared_percent);
        let open = if is_shared {
            self.open(InodeId::ROOT, SHARED, access | libc::O_CREAT).await
        } else {
            self.some_open_file(access).await
        };
        let Some(open) = open else { return };
        let lock = self.some_lock(&open);
        if self.random.chance(50) {
            self.read(&open).await;
        }
        if self.random.chance(30) {
            self.test_lock(&open, lock).await;
        }
        let patience = self.random.chance(60).then_some(PATIENCE);
        let mut published = Vec::new();
        let held = match self.take(&open, lock, patience).await {
            Some(taken) => self.hold(&open, taken, &mut published).await,
            None => None,
        };
        let begun = self.history().tick();
        let is_closed = self.close_published(&open, &published).await;
        // The kernel does not wait for RELEASE, which ends other locks.
        if let Some(taken) = held
            && is_closed
            && !lock.is_flock
            && open.file.is_flushed()
        {
            self.released(&taken, begun);
        }
    }

    fn some_lock(&mut self, open: &Open) -> Locking {
        let is_flock = self.random.chance(50);
        let (start, last) = if is_flock {
            (0, u64::MAX)
        } else {
            let start = self.random.below(LOCKED_BYTES);
            (start, self.random.between(start, LOCKED_BYTES))
        };
        let kind = *self.random.of(&[LockKind::Read, LockKind::Write, LockKind::Write]);
        // fcntl(2) needs a file that is open for writing.
        let is_weak = !is_flock && !open.file.is_writable();
        let kind = if is_weak { LockKind::Read } else { kind };
        Locking { is_flock, start, last, kind }
    }

    /// Returns the name of a file's locks of one family, and one such lock. Locks from an owner's
    /// earlier session exclude the owner too, until that session has been fenced.
    fn lockable(&self, open: &Open, lock: Locking) -> (String, Lockable) {
        let (family, number) = if lock.is_flock {
            ("flock", FLOCK_OWNERS + open.file.number())
        } else {
            ("record", self.number as u64)
        };
        let session = self.session().map_or(0, |session| session.0);
        let process = session << SESSION_SHIFT | (self.actor.machine as u64) << MACHINE_SHIFT;
        let wanted = Lockable {
            owner: process | number,
            start: lock.start,
            last: lock.last,
            exclusive: lock.kind == LockKind::Write,
        };
        (format!("{family} locks of inode {}", open.file.inode.number().0), wanted)
    }

    async fn test_lock(&mut self, open: &Open, lock: Locking) {
        let life = self.begin("test lock");
        let (file, lockable) = self.lockable(open, lock);
        let call = self.call(&life, Op::TestLock { file, lock: lockable });
        let found = self.kernel.test_lock(self.caller(), &open.file, lock).await;
        self.call_ended(
            call,
            &found,
            |is_free| {
                if *is_free { Answer::Absent } else { Answer::Some }
            },
        );
        self.answered("test lock", &found);
    }

    /// Takes a lock, with a wait of at most `patience`.
    async fn take(
        &mut self,
        open: &Open,
        lock: Locking,
        patience: Option<Duration>,
    ) -> Option<Taken> {
        let session = self.session();
        let life = self.begin("lock");
        let inode = open.file.inode.number().0;
        self.on(|| format!(" {lock:?} of inode {inode}"));
        let (file, lockable) = self.lockable(open, lock);
        self.history().locked.insert(open.key);
        let call = self.call(&life, Op::Lock { file: file.clone(), lock: lockable });
        let ending = self.call(&life, Op::Unlock { file, lock: lockable });
        let taken = self.kernel.lock(self.caller(), &open.file, lock, patience).await;
        // A wait that a signal ends is no failure, and the lock was not taken.
        let is_interrupted = taken == Err(Errno::EINTR) && patience.is_some();
        let judged = if is_interrupted { Ok(()) } else { taken };
        self.answered("lock", &judged);
        if taken == Err(Errno::EAGAIN) && patience.is_some() {
            let text = format!("a wait for a lock is refused: locks of inode {inode}");
            self.history().violations.push(text);
        }
        if is_interrupted && session == self.session() {
            self.history().calls[call].life.is_void = true;
        } else {
            self.call_ended(call, &taken, |()| Answer::Done);
        }
        if self.history().calls[call].answer == Some(Answer::Exists)
            || self.history().calls[call].life.is_void
        {
            self.history().calls[ending].life.is_void = true;
        }
        taken.ok()?;
        // If the session was lost meanwhile, the lock may belong to either session.
        let session = session.filter(|session| self.session() == Some(*session));
        if self.random.chance(70) {
            // Under the lock no data is older than the request for it.
            let fresh = open.since(life.start, session);
            self.read(&fresh).await;
        }
        Some(Taken { lock, ending, session })
    }

    /// Holds a lock, and releases it unless the close will.
    async fn hold(
        &mut self,
        open: &Open,
        taken: Taken,
        published: &mut Vec<(Tick, Tick)>,
    ) -> Option<Taken> {
        let may_write = taken.lock.kind == LockKind::Write && open.file.is_writable();
        if may_write && self.random.chance(50) {
            self.write(open).await;
        }
        let longest_ms = if self.shared.plan.has_faults() { LONG_MS } else { 1_000 };
        let most_ms = *self.random.of(&[1, 20, 1_000, longest_ms]);
        sleep(Duration::from_millis(self.random.between(1, most_ms))).await;
        if may_write && self.random.chance(70) {
            self.write_again(open, &taken).await;
        }
        if taken.lock.kind == LockKind::Write && self.random.chance(20) {
            self.weaken(open, &taken, published).await;
        }
        if self.random.chance(20) {
            return Some(taken);
        }
        let asked = self.history().tick();
        let life = self.begin("unlock");
        let inode = open.file.inode.number().0;
        self.on(|| format!(" of inode {inode}"));
        let unlock = Locking { kind: LockKind::Unlock, ..taken.lock };
        let released = self.kernel.lock(self.caller(), &open.file, unlock, None).await;
        self.answered("unlock", &released);
        if released.is_ok() {
            published.push((asked, self.history().tick()));
            self.released(&taken, life.start);
        }
        if self.random.chance(50) {
            // Data that the unlock has published must be visible before the close.
            sleep(OPEN_FOR).await;
        }
        None
    }

    /// Writes once more under a lock. If the worker knows that the lock ended with its session, the
    /// write must fail.
    async fn write_again(&mut self, open: &Open, taken: &Taken) {
        let session = self.session();
        let is_lost = taken.session.is_some() && session.is_some() && session != taken.session;
        let is_done = self.write(open).await;
        if is_lost && is_done {
            let inode = open.file.inode.number().0;
            let text = format!(
                "a write of node{} to inode {inode} succeeds although it has lost a lock",
                self.actor.machine
            );
            self.history().violations.push(text);
        }
    }

    /// Weakens an exclusive lock to a shared one, which publishes the writes under it.
    async fn weaken(&self, open: &Open, taken: &Taken, published: &mut Vec<(Tick, Tick)>) {
        let asked = self.history().tick();
        let life = self.begin("lock");
        let lock = Locking { kind: LockKind::Read, ..taken.lock };
        let (file, weak) = self.lockable(open, lock);
        let session = self.session();
        let call = self.call(&life, Op::Lock { file: file.clone(), lock: weak });
        // The lock may belong to a later session, with an unknown end.
        let ending = self.call(&life, Op::Unlock { file, lock: weak });
        let weakened = self.kernel.lock(self.caller(), &open.file, lock, None).await;
        self.call_ended(call, &weakened, |()| Answer::Done);
        // In a later session the owner is another one, which its earlier lock may exclude. If the
        // session ended meanwhile, either may have asked.
        if weakened == Err(Errno::EAGAIN) && (session.is_none() || session != self.session()) {
            self.history().calls[call].life.is_void = true;
        }
        self.answered("lock", &weakened);
        if weakened.is_ok() {
            published.push((asked, self.history().tick()));
        }
        let is_same = taken.session.is_some() && taken.session == self.session();
        self.history().calls[ending].life.is_void = is_same;
        sleep(WEAK_FOR).await;
    }

    /// Checks the release of a lock by a call that began at a moment.
    fn released(&self, taken: &Taken, begun: Tick) {
        // Only if the service knew the session until the end was the lock certainly not granted to
        // another owner.
        if taken.session.is_none() || taken.session != self.session() {
            return;
        }
        let mut history = self.history();
        let tick = history.tick();
        let ending = &mut history.calls[taken.ending];
        ending.life.start = begun;
        ending.life.returned = Some(tick);
        ending.done(Answer::Done, tick);
        history.counts.locks += 1;
    }

    /// Checks that no locks are left when all files are closed and all dead clients have been
    /// fenced.
    pub(crate) async fn expect_no_locks(self) {
        for parent in self.directories() {
            for (name, inode) in self.list_directory(parent).await.unwrap_or_default() {
                let key = self.file(inode);
                if self.history().locked.contains(&key) {
                    self.expect_no_lock(parent, &name).await;
                }
            }
        }
    }

    async fn expect_no_lock(&self, parent: InodeId, name: &str) {
        let Some(open) = self.open(parent, name, libc::O_RDWR).await else { return };
        for is_flock in [true, false] {
            let lock = Locking { is_flock, start: 0, last: u64::MAX, kind: LockKind::Write };
            self.note("lock");
            let taken = self.kernel.lock(self.caller(), &open.file, lock, None).await;
            self.answered("lock", &taken);
            if taken == Err(Errno::EAGAIN) {
                let inode = open.file.inode.number().0;
                let family = if is_flock { "flock" } else { "record" };
                let text = format!("a lock is left: {family} lock of inode {inode}");
                self.history().violations.push(text);
            }
            // The file may have another name, which is checked next, and RELEASE is not waited for.
            let unlock = Locking { kind: LockKind::Unlock, ..lock };
            let released = self.kernel.lock(self.caller(), &open.file, unlock, None).await;
            self.answered("unlock", &released);
        }
        self.close(&open).await;
    }
}
