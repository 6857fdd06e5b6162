//! What happened to directory entries.

use crate::history::Life;
use protocol::InodeId;

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) parent: InodeId,
    pub(crate) name: String,
}

/// What an event did to, or saw of, an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameEffect {
    /// It names this from now on; nothing if `None`.
    Set(Option<InodeId>),
    /// It names something from now on; it is not known what.
    SetSome,
    /// It names what another entry named at that time.
    MovedFrom(Slot),
    /// It was seen to name this.
    Saw(Option<InodeId>),
    /// It was seen to name something.
    SawSome,
}

/// An event at an entry.
#[derive(Clone, Debug)]
pub(crate) struct NameEvent {
    pub(crate) slot: Slot,
    pub(crate) effect: NameEffect,
    pub(crate) life: Life,
}

impl NameEvent {
    /// Whether it changes the entry.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.effect, NameEffect::Set(_) | NameEffect::SetSome | NameEffect::MovedFrom(_))
    }
}
