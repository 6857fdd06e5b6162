//! One owner's locks on one inode: laying a new one over them, cutting a range out.

use super::{Held, LockTable, Party};
use protocol::lock::Lock;

/// What is left of `old` when `cut`'s range is taken out.
fn without(old: Lock, cut: &Lock) -> impl Iterator<Item = Lock> {
    let left = (old.start < cut.start).then(|| Lock { last: cut.start - 1, ..old });
    let right = (cut.last < old.last).then(|| Lock { start: cut.last + 1, ..old });
    left.into_iter().chain(right)
}

/// Whether two locks of the same mode make one range.
fn touches(a: &Lock, b: &Lock) -> bool {
    a.mode == b.mode && a.start <= b.last.saturating_add(1) && b.start <= a.last.saturating_add(1)
}

impl LockTable {
    /// Takes a range out of what a party holds.
    pub(super) fn release(&mut self, party: Party, cut: &Lock) {
        let Some(queue) = self.places.get_mut(&(cut.inode, cut.family)) else { return };
        let before = queue.held.len();
        let mut left: Vec<Held> = Vec::new();
        queue.held.retain(|held| {
            let is_cut = held.party == party && super::overlap(&held.lock, cut);
            if is_cut {
                left.extend(without(held.lock, cut).map(|lock| Held { party, lock }));
            }
            !is_cut
        });
        queue.held.append(&mut left);
        let after = queue.held.len();
        assert!(
            after <= before + 1,
            "{before} locks of {party:?} became {after} by the release of {cut:?}"
        );
        self.recount(party, before, after);
    }

    /// Lays a lock over what a party holds, merging it with neighbours of its mode.
    pub(super) fn hold(&mut self, party: Party, lock: Lock) {
        self.release(party, &lock);
        let queue = self.places.entry((lock.inode, lock.family)).or_default();
        let before = queue.held.len();
        assert!(lock.start <= lock.last, "{party:?} would hold {lock:?}");
        let mut merged = lock;
        queue.held.retain(|held| {
            let is_merged = held.party == party && touches(&held.lock, &merged);
            if is_merged {
                merged.start = merged.start.min(held.lock.start);
                merged.last = merged.last.max(held.lock.last);
            }
            !is_merged
        });
        assert!(
            merged.start <= lock.start && lock.last <= merged.last && merged.mode == lock.mode,
            "{party:?} would hold {merged:?} for {lock:?}"
        );
        queue.held.push(Held { party, lock: merged });
        let after = queue.held.len();
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
}
