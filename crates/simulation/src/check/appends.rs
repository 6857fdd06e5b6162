//! Checks that no two appends share bytes, and that an append that began after another had returned
//! is behind it in the file.
//!
//! Reads alone cannot show this: of two overlapping simultaneous writes, either may be the last.
//! But an append goes to the end of the file and both are certainly in the file, so they can share
//! bytes only if the file became shorter in between.

use crate::history::{Change, Effect, History};

/// Checks all pairs of appends to one file. Returns the violations.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    let appends: Vec<&Change> = history
        .changes
        .iter()
        .filter(|change| change.is_append && change.life.is_lasting())
        .collect();
    for (index, one) in appends.iter().enumerate() {
        for other in &appends[index + 1..] {
            let wrong = if overlap(one, other) {
                "share bytes"
            } else if is_disordered(one, other) || is_disordered(other, one) {
                "are in the wrong order"
            } else {
                continue;
            };
            if one.file == other.file && !may_shrink(history, one, other) {
                let inode = history.file_inodes[one.file].0;
                violations.push(format!(
                    "two appends to inode {inode} {wrong}: {:?} by node{} (ticks {}..{:?}) and {:?} by node{} (ticks {}..{:?})",
                    one.effect, one.life.actor.machine, one.life.start, one.life.returned,
                    other.effect, other.life.actor.machine, other.life.start, other.life.returned,
                ));
            }
        }
    }
    violations
}

fn overlap(one: &Change, other: &Change) -> bool {
    let (one, other) = (one.effect.range(), other.effect.range());
    one.start < other.end && other.start < one.end
}

/// Whether the late append lies before an early one that had returned when the late one began.
fn is_disordered(late: &Change, early: &Change) -> bool {
    early.life.returned.is_some_and(|returned| returned < late.life.start)
        && late.effect.range().start < early.effect.range().start
}

/// Whether the file may have become shorter between the two: by a truncation, or because a power
/// loss undid the change that had made it longer.
fn may_shrink(history: &History, one: &Change, other: &Change) -> bool {
    let first = one.life.start.min(other.life.start);
    let last = one.life.returned.max(other.life.returned).unwrap_or(u64::MAX);
    history.changes.iter().any(|change| {
        let life = &change.life;
        change.file == one.file
            && life.start < last
            && life.latest.is_none_or(|latest| latest > first)
            && (matches!(change.effect, Effect::Truncate { .. }) || !life.is_lasting())
    })
}
