//! Changes by other sessions that a cache outside of this client has to follow.

use crate::inode::lent::LentName;
use protocol::InodeId;
use reactor::mailbox::Sender;

/// A change by another session that a cache outside of this client may have to follow.
#[derive(Debug)]
pub enum Change {
    /// Data or attributes of an inode changed.
    Inode(InodeId),
    /// Data of an inode may have changed: a message is sent once what is cached of it is dropped.
    Pages(InodeId, Sender<()>),
    /// Attributes of an inode are not to be used any more. To be answered without waiting for anything.
    Attributes {
        /// Which one.
        inode: InodeId,
        /// It is known to be a directory.
        is_directory: bool,
        /// Where to say whether the cache knows the inode.
        known: Sender<bool>,
    },
    /// Names of a directory are not to be used any more: a message is sent once they are dropped.
    Names(InodeId, Vec<LentName>, Sender<()>),
    /// No name of any directory is to be used any more, and no name that an answer on its way carries: the
    /// message says whether that was possible. To be answered without waiting for anything.
    AllNames(Sender<bool>),
}
