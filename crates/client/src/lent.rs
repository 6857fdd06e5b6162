//! What a cache outside of this client may use without asking: the kernel's names and attributes.
//!
//! They are *lent*: for a short time ([`Times::lent`](protocol::times::Times::lent)), never longer than this
//! client may trust its session, and only what it caches itself under READ. Whoever freezes or kills this
//! process leaves a kernel that goes on using what it was lent, until it expires.
//!
//! Before the service hears that something cached has been dropped, what was lent of it is taken back: the
//! cache is told, by a [`Change`] with a way to answer, and the answer is waited for. Two things stand in the way
//! there (fs/fuse of Linux):
//!
//! - A cache may not know an inode *yet*, as the answer that tells of it is on its way. Then it is told again,
//!   until it knows the inode, has forgotten it, or what was lent has expired.
//! - To drop a name the kernel takes its directory's lock, which a create, removal or rename of this mount holds
//!   while it waits for the service, and so perhaps for another mount that waits in the same way. After
//!   [`PATIENCE`] all names of the mount are dropped at once instead, which takes no lock; where that is not
//!   possible, they expire.
//!
//! A directory in which others change names lends none for [`QUIET`], so that the second case is rare.

use crate::client::Client;
use crate::coherence::Change;
use crate::entries::Known;
use crate::inode::Inode;
use protocol::client::Name;
use protocol::{Attr, FileKind, InodeId};
use reactor::time::{Instant, now, sleep, timeout, timeout_at};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a directory lends no names after others have changed some.
const QUIET: Duration = Duration::from_secs(10);

/// How long the kernel is waited for that drops names one by one.
const PATIENCE: Duration = Duration::from_millis(5);

/// First and longest pause before a cache is told again of an inode that it does not know.
const RETRY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// What is lent for less is not worth it.
const LEAST: Duration = Duration::from_millis(50);

/// A cache that runs has taken in an answer after so long.
const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Names that one directory lends before those that have expired are looked for.
const NAMES_SWEPT: usize = 1024;

/// How long a cache outside of this client may use what it is given, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lending {
    /// Attributes of inodes.
    pub attributes: Duration,
    /// Names of directories, and their absence.
    pub names: Duration,
}

/// A name to be dropped by a cache outside of this client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentName {
    /// The name.
    pub name: Name,
    /// It names a directory, and nobody has changed it: only its validity is taken back, as other file
    /// systems may be mounted below it.
    pub expires_only: bool,
}

/// What was counted of all that is lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LentCounts {
    /// Attributes given with a validity.
    pub attributes_lent: u64,
    /// Names, also absent ones, given with a validity.
    pub names_lent: u64,
    /// Attributes taken back before they expired.
    pub attributes_taken_back: u64,
    /// Names taken back before they expired.
    pub names_taken_back: u64,
    /// Times that all names were dropped at once.
    pub epochs_raised: u64,
    /// Times that something had to expire, as it could not be taken back.
    pub expired: u64,
}

/// A name as it was lent.
#[derive(Clone, Copy, Debug)]
struct OfName {
    until: Instant,
    lent_at: Instant,
    is_directory: bool,
}

/// What is lent of one inode.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    attributes_until: Cell<Option<Instant>>,
    attributes_lent_at: Cell<Option<Instant>>,
    /// When this client last changed the inode.
    changed_here: Cell<Option<Instant>>,
    names: RefCell<HashMap<Name, OfName>>,
    /// When others last changed names of this directory.
    changed_by_others: Cell<Option<Instant>>,
    /// Counts changes of the directory's names, and losses of the right to know them.
    names_version: Cell<u64>,
    /// When that was.
    names_changed_at: Cell<Option<Instant>>,
    /// The version of the listing that the cache has, or has begun to read.
    listing: Cell<Option<u64>>,
}

/// What has to be taken back of one inode.
#[derive(Debug)]
pub(crate) struct Taken {
    inode: InodeId,
    attributes: bool,
    names: Vec<LentName>,
    until: Instant,
    /// The youngest name of which only the validity is taken back.
    youngest: Option<Instant>,
}

impl Lent {
    /// Names of the directory have changed, or may change unheard.
    pub(crate) fn names_change(&self) {
        self.names_version.set(self.names_version.get() + 1);
        self.names_changed_at.set(Some(now()));
    }

    /// Takes back the attributes, and such names as others change.
    pub(crate) fn take_names(&self, inode: InodeId, changed: &[Name]) -> Option<Taken> {
        self.names_change();
        self.changed_by_others.set(Some(now()));
        let mut lent = self.names.borrow_mut();
        let names = changed.iter().filter_map(|name| lent.remove_entry(name));
        let names = names.map(|(name, of)| (name, OfName { is_directory: false, ..of })).collect();
        drop(lent);
        self.taken(inode, names)
    }

    /// Takes back names that this client itself has made without the cache's knowledge.
    pub(crate) fn take_own_names(&self, inode: InodeId, made: &[Name]) -> Option<Taken> {
        let mut lent = self.names.borrow_mut();
        let names: Vec<_> = made.iter().filter_map(|name| lent.remove_entry(name)).collect();
        drop(lent);
        (!names.is_empty()).then(|| self.taken(inode, names)).flatten()
    }

    /// Takes everything back.
    pub(crate) fn take_all(&self, inode: InodeId) -> Option<Taken> {
        self.names_change();
        let names = self.names.take();
        if !names.is_empty() {
            self.changed_by_others.set(Some(now()));
        }
        self.taken(inode, names.into_iter().collect())
    }

    fn taken(&self, inode: InodeId, names: Vec<(Name, OfName)>) -> Option<Taken> {
        let now = now();
        let attributes_until = self.attributes_until.take().filter(|until| *until > now);
        let attributes = attributes_until.is_some();
        let names: Vec<_> = names.into_iter().filter(|(_, of)| of.until > now).collect();
        let until = names.iter().map(|(_, of)| of.until).chain(attributes_until).max()?;
        let youngest = names.iter().filter(|(_, of)| of.is_directory).map(|(_, of)| of.lent_at);
        let youngest = youngest.max();
        let names = names.into_iter();
        let names =
            names.map(|(name, of)| LentName { name, expires_only: of.is_directory }).collect();
        Some(Taken { inode, attributes, names, until, youngest })
    }

    /// Whether a cache has the attributes, as they are.
    pub(crate) fn has_attributes(&self) -> bool {
        self.attributes_until.get().is_some_and(|until| until > now())
    }

    /// This client has changed the attributes. An answer that is on its way to the cache may carry older ones,
    /// which the cache takes if it does not count its own change as one (a create in a directory).
    fn changed_here(&self, inode: InodeId) -> Option<Taken> {
        let present = now();
        self.changed_here.set(Some(present));
        let is_on_its_way = self.attributes_lent_at.get()?.elapsed() < ON_ITS_WAY;
        // They stay lent: whoever recalls them has the cache told once more.
        let until = self.attributes_until.get()?.min(present + ON_ITS_WAY);
        let names = Vec::new();
        let taken = Taken { inode, attributes: true, names, until, youngest: None };
        (is_on_its_way && until > present).then_some(taken)
    }

    fn lend_name(&self, name: &[u8], of: OfName) {
        let mut names = self.names.borrow_mut();
        if names.len() >= NAMES_SWEPT && names.len() == names.capacity() {
            let now = now();
            names.retain(|_, of| of.until > now);
        }
        let before = names.insert(name.to_vec(), of);
        if let (Some(before), Some(after)) = (before, names.get_mut(name)) {
            after.until = after.until.max(before.until);
        }
    }

    fn is_quiet(&self) -> bool {
        self.changed_by_others.get().is_none_or(|changed| changed.elapsed() >= QUIET)
    }
}

impl Client {
    /// From now on a cache outside of this client, which heeds each [`Change`], may be lent something.
    pub fn set_lending(&self, lending: Lending) {
        self.lending.set(lending);
    }

    /// The longest that anything may be lent for.
    pub fn lending_max(&self) -> Duration {
        self.session.times().lent
    }

    /// The cache is gone, and with it what it was lent.
    pub fn end_lending(&self) {
        self.lending.set(Lending::default());
        self.lent_until.set(now());
    }

    /// What was lent and taken back so far.
    pub fn lent_counts(&self) -> LentCounts {
        self.lent_counts.get()
    }

    fn is_lending(&self) -> bool {
        self.lending.get() != Lending::default()
    }

    fn count_lent(&self, count: impl FnOnce(&mut LentCounts)) {
        let mut counts = self.lent_counts.get();
        count(&mut counts);
        self.lent_counts.set(counts);
    }

    /// Until when something may be lent that is lent for `longest` at most; not at all if that is soon.
    fn lend_until(&self, longest: Duration) -> Option<Instant> {
        let present = now();
        let until = (present + longest).min(self.session.life.trusted_until());
        (longest > Duration::ZERO && until > present + LEAST).then_some(until)
    }

    /// How long a cache may use attributes that it is given now, without asking; nothing if others, or this
    /// client itself, may change them unheard.
    pub fn lend_attributes(&self, attr: &Attr) -> Duration {
        let Some(inode) = self.known_inode(attr.inode) else { return Duration::ZERO };
        let committed = inode.committed_attr();
        let is_known = committed == Some(*attr) && inode.dirty.borrow().is_clean()
            || committed.is_some() && reactor::mutant!("dirty-lent");
        // An answer that tells of a change, as of a file's new mode, may overtake a later notice. Answers to changes
        // of names carry no attributes of the directory, and it is asked for before each of them.
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

    /// How long a cache may use what a name of a directory names, or that it names nothing.
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
        directory.lent.lend_name(name, OfName { until, lent_at: now(), is_directory });
        self.lent_until.set(self.lent_until.get().max(until));
        self.count_lent(|counts| counts.names_lent += 1);
        until.since(now())
    }

    /// The cache moves a name itself, and its validity with it.
    pub(crate) fn move_lent(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8])) {
        let Some(source) = self.known_inode(from.0) else { return };
        let of = source.lent.names.borrow().get(from.1).copied();
        if let (Some(of), Some(target)) = (of, self.known_inode(to.0)) {
            target.lent.lend_name(to.1, of);
        }
    }

    /// Whether a cache may keep the listing of a directory that it opens now: (it may keep what it reads, it may
    /// use what it has). After a change it keeps none for a moment: an older part of a listing, on its way to who
    /// opened the directory before, could get into the new one.
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

    /// Takes back the attributes of an inode that this client itself changes without the cache's knowledge.
    pub async fn take_back_attributes(self: &Rc<Self>, id: InodeId) {
        let taken = self.known_inode(id).and_then(|inode| inode.lent.taken(id, Vec::new()));
        if let Some(taken) = taken {
            self.take_back(taken).await;
        }
    }

    /// Takes back what was lent: completes when no cache uses it any more.
    pub(crate) async fn take_back(self: &Rc<Self>, taken: Taken) {
        if taken.attributes && !reactor::mutant!("attributes-not-taken-back") {
            self.count_lent(|counts| counts.attributes_taken_back += 1);
            self.drop_attributes(taken.inode, taken.until).await;
        }
        if !taken.names.is_empty() && !reactor::mutant!("names-not-taken-back") {
            let count = taken.names.len() as u64;
            self.count_lent(|counts| counts.names_taken_back += count);
            self.drop_names(&taken).await;
            // Who was looking such a name up may have made it valid again, by an older answer.
            if let Some(youngest) = taken.youngest
                && youngest.elapsed() < ON_ITS_WAY
            {
                sleep(ON_ITS_WAY.saturating_sub(youngest.elapsed())).await;
                self.drop_names(&taken).await;
            }
        }
    }

    /// This client has changed these inodes, and the cache may not count that as a change of attributes.
    pub fn changed_here(self: &Rc<Self>, changed: impl Iterator<Item = InodeId>) {
        for id in changed {
            let taken = self.known_inode(id).and_then(|inode| inode.lent.changed_here(id));
            let Some(taken) = taken.filter(|_| !reactor::mutant!("own-change-untold")) else {
                continue;
            };
            let (client, under_way) = (Rc::clone(self), self.own_taking_back.enter());
            reactor::spawn(async move {
                client.take_back(taken).await;
                drop(under_way);
            });
        }
    }

    /// Waits until the cache has dropped what this client has changed itself: before a change is answered.
    pub async fn own_changes_told(&self) {
        self.own_taking_back.wait_zero().await;
    }

    /// Takes back all that is lent, as the connection is lost over which others' changes are told.
    pub(crate) fn take_back_all(self: &Rc<Self>) {
        if self.lent_until.get() <= now() || reactor::mutant!("lost-connection-takes-nothing-back")
        {
            return;
        }
        let inodes: Vec<Rc<Inode>> = self.inodes.borrow().values().cloned().collect();
        let taken: Vec<Taken> =
            inodes.iter().filter_map(|inode| inode.lent.take_all(inode.id)).collect();
        if taken.is_empty() {
            return;
        }
        let under_way = self.session.taking_back.enter();
        let client = Rc::clone(self);
        reactor::spawn(async move {
            for taken in taken {
                client.take_back(taken).await;
            }
            drop(under_way);
        });
    }

    async fn drop_attributes(self: &Rc<Self>, id: InodeId, until: Instant) {
        let Some(changes) = &self.changes else { return };
        let mut pause = RETRY.0;
        while now() < until && self.is_lending() {
            let (answer, mut answered) = reactor::mailbox::channel(1);
            let attr = self.known_inode(id).and_then(|inode| inode.committed_attr());
            let is_directory = attr.is_some_and(|attr| attr.kind == FileKind::Directory);
            changes(Change::Attributes { inode: id, is_directory, known: answer });
            match timeout_at(until, answered.recv()).await {
                Ok(Some(true)) => return,
                // It is not known, or not yet.
                Ok(Some(false)) => {
                    let is_forgotten = self
                        .known_inode(id)
                        .is_none_or(|inode| inode.state.borrow().references == 0);
                    if is_forgotten || reactor::mutant!("unknown-counts-as-dropped") {
                        return;
                    }
                }
                Ok(None) | Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
        self.count_lent(|counts| counts.expired += 1);
    }

    async fn drop_names(self: &Rc<Self>, taken: &Taken) {
        let Some(changes) = &self.changes else { return };
        let (answer, mut answered) = reactor::mailbox::channel(1);
        changes(Change::Names(taken.inode, taken.names.clone(), answer));
        if let Ok(Some(())) = timeout(PATIENCE, answered.recv()).await {
            return;
        }
        if now() >= taken.until || !self.is_lending() || reactor::mutant!("busy-counts-as-dropped")
        {
            return;
        }
        let (raised, mut all_dropped) = reactor::mailbox::channel(1);
        changes(Change::AllNames(raised));
        if let Ok(Some(true)) = timeout_at(taken.until, all_dropped.recv()).await {
            self.count_lent(|counts| counts.epochs_raised += 1);
            return;
        }
        if !matches!(timeout_at(taken.until, answered.recv()).await, Ok(Some(()))) {
            // Nobody is left who would answer, perhaps.
            reactor::time::sleep_until(taken.until).await;
            self.count_lent(|counts| counts.expired += 1);
        }
    }
}
