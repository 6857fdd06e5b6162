//! What a client knows of one inode, and by which right it knows it.
//!
//! The metadata service's messages change this knowledge in the order of the session's stream:
//! [`Inode::grant`], [`Inode::note_attr`], [`Inode::invalidate`] and [`Inode::begin_recall`] are
//! called as frames are parsed. So a cached fact is never older than a recall that was already
//! answered. Stamps show whether an answer was overtaken: its content is cached only if no later
//! recall or invalidation of the inode has been seen.

pub(crate) mod entries;
pub(crate) mod habit;
mod head;
pub(crate) mod lent;
pub(crate) mod own_locks;
pub(crate) mod pages;
pub(crate) mod siblings;
pub(crate) mod state;
pub(crate) mod summed;

use crate::dirty::Dirty;
use crate::dirty::failures::ReportedFailures;
use crate::inode::habit::Balance;
use crate::inode::lent::Lent;
use crate::inode::own_locks::OwnLocks;
use crate::inode::pages::Pages;
use crate::inode::state::State;
use protocol::client::Name;
use protocol::lease::Grant;
use protocol::{Attr, Errno, FileKind, Generation, InodeId, LeaseStamp, Rights};
use reactor::local::{Notify, Semaphore, WaitGroup};
use std::cell::{Cell, RefCell};

/// One inode.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) id: InodeId,
    pub(crate) state: RefCell<State>,
    /// Data that is written but not committed.
    pub(crate) dirty: RefCell<Dirty>,
    /// The number, among all commits of this client, of the last one that has ended for this inode.
    /// What it made part of the file is no longer dirty.
    pub(crate) last_commit: Cell<u64>,
    pub(crate) pages: Pages,
    /// Whether a lock on it was granted in this session.
    pub(crate) was_locked: Cell<bool>,
    /// Which side decides about its locks.
    pub(crate) locks: OwnLocks,
    /// Reads under READ; a recall waits for them.
    pub(crate) lease_reads: WaitGroup,
    /// Notified when a fill has been written out.
    pub(crate) written: Notify,
    /// Held while dirty data is committed.
    pub(crate) commit_lock: Semaphore,
    /// Held during one call of a commit, but not while data goes to its device.
    pub(crate) part_lock: Semaphore,
    /// Running changes of this client that must be alone with the data: nothing is written
    /// meanwhile.
    pub(crate) changes: WaitGroup,
    /// Held by one append at a time. For a directory, held by the [`crate::NamesHeld`].
    pub(crate) append_lock: Semaphore,
    /// For a directory: a [`crate::NamesHeld`] that lives. A recall of SIZE waits for it.
    pub(crate) names_held: WaitGroup,
    /// What the kernel may use of it without asking.
    pub(crate) lent: Lent,
    /// How programs use it.
    pub(crate) uses: Balance,
}

impl Inode {
    pub(crate) fn new(id: InodeId) -> Inode {
        Inode {
            id,
            state: RefCell::default(),
            dirty: RefCell::default(),
            last_commit: Cell::new(0),
            pages: Pages::default(),
            was_locked: Cell::new(false),
            locks: OwnLocks::default(),
            lease_reads: WaitGroup::new(),
            written: Notify::new(),
            commit_lock: Semaphore::new(1),
            part_lock: Semaphore::new(1),
            changes: WaitGroup::new(),
            append_lock: Semaphore::new(1),
            names_held: WaitGroup::new(),
            lent: Lent::default(),
            uses: Balance::default(),
        }
    }

    /// Returns attributes as committed, if READ is held.
    pub(crate) fn committed_attr(&self) -> Option<Attr> {
        self.state.borrow().attr
    }

    /// Returns attributes without a name, if this client removed the last name.
    pub(crate) fn unnamed_attr(&self) -> Option<Attr> {
        self.state.borrow().unnamed
    }

    /// Returns attributes as this client's users see them: with its own uncommitted writes.
    pub(crate) fn local_attr(&self, mut attr: Attr) -> Attr {
        let dirty = self.dirty.borrow();
        if attr.kind == FileKind::File && !dirty.is_clean() {
            dirty.deferral.show_sent(&mut attr);
            attr.size = attr.size.max(dirty.end());
            if let Some(mtime) = dirty.mtime() {
                attr.mtime = attr.mtime.max(mtime);
                attr.ctime = attr.ctime.max(mtime);
            }
            if dirty.kill_privileges {
                attr.mode = attr.without_privileges();
            }
            dirty.deferral.show_waiting(&mut attr);
        }
        attr
    }

    /// Applies a grant. Returns whether READ allows to cache what came with it.
    pub(crate) fn grant(&self, grant: &Grant) -> bool {
        assert_eq!(grant.inode, self.id, "a grant is applied to another inode");
        let mut state = self.state.borrow_mut();
        if grant.stamp < state.stamp && !reactor::mutant!("older-grant-applied") {
            return false;
        }
        state.stamp = grant.stamp;
        state.rights = grant.rights;
        if !grant.rights.contains(Rights::READ) {
            state.drop_read();
            self.pages.expire();
            self.lent.names_change();
        }
        grant.rights.contains(Rights::READ)
    }

    /// Notes attributes that a fresh grant covers. If `explained`, the caller itself accounts for a
    /// change of data. Otherwise this drops cached extents of another data version, and those whose
    /// version is not known, as for an inode whose last name this client has removed.
    pub(crate) fn note_attr(&self, attr: &Attr, explained: bool) {
        assert_eq!(attr.inode, self.id, "attributes are noted of another inode");
        let mut state = self.state.borrow_mut();
        state.generation = state.generation.max(attr.generation);
        if state.attr.is_some_and(|old| old.version > attr.version) {
            return;
        }
        let is_same = state.attr.is_some_and(|old| old.data_version == attr.data_version);
        if !is_same && !explained && !reactor::mutant!("new-version-keeps-extents") {
            state.forget_extents();
        }
        state.attr = Some(*attr);
    }

    /// Notes attributes that may not be cached; older cached ones are dropped.
    pub(crate) fn note_uncached(&self, attr: &Attr) {
        self.note_generation(attr.generation);
        let mut state = self.state.borrow_mut();
        if state.attr.is_some_and(|old| old.version < attr.version) {
            state.attr = None;
            state.forget_extents();
        }
    }

    /// Returns whether READ has been held since attributes older than these were cached. Then only
    /// this client can have changed the inode in between, and these attributes hold too.
    pub(crate) fn is_older_than(&self, attr: &Attr) -> bool {
        self.state.borrow().attr.is_some_and(|old| old.version < attr.version)
    }

    /// Notes that this client has removed the last name.
    pub(crate) fn note_unnamed(&self) {
        let mut state = self.state.borrow_mut();
        let last = state.attr.take();
        state.unnamed = last.map(|attr| Attr { nlink: 0, ..attr }).or(state.unnamed);
    }

    /// Notes a truncate generation, whether READ covers it or not; the newest one counts.
    pub(crate) fn note_generation(&self, generation: Generation) {
        let mut state = self.state.borrow_mut();
        state.generation = state.generation.max(generation);
    }

    /// Drops cached names of a directory, and its attributes; READ stays.
    pub(crate) fn invalidate(&self, names: &[Name], stamp: LeaseStamp) {
        let mut state = self.state.borrow_mut();
        state.stamp = state.stamp.max(stamp);
        if !reactor::mutant!("directory-attributes-kept") {
            state.attr = None;
        }
        state.entries.forget(names);
    }

    /// Begins a recall, in stream order: from here on nothing new is done under the rights.
    pub(crate) fn begin_recall(&self, rights: Rights, stamp: LeaseStamp) {
        let mut state = self.state.borrow_mut();
        state.stamp = state.stamp.max(stamp);
        let leaving = state.rights & rights;
        state.leaving.push((stamp, leaving));
        state.rights = state.rights - rights;
        if rights.contains(Rights::READ) && !reactor::mutant!("recall-keeps-cache") {
            state.drop_read();
            if reactor::mutant!("pages-kept-after-recall") {
                return;
            }
            self.pages.expire();
        }
    }

    /// Returns whether a right is being recalled that the service still counts as held.
    pub(crate) fn is_leaving(&self, right: Rights) -> bool {
        self.state.borrow().leaving.iter().any(|(_, rights)| rights.intersects(right))
    }

    /// Ends this client's decision about the locks, after a report: the service decides again.
    pub(crate) fn end_locks(&self) {
        self.drop_locks_right();
        self.locks.end();
    }

    /// Drops the right to decide about locks.
    pub(crate) fn drop_locks_right(&self) {
        let mut state = self.state.borrow_mut();
        state.rights = state.rights - Rights::LOCKS;
    }

    /// Drops SOLE, which the first commit ends.
    pub(crate) fn end_sole(&self) {
        let mut state = self.state.borrow_mut();
        state.rights = state.rights - Rights::SOLE;
    }

    /// Ends a recall: everything done under the rights is committed, or has failed.
    pub(crate) fn end_recall(&self, stamp: LeaseStamp) {
        self.state.borrow_mut().leaving.retain(|(recall, _)| *recall != stamp);
    }

    /// Returns the rights to reclaim when the session goes on over another connection.
    pub(crate) fn reclaimable(&self) -> Rights {
        let state = self.state.borrow();
        let leaving = state.leaving.iter().filter(|_| !reactor::mutant!("leaving-not-reclaimed"));
        let leaving = leaving.fold(Rights::NONE, |all, (_, rights)| all | *rights);
        let mut rights = (state.rights | leaving) & (Rights::WRITE | Rights::SIZE | Rights::SOLE);
        if self.locks.are_own() && !reactor::mutant!("locks-not-reclaimed") {
            rights |= Rights::LOCKS;
        }
        if state.is_open() { rights | Rights::OPEN } else { rights }
    }

    /// Returns the rights that a recall's answer names as kept.
    pub(crate) fn kept(&self) -> Rights {
        let is_open = self.state.borrow().is_open() && !reactor::mutant!("open-not-kept");
        if is_open { Rights::OPEN } else { Rights::NONE }
    }

    /// Returns the failures since this handle last reported some.
    pub(crate) fn report_failures(&self, reported: &ReportedFailures) -> Result<(), Errno> {
        self.dirty.borrow_mut().failures.report_to(reported)
    }

    /// Returns the failures that a handle opened now need not report.
    pub(crate) fn reported_at_open(&self) -> ReportedFailures {
        self.dirty.borrow().failures.reported_at_open()
    }

    /// Returns whether this client has no use for the inode any more.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.borrow();
        let is_clean = self.dirty.borrow().is_clean() && !self.locks.are_own();
        !state.is_open() && state.references == 0 && is_clean
    }

    /// Drops all rights, because the session was lost.
    pub(crate) fn lose_rights(&self) {
        let mut state = self.state.borrow_mut();
        state.rights = Rights::NONE;
        state.may_be_counted = false;
        self.locks.end();
        state.leaving.clear();
        state.stamp = LeaseStamp(0);
        state.drop_read();
        self.pages.expire();
    }

    /// Drops READ, because the connection was lost: what it covered may be stale. WRITE and SIZE
    /// will be reclaimed.
    pub(crate) fn drop_read_right(&self) {
        self.lent.names_change();
        let mut state = self.state.borrow_mut();
        if reactor::mutant!("cache-outlives-connection") {
            return;
        }
        state.rights = state.rights - Rights::READ;
        state.drop_read();
        self.pages.expire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rights whose recall is not answered yet are reclaimed after a lost connection, because
    /// what was written under them may not be committed (seeds 4509 and 4949). They go with the
    /// answer, and with the session.
    #[test]
    fn rights_are_reclaimed_until_their_recall_is_answered() {
        let rights = Rights::WRITE | Rights::SIZE;
        let grant = |number| Grant { inode: InodeId(7), rights, stamp: LeaseStamp(number) };
        let inode = Inode::new(InodeId(7));
        inode.grant(&grant(1));
        assert_eq!(inode.reclaimable(), rights);
        inode.begin_recall(Rights::SIZE, LeaseStamp(2));
        assert_eq!(inode.state.borrow().rights, Rights::WRITE, "nothing new is done under SIZE");
        inode.drop_read_right();
        assert_eq!(inode.reclaimable(), rights);
        inode.begin_recall(Rights::WRITE, LeaseStamp(3));
        inode.end_recall(LeaseStamp(2));
        assert_eq!(inode.reclaimable(), Rights::WRITE);
        inode.lose_rights();
        assert_eq!(inode.reclaimable(), Rights::NONE);
    }

    /// Goal: a grant that a later recall has overtaken is not applied (R10).
    #[test]
    fn a_grant_that_a_recall_has_overtaken_is_not_applied() {
        let grant =
            |number| Grant { inode: InodeId(7), rights: Rights::READ, stamp: LeaseStamp(number) };
        let inode = Inode::new(InodeId(7));
        assert!(inode.grant(&grant(1)));
        inode.begin_recall(Rights::READ, LeaseStamp(3));
        assert!(!inode.grant(&grant(2)), "what came with it may be cached");
        assert_eq!(inode.state.borrow().rights, Rights::NONE);
        assert!(inode.grant(&grant(4)));
    }
}
