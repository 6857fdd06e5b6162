//! The transaction core: the file system's tree, data and space as transactions over a store.
//!
//! [`Core`] is pure and synchronous. It does no I/O except the store's, and its callers pass the
//! time, so that a whole cluster can run from a seed. The service around it processes a call as:
//! [`Core::check_slot`] → [`Core::conflicts`] and recalls → [`Core::execute`] →
//! [`Core::record_reply`] → … more calls … → [`Core::flush`] → answers go out.
//!
//! Each call is one transaction, or several that are valid alone. Finished transactions gather in
//! memory, visible to all later ones, and `flush` commits them as one batch of the store. So a call
//! and its reply are in the store together or not at all, and calls of one turn share one commit.

mod attributes;
pub(crate) mod base;
mod compact;
mod conflicts;
mod core;
mod data;
mod devices;
mod durability;
mod extents;
mod files;
mod inline;
mod names;
mod reading;
mod reclaim;
mod references;
mod rename;
mod sessions;
pub(crate) mod transaction;

pub use self::core::{Boot, Core, Opened};
pub use conflicts::{Conflict, ConflictKind};
pub use durability::Durable;
pub use names::{FIRST_COOKIE, LINK_MAX};
pub(crate) use names::{NewInode, check_name, is_dots};
pub use sessions::SlotState;
pub use transaction::Context;

use protocol::client::Answer;
use protocol::{Attr, InodeId, Rights};

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// New attributes of further changed inodes: the directories.
    pub changed: Vec<Attr>,
    /// Rights that make sense to grant with the answer; the service decides.
    pub grants: Vec<(InodeId, Rights)>,
    /// Inodes with changed data or attributes, except the directories of `changed`.
    pub touched: Vec<InodeId>,
    /// Inodes that lost their last name. The sessions that have them open were asked and noted.
    pub unnamed: Vec<InodeId>,
}

impl Outcome {
    pub(crate) fn of(answer: Answer) -> Outcome {
        Outcome {
            answer,
            changed: Vec::new(),
            grants: Vec::new(),
            touched: Vec::new(),
            unnamed: Vec::new(),
        }
    }

    pub(crate) fn granting(mut self, inode: InodeId, rights: Rights) -> Outcome {
        match self.grants.iter_mut().find(|(known, _)| *known == inode) {
            Some((_, known)) => *known |= rights,
            None => self.grants.push((inode, rights)),
        }
        self
    }

    pub(crate) fn changing(mut self, attr: Attr) -> Outcome {
        self.changed.push(attr);
        self
    }

    pub(crate) fn touching(mut self, inode: InodeId) -> Outcome {
        self.touched.push(inode);
        self
    }
}
