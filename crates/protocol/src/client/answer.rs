//! What the metadata service answers.

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

/// A directory entry with what it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Where to go on after it.
    pub cookie: u64,
    /// What it names.
    pub attr: Attr,
}

/// The answer to a [`super::Request`], with the rights that came with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// What was asked for.
    pub result: Result<Answer, Errno>,
    /// New states of rights, to be applied before the result is used. A cached object may be kept
    /// only while READ is held over it; entries and absence of entries need READ over the directory.
    pub grants: Vec<Grant>,
    /// New attributes of further inodes that the operation changed (the directories of a create,
    /// unlink or rename; the remaining links of an unlinked inode).
    pub changed: Vec<Attr>,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// The session has started, or goes on.
    Welcome {
        /// The session.
        session: SessionId,
        /// The epoch under which its host identifier is admitted at targets.
        epoch: Epoch,
        /// Whether `resume` was honoured: if not, all that the old session held is lost.
        resumed: bool,
        /// The file system's identity, for `statfs` and export handles.
        file_system: uuid::Uuid,
        /// The pool's devices.
        devices: Vec<DeviceInfo>,
        /// The present free epoch.
        free_epoch: FreeEpoch,
    },
    /// The session lives until the deadline, counted from the heartbeat's sending.
    Alive {
        /// The present free epoch: once the client has ended all reads that began before this
        /// answer came, it says so in a later heartbeat.
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
        /// What the client proves to the target that it knows, under TLS; the target takes connections in the clear
        /// without it.
        key: Option<DataKey>,
    },
    /// What `statfs` tells.
    PoolUse(PoolUse),
    /// Attributes after the operation.
    Attr(Attr),
    /// An entry.
    Entry(Attr),
    /// The directory has no entry of that name.
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
    /// What became of a removed entry's inode.
    Removed {
        /// The inode that lost a name.
        inode: InodeId,
        /// Its attributes, if it still has names.
        left: Option<Attr>,
    },
    /// What a rename moved and replaced.
    Renamed {
        /// What has the new name now.
        moved: Attr,
        /// What has the old name now (exchange, whiteout).
        other: Option<Attr>,
        /// The inode that lost its name, with its attributes if it has others left.
        replaced: Option<(InodeId, Option<Attr>)>,
    },
    /// Extents.
    Extents {
        /// The extents that touch the range, ascending, apart from one another. Holes are where
        /// none is.
        extents: ExtentList,
        /// The list is complete from the asked offset up to here (at least one byte further).
        covered_to: u64,
        /// What the metadata service has of the file, from its first byte on: it counts where no extent
        /// is. Given if the asked offset is below [`crate::inline::INLINE_MAX_BYTES`].
        inline: Bytes,
        /// The CRC-32C of the inline bytes.
        inline_sum: u32,
        /// The sums of the blocks that the extents touch, of each once; of those that have one.
        sums: BlockSums,
        /// Attributes under which they hold.
        attr: Attr,
        /// The free epoch under which they hold.
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
    /// The lock is held. These are all locks that the session holds on the inode; if LOCKS is granted with
    /// the answer, the session decides about them from now on.
    Locks(Vec<Lock>),
    /// A durable commit was carried out, and others see it, but its data or what was committed before
    /// cannot be made durable: attributes as it left them. (An error says that nothing was done.)
    NotDurable(Attr),
    /// Small files, in the order in which they were asked for: of each nothing if it is not here as a whole, is
    /// gone, or is better asked for by itself.
    Files(Vec<Option<SmallFile>>),
    /// Files that were made, in the order in which they were asked for.
    Made(Vec<Attr>),
}
