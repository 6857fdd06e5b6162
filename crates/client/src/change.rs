//! Changes by other sessions that a cache outside of this client has to follow.

use crate::inode::lent::LentName;
use protocol::InodeId;
use reactor::mailbox::Sender;

/// How far a cache is with dropping data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropping {
    /// It waits until other data is dropped, for which something stands in the way.
    Hindered,
    /// It has begun, or an earlier drop of the same data has.
    Begun,
    /// The data is dropped.
    Done,
}

impl Dropping {
    /// Most reports about one drop.
    pub const REPORTS_MAX: usize = 3;
}

/// The result of a request to drop pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageDrop {
    /// The kernel has dropped them.
    Done,
    /// It will, when nothing stands in the way any more.
    Late,
    /// It will not: there were none, too much waits to be dropped, or nothing is mounted.
    Refused,
}

/// A change by another session that a cache outside of this client may have to follow.
#[derive(Debug)]
pub enum Change {
    /// Data or attributes of an inode changed.
    Inode(InodeId),
    /// Data of an inode may have changed. The cache reports how far it is with dropping that data:
    /// at most [`Dropping::REPORTS_MAX`] times, the last time with [`Dropping::Done`].
    Pages(InodeId, Sender<Dropping>),
    /// Attributes of an inode are no longer valid. The cache answers without waiting for anything.
    Attributes {
        /// The inode.
        inode: InodeId,
        /// Whether it is known to be a directory.
        is_directory: bool,
        /// Gets whether the cache knows the inode.
        known: Sender<bool>,
    },
    /// Names of a directory are no longer valid. The cache sends a message when it has dropped
    /// them.
    Names(InodeId, Vec<LentName>, Sender<()>),
    /// No name of any directory is valid any more, nor is a name in an answer on its way. The
    /// message says whether the cache could drop all. It is sent without waiting for anything.
    AllNames(Sender<bool>),
}
