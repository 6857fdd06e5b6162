//! Names and attributes of one inode that the kernel may use without asking.

use protocol::InodeId;
use protocol::client::Name;
use reactor::local::{InFlight, WaitGroup};
use reactor::time::{Instant, now, timeout_at};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

/// How long a directory lends no names after others have changed some.
const QUIET: Duration = Duration::from_secs(10);

/// After this time a running cache has received an answer.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// Names that one directory lends before it looks for expired ones.
const NAMES_SWEPT: usize = 1024;

/// How long the kernel may use what it is given, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lending {
    /// Attributes of inodes.
    pub attributes: Duration,
    /// Names of directories, and their absence.
    pub names: Duration,
}

/// A name that the kernel has to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentName {
    /// The name.
    pub name: Name,
    /// Whether only its validity is taken back: it names a directory, and no session has changed
    /// it. Other file systems may be mounted below it.
    pub expires_only: bool,
}

/// Counts of attributes and names that the kernel was lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LentCounts {
    /// Attributes given with a validity.
    pub attributes_lent: u64,
    /// Names, present or absent, given with a validity.
    pub names_lent: u64,
    /// Attributes taken back before they expired.
    pub attributes_taken_back: u64,
    /// Names taken back before they expired.
    pub names_taken_back: u64,
    /// Times that all names were dropped at once.
    pub epochs_raised: u64,
    /// Times that something had to expire, because it could not be taken back.
    pub expired: u64,
}

/// A name that was lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentEntry {
    pub(crate) until: Instant,
    pub(crate) lent_at: Instant,
    pub(crate) is_directory: bool,
}

/// What was lent of one inode.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    pub(crate) attributes_until: Cell<Option<Instant>>,
    pub(crate) attributes_lent_at: Cell<Option<Instant>>,
    /// When this client last changed the inode.
    pub(crate) changed_here: Cell<Option<Instant>>,
    pub(crate) names: RefCell<HashMap<Name, LentEntry>>,
    /// When others last changed names of this directory.
    changed_by_others: Cell<Option<Instant>>,
    /// Counts changes of the directory's names, and losses of the right to know them.
    pub(crate) names_version: Cell<u64>,
    /// When the version last changed.
    pub(crate) names_changed_at: Cell<Option<Instant>>,
    /// The version of the listing that the kernel has, or has begun to read.
    pub(crate) listing: Cell<Option<u64>>,
    /// What is being taken back, and when all of it will have expired.
    leaving: WaitGroup,
    leaving_until: Cell<Option<Instant>>,
}

/// What has to be taken back of one inode.
#[derive(Debug)]
pub(crate) struct TakenBack {
    pub(crate) inode: InodeId,
    pub(crate) attributes: bool,
    pub(crate) names: Vec<LentName>,
    pub(crate) until: Instant,
    /// When the youngest name was lent whose validity alone is taken back.
    pub(crate) youngest: Option<Instant>,
    /// Counts it as leaving.
    _leaving: Option<InFlight>,
}

impl Lent {
    /// Returns when all that is being taken back now will have expired; `None` if nothing is.
    pub(crate) fn leaving_until(&self) -> Option<Instant> {
        let is_leaving = self.leaving.count() > 0 && !reactor::mutant!("second-recall-overtakes");
        self.leaving_until.get().filter(|until| is_leaving && *until > now())
    }

    /// Waits until the kernel has dropped what was being taken back, or that has expired.
    pub(crate) async fn left(&self, until: Instant) {
        // Other things may leave meanwhile; they are waited for no longer than the first ones.
        let _ = timeout_at(until, self.leaving.wait_zero()).await;
    }

    /// Notes that names of the directory have changed, or may change unnoticed.
    pub(crate) fn names_change(&self) {
        self.names_version.set(self.names_version.get() + 1);
        self.names_changed_at.set(Some(now()));
    }

    /// Takes out the attributes, and the names that others change, to take them back.
    pub(crate) fn take_names(&self, inode: InodeId, changed: &[Name]) -> Option<TakenBack> {
        self.names_change();
        self.changed_by_others.set(Some(now()));
        let mut lent = self.names.borrow_mut();
        let names = changed.iter().filter_map(|name| lent.remove_entry(name));
        let names =
            names.map(|(name, of)| (name, LentEntry { is_directory: false, ..of })).collect();
        drop(lent);
        self.taken(inode, names)
    }

    /// Takes out names that this client has created without the kernel's knowledge.
    pub(crate) fn take_own_names(&self, inode: InodeId, made: &[Name]) -> Option<TakenBack> {
        let mut lent = self.names.borrow_mut();
        let names: Vec<_> = made.iter().filter_map(|name| lent.remove_entry(name)).collect();
        drop(lent);
        (!names.is_empty()).then(|| self.taken(inode, names)).flatten()
    }

    /// Takes everything out.
    pub(crate) fn take_all(&self, inode: InodeId) -> Option<TakenBack> {
        self.names_change();
        let names = self.names.take();
        if !names.is_empty() {
            self.changed_by_others.set(Some(now()));
        }
        // In the order of names, so that a simulated run repeats.
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable_by(|(one, _), (two, _)| one.cmp(two));
        self.taken(inode, names)
    }

    /// Takes out the attributes and, of these names, those that have not expired.
    pub(crate) fn taken(&self, inode: InodeId, names: Vec<(Name, LentEntry)>) -> Option<TakenBack> {
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
        let before = self.leaving_until.get();
        self.leaving_until.set(Some(before.map_or(until, |before| before.max(until))));
        let leaving = Some(self.leaving.enter());
        Some(TakenBack { inode, attributes, names, until, youngest, _leaving: leaving })
    }

    /// Returns whether the kernel has the attributes, and they hold.
    pub(crate) fn has_attributes(&self) -> bool {
        self.attributes_until.get().is_some_and(|until| until > now())
    }

    /// Notes that this client has changed the attributes. An answer on its way to the kernel may
    /// carry older ones. The kernel uses these if it does not count its own change as one (a create
    /// in a directory).
    pub(crate) fn changed_here(&self, inode: InodeId) -> Option<TakenBack> {
        let present = now();
        self.changed_here.set(Some(present));
        let is_on_its_way = self.attributes_lent_at.get()?.elapsed() < ON_ITS_WAY;
        // They stay lent: a recall makes the kernel drop them once more.
        let until = self.attributes_until.get()?.min(present + ON_ITS_WAY);
        let names = Vec::new();
        let taken =
            TakenBack { inode, attributes: true, names, until, youngest: None, _leaving: None };
        (is_on_its_way && until > present).then_some(taken)
    }

    /// Records a lent name. It stays lent for the longer of its times. Returns whether the directory
    /// has lent so many that expired ones should be forgotten ([`Lent::sweep`]) when this one has
    /// expired.
    pub(crate) fn lend_name(&self, name: &[u8], of: LentEntry) -> bool {
        let mut names = self.names.borrow_mut();
        if names.len() >= NAMES_SWEPT && names.len() == names.capacity() {
            let now = now();
            names.retain(|_, of| of.until > now);
        }
        let before = names.insert(name.to_vec(), of);
        if let (Some(before), Some(after)) = (before, names.get_mut(name)) {
            after.until = after.until.max(before.until);
        }
        names.len() >= NAMES_SWEPT
    }

    /// Forgets expired names. If many are left, returns when the last of them has expired.
    pub(crate) fn sweep(&self) -> Option<Instant> {
        let mut names = self.names.borrow_mut();
        let present = now();
        names.retain(|_, of| of.until > present);
        let left = names.len();
        names.shrink_to(2 * left);
        let last = names.values().map(|of| of.until).max();
        last.filter(|_| left >= NAMES_SWEPT)
    }

    /// Returns whether others have left the directory's names unchanged for a while.
    pub(crate) fn is_quiet(&self) -> bool {
        self.changed_by_others.get().is_none_or(|changed| changed.elapsed() >= QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a directory that has lent many names forgets those that have expired, and gives their
    /// memory back.
    #[test]
    fn expired_names_take_no_memory() {
        let scene = async {
            let lent = Lent::default();
            let lend = |number: usize, seconds: u64| {
                let until = now() + Duration::from_secs(seconds);
                let of = LentEntry { until, lent_at: now(), is_directory: false };
                lent.lend_name(format!("{number}").as_bytes(), of)
            };
            assert_eq!((0..NAMES_SWEPT).filter(|number| lend(*number, 5)).count(), 1);
            (0..10 * NAMES_SWEPT).for_each(|number| assert!(lend(number, 5)));
            lend(0, 9);
            assert_eq!(lent.sweep(), Some(now() + Duration::from_secs(9)));
            reactor::time::sleep(Duration::from_secs(6)).await;
            assert_eq!(lent.sweep(), None, "few are left");
            assert_eq!(lent.names.borrow().len(), 1);
            assert!(lent.names.borrow().capacity() < NAMES_SWEPT);
        };
        reactor::sim::Simulation::new(1).run(scene).unwrap();
    }
}
