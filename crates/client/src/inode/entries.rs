//! Cached entries of a directory, valid under READ.
//!
//! Single lookups fill it name by name, absent names too. When many names of a directory are looked
//! up, all of it is fetched at once ([`Entries::wants_listing`]), after which absent names need no
//! call either. Invalidations report names that others change meanwhile; these stay unknown.

use protocol::InodeId;
use protocol::client::Name;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Most names of a complete directory that may become unknown before it counts as incomplete.
const UNKNOWN_NAMES_MAX: usize = 1024;

/// Names that were not known before the whole directory is fetched.
const MISSES_BEFORE_LISTING: u32 = 8;

/// Knowledge of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It names this inode.
    Inode(InodeId),
    /// The directory has no such entry.
    Absent,
    /// Only the service knows.
    Unknown,
}

/// The known part of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Coverage {
    /// Single names.
    #[default]
    Some,
    /// The listing of this number is fetching it from start to end.
    Listing(u64),
    /// All names: a name that `names` has not is absent, except for those in `unknown`. None is in
    /// `absent`.
    All,
}

/// The cached entries.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    names: HashMap<Name, InodeId>,
    /// Names that do not exist. They are bounded over all directories.
    absent: HashSet<Rc<[u8]>>,
    extent: Coverage,
    unknown: HashSet<Name>,
    misses: u32,
}

impl Entries {
    /// Returns what is known of a name.
    pub(crate) fn get(&self, name: &[u8]) -> Known {
        match self.names.get(name) {
            Some(inode) => Known::Inode(*inode),
            None if self.absent.contains(name) => Known::Absent,
            None if self.extent == Coverage::All && !self.unknown.contains(name) => Known::Absent,
            None => Known::Unknown,
        }
    }

    /// Notes what a name names. Returns an absent name that takes memory from now on.
    #[must_use]
    pub(crate) fn set(&mut self, name: &[u8], inode: Option<InodeId>) -> Option<Rc<[u8]>> {
        if self.extent == Coverage::All {
            self.unknown.remove(name);
        }
        if let Some(inode) = inode {
            self.absent.remove(name);
            self.names.insert(name.to_vec(), inode);
            return None;
        }
        self.names.remove(name);
        if self.extent == Coverage::All || self.absent.contains(name) {
            return None;
        }
        let name: Rc<[u8]> = name.into();
        self.absent.insert(Rc::clone(&name));
        Some(name)
    }

    /// Forgets that a name does not exist, to free memory.
    pub(crate) fn forget_absent(&mut self, name: &[u8]) {
        self.absent.remove(name);
    }

    /// Forgets names that another session changed.
    pub(crate) fn forget(&mut self, names: &[Name]) {
        for name in names {
            self.names.remove(name);
            self.absent.remove(&name[..]);
            if self.extent != Coverage::Some {
                self.unknown.insert(name.clone());
            }
        }
        if self.unknown.len() > UNKNOWN_NAMES_MAX {
            self.extent = Coverage::Some;
            self.unknown.clear();
        }
    }

    /// Notes that all names are known, for a new directory or after a listing.
    pub(crate) fn set_complete(&mut self) {
        self.extent = Coverage::All;
        self.absent = HashSet::new();
    }

    /// Counts a name that needed a call. Returns whether the caller should list the directory now,
    /// from start to end, as the listing of this number, and then call [`Entries::end_listing`].
    pub(crate) fn wants_listing(&mut self, number: u64) -> bool {
        self.misses += 1;
        let wanted = self.extent == Coverage::Some && self.misses >= MISSES_BEFORE_LISTING;
        if wanted {
            self.extent = Coverage::Listing(number);
            self.misses = 0;
        }
        wanted
    }

    /// Gives a listing up, because a part of it came without a grant: names that others were
    /// changing just then may be missing from it, and no invalidation will report them.
    pub(crate) fn give_up_listing(&mut self) {
        if matches!(self.extent, Coverage::Listing(_)) {
            self.extent = Coverage::Some;
            self.unknown.clear();
        }
    }

    /// Ends a listing; `is_whole` says that it went from start to end.
    pub(crate) fn end_listing(&mut self, number: u64, is_whole: bool) {
        // If READ was lost meanwhile, this is not the cache that the listing went into.
        if self.extent == Coverage::Listing(number) {
            if is_whole {
                self.set_complete();
            } else {
                self.extent = Coverage::Some;
                self.unknown.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u8] = b"a";

    /// Goal: after a whole listing absent names are known, but not those that changed while it ran.
    #[test]
    fn names_changed_during_a_listing_stay_unknown() {
        let mut entries = Entries::default();
        assert!((1..MISSES_BEFORE_LISTING).all(|_| !entries.wants_listing(1)));
        assert!(entries.wants_listing(1));
        assert_eq!(entries.set(A, Some(InodeId(7))), None);
        entries.forget(&[b"late".to_vec()]);
        entries.end_listing(1, true);
        assert_eq!(entries.get(A), Known::Inode(InodeId(7)));
        assert_eq!(entries.get(b"none"), Known::Absent);
        assert_eq!(entries.get(b"late"), Known::Unknown);
    }

    /// Goal: a listing whose cache was dropped meanwhile completes nothing.
    #[test]
    fn a_dropped_cache_is_not_completed() {
        let mut entries = Entries::default();
        while !entries.wants_listing(1) {}
        let mut entries = Entries::default();
        while !entries.wants_listing(2) {}
        entries.end_listing(1, true);
        assert_eq!(entries.get(A), Known::Unknown);
        assert_eq!(entries.set(A, None).as_deref(), Some(A));
        assert_eq!(entries.get(A), Known::Absent);
    }

    /// Goal: a listing with a possibly stale part makes no name absent.
    #[test]
    fn a_listing_given_up_is_not_whole() {
        let mut entries = Entries::default();
        while !entries.wants_listing(1) {}
        entries.give_up_listing();
        entries.end_listing(1, true);
        assert_eq!(entries.get(A), Known::Unknown);
    }

    /// Goal: an invalidated name of a complete directory is unknown again.
    #[test]
    fn invalidated_names_are_unknown() {
        let mut entries = Entries::default();
        entries.set_complete();
        assert_eq!(entries.get(A), Known::Absent);
        entries.forget(&[A.to_vec()]);
        assert_eq!(entries.get(A), Known::Unknown);
        assert_eq!(entries.set(A, Some(InodeId(3))), None);
        assert_eq!(entries.get(A), Known::Inode(InodeId(3)));
    }
    /// Goal: a name that does not exist takes memory once, and none in a directory whose names are
    /// all known.
    #[test]
    fn absent_names_take_memory_once() {
        let mut entries = Entries::default();
        assert!(entries.set(A, None).is_some());
        assert_eq!(entries.set(A, None), None);
        assert_eq!(entries.set(A, Some(InodeId(3))), None);
        assert!(entries.set(A, None).is_some());
        assert_eq!(entries.get(A), Known::Absent);
        entries.forget_absent(A);
        assert_eq!(entries.get(A), Known::Unknown);
        assert!(entries.set(A, None).is_some());
        entries.set_complete();
        assert!(entries.absent.is_empty() && entries.set(A, None).is_none());
        assert_eq!(entries.get(A), Known::Absent);
    }
}
