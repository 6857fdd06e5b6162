//! Advisory locks: `flock(2)` and POSIX record locks (`fcntl(2)`), across all nodes.

use crate::ids::InodeId;
use serde::{Deserialize, Serialize};

/// Which of the two families a lock is of; they do not see each other, as on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockFamily {
    /// `flock(2)`: whole file, owned by an open file description.
    Flock,
    /// `fcntl(2)` `F_SETLK`: byte ranges, owned by a process.
    Posix,
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Others may hold shared locks too.
    Shared,
    /// Others may hold none.
    Exclusive,
}

/// A lock's owner within its session (FUSE's `lock_owner`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockOwner(pub u64);

/// A lock, wished for or held.
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
    /// Last byte, inclusive; `u64::MAX` is the end of the file, wherever that is.
    pub last: u64,
    /// What it allows others.
    pub mode: LockMode,
    /// Process that wants or holds it, for `F_GETLK` (in the client's process id namespace).
    pub pid: u32,
}
