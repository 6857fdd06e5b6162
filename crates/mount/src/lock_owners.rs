//! The owners of locks, with the open files through which they took them.
//!
//! The owner of a flock, and of an open file description's lock (`F_OFD_SETLK`), is the address of
//! the kernel's open file. The kernel uses the address again once the file is closed, and it reports
//! that by RELEASE, a background request: it may come after the next file's lock under the same
//! number. So a release ends locks only if no other open file has locked under the owner since.

use fuse::FileHandle;
use protocol::InodeId;
use protocol::lock::LockFamily;
use reactor::local::Notify;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The locks of one owner on one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owned {
    pub(crate) inode: InodeId,
    pub(crate) is_flock: bool,
    pub(crate) owner: u64,
}

impl Owned {
    /// Returns the family of the locks.
    pub(crate) fn family(self) -> LockFamily {
        if self.is_flock { LockFamily::Flock } else { LockFamily::Posix }
    }

    /// Returns all that there may be on one inode.
    fn of(inode: InodeId) -> std::ops::RangeInclusive<Owned> {
        let first = Owned { inode, is_flock: false, owner: 0 };
        first..=Owned { inode, is_flock: true, owner: u64::MAX }
    }
}

/// All owners of locks.
#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    handles: RefCell<BTreeMap<Owned, Vec<FileHandle>>>,
    /// Releases that have not ended, by what they release.
    releases: Rc<Releases>,
}

#[derive(Debug, Default)]
struct Releases {
    running: RefCell<BTreeMap<Owned, u32>>,
    ended: Notify,
}

/// A running release of locks; until it is dropped, their owner takes no others.
#[derive(Debug)]
pub(crate) struct Releasing {
    owned: Owned,
    releases: Rc<Releases>,
}

impl LockOwners {
    /// Records that an owner locks through an open file.
    pub(crate) fn enter(&self, owned: Owned, handle: FileHandle) {
        let mut all = self.handles.borrow_mut();
        let handles = all.entry(owned).or_default();
        // Another file with this owner of a flock means that the earlier one is closed.
        if owned.is_flock {
            handles.clear();
        }
        if !handles.contains(&handle) {
            handles.push(handle);
        }
    }

    /// Removes an owner whose locks are to be released. Returns whether it was there.
    pub(crate) fn remove(&self, owned: Owned) -> bool {
        self.handles.borrow_mut().remove(&owned).is_some()
    }

    /// Removes an open file that has been released. Returns the owners that have no open file left;
    /// their locks have to be released.
    pub(crate) fn leave(&self, inode: InodeId, handle: FileHandle) -> Vec<Owned> {
        let mut all = self.handles.borrow_mut();
        let mut left = Vec::new();
        for (owned, handles) in all.range_mut(Owned::of(inode)) {
            if handles.contains(&handle) {
                handles.retain(|other| *other != handle);
                if handles.is_empty() {
                    left.push(*owned);
                }
            }
        }
        for owned in &left {
            all.remove(owned);
        }
        left
    }

    /// Returns whether record locks were taken on a file.
    pub(crate) fn has_records(&self, inode: InodeId) -> bool {
        let all = self.handles.borrow();
        all.range(Owned::of(inode)).any(|(owned, _)| !owned.is_flock)
    }

    /// Returns the number of owners.
    pub(crate) fn len(&self) -> usize {
        self.handles.borrow().len()
    }

    /// Notes that a release of locks begins.
    pub(crate) fn begin_release(&self, owned: Owned) -> Releasing {
        *self.releases.running.borrow_mut().entry(owned).or_default() += 1;
        Releasing { owned, releases: Rc::clone(&self.releases) }
    }

    /// Waits until no release of these locks is running: it would release a new lock as well.
    pub(crate) async fn released(&self, owned: Owned) {
        loop {
            let ended = self.releases.ended.notified();
            if !self.releases.running.borrow().contains_key(&owned) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let mut running = self.releases.running.borrow_mut();
        let count = running.get_mut(&self.owned).filter(|count| **count > 0);
        let Some(count) = count else { panic!("a release of {:?} is not counted", self.owned) };
        *count -= 1;
        if *count == 0 {
            running.remove(&self.owned);
        }
        drop(running);
        self.releases.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const FLOCK: Owned = Owned { inode: FILE, is_flock: true, owner: 5 };
    const RECORD: Owned = Owned { is_flock: false, ..FLOCK };
    const OTHER: Owned = Owned { inode: InodeId(8), ..RECORD };

    /// Goal: an owner's locks are released with the last open file through which it took them, and
    /// a flock with the last one that locked.
    #[test]
    fn the_last_file_releases() {
        let owners = LockOwners::default();
        let (one, two) = (FileHandle(1), FileHandle(2));
        for owned in [FLOCK, RECORD] {
            owners.enter(owned, one);
            owners.enter(owned, two);
        }
        owners.enter(OTHER, one);
        assert_eq!(owners.leave(FILE, one), []);
        assert_eq!(owners.leave(FILE, two), [RECORD, FLOCK]);
        assert_eq!(owners.leave(FILE, two), []);
        assert_eq!(owners.leave(OTHER.inode, one), [OTHER]);
        assert_eq!(owners.len(), 0);
    }

    /// Goal: a new lock waits for all releases of its owner's earlier ones.
    #[test]
    fn a_lock_waits_for_releases() {
        let mut simulation = reactor::sim::Simulation::new(1);
        let scene = async {
            let owners = LockOwners::default();
            let releases = [owners.begin_release(FLOCK), owners.begin_release(FLOCK)];
            owners.released(RECORD).await;
            let mut waits = std::pin::pin!(owners.released(FLOCK));
            for release in releases {
                let pause = std::time::Duration::from_millis(1);
                assert!(reactor::time::timeout(pause, waits.as_mut()).await.is_err());
                drop(release);
            }
            waits.await;
        };
        simulation.run(scene).unwrap();
    }
}
