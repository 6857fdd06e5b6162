//! The locks held on a file, under the rules of fcntl(2) and flock(2): an owner holds each byte
//! shared, exclusively or not at all.

use super::Answer;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A lock that an owner requests, holds or releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Lockable {
    /// The owner, unique over all machines and all lives of their processes.
    pub(crate) owner: u64,
    /// First and last byte.
    pub(crate) start: u64,
    pub(crate) last: u64,
    /// Whether it excludes shared locks too.
    pub(crate) exclusive: bool,
}

/// Sets of locks that were held at the same time, each with a number.
#[derive(Debug, Default)]
pub(super) struct Locks(RefCell<Known>);

#[derive(Debug, Default)]
struct Known {
    sets: Vec<Vec<Lockable>>,
    numbers: BTreeMap<Vec<Lockable>, usize>,
}

impl Lockable {
    fn meets(&self, other: &Lockable) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn excludes(&self, other: &Lockable) -> bool {
        self.owner != other.owner && (self.exclusive || other.exclusive) && self.meets(other)
    }
}

impl Locks {
    /// Returns the locks held after a lock or a test was answered; `None` if that answer is
    /// impossible. Sets are given by their numbers, the empty one by `None`.
    #[allow(clippy::option_option, reason = "no set, and the empty set")]
    pub(super) fn asked(
        &self,
        held: Option<usize>,
        lock: &Lockable,
        answer: Answer,
    ) -> Option<Option<usize>> {
        let set = self.set(held);
        let is_free = !set.iter().any(|other| other.excludes(lock));
        match answer {
            Answer::Done | Answer::Lost if is_free => {
                let mut after = remaining(&set, lock);
                after.push(*lock);
                Some(self.number(after))
            }
            Answer::Absent if is_free => Some(held),
            Answer::Exists | Answer::Some if !is_free => Some(held),
            _ => None,
        }
    }

    /// Returns the locks held after the owner of a lock has released its range.
    pub(super) fn without(&self, held: Option<usize>, lock: &Lockable) -> Option<usize> {
        self.number(remaining(&self.set(held), lock))
    }

    fn set(&self, held: Option<usize>) -> Vec<Lockable> {
        held.map(|held| self.0.borrow().sets[held].clone()).unwrap_or_default()
    }

    fn number(&self, mut set: Vec<Lockable>) -> Option<usize> {
        set.sort_unstable();
        // Adjacent bytes that one owner holds in the same mode are one lock.
        set.dedup_by(|next, lock| {
            let is_one = lock.owner == next.owner
                && lock.exclusive == next.exclusive
                && lock.last.checked_add(1) == Some(next.start);
            if is_one {
                lock.last = next.last;
            }
            is_one
        });
        if set.is_empty() {
            return None;
        }
        let mut known = self.0.borrow_mut();
        if let Some(number) = known.numbers.get(&set) {
            return Some(*number);
        }
        let number = known.sets.len();
        known.sets.push(set.clone());
        known.numbers.insert(set, number);
        Some(number)
    }
}

/// Returns a set without the owner's locks on the range of a lock.
fn remaining(set: &[Lockable], lock: &Lockable) -> Vec<Lockable> {
    let mut left = Vec::with_capacity(set.len() + 2);
    for other in set {
        if other.owner != lock.owner || !other.meets(lock) {
            left.push(*other);
            continue;
        }
        if other.start < lock.start {
            left.push(Lockable { last: lock.start - 1, ..*other });
        }
        if other.last > lock.last {
            left.push(Lockable { start: lock.last + 1, ..*other });
        }
    }
    left
}
