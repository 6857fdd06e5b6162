//! Checks every answer about a directory entry.

use super::View;
use crate::history::History;
use crate::names::{NameEffect, NameEvent, Slot};
use protocol::InodeId;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Largest number of renames that are followed from a name to its source.
const MOVE_DEPTH_MAX: usize = 6;

type Entries<'a> = BTreeMap<&'a Slot, Vec<&'a NameEvent>>;

/// Checks all answers. Returns the violations.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut entries: Entries<'_> = BTreeMap::new();
    for event in history.names.iter().filter(|event| !event.life.is_void && event.is_change()) {
        entries.entry(&event.slot).or_default().push(event);
    }
    let mut violations = Vec::new();
    for event in &history.names {
        let wanted = match event.effect {
            NameEffect::Saw(inode) => Wanted::Exactly(inode),
            NameEffect::SawSome => Wanted::Some,
            _ => continue,
        };
        let view = view_of(event);
        if !is_possible(&entries, &event.slot, view, wanted, 0) {
            violations.push(describe(&entries, event, view));
        }
    }
    violations
}

/// What an answer states about an entry.
#[derive(Clone, Copy)]
enum Wanted {
    Exactly(Option<InodeId>),
    Some,
}

fn view_of(event: &NameEvent) -> View {
    let life = &event.life;
    let end = life.applied.or(life.returned).or(life.latest).unwrap_or(u64::MAX);
    View { start: life.start, end, own: None, fresh: None }
}

fn is_possible(
    entries: &Entries<'_>,
    slot: &Slot,
    view: View,
    wanted: Wanted,
    depth: usize,
) -> bool {
    let none = Vec::new();
    let changes = entries.get(slot).unwrap_or(&none);
    let is_replaced = |old: Option<&NameEvent>| {
        let is_after = |new: &&&NameEvent| old.is_none_or(|old| old.life.is_before(&new.life));
        changes.iter().filter(is_after).any(|new| view.has(&new.life))
    };
    if matches!(wanted, Wanted::Exactly(None)) && !is_replaced(None) {
        return true;
    }
    let candidates = changes.iter().filter(|change| view.may_have(&change.life));
    candidates.into_iter().any(|change| {
        !is_replaced(Some(change))
            && match (&change.effect, wanted) {
                (NameEffect::Set(set), Wanted::Exactly(inode)) => *set == inode,
                (NameEffect::Set(set), Wanted::Some) => set.is_some(),
                (NameEffect::MovedFrom(_) | NameEffect::SetSome, Wanted::Exactly(None)) => false,
                (NameEffect::MovedFrom(from), Wanted::Exactly(_)) => {
                    depth == MOVE_DEPTH_MAX
                        || is_possible(entries, from, view_of(change), wanted, depth + 1)
                }
                _ => true,
            }
    })
}

fn describe(entries: &Entries<'_>, event: &NameEvent, view: View) -> String {
    let Slot { parent, name } = &event.slot;
    let machine = event.life.actor.machine;
    let (start, end) = (view.start, view.end);
    let mut text = format!(
        "{:?} by {} for {name} in {parent:?} on node{machine} (ticks {start}..{end}):",
        event.effect, event.life.what
    );
    for change in entries.get(&event.slot).into_iter().flatten() {
        let life = &change.life;
        if view.may_have(life) {
            let (machine, start, applied) = (life.actor.machine, life.start, life.applied);
            let (effect, what) = (&change.effect, life.what);
            let _ = write!(text, " [{effect:?} by {what} node{machine} {start}..{applied:?}]");
        }
    }
    text
}
