//! The locks on one inode, by party and first byte, so that a change costs no more where many are
//! held.

use super::{Held, Party, overlap};
use protocol::SessionId;
use protocol::lock::{Lock, LockMode, LockOwner};
use std::collections::{BTreeMap, BTreeSet};

/// Locks that do not overlap, by their first byte.
type Apart<T> = BTreeMap<u64, T>;

/// All locks of one family on one inode.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    parties: BTreeMap<Party, Apart<Lock>>,
    /// The exclusive ones among them: they never overlap, even between parties.
    exclusive: BTreeMap<(u64, Party), Lock>,
    /// The first bytes of a party's locks that were added or removed since the last storing.
    changed: BTreeMap<Party, BTreeSet<u64>>,
}

/// Returns the rest of `old` without the range of `cut`.
fn without(old: Lock, cut: &Lock) -> impl Iterator<Item = Lock> {
    let left = (old.start < cut.start).then(|| Lock { last: cut.start - 1, ..old });
    let right = (cut.last < old.last).then(|| Lock { start: cut.last + 1, ..old });
    left.into_iter().chain(right)
}

/// Returns the locks of a party that overlap a range.
fn overlapping<'a>(locks: &'a Apart<Lock>, range: &'a Lock) -> impl Iterator<Item = &'a Lock> {
    let before = locks.range(..range.start).next_back().map(|(_, lock)| lock);
    let within = locks.range(range.start..=range.last).map(|(_, lock)| lock);
    before.into_iter().filter(|lock| overlap(lock, range)).chain(within)
}

impl Holdings {
    pub(super) fn is_empty(&self) -> bool {
        self.parties.is_empty()
    }

    /// Returns whether nothing has changed since the last storing.
    pub(super) fn is_stored(&self) -> bool {
        self.changed.is_empty()
    }

    /// Returns the number of locks that a party holds.
    pub(super) fn count(&self, party: Party) -> usize {
        self.parties.get(&party).map_or(0, BTreeMap::len)
    }

    /// Returns the number of held locks.
    pub(super) fn len(&self) -> usize {
        self.parties.values().map(BTreeMap::len).sum()
    }

    /// Returns the parties that hold locks.
    pub(super) fn parties(&self) -> impl ExactSizeIterator<Item = &Party> {
        self.parties.keys()
    }

    /// Returns all locks of a session.
    pub(super) fn of_session(&self, session: SessionId) -> impl Iterator<Item = Lock> + '_ {
        let own = self.parties.iter().filter(move |(party, _)| party.session == session);
        own.flat_map(|(_, locks)| locks.values().copied())
    }

    /// Returns the owners of a session whose stored locks are out of date.
    pub(super) fn unstored(&self, session: SessionId) -> impl Iterator<Item = LockOwner> + '_ {
        self.changed.keys().filter(move |party| party.session == session).map(|party| party.owner)
    }

    /// Returns locks of other parties that conflict with a party's request.
    pub(super) fn against<'a>(
        &'a self,
        party: Party,
        wish: &'a Lock,
    ) -> impl Iterator<Item = Held> + 'a {
        let first = (wish.start, Party::FIRST);
        let before = self.exclusive.range(..first).next_back();
        let within = self.exclusive.range(first..=(wish.last, Party::LAST));
        let exclusive = before.into_iter().chain(within);
        let exclusive = exclusive.map(|((_, party), lock)| Held { party: *party, lock: *lock });
        let is_exclusive = wish.mode == LockMode::Exclusive;
        // A party with only exclusive locks is searched in vain, but there are few such parties.
        let others = self.parties.iter().filter(move |(other, _)| is_exclusive && **other != party);
        let shared = others.flat_map(move |(other, locks)| {
            let shared = overlapping(locks, wish).filter(|lock| lock.mode == LockMode::Shared);
            shared.map(move |lock| Held { party: *other, lock: *lock })
        });
        exclusive
            .chain(shared)
            .filter(move |held| held.party != party && overlap(&held.lock, wish))
            .filter(|_| !reactor::mutant!("locks-exclude-nobody"))
    }

    /// Returns whether a party holds an exclusive lock in a range.
    pub(super) fn holds_exclusive(&self, party: Party, range: &Lock) -> bool {
        let Some(locks) = self.parties.get(&party) else { return false };
        overlapping(locks, range).any(|lock| lock.mode == LockMode::Exclusive)
    }

    /// Removes a range from the locks that a party holds.
    pub(super) fn release(&mut self, party: Party, cut: &Lock) {
        let Some(locks) = self.parties.get(&party) else { return };
        let found: Vec<Lock> = overlapping(locks, cut).copied().collect();
        for lock in found {
            self.remove(party, lock.start);
            without(lock, cut).for_each(|left| self.insert(party, left));
        }
    }

    /// Adds a lock over the locks that a party holds, merging it with neighbours of its mode.
    pub(super) fn hold(&mut self, party: Party, lock: Lock) {
        assert!(lock.start <= lock.last, "{party:?} would hold a lock without bytes, {lock:?}");
        self.release(party, &lock);
        let mut merged = lock;
        let locks = self.parties.entry(party).or_default();
        let before = locks.range(..lock.start).next_back().map(|(_, lock)| *lock);
        let after = lock.last.checked_add(1).and_then(|next| locks.get(&next).copied());
        let before = before.filter(|before| before.last.checked_add(1) == Some(lock.start));
        for neighbour in before.into_iter().chain(after).filter(|other| other.mode == lock.mode) {
            merged.start = merged.start.min(neighbour.start);
            merged.last = merged.last.max(neighbour.last);
            self.remove(party, neighbour.start);
        }
        self.insert(party, merged);
        self.assert_apart(party, &merged);
    }

    /// Removes all locks and records of a session.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.parties.retain(|party, _| party.session != session);
        self.exclusive.retain(|(_, party), _| party.session != session);
        self.changed.retain(|party, _| party.session != session);
    }

    /// Returns the changes of a party's locks since the last storing: for each first byte the lock
    /// that begins there, or `None` if none begins there any more.
    pub(super) fn changes(&self, party: Party) -> Vec<(u64, Option<Lock>)> {
        let locks = self.parties.get(&party);
        let changed = self.changed.get(&party).into_iter().flatten();
        changed.map(|start| (*start, locks.and_then(|locks| locks.get(start).copied()))).collect()
    }

    /// Records that all locks of a party are stored.
    pub(super) fn stored(&mut self, party: Party) {
        self.changed.remove(&party);
    }

    fn insert(&mut self, party: Party, lock: Lock) {
        if lock.mode == LockMode::Exclusive {
            self.exclusive.insert((lock.start, party), lock);
        }
        let old = self.parties.entry(party).or_default().insert(lock.start, lock);
        assert!(old.is_none(), "{party:?} holds {old:?} where {lock:?} begins");
        self.changed.entry(party).or_default().insert(lock.start);
    }

    fn remove(&mut self, party: Party, start: u64) {
        let Some(locks) = self.parties.get_mut(&party) else { return };
        let old = locks.remove(&start);
        assert!(old.is_some(), "{party:?} holds nothing that begins at {start}");
        if locks.is_empty() {
            self.parties.remove(&party);
        }
        self.exclusive.remove(&(start, party));
        self.changed.entry(party).or_default().insert(start);
    }

    /// Asserts that a party's locks in the range of a new one do not overlap.
    fn assert_apart(&self, party: Party, lock: &Lock) {
        let Some(locks) = self.parties.get(&party) else { return };
        let count = overlapping(locks, lock).count();
        assert!(count == 1, "{party:?} holds {count} locks in the range of {lock:?}");
    }
}
