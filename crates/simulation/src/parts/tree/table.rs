//! What a call takes from other sessions, in a form that can be compared.

use meta::tree::{Conflict, ConflictKind};
use protocol::{InodeId, Rights};
use std::collections::{BTreeMap, BTreeSet};

/// What one inode's holders give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Taken {
    rights: Rights,
    names: BTreeSet<Vec<u8>>,
    /// The caller is asked whether it has the inode open.
    is_asked: bool,
}

/// What all holders give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Takes(BTreeMap<InodeId, Taken>);

impl Takes {
    fn of(&mut self, inode: InodeId) -> &mut Taken {
        self.0.entry(inode).or_default()
    }

    /// Adds rights. Who gives READ back sends the changes first that it has held back.
    pub(super) fn add(mut self, inode: InodeId, rights: Rights) -> Takes {
        let with = if rights.contains(Rights::READ) { Rights::SOLE } else { Rights::NONE };
        self.of(inode).rights |= rights | with;
        self
    }

    /// Adds an entry of a directory.
    pub(super) fn entry(mut self, parent: InodeId, name: &str) -> Takes {
        self.of(parent).names.insert(name.as_bytes().to_vec());
        self
    }

    /// Adds all rights over an inode that loses its last name.
    pub(super) fn all(self, inode: InodeId, is_asked: bool) -> Takes {
        let data = Rights::READ | Rights::WRITE | Rights::SIZE;
        let mut takes = self.add(inode, data | Rights::LOCKS | Rights::OPEN);
        takes.of(inode).is_asked = is_asked;
        takes
    }
}

/// Returns what the service takes for a call.
pub(super) fn taken(conflicts: &[Conflict]) -> Takes {
    let mut takes = Takes::default();
    for Conflict { inode, kind } in conflicts {
        let taken = takes.of(*inode);
        match kind {
            ConflictKind::Recall(rights) => taken.rights |= *rights,
            ConflictKind::Invalidate(names) => taken.names.extend(names.iter().cloned()),
            ConflictKind::AskCaller => taken.is_asked = true,
        }
    }
    takes
}
