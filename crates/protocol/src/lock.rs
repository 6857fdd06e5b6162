//! Advisory locks: `flock(2)` and POSIX record locks (`fcntl(2)`), across all nodes.

use crate::ids::InodeId;
use serde::{Deserialize, Serialize};

/// The family of a lock. Locks of different families do not conflict, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockFamily {
    /// `flock(2)`: whole file, owned by an open file description.
    Flock,
    /// `fcntl(2)` `F_SETLK`: byte ranges, owned by a process.
    Posix,
}

/// The locks of other owners that a lock permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Other owners may hold shared locks too.
    Shared,
    /// Other owners may hold none.
    Exclusive,
}

/// A lock's owner within its session (FUSE's `lock_owner`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner(pub u64);

/// A requested or held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The inode.
    pub inode: InodeId,
    /// Its family.
    pub family: LockFamily,
    /// Its owner.
    pub owner: LockOwner,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` is the end of the file, at any size.
    pub last: u64,
    /// Its mode.
    pub mode: LockMode,
    /// Process that wants or holds it, for `F_GETLK` (in the client's process id namespace).
    pub pid: u32,
}
