//! Lending names and attributes to the kernel.

use crate::client::Client;
use crate::inode::entries::Known;
use crate::inode::lent::{Lending, LentCounts, LentEntry, ON_ITS_WAY};
use protocol::{Attr, FileKind, InodeId};
use reactor::time::{Instant, now};
use std::time::Duration;

/// Shortest time that something is lent for.
const LEAST: Duration = Duration::from_millis(50);

impl Client {
    /// Allows lending to the kernel from now on. Its front end has to follow each
    /// [`Change`](crate::Change).
    pub fn set_lending(&self, lending: Lending) {
        self.lending.set(lending);
    }

    /// Returns the longest time that anything may be lent for.
    pub fn lending_max(&self) -> Duration {
        self.session.times().lent
    }

    /// Ends lending: the kernel's cache is gone, and with it what it was lent.
    pub fn end_lending(&self) {
        self.lending.set(Lending::default());
        self.lent_until.set(now());
    }

    /// Returns what was lent and taken back so far.
    pub fn lent_counts(&self) -> LentCounts {
        self.lent_counts.get()
    }

    /// Returns whether anything may be lent.
    pub(crate) fn is_lending(&self) -> bool {
        self.lending.get() != Lending::default()
    }

    /// Changes the counts.
    pub(crate) fn count_lent(&self, count: impl FnOnce(&mut LentCounts)) {
        let mut counts = self.lent_counts.get();
        count(&mut counts);
        self.lent_counts.set(counts);
    }

    /// Returns until when something may be lent, for `longest` at most. `None` if that is too soon.
    fn lend_until(&self, longest: Duration) -> Option<Instant> {
        let present = now();
        let until = (present + longest).min(self.session.life.trusted_until());
        (longest > Duration::ZERO && until > present + LEAST).then_some(until)
    }

    /// Returns how long the kernel may use these attributes without asking. That is no time if
    /// others, or this client itself, may change them unnoticed.
    pub fn lend_attributes(&self, attr: &Attr) -> Duration {
        let Some(inode) = self.known_inode(attr.inode) else { return Duration::ZERO };
        let committed = inode.committed_attr();
        let is_known = committed == Some(*attr) && inode.dirty.borrow().is_clean()
            || committed.is_some() && reactor::mutant!("dirty-lent");
        // An answer that carries a change, such as a file's new mode, may overtake a later notice.
        // Answers to changes of names carry no attributes of the directory, and the kernel asks for
        // them before each such change.
        let is_still = |at: Instant| at.elapsed() < ON_ITS_WAY;
        let is_unsettled =
            attr.kind != FileKind::Directory && inode.lent.changed_here.get().is_some_and(is_still);
        let is_lent = is_known && !is_unsettled;
        let Some(until) = self.lend_until(self.lending.get().attributes).filter(|_| is_lent) else {
            return Duration::ZERO;
        };
        inode.lent.attributes_lent_at.set(Some(now()));
        let before = inode.lent.attributes_until.get();
        inode.lent.attributes_until.set(Some(before.map_or(until, |before| before.max(until))));
        self.lent_until.set(self.lent_until.get().max(until));
        self.count_lent(|counts| counts.attributes_lent += 1);
        until.since(now())
    }

    /// Returns how long the kernel may use a name of a directory, or its absence.
    pub fn lend_name(&self, parent: InodeId, name: &[u8], names: Option<&Attr>) -> Duration {
        let Some(directory) = self.known_inode(parent) else { return Duration::ZERO };
        let known = directory.state.borrow().entry(name);
        let is_known = match names {
            Some(attr) => known == Known::Inode(attr.inode),
            None => known == Known::Absent,
        };
        let is_lent = is_known && directory.lent.is_quiet();
        let Some(until) = self.lend_until(self.lending.get().names).filter(|_| is_lent) else {
            return Duration::ZERO;
        };
        let is_directory = names.is_some_and(|attr| attr.kind == FileKind::Directory);
        let of = LentEntry { until, lent_at: now(), is_directory };
        if directory.lent.lend_name(name, of) {
            self.note_many_lent(parent, until);
        }
        self.lent_until.set(self.lent_until.get().max(until));
        self.count_lent(|counts| counts.names_lent += 1);
        until.since(now())
    }

    /// Moves a lent name, as the kernel does with the name and its validity. After an exchange the
    /// other name moves back.
    pub(crate) fn move_lent(
        &self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        is_exchange: bool,
    ) {
        let lent = |(directory, name): (InodeId, &[u8])| {
            let directory = self.known_inode(directory)?;
            directory.lent.names.borrow().get(name).copied()
        };
        let (moved, other) = (lent(from), lent(to).filter(|_| is_exchange));
        for ((directory, name), lent) in [(to, moved), (from, other)] {
            if let (Some(lent), Some(directory)) = (lent, self.known_inode(directory)) {
                directory.lent.lend_name(name, lent);
            }
        }
    }

    /// Returns whether the kernel may keep the listing of a directory that it opens now, as a pair:
    /// it may keep what it reads, it may use what it has. Shortly after a change it may keep none:
    /// an older part of a listing, on its way to an earlier open of the directory, could get into
    /// the new one.
    pub fn lend_listing(&self, id: InodeId) -> (bool, bool) {
        let Some(inode) = self.known_inode(id) else { return (false, false) };
        let is_still = |at: Instant| at.elapsed() < ON_ITS_WAY;
        let is_changing = inode.lent.names_changed_at.get().is_some_and(is_still);
        let is_held = inode.committed_attr().is_some() && self.session.life.is_alive();
        if !is_held || is_changing || self.lending.get().names.is_zero() {
            inode.lent.listing.set(None);
            return (false, false);
        }
        let version = inode.lent.names_version.get();
        let before = inode.lent.listing.replace(Some(version));
        (true, before == Some(version) || reactor::mutant!("listing-kept-always"))
    }
}
