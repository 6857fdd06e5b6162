//! Bounds the memory of names that do not exist.
//!
//! Programs look up many names that do not exist: in each directory of a search path, or one for
//! each file of a job. The cache keeps them as long as READ is held over the directory, which may be
//! for the life of the mount. So there is a bound over all directories, and the oldest name goes
//! first. A name that was dropped here may still be lent to the kernel. That is recorded elsewhere
//! ([`Lent`](crate::inode::lent::Lent)) and needs no cached name: an invalidation takes it back.

use crate::client::Client;
use protocol::InodeId;
use reactor::time::{Instant, now};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Most absent names that are cached: 5 MiB of short names, 22 MiB of the longest.
const ABSENT_NAMES_MAX: usize = 1 << 16;

/// The names in the order in which they came. Some may have been dropped since.
#[derive(Debug, Default)]
pub(crate) struct AbsentNames {
    cached: RefCell<VecDeque<(InodeId, Rc<[u8]>)>>,
    /// Directories that have lent many names, and when these have expired.
    lent: RefCell<BTreeMap<InodeId, Instant>>,
}

impl Client {
    /// Notes that a name of a directory is cached as absent. If there are too many, drops the
    /// oldest.
    pub(crate) fn note_absent(&self, directory: InodeId, name: Rc<[u8]>) {
        let mut cached = self.absent_names.cached.borrow_mut();
        cached.push_back((directory, name));
        if cached.len() <= ABSENT_NAMES_MAX {
            return;
        }
        let oldest = cached.pop_front();
        drop(cached);
        if let Some((directory, name)) = oldest
            && let Some(directory) = self.known_inode(directory)
        {
            directory.state.borrow_mut().entries.forget_absent(&name);
        }
    }

    /// Notes that a directory has lent many names to the kernel, the last of them until then.
    pub(crate) fn note_many_lent(&self, directory: InodeId, until: Instant) {
        self.absent_names.lent.borrow_mut().entry(directory).or_insert(until);
    }

    /// Forgets names that have expired in the kernel, of directories that have lent many.
    pub(crate) fn forget_expired_names(&self) {
        let present = now();
        self.absent_names.lent.borrow_mut().retain(|id, until| {
            if *until > present {
                return true;
            }
            let still = self.known_inode(*id).and_then(|directory| directory.lent.sweep());
            still.map(|last| *until = last).is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::entries::Known;
    use crate::lifecycle::tests::alone;
    use protocol::Rights;
    use std::collections::HashSet;

    fn name(number: usize) -> Vec<u8> {
        format!("{number}").into_bytes()
    }

    /// Goal: absent names take bounded memory, over all directories together. The latest ones stay
    /// known, and names that exist.
    #[test]
    fn absent_names_are_bounded_over_all_directories() {
        const DIRECTORIES: usize = 3;
        let scene = async {
            let client = alone();
            let directories: Vec<InodeId> = (1..=DIRECTORIES as u64).map(InodeId).collect();
            let fresh: HashSet<InodeId> = directories.iter().copied().collect();
            for id in &directories {
                client.inode(*id).state.borrow_mut().rights = Rights::READ;
                client.set_entry(*id, b"there", Some(InodeId(9)), &fresh);
            }
            let number = ABSENT_NAMES_MAX + 100;
            for absent in 0..number {
                let id = directories[absent % DIRECTORIES];
                client.set_entry(id, &name(absent), None, &fresh);
            }
            let known = |absent: usize| {
                let directory = client.inode(directories[absent % DIRECTORIES]);
                directory.state.borrow().entry(&name(absent)) == Known::Absent
            };
            assert_eq!((0..number).filter(|absent| known(*absent)).count(), ABSENT_NAMES_MAX);
            assert!(known(number - 1) && !known(0));
            for id in directories {
                let there = client.inode(id).state.borrow().entry(b"there");
                assert_eq!(there, Known::Inode(InodeId(9)));
            }
        };
        reactor::sim::Simulation::new(1).run(scene).unwrap();
    }
}
