//! What a client and the metadata service say to each other.

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

/// Names are bytes, as POSIX has them: anything but `/` and NUL.
pub type Name = Vec<u8>;

/// A slot for exactly-once calls, as in NFSv4.1 (RFC 8881 section 2.10.6): a client has at most one
/// call under way in each; the service keeps each slot's last answer with the change it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Number of the slot, less than [`SLOTS_PER_SESSION`].
    pub slot: u16,
    /// Counts the slot's calls; the same number again is a retry and gets the first answer again.
    pub sequence: u64,
}

/// Slots a session has.
pub const SLOTS_PER_SESSION: u16 = 256;

/// A client's call: the operation, and for those that change something the slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Set if and only if [`Call::changes`] says that the call changes something.
    pub slot: Option<Slot>,
    /// The operation.
    pub call: Call,
}

/// How an object of [`ChangeCall::Create`] comes to be.
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
    /// Replaces what has the new name.
    Replace,
    /// `RENAME_NOREPLACE`: EEXIST if something has the new name.
    NoReplace,
    /// `RENAME_EXCHANGE`: both names swap what they name.
    Exchange,
    /// `RENAME_WHITEOUT`: as `Replace`, leaving a character device 0:0 under the old name.
    Whiteout,
    /// `RENAME_WHITEOUT | RENAME_NOREPLACE`: as `Whiteout`, but EEXIST if something has the new name.
    WhiteoutNoReplace,
}

/// Which opens a session has told of that removes a name. The service asks only the other sessions
/// whether they have open what loses its last name, and the caller too where the name names something
/// else by then than the caller has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenTold {
    /// Of all opens, whatever the name names.
    OfAny,
    /// Of those of this inode: it is what the name named.
    Of(InodeId),
    /// Of none: the name named nothing.
    OfNone,
}

impl OpenTold {
    /// Whether an open of this inode would have been told.
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
    /// Makes or replaces.
    Set,
    /// `XATTR_CREATE`: EEXIST if it exists.
    Create,
    /// `XATTR_REPLACE`: ENODATA if it does not.
    Replace,
}

/// What [`ChangeCall::Fallocate`] does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FallocateMode {
    /// Makes the file at least that long, unless `keep_size`; fails with ENOSPC if the pool has not
    /// as many bytes free as the range has without data.
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
