//! Removals of names by this client that are under way.
//!
//! The service does not ask a client that removes a name whether it has the named inode open: the
//! client reports that before. An open by another of its tasks after that must be reported too.

use protocol::InodeId;
use std::cell::RefCell;

/// All removals under way.
#[derive(Debug, Default)]
pub(crate) struct Removals(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    /// Removals of names whose inode is not known yet.
    unknown: usize,
    /// The inodes of the other removals.
    pub(crate) known: Vec<InodeId>,
}

/// One removal, until it is dropped.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    removals: &'a Removals,
    concerns: Concern,
}

/// The inode that a removal may take the last name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    Anything,
    Inode(InodeId),
    Nothing,
}

impl Removals {
    /// Starts removing a name whose inode is not known yet.
    pub(crate) fn begin(&self) -> Removal<'_> {
        self.0.borrow_mut().unknown += 1;
        Removal { removals: self, concerns: Concern::Anything }
    }

    /// Returns whether an inode that is opened now may be losing its last name.
    pub(crate) fn may_concern(&self, inode: InodeId) -> bool {
        let state = self.0.borrow();
        state.unknown > 0 || state.known.contains(&inode)
    }
}

impl Removal<'_> {
    /// Notes the inode that the name names, or that it names none.
    pub(crate) fn found(&mut self, inode: Option<InodeId>) {
        self.end();
        self.concerns = inode.map_or(Concern::Nothing, Concern::Inode);
        self.removals.0.borrow_mut().known.extend(inode);
    }

    fn end(&self) {
        let mut state = self.removals.0.borrow_mut();
        match self.concerns {
            Concern::Anything => state.unknown -= 1,
            Concern::Inode(inode) => {
                if let Some(at) = state.known.iter().position(|known| *known == inode) {
                    state.known.swap_remove(at);
                }
            }
            Concern::Nothing => {}
        }
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a removal concerns every open until its inode is known, then only opens of that inode,
    /// until it ends. Two removals of names of one inode end separately.
    #[test]
    fn a_removal_concerns_what_it_is_of() {
        let (removals, one, other) = (Removals::default(), InodeId(1), InodeId(2));
        assert!(!removals.may_concern(one));
        let mut first = removals.begin();
        assert!(removals.may_concern(one) && removals.may_concern(other));
        first.found(Some(one));
        assert!(removals.may_concern(one) && !removals.may_concern(other));
        let mut second = removals.begin();
        second.found(Some(one));
        drop(first);
        assert!(removals.may_concern(one));
        drop(second);
        assert!(!removals.may_concern(one));
        removals.begin().found(None);
        assert!(!removals.may_concern(one));
    }
}
