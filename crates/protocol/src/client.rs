//! What a client and the metadata service say to each other.

mod answer;
mod push;

pub use answer::{Answer, Entry, Response};
pub use push::{Push, PushAnswer};

use crate::attr::{AttrChanges, FileKind, Timestamp};
use crate::extent::ExtentList;
use crate::ids::{DeviceId, FreeEpoch, Generation, HostId, InodeId, SessionId};
use crate::lease::{Return, Rights};
use crate::lock::{Lock, LockFamily, LockOwner};
use crate::space::{BlockRange, NewAllocation};
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

/// How an object of [`Call::Create`] comes to be.
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

/// What [`Call::Fallocate`] does to a range.
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

/// A client's operation. Errors are [`Errno`]s as POSIX gives them for the system call of that name,
/// and ESTALE for an inode that is gone or a session that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// First call of a connection → [`Answer::Welcome`].
    Start {
        /// The node the client runs on; devices of the same node are near.
        node: String,
        /// The identifier by which its host connects to targets, new for each session.
        host: HostId,
        /// The session to go on with after a lost connection.
        resume: Option<SessionId>,
    },
    /// After a resumed [`Call::Start`]: what the client holds; all other rights it has dropped. May
    /// come in several parts, the last with `done` → [`Answer::Done`].
    Reclaim {
        /// WRITE, SIZE and OPEN it wants to keep.
        held: Vec<(InodeId, Rights)>,
        /// No further part comes.
        done: bool,
    },
    /// Keeps the session alive → [`Answer::Alive`].
    Heartbeat {
        /// All reads that began under extents from before this epoch have ended.
        ended_through: FreeEpoch,
    },
    /// The only kind of call of a connection of its own: the session's process lives, whatever its
    /// serving thread waits for → [`Answer::Alive`]. ESTALE if the session has ended, EAGAIN if it has
    /// no connection to be asked over: then this keeps nothing alive.
    Pulse {
        /// The session.
        session: SessionId,
        /// Its host identifier.
        host: HostId,
    },
    /// Ends the session, its locks and leases → [`Answer::Done`] at once; what it held is others' once
    /// it is fenced.
    End,
    /// The pool's devices → [`Answer::Devices`].
    Devices,
    /// Asks to be admitted at a device's target → [`Answer::Admitted`].
    Admit(DeviceId),
    /// `statfs(2)` → [`Answer::PoolUse`].
    PoolUse,

    /// Entry of a directory → [`Answer::Entry`], or [`Answer::NoEntry`]. `.` and `..` are entries.
    Lookup {
        /// The directory.
        parent: InodeId,
        /// The name.
        name: Name,
    },
    /// Attributes → [`Answer::Attr`].
    GetAttr(InodeId),
    /// Entries of a directory after a cookie (0 = from the start) → [`Answer::Entries`].
    ReadDir {
        /// The directory.
        inode: InodeId,
        /// Go on after this entry.
        after: u64,
        /// At most so many entries.
        count_max: u32,
    },
    /// Target of a symbolic link → [`Answer::Bytes`].
    ReadLink(InodeId),
    /// Takes rights over an inode → [`Answer::Attr`] with the grant. WRITE is asked for when a
    /// regular file is opened for writing, SIZE before an append; waits for recalls of others.
    Acquire {
        /// The inode.
        inode: InodeId,
        /// The rights.
        rights: Rights,
    },
    /// Gives rights back unasked → [`Answer::Done`].
    GiveBack(Vec<Return>),

    /// Changes attributes → [`Answer::Attr`]. With `size` it first recalls all writers.
    SetAttr {
        /// The inode.
        inode: InodeId,
        /// The changes.
        changes: AttrChanges,
    },
    /// Makes a new inode with a name → [`Answer::Entry`], or EEXIST.
    Create {
        /// The directory.
        parent: InodeId,
        /// The name.
        name: Name,
        /// What it is.
        creation: Creation,
        /// Permission bits, umask already taken off.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group (a directory with sgid hands on its own).
        gid: u32,
        /// Rights to grant over it at once (READ | WRITE | OPEN for a file created open).
        rights: Rights,
    },
    /// `link(2)` → [`Answer::Entry`].
    Link {
        /// The inode to link to.
        inode: InodeId,
        /// The directory of the new name.
        parent: InodeId,
        /// The new name.
        name: Name,
    },
    /// `unlink(2)` → [`Answer::Removed`].
    Unlink {
        /// The directory.
        parent: InodeId,
        /// The name.
        name: Name,
        /// Which opens of its own the caller has told of.
        told: OpenTold,
    },
    /// `rmdir(2)` → [`Answer::Removed`].
    Rmdir {
        /// The directory.
        parent: InodeId,
        /// The name.
        name: Name,
    },
    /// `renameat2(2)` → [`Answer::Renamed`].
    Rename {
        /// Old directory.
        parent: InodeId,
        /// Old name.
        name: Name,
        /// New directory.
        new_parent: InodeId,
        /// New name.
        new_name: Name,
        /// What happens to the new name's present owner.
        mode: RenameMode,
        /// Which opens of its own, of what is replaced, the caller has told of.
        told: OpenTold,
    },

    /// One extended attribute → [`Answer::Bytes`], or ENODATA.
    GetXattr {
        /// The inode.
        inode: InodeId,
        /// The attribute's name.
        name: Name,
    },
    /// All names of extended attributes → [`Answer::Names`].
    ListXattr(InodeId),
    /// Sets an extended attribute → [`Answer::Attr`].
    SetXattr {
        /// The inode.
        inode: InodeId,
        /// The attribute's name.
        name: Name,
        /// Its value, at most [`crate::XATTR_VALUE_MAX_BYTES`].
        value: Vec<u8>,
        /// Whether it must be new, or must exist.
        mode: XattrMode,
    },
    /// Removes an extended attribute → [`Answer::Attr`], or ENODATA.
    RemoveXattr {
        /// The inode.
        inode: InodeId,
        /// The attribute's name.
        name: Name,
    },

    /// Extents that touch a range → [`Answer::Extents`].
    ReadExtents {
        /// The inode.
        inode: InodeId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Makes written data part of a file → [`Answer::Attr`]. The data must have been acknowledged
    /// by its devices. With `durable`, EIO if earlier data of the file was lost with a device's power.
    Commit {
        /// The inode.
        inode: InodeId,
        /// The truncate generation under which the data was written; an older one is dropped.
        generation: Generation,
        /// Allocations that are named for the first time. They must lie in space that this session
        /// leased, free until now.
        allocations: Vec<NewAllocation>,
        /// The extents, in the order in which they overwrite each other.
        extents: ExtentList,
        /// When the data was written.
        mtime: Option<Timestamp>,
        /// Clear suid, sgid and file capabilities, as a write by another than root does.
        kill_privileges: bool,
        /// Survives power loss when answered (fsync).
        durable: bool,
    },
    /// Preallocates, punches or zeroes a range → [`Answer::Attr`]; recalls all writers first.
    Fallocate {
        /// The inode.
        inode: InodeId,
        /// First byte.
        offset: u64,
        /// Bytes; at least 1.
        length: u64,
        /// What to do.
        mode: FallocateMode,
    },
    /// Shares a range of one file with another → [`Answer::Copied`]; recalls all writers of both.
    CopyRange {
        /// File to copy from.
        source: InodeId,
        /// First byte there.
        source_offset: u64,
        /// File to copy to.
        destination: InodeId,
        /// First byte there.
        destination_offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Makes all that was answered before this call durable (fsync of a clean file or a directory),
    /// and all that was committed to the inode, whoever wrote it → [`Answer::Done`], or EIO if some of
    /// its data was lost with a device's power.
    Sync(Option<InodeId>),

    /// Leases space → [`Answer::Space`], ENOSPC when nothing is free after recalls.
    LeaseSpace {
        /// The device.
        device: DeviceId,
        /// Bytes wished for; may get more or less.
        wanted_bytes: u64,
    },
    /// Gives back leased blocks that were never named in a commit → [`Answer::Done`]. All writes to
    /// them have ended.
    ReturnSpace {
        /// The device.
        device: DeviceId,
        /// The blocks.
        free: Vec<BlockRange>,
    },

    /// Takes a lock → [`Answer::Done`]; EAGAIN if it conflicts and `wait` is false. With `wait` the
    /// answer comes when the lock is held, or EINTR after [`Call::CancelLock`], or EDEADLK.
    SetLock {
        /// The lock.
        lock: Lock,
        /// Wait for it.
        wait: bool,
    },
    /// Ends the wait of this owner for a lock on this inode → [`Answer::Done`].
    CancelLock {
        /// The inode.
        inode: InodeId,
        /// Its family.
        family: LockFamily,
        /// The owner.
        owner: LockOwner,
    },
    /// Releases a range, of all modes → [`Answer::Done`].
    Unlock(Lock),
    /// The first lock that conflicts with this one → [`Answer::Lock`].
    TestLock(Lock),
}

impl Call {
    /// Whether the call changes what is stored, and therefore needs a [`Slot`].
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Call::SetAttr { .. }
                | Call::Create { .. }
                | Call::Link { .. }
                | Call::Unlink { .. }
                | Call::Rmdir { .. }
                | Call::Rename { .. }
                | Call::SetXattr { .. }
                | Call::RemoveXattr { .. }
                | Call::Commit { .. }
                | Call::Fallocate { .. }
                | Call::CopyRange { .. }
                | Call::LeaseSpace { .. }
                | Call::ReturnSpace { .. }
                | Call::SetLock { .. }
                | Call::Unlock(_)
        )
    }
}
