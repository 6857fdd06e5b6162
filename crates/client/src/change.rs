//! Changes by other sessions that a cache outside of this client has to follow.

use crate::inode::lent::LentName;
use protocol::InodeId;
use reactor::mailbox::Sender;

/// A change by another session that a cache outside of this client may have to follow.
#[derive(Debug)]
pub enum Change {
    /// Data or attributes of an inode changed.
    Inode(InodeId),
    /// Data of an inode may have changed. The cache sends a message when it has dropped that data.
    Pages(InodeId, Sender<()>),
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
