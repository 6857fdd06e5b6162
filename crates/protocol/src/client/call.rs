//! The calls of a client, by what the service owes to each kind.
//!
//! The kind of a call is its type, so that no list of calls has to be kept in step with another. A new
//! call has a kind, and does not compile before each `match` on that kind has decided about it.

use super::{Creation, FallocateMode, Name, OpenTold, RenameMode, XattrMode};
use crate::attr::{AttrChanges, Deferred, Timestamp};
use crate::errno::Errno;
use crate::extent::ExtentList;
use crate::files::NewFile;
use crate::ids::{DeviceId, FreeEpoch, Generation, HostId, InodeId, SessionId};
use crate::inline::InlineRun;
use crate::lease::{Return, Rights};
use crate::lock::{Lock, LockFamily, LockOwner};
use crate::space::{BlockRange, NewAllocation};
use crate::sums::Sums;
use serde::{Deserialize, Serialize};

/// A client's operation. Errors are [`crate::Errno`]s as POSIX gives them for the system call of that
/// name, and ESTALE for an inode that is gone or a session that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Concerns the session: its life, its rights and its waits.
    Session(SessionCall),
    /// Reads what is stored.
    Read(ReadCall),
    /// Changes what is stored, exactly once: it needs a [`super::Slot`].
    Change(ChangeCall),
}

impl Call {
    /// Returns whether the call changes what is stored, and therefore needs a [`super::Slot`].
    pub fn changes(&self) -> bool {
        match self {
            Call::Session(_) | Call::Read(_) => false,
            Call::Change(_) => true,
        }
    }

    /// Returns what holds of the call beside what it does.
    pub fn traits(&self) -> CallTraits {
        match self {
            Call::Session(SessionCall::Sync(inode)) => {
                CallTraits { made_durable: Some(*inode), ..CallTraits::NONE }
            }
            Call::Read(ReadCall::ReadExtents { inode, .. }) => {
                CallTraits { extents_of: [Some(*inode), None], ..CallTraits::NONE }
            }
            Call::Session(_) | Call::Read(_) => CallTraits::NONE,
            Call::Change(call) => call.traits(),
        }
    }
}

/// What the service and its clients have to know of a call beside what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTraits {
    /// It may free blocks. Asking for space does not, and may have to wait until blocks that others freed
    /// have rested.
    pub may_free: bool,
    /// How it is refused while the store's disk is nearly full; calls that only give something back are
    /// carried out.
    pub when_full: Option<Errno>,
    /// The inodes whose extents it finds or changes.
    pub extents_of: [Option<InodeId>; 2],
    /// Its answer waits until the store is synced, and all that was committed to this inode is durable, if
    /// it names one.
    pub made_durable: Option<Option<InodeId>>,
}

impl CallTraits {
    /// Those of a call that changes nothing and waits for nothing.
    const NONE: CallTraits = CallTraits {
        may_free: false,
        when_full: None,
        extents_of: [None, None],
        made_durable: None,
    };
    /// Those of a change of names or attributes.
    const CHANGE: CallTraits =
        CallTraits { may_free: true, when_full: Some(Errno::ENOSPC), ..CallTraits::NONE };
}

impl ChangeCall {
    /// The one list of changes by what holds of them beside what they do.
    fn traits(&self) -> CallTraits {
        let about = |inode: &InodeId| [Some(*inode), None];
        let change = CallTraits::CHANGE;
        match self {
            ChangeCall::SetAttr { inode, changes } if changes.size.is_some() => {
                CallTraits { extents_of: about(inode), ..change }
            }
            ChangeCall::Fallocate { inode, .. } => {
                CallTraits { extents_of: about(inode), ..change }
            }
            ChangeCall::Commit { inode, durable, .. } => CallTraits {
                extents_of: about(inode),
                made_durable: durable.then_some(Some(*inode)),
                ..change
            },
            ChangeCall::Compact { inode, .. } => CallTraits { extents_of: about(inode), ..change },
            ChangeCall::CopyRange { source, destination, .. } => {
                CallTraits { extents_of: [Some(*source), Some(*destination)], ..change }
            }
            ChangeCall::SetAttr { .. }
            | ChangeCall::Create { .. }
            | ChangeCall::CreateFiles { .. }
            | ChangeCall::Link { .. }
            | ChangeCall::Unlink { .. }
            | ChangeCall::Rmdir { .. }
            | ChangeCall::Rename { .. }
            | ChangeCall::SetXattr { .. }
            | ChangeCall::RemoveXattr { .. } => change,
            ChangeCall::LeaseSpace { .. } => CallTraits { may_free: false, ..change },
            ChangeCall::ReturnSpace { .. } | ChangeCall::Unlock(_) => {
                CallTraits { when_full: None, ..change }
            }
            ChangeCall::SetLock { .. } => CallTraits { when_full: Some(Errno::ENOLCK), ..change },
        }
    }
}

/// Calls about a session. Each may be repeated without harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionCall {
    /// First call of a connection → [`Answer::Welcome`].
    Start {
        /// The node the client runs on; devices of the same node are near.
        node: String,
        /// The identifier by which its host connects to targets, new for each session.
        host: HostId,
        /// The session to go on with after a lost connection.
        resume: Option<SessionId>,
    },
    /// After a resumed [`SessionCall::Start`]: what the client holds; all other rights it has dropped. May
    /// come in several parts, the last with `done` → [`Answer::Done`].
    Reclaim {
        /// WRITE, SIZE, OPEN, SOLE and LOCKS it wants to keep.
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
    /// Makes all that was answered before this call durable (fsync of a clean file or a directory),
    /// and all that was committed to the inode, whoever wrote it → [`Answer::Done`], or EIO if some of
    /// its data was lost with a device's power.
    Sync(Option<InodeId>),
    /// Ends the wait of this owner for a lock on this inode → [`Answer::Done`].
    CancelLock {
        /// The inode.
        inode: InodeId,
        /// Its family.
        family: LockFamily,
        /// The owner.
        owner: LockOwner,
    },
    /// The locks that the session holds on an inode, in parts; the last part gives
    /// [`Rights::LOCKS`] back → [`Answer::Done`], or ESTALE if the session does not hold that right. They
    /// replace those that the service knew of.
    ReportLocks {
        /// The inode.
        inode: InodeId,
        /// Some of the locks.
        locks: Vec<Lock>,
        /// The first part.
        is_first: bool,
        /// No further part comes.
        is_last: bool,
        /// The session has the inode open, as the answer to a recall says.
        is_open: bool,
    },
}

/// Calls that read what is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadCall {
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
    /// One extended attribute → [`Answer::Bytes`], or ENODATA.
    GetXattr {
        /// The inode.
        inode: InodeId,
        /// The attribute's name.
        name: Name,
    },
    /// All names of extended attributes → [`Answer::Names`].
    ListXattr(InodeId),
    /// Extents that touch a range → [`Answer::Extents`].
    ReadExtents {
        /// The inode.
        inode: InodeId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// The first lock that conflicts with this one → [`Answer::Lock`].
    TestLock(Lock),
    /// Small files, at most [`crate::files::READ_FILES_MAX`] → [`Answer::Files`]. The first is the one that is
    /// wanted; the others are likely to be wanted soon.
    ReadFiles(Vec<InodeId>),
}

/// Calls that change what is stored. The service executes each of them once and keeps its answer in
/// the slot of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeCall {
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
        /// The checksums of all blocks of the allocations, in their order, or none.
        sums: Sums,
        /// The extents, in the order in which they overwrite each other.
        extents: ExtentList,
        /// Data that the metadata service is to keep, ascending and apart; then no extents.
        inline: Vec<InlineRun>,
        /// When the data was written.
        mtime: Option<Timestamp>,
        /// Clear suid, sgid and file capabilities, as a write by another than root does.
        kill_privileges: bool,
        /// Changes of attributes that have waited for this commit, also one of a late generation.
        attributes: Option<Deferred>,
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
    /// Replaces extents of a file by others with the same bytes → [`Answer::Attr`]; EAGAIN, without a
    /// change, unless the file has exactly the old ones between the first and the last of them.
    Compact {
        /// The inode.
        inode: InodeId,
        /// The truncate generation under which the old extents were read.
        generation: Generation,
        /// The extents whose bytes were read, ascending and apart.
        old: ExtentList,
        /// Allocations as of a commit. Their devices have flushed them.
        allocations: Vec<NewAllocation>,
        /// As of a commit.
        sums: Sums,
        /// Where the same bytes of the file lie now, ascending and apart.
        new: ExtentList,
    },
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
    /// Takes a lock → [`Answer::Done`] or [`Answer::Locks`]; EAGAIN if it conflicts and `wait` is false. With `wait` the
    /// answer comes when the lock is held, or EINTR after [`SessionCall::CancelLock`], or EDEADLK.
    SetLock {
        /// The lock.
        lock: Lock,
        /// Wait for it.
        wait: bool,
    },
    /// Releases a range, of all modes → [`Answer::Done`].
    Unlock(Lock),
    /// Makes whole small files, all of them or none → [`Answer::Made`], or EEXIST.
    CreateFiles {
        /// The directory.
        parent: InodeId,
        /// The files, 1 to [`crate::files::NEW_FILES_MAX`].
        files: Vec<NewFile>,
    },
}
