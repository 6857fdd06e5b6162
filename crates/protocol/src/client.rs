//! The messages between a client and the metadata service.

mod answer;
mod call;
mod kind;
mod push;

pub use answer::{Answer, Entry, Response};
pub use call::{Call, CallTraits, ChangeCall, ReadCall, SessionCall};
pub use kind::CallKind;
pub use push::{Push, PushAnswer};

use crate::attr::FileKind;
use crate::ids::InodeId;
use serde::{Deserialize, Serialize};

/// A name: any bytes except `/` and NUL, as in POSIX.
pub type Name = Vec<u8>;

/// A slot for exactly-once calls, as in NFSv4.1 (RFC 8881 section 2.10.6). A client has at most one
/// call under way in each. The service stores each slot's last answer together with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Number of the slot, less than [`SLOTS_PER_SESSION`].
    pub slot: u16,
    /// Counts the slot's calls. The same number again is a retry and gets the first answer again.
    pub sequence: u64,
}

/// Slots of a session.
pub const SLOTS_PER_SESSION: u16 = 256;

/// A client's call: the operation, and the slot for operations that change something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Set if and only if [`Call::changes`] says that the call changes something.
    pub slot: Option<Slot>,
    /// The operation.
    pub call: Call,
}

/// The kind of object that [`ChangeCall::Create`] makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Creation {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device node with its `st_rdev`.
    Special(FileKind, u32),
}

/// `renameat2(2)` flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces the object under the new name.
    Replace,
    /// `RENAME_NOREPLACE`: EEXIST if the new name exists.
    NoReplace,
    /// `RENAME_EXCHANGE`: swaps the objects under both names.
    Exchange,
    /// `RENAME_WHITEOUT`: as `Replace`, leaving a character device 0:0 under the old name.
    Whiteout,
    /// `RENAME_WHITEOUT | RENAME_NOREPLACE`: as `Whiteout`, but EEXIST if the new name exists.
    WhiteoutNoReplace,
}

/// The opens that a session has reported before it removes a name. The service asks only the other
/// sessions whether they have open an inode that loses its last name. It asks the caller too if the
/// name meanwhile names another inode than the caller has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenTold {
    /// All opens, of any inode that the name may name.
    OfAny,
    /// The opens of this inode, which the name named.
    Of(InodeId),
    /// No opens: the name did not exist.
    OfNone,
}

impl OpenTold {
    /// Returns whether the session has reported its opens of this inode.
    pub fn covers(self, inode: InodeId) -> bool {
        match self {
            OpenTold::OfAny => true,
            OpenTold::Of(told) => told == inode,
            OpenTold::OfNone => false,
        }
    }
}

/// `setxattr(2)` flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Creates or replaces.
    Set,
    /// `XATTR_CREATE`: EEXIST if it exists.
    Create,
    /// `XATTR_REPLACE`: ENODATA if it does not.
    Replace,
}

/// The effect of [`ChangeCall::Fallocate`] on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FallocateMode {
    /// Makes the file at least that long, unless `keep_size`. Fails with ENOSPC if the pool has
    /// less free space than the bytes of the range without data.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    Punch,
    /// `FALLOC_FL_ZERO_RANGE`.
    Zero {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}
