//! Advisory locks: `flock(2)` and POSIX record locks, of all sessions or of one.
//!
//! A state machine without I/O. Locks of the two families do not see each other, as on Linux. An
//! owner's own locks never stand against it: POSIX locks of one owner are split, merged and changed
//! in mode by later ones; a `flock` of the same owner replaces the one before. A wait that cannot be
//! granted now is queued; whenever something is released, the queue is gone through in the order of
//! arrival. A POSIX wait that would close a circle of waiting owners is refused.

mod inodes;
mod ranges;
#[cfg(test)]
mod tests;

use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{InodeId, SessionId};
use ranges::Holdings;
use std::collections::{HashMap, HashSet, VecDeque};

/// Lock ranges that one session may hold; more are refused.
pub const LOCKS_PER_SESSION: usize = 1 << 16;

/// Owners that the search for a circle visits at most; beyond them it finds none.
const CIRCLE_MAX: usize = 4096;

/// A wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(pub u64);

/// Who holds or wants a lock: an owner is known within its session only.
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

/// What became of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The lock is held.
    Granted,
    /// Others' locks stand against it.
    Conflict,
    /// It is queued; [`LockTable::take_granted`] will name it.
    Waits,
    /// To wait for it would be to wait for oneself.
    Deadlock,
    /// The session holds too many.
    TooMany,
}

#[derive(Debug, Default)]
struct Queue {
    held: Holdings,
    waits: VecDeque<Wait>,
}

type Place = (InodeId, LockFamily);

/// All locks.
#[derive(Debug, Default)]
pub struct LockTable {
    places: HashMap<Place, Queue>,
    counts: HashMap<SessionId, usize>,
    granted: Vec<WaitId>,
}

fn overlap(a: &Lock, b: &Lock) -> bool {
    a.start <= b.last && b.start <= a.last
}

/// A `flock` is of the whole file.
fn whole(lock: Lock) -> Lock {
    match lock.family {
        LockFamily::Flock => Lock { start: 0, last: u64::MAX, ..lock },
        LockFamily::Posix => lock,
    }
}

impl LockTable {
    /// Takes a lock, or queues the wish under `wait`. The range must not be empty.
    pub fn set(&mut self, session: SessionId, lock: Lock, wait: Option<WaitId>) -> Wish {
        let lock = whole(lock);
        let party = Party { session, owner: lock.owner };
        if self.counts.get(&session).is_some_and(|count| *count >= LOCKS_PER_SESSION) {
            return Wish::TooMany;
        }
        let queue = self.places.entry((lock.inode, lock.family)).or_default();
        if queue.held.against(party, &lock).next().is_none() {
            self.hold(party, lock);
            // A weaker mode may let others in.
            self.serve((lock.inode, lock.family));
            return Wish::Granted;
        }
        let Some(id) = wait else { return Wish::Conflict };
        if lock.family == LockFamily::Posix && self.closes_circle(party, &lock) {
            return Wish::Deadlock;
        }
        let place = (lock.inode, lock.family);
        if lock.family == LockFamily::Flock {
            // As on Linux a conversion that has to wait gives the old lock up: two that both want
            // to go from shared to exclusive would else wait for each other for ever.
            self.release(party, &lock);
        }
        let queue = self.places.entry(place).or_default();
        assert!(
            queue.waits.back().is_none_or(|last| last.id != id),
            "{id:?} of {party:?} waits twice at {place:?}"
        );
        queue.waits.push_back(Wait { id, party, lock });
        self.serve(place);
        // The release may have let it in itself, behind others.
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
        place: (InodeId, LockFamily),
        owner: LockOwner,
    ) -> Vec<WaitId> {
        let party = Party { session, owner };
        let Some(queue) = self.places.get_mut(&place) else { return Vec::new() };
        let ended = queue.waits.iter().filter(|wait| wait.party == party).map(|wait| wait.id);
        let ended: Vec<WaitId> = ended.collect();
        queue.waits.retain(|wait| wait.party != party);
        self.tidy(place);
        ended
    }

    /// Ends one wait.
    pub fn give_up(&mut self, place: (InodeId, LockFamily), id: WaitId) {
        if let Some(queue) = self.places.get_mut(&place) {
            queue.waits.retain(|wait| wait.id != id);
        }
        self.tidy(place);
    }

    /// The first lock that stands against a wish. The range must not be empty.
    pub fn test(&self, session: SessionId, lock: &Lock) -> Option<Lock> {
        let lock = whole(*lock);
        let party = Party { session, owner: lock.owner };
        let queue = self.places.get(&(lock.inode, lock.family))?;
        queue.held.against(party, &lock).map(|held| held.lock).min_by_key(|lock| lock.start)
    }

    /// What an owner holds on an inode, where that is not stored yet: by first byte, nothing where none begins
    /// any more.
    pub fn changes(
        &self,
        session: SessionId,
        place: (InodeId, LockFamily),
        owner: LockOwner,
    ) -> Vec<(u64, Option<Lock>)> {
        let party = Party { session, owner };
        self.places.get(&place).map_or_else(Vec::new, |queue| queue.held.changes(party))
    }

    /// What an owner holds on an inode is stored.
    pub fn stored(&mut self, session: SessionId, place: (InodeId, LockFamily), owner: LockOwner) {
        if let Some(queue) = self.places.get_mut(&place) {
            queue.held.stored(Party { session, owner });
        }
        self.tidy(place);
    }

    /// A lock that was stored.
    /// Returns false for one whose range ends before it begins.
    #[must_use]
    pub fn restore(&mut self, session: SessionId, lock: Lock) -> bool {
        if lock.start > lock.last {
            return false;
        }
        let party = Party { session, owner: lock.owner };
        self.hold(party, lock);
        if let Some(queue) = self.places.get_mut(&(lock.inode, lock.family)) {
            queue.held.stored(party);
        }
        true
    }

    /// The session has ended: its locks and waits go.
    pub fn end_session(&mut self, session: SessionId) {
        self.counts.remove(&session);
        let places: Vec<Place> = self.places.keys().copied().collect();
        for place in places {
            if let Some(queue) = self.places.get_mut(&place) {
                queue.held.end_session(session);
                queue.waits.retain(|wait| wait.party.session != session);
            }
            self.serve(place);
        }
        assert!(
            !self.counts.contains_key(&session),
            "{session} has ended, and locks of it are counted: {:?}",
            self.counts.get(&session)
        );
    }

    /// Waits that have ended with the lock held, in order.
    pub fn take_granted(&mut self) -> Vec<WaitId> {
        std::mem::take(&mut self.granted)
    }

    /// Grants what can be granted of a queue, in the order of arrival.
    fn serve(&mut self, place: Place) {
        let mut at = 0;
        while let Some(queue) = self.places.get_mut(&place) {
            let Some(wait) = queue.waits.get(at).copied() else { break };
            if queue.held.against(wait.party, &wait.lock).next().is_some() {
                at += 1;
                continue;
            }
            let weakens = wait.lock.mode == LockMode::Shared
                && queue.held.holds_exclusive(wait.party, &wait.lock);
            let served = queue.waits.remove(at).map(|wait| wait.id);
            assert_eq!(served, Some(wait.id), "another wait at {place:?} is served");
            self.hold(wait.party, wait.lock);
            self.granted.push(wait.id);
            if weakens {
                // What stood against those before it may be gone.
                at = 0;
            }
        }
        self.tidy(place);
    }

    /// Lays a lock over what a party holds.
    fn hold(&mut self, party: Party, lock: Lock) {
        let queue = self.places.entry((lock.inode, lock.family)).or_default();
        let before = queue.held.count(party);
        queue.held.hold(party, lock);
        let after = queue.held.count(party);
        self.recount(party, before, after);
    }

    /// Takes a range out of what a party holds.
    fn release(&mut self, party: Party, cut: &Lock) {
        let Some(queue) = self.places.get_mut(&(cut.inode, cut.family)) else { return };
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

    fn tidy(&mut self, place: Place) {
        let is_empty = |queue: &Queue| {
            queue.held.is_empty() && queue.held.is_stored() && queue.waits.is_empty()
        };
        if self.places.get(&place).is_some_and(is_empty) {
            self.places.remove(&place);
        }
    }

    /// Whether an owner that `party` would wait for waits, over others perhaps, for `party`.
    fn closes_circle(&self, party: Party, lock: &Lock) -> bool {
        let mut seen: HashSet<Party> = HashSet::new();
        let mut next = self.standing_against(party, lock);
        while let Some(other) = next.pop() {
            if other == party {
                return true;
            }
            if !seen.insert(other) || seen.len() > CIRCLE_MAX {
                continue;
            }
            for queue in self.places.values() {
                for wait in queue.waits.iter().filter(|wait| wait.party == other) {
                    if wait.lock.family == LockFamily::Posix {
                        next.extend(self.standing_against(other, &wait.lock));
                    }
                }
            }
        }
        false
    }

    fn standing_against(&self, party: Party, lock: &Lock) -> Vec<Party> {
        let Some(queue) = self.places.get(&(lock.inode, lock.family)) else { return Vec::new() };
        queue.held.against(party, lock).map(|held| held.party).collect()
    }
}
