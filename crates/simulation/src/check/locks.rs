//! Checks that no two held locks that exclude each other at once.

use crate::history::Held;

/// Checks all pairs; answers what is wrong.
pub(super) fn check(locks: &[Held]) -> Vec<String> {
    let mut violations = Vec::new();
    for (index, one) in locks.iter().enumerate() {
        let others = locks[index + 1..].iter().filter(|other| excludes(one, other));
        for other in others {
            violations.push(format!("two locks are held at once: {one:?} and {other:?}"));
        }
    }
    violations
}

fn excludes(one: &Held, other: &Held) -> bool {
    let is_same_owner = (one.actor, one.owner) == (other.actor, other.owner);
    one.file == other.file
        && one.family == other.family
        && !is_same_owner
        && (one.is_exclusive || other.is_exclusive)
        && one.start <= other.last
        && other.start <= one.last
        && one.from < other.to
        && other.from < one.to
}
