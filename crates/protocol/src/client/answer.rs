//! The metadata service's answers.

use super::Name;
use crate::attr::Attr;
use crate::data_key::DataKey;
use crate::errno::Errno;
use crate::extent::ExtentList;
use crate::files::SmallFile;
use crate::ids::{Epoch, FreeEpoch, Incarnation, InodeId, SessionId};
use crate::inline::Bytes;
use crate::lease::Grant;
use crate::lock::Lock;
use crate::space::{DeviceInfo, PoolUse, SpaceGrant};
use crate::sums::BlockSums;
use serde::{Deserialize, Serialize};

/// A directory entry with the inode that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// The cookie at which to continue after it.
    pub cookie: u64,
    /// The attributes of the named inode.
    pub attr: Attr,
}

/// The answer to a [`super::Request`], with the rights that came with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The result of the call.
    pub result: Result<Answer, Errno>,
    /// New states of rights. The client applies them before it uses the result. It may keep a
    /// cached object only while it holds READ over it; cached entries and absent entries need READ
    /// over the directory.
    pub grants: Vec<Grant>,
    /// New attributes of further inodes that the operation changed (the directories of a create,
    /// unlink or rename; the remaining links of an unlinked inode).
    pub changed: Vec<Attr>,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Success, without a result.
    Done,
    /// The session has started or resumed.
    Welcome {
        /// The session.
        session: SessionId,
        /// The epoch under which targets admit its host identifier.
        epoch: Epoch,
        /// Whether the session was resumed: if not, everything that the old session held is lost.
        resumed: bool,
        /// The file system's identity, for `statfs` and export handles.
        file_system: uuid::Uuid,
        /// The pool's devices.
        devices: Vec<DeviceInfo>,
        /// The present free epoch.
        free_epoch: FreeEpoch,
    },
    /// The session lives until the deadline, counted from the sending of the heartbeat.
    Alive {
        /// The present free epoch. Once the client has ended all reads that began before this
        /// answer came, it reports that in a later heartbeat.
        free_epoch: FreeEpoch,
        /// Whether commits may carry inline data from now on.
        takes_inline: bool,
    },
    /// The pool's devices.
    Devices(Vec<DeviceInfo>),
    /// The session is admitted at the device.
    Admitted {
        /// The device's incarnation.
        incarnation: Incarnation,
        /// The key that the client proves to the target under TLS; without a key the target takes
        /// connections in the clear.
        key: Option<DataKey>,
    },
    /// The result of `statfs`.
    PoolUse(PoolUse),
    /// Attributes after the operation.
    Attr(Attr),
    /// An entry.
    Entry(Attr),
    /// The directory has no entry with that name.
    NoEntry,
    /// Entries, ascending by cookie.
    Entries {
        /// The entries.
        entries: Vec<Entry>,
        /// No entry comes after these.
        end: bool,
    },
    /// Bytes (link target, extended attribute).
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Name>),
    /// The inode of a removed entry.
    Removed {
        /// The inode that lost a name.
        inode: InodeId,
        /// Its attributes, if it still has names.
        left: Option<Attr>,
    },
    /// What a rename moved and replaced.
    Renamed {
        /// The inode that has the new name now.
        moved: Attr,
        /// The inode that has the old name now (exchange, whiteout).
        other: Option<Attr>,
        /// The inode that lost its name, with its attributes if it has others left.
        replaced: Option<(InodeId, Option<Attr>)>,
    },
    /// Extents.
    Extents {
        /// The extents that touch the range, ascending, apart from one another. The rest are holes.
        extents: ExtentList,
        /// The list is complete from the requested offset up to here (at least one byte further).
        covered_to: u64,
        /// The file's inline bytes, from its first byte on: they count where there is no extent.
        /// Present if the requested offset is below [`crate::inline::INLINE_MAX_BYTES`].
        inline: Bytes,
        /// The CRC-32C of the inline bytes.
        inline_sum: u32,
        /// The sums of the blocks that the extents touch, each once; blocks without a sum are left
        /// out.
        sums: BlockSums,
        /// The attributes of the file at that time.
        attr: Attr,
        /// The free epoch at that time.
        free_epoch: FreeEpoch,
    },
    /// Bytes shared, and the destination's attributes.
    Copied {
        /// Bytes.
        length: u64,
        /// The destination.
        attr: Attr,
    },
    /// Leased space.
    Space(SpaceGrant),
    /// A conflicting lock, if there is one.
    Lock(Option<Lock>),
    /// The lock is held. These are all locks that the session holds on the inode. If the answer
    /// grants LOCKS, the session decides about them from now on.
    Locks(Vec<Lock>),
    /// A durable commit was executed, and other sessions see it, but its data or earlier data
    /// cannot be made durable. Carries the attributes after the commit. (An error means that
    /// nothing was done.)
    NotDurable(Attr),
    /// Small files, in the order of the request; `None` for a file that is not completely inline,
    /// is gone, or should be requested alone.
    Files(Vec<Option<SmallFile>>),
    /// The new files, in the order of the request.
    Made(Vec<Attr>),
}
