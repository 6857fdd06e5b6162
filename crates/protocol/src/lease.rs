//! Rights over an inode that a session may hold, and their recall.
//!
//! An answer grants a right. The right lasts until the session gives it back, the service recalls
//! it, or the session ends. Grants and recalls travel on the session's one connection, in order. So
//! a client that handles them as they arrive always knows its rights.

use crate::ids::{InodeId, LeaseStamp};
use serde::{Deserialize, Serialize};
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// A set of rights over one inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights(pub u8);

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights(0);
    /// To cache data that was read of the inode: attributes, extents, link target, extended
    /// attributes; for a directory also its entries and absent entries.
    pub const READ: Rights = Rights(1);
    /// To hold data that is written but not committed. Several sessions may hold it at once.
    pub const WRITE: Rights = Rights(2);
    /// To be the only session that makes the file longer. Appends need it.
    pub const SIZE: Rights = Rights(4);
    /// Not a right but a fact: the session has the inode open, so an unlink must keep it.
    pub const OPEN: Rights = Rights(8);
    /// To hold back changes of the inode's attributes until the next commit: no other session has
    /// seen the inode since this one made it. Granted only with its creation, to a file that is
    /// created open for writing. The first commit ends it.
    pub const SOLE: Rights = Rights(16);
    /// To decide about the inode's file locks: no other session holds or awaits one. Granted with a
    /// lock, by [`crate::client::Answer::Locks`], to one session at most.
    pub const LOCKS: Rights = Rights(32);

    /// Returns whether all of `other` are in this set.
    pub fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any of `other` is in this set.
    pub fn intersects(self, other: Rights) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Rights {
    type Output = Rights;
    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

impl BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Rights) {
        self.0 |= other.0;
    }
}

impl BitAnd for Rights {
    type Output = Rights;
    fn bitand(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }
}

impl Sub for Rights {
    type Output = Rights;
    fn sub(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }
}

/// The rights of a session over an inode from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The inode.
    pub inode: InodeId,
    /// All rights that the session now holds over it (not only the new ones).
    pub rights: Rights,
    /// Later than the stamp of every earlier grant or recall of this inode to this session.
    pub stamp: LeaseStamp,
}

/// A request to give rights back.
///
/// The answer [`Recalled`] means that all I/O under the rights has ended, that dirty data was
/// committed if WRITE or SIZE was recalled, and that the client no longer uses anything cached
/// under READ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// The inode.
    pub inode: InodeId,
    /// The rights to give back.
    pub rights: Rights,
    /// See [`Grant::stamp`].
    pub stamp: LeaseStamp,
}

/// The answer to a [`Recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalled {
    /// The inode.
    pub inode: InodeId,
    /// The rights that the session keeps: [`Rights::OPEN`] if it has the inode open.
    pub kept: Rights,
}

/// Rights that a session gives back without a recall (it forgot the inode), or, with `OPEN`, a last
/// close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// The inode.
    pub inode: InodeId,
    /// The rights that it gives back.
    pub rights: Rights,
    /// The stamp of the newest grant that the session has seen: a later grant stays.
    pub stamp: LeaseStamp,
}
