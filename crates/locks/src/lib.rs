//! Advisory locks: `flock(2)` and POSIX record locks, of all sessions or of one.
//!
//! A state machine without I/O. Locks of different families do not conflict, as on Linux. An
//! owner's own locks never conflict with its requests: a later POSIX lock of an owner splits,
//! merges or changes the earlier ones; a later `flock` replaces the earlier one. A wait that cannot
//! be granted now is queued. Whenever a lock is released, the table tries the queue in the order of
//! arrival. It refuses a POSIX wait that would close a circle of waiting owners.

mod inodes;
mod ranges;
#[cfg(test)]
mod tests;

use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{InodeId, SessionId};
use ranges::Holdings;
use std::collections::{HashMap, HashSet, VecDeque};

/// Most lock ranges of one session; more are refused.
pub const LOCKS_PER_SESSION: usize = 1 << 16;

/// Most owners that the search for a circle visits; beyond them it finds none.
const CIRCLE_MAX: usize = 4096;

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// A holder of or waiter for a lock. An owner is unique only within its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Party {
    session: SessionId,
    owner: LockOwner,
}

impl Party {
    const FIRST: Party = Party { session: SessionId(0), owner: LockOwner(0) };
    const LAST: Party = Party { session: SessionId(u64::MAX), owner: LockOwner(u64::MAX) };
}

#[derive(Clone, Copy, Debug)]
struct Held {
    party: Party,
    lock: Lock,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    id: WaitId,
    party: Party,
    lock: Lock,
}

/// The result of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The lock is held.
    Granted,
    /// Locks of other owners conflict with it.
    Conflict,
    /// It is queued; [`LockTable::take_granted`] will return it.
    Waits,
    /// The owner would wait for itself.
    Deadlock,
    /// The session holds too many locks.
    TooMany,
}

#[derive(Debug, Default)]
struct Queue {
    held: Holdings,
    waits: VecDeque<Wait>,
}

/// Locks conflict only within one family on one inode.
type LockScope = (InodeId, LockFamily);

/// All locks.
#[derive(Debug, Default)]
pub struct LockTable {
    scopes: HashMap<LockScope, Queue>,
    counts: HashMap<SessionId, usize>,
    granted: Vec<WaitId>,
}

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.start <= b.last && b.start <= a.last
}

/// Returns the lock with the range of its family: a `flock` covers the whole file.
fn whole(lock: Lock) -> Lock {
    match lock.family {
        LockFamily::Flock => Lock { start: 0, last: u64::MAX, ..lock },
        LockFamily::Posix => lock,
    }
}

impl LockTable {
    /// Takes a lock, or queues the request under `wait`. The range must not be empty.
    pub fn set(&mut self, session: SessionId, lock: Lock, wait: Option<WaitId>) -> Wish {
        let lock = whole(lock);
        let party = Party { session, owner: lock.owner };
        if self.counts.get(&session).is_some_and(|count| *count >= LOCKS_PER_SESSION) {
            return Wish::TooMany;
        }
        let queue = self.scopes.entry((lock.inode, lock.family)).or_default();
        if queue.held.against(party, &lock).next().is_none() {
            self.hold(party, lock);
            // A weaker mode may allow waiting locks.
            self.serve((lock.inode, lock.family));
            return Wish::Granted;
        }
        let Some(id) = wait else { return Wish::Conflict };
        if lock.family == LockFamily::Posix && self.closes_circle(party, &lock) {
            return Wish::Deadlock;
        }
        let scope = (lock.inode, lock.family);
        if lock.family == LockFamily::Flock {
            // As on Linux, a conversion that has to wait releases the old lock first. Otherwise two
            // owners that convert from shared to exclusive would wait for each other for ever.
            self.release(party, &lock);
        }
        let queue = self.scopes.entry(scope).or_default();
        assert!(
            queue.waits.back().is_none_or(|last| last.id != id),
            "{id:?} of {party:?} waits twice for {scope:?}"
        );
        queue.waits.push_back(Wait { id, party, lock });
        self.serve(scope);
        // The release may have allowed this lock itself, after others.
        if self.granted.contains(&id) {
            self.granted.retain(|granted| *granted != id);
            return Wish::Granted;
        }
        Wish::Waits
    }

    /// Releases a range of an owner.
    pub fn unlock(&mut self, session: SessionId, lock: Lock) {
        let lock = whole(lock);
        self.release(Party { session, owner: lock.owner }, &lock);
        self.serve((lock.inode, lock.family));
    }

    /// Ends an owner's waits for a lock on an inode.
    pub fn cancel(
        &mut self,
        session: SessionId,
        scope: (InodeId, LockFamily),
        owner: LockOwner,
    ) -> Vec<WaitId> {
        let party = Party { session, owner };
        let Some(queue) = self.scopes.get_mut(&scope) else { return Vec::new() };
        let ended = queue.waits.iter().filter(|wait| wait.party == party).map(|wait| wait.id);
        let ended: Vec<WaitId> = ended.collect();
        queue.waits.retain(|wait| wait.party != party);
        self.tidy(scope);
        ended
    }

    /// Ends one wait.
    pub fn give_up(&mut self, scope: (InodeId, LockFamily), id: WaitId) {
        if let Some(queue) = self.scopes.get_mut(&scope) {
            queue.waits.retain(|wait| wait.id != id);
        }
        self.tidy(scope);
    }

    /// Returns the first lock that conflicts with a request. The range must not be empty.
    pub fn test(&self, session: SessionId, lock: &Lock) -> Option<Lock> {
        let lock = whole(*lock);
        let party = Party { session, owner: lock.owner };
        let queue = self.scopes.get(&(lock.inode, lock.family))?;
        queue.held.against(party, &lock).map(|held| held.lock).min_by_key(|lock| lock.start)
    }

    /// Returns the changes of an owner's locks on an inode that are not stored yet: for each first
    /// byte the lock that begins there, or `None` if none begins there any more.
    pub fn changes(
        &self,
        session: SessionId,
        scope: (InodeId, LockFamily),
        owner: LockOwner,
    ) -> Vec<(u64, Option<Lock>)> {
        let party = Party { session, owner };
        self.scopes.get(&scope).map_or_else(Vec::new, |queue| queue.held.changes(party))
    }

    /// Records that an owner's locks on an inode are stored.
    pub fn stored(&mut self, session: SessionId, scope: (InodeId, LockFamily), owner: LockOwner) {
        if let Some(queue) = self.scopes.get_mut(&scope) {
            queue.held.stored(Party { session, owner });
        }
        self.tidy(scope);
    }

    /// Adds a stored lock. Returns false, without adding it, if its range ends before it begins.
    #[must_use]
    pub fn restore(&mut self, session: SessionId, lock: Lock) -> bool {
        if lock.start > lock.last {
            return false;
        }
        let party = Party { session, owner: lock.owner };
        self.hold(party, lock);
        if let Some(queue) = self.scopes.get_mut(&(lock.inode, lock.family)) {
            queue.held.stored(party);
        }
        true
    }

    /// Removes the locks and waits of a session that has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.counts.remove(&session);
        let scopes: Vec<LockScope> = self.scopes.keys().copied().collect();
        for scope in scopes {
            if let Some(queue) = self.scopes.get_mut(&scope) {
                queue.held.end_session(session);
                queue.waits.retain(|wait| wait.party.session != session);
            }
            self.serve(scope);
        }
        assert!(
            !self.counts.contains_key(&session),
            "{session} has ended, but locks of it are still counted: {:?}",
            self.counts.get(&session)
        );
    }

    /// Returns the waits that have ended with the lock held, in order.
    pub fn take_granted(&mut self) -> Vec<WaitId> {
        std::mem::take(&mut self.granted)
    }

    /// Grants the possible requests of a queue, in the order of arrival.
    fn serve(&mut self, scope: LockScope) {
        let mut at = 0;
        while let Some(queue) = self.scopes.get_mut(&scope) {
            let Some(wait) = queue.waits.get(at).copied() else { break };
            if queue.held.against(wait.party, &wait.lock).next().is_some() {
                at += 1;
                continue;
            }
            let weakens = wait.lock.mode == LockMode::Shared
                && queue.held.holds_exclusive(wait.party, &wait.lock);
            let served = queue.waits.remove(at).map(|wait| wait.id);
            assert_eq!(served, Some(wait.id), "another wait for {scope:?} is served");
            self.hold(wait.party, wait.lock);
            self.granted.push(wait.id);
            if weakens {
                // Locks that conflicted with earlier waits may be gone.
                at = 0;
            }
        }
        self.tidy(scope);
    }

    /// Adds a lock over the locks that a party holds.
    fn hold(&mut self, party: Party, lock: Lock) {
        let queue = self.scopes.entry((lock.inode, lock.family)).or_default();
        let before = queue.held.count(party);
        queue.held.hold(party, lock);
        let after = queue.held.count(party);
        self.recount(party, before, after);
    }

    /// Removes a range from the locks that a party holds.
    fn release(&mut self, party: Party, cut: &Lock) {
        let Some(queue) = self.scopes.get_mut(&(cut.inode, cut.family)) else { return };
        let before = queue.held.count(party);
        queue.held.release(party, cut);
        let after = queue.held.count(party);
        assert!(
            after <= before + 1,
            "{before} locks of {party:?} became {after} by the release of {cut:?}"
        );
        self.recount(party, before, after);
    }

    fn recount(&mut self, party: Party, before: usize, after: usize) {
        let count = self.counts.entry(party.session).or_default();
        assert!(
            *count + after >= before,
            "{party:?} has {count} locks, and of those on one inode {before} became {after}"
        );
        *count = *count + after - before;
        if *count == 0 {
            self.counts.remove(&party.session);
        }
    }

    fn tidy(&mut self, scope: LockScope) {
        let is_empty = |queue: &Queue| {
            queue.held.is_empty() && queue.held.is_stored() && queue.waits.is_empty()
        };
        if self.scopes.get(&scope).is_some_and(is_empty) {
            self.scopes.remove(&scope);
        }
    }

    /// Returns whether an owner that `party` would wait for waits, directly or through others, for
    /// `party`.
    fn closes_circle(&self, party: Party, lock: &Lock) -> bool {
        let mut seen: HashSet<Party> = HashSet::new();
        let mut next = self.holders_against(party, lock);
        while let Some(other) = next.pop() {
            if other == party {
                return true;
            }
            if !seen.insert(other) || seen.len() > CIRCLE_MAX {
                continue;
            }
            for queue in self.scopes.values() {
                for wait in queue.waits.iter().filter(|wait| wait.party == other) {
                    if wait.lock.family == LockFamily::Posix {
                        next.extend(self.holders_against(other, &wait.lock));
                    }
                }
            }
        }
        false
    }

    fn holders_against(&self, party: Party, lock: &Lock) -> Vec<Party> {
        let Some(queue) = self.scopes.get(&(lock.inode, lock.family)) else { return Vec::new() };
        queue.held.against(party, lock).map(|held| held.party).collect()
    }
}
