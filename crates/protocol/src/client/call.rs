//! The calls of a client, grouped by the service's duties for each kind.
//!
//! The kind of a call is its type, so there are no separate lists of calls that must agree. A new
//! call has a kind, and does not compile before each `match` on that kind has decided about it.

#[cfg(doc)]
use super::Answer;
use super::{Creation, FallocateMode, Name, OpenTold, RenameMode, XattrMode};
use crate::attr::{AttrChanges, Deferred, Timestamp};
use crate::errno::Errno;
use crate::extent::ExtentList;
use crate::files::NewFile;
use crate::ids::{DeviceId, FreeEpoch, Generation, HostId, InodeId, LeaseStamp, SessionId};
use crate::inline::InlineRun;
use crate::lease::{Return, Rights};
use crate::lock::{Lock, LockFamily, LockOwner};
use crate::space::{BlockRange, NewAllocation};
use crate::sums::Sums;
use serde::{Deserialize, Serialize};

/// A client's operation. Errors are [`crate::Errno`]s, as POSIX has them for the system call of
/// that name, and ESTALE for an inode that is gone or a session that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Concerns the session: its life, its rights and its waits.
    Session(SessionCall),
    /// Reads stored data.
    Read(ReadCall),
    /// Changes stored data, exactly once: it needs a [`super::Slot`].
    Change(ChangeCall),
}

impl Call {
    /// Returns whether the call changes stored data, and therefore needs a [`super::Slot`].
    pub fn changes(&self) -> bool {
        match self {
            Call::Session(_) | Call::Read(_) => false,
            Call::Change(_) => true,
        }
    }

    /// Returns the properties of the call that service and clients need.
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

/// Properties of a call that the service and its clients need besides its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTraits {
    /// It may free blocks. A request for space does not, and may have to wait until blocks that
    /// other calls freed have rested. Nor does a request for a lock.
    pub may_free: bool,
    /// The errno that refuses it while the store's disk is nearly full; calls that only give
    /// something back are executed.
    pub when_full: Option<Errno>,
    /// The inodes whose extents it reads or changes.
    pub extents_of: [Option<InodeId>; 2],
    /// Its answer waits until the store is synced, and, if it names an inode, until all commits to
    /// the inode are durable.
    pub made_durable: Option<Option<InodeId>>,
}

impl CallTraits {
    /// The properties of a call that changes nothing and waits for nothing.
    const NONE: CallTraits = CallTraits {
        may_free: false,
        when_full: None,
        extents_of: [None, None],
        made_durable: None,
    };
    /// The properties of a change of names or attributes.
    const CHANGE: CallTraits =
        CallTraits { may_free: true, when_full: Some(Errno::ENOSPC), ..CallTraits::NONE };
}

impl ChangeCall {
    /// Returns the properties of each change; this is the one list of them.
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
            ChangeCall::ReturnSpace { .. } => CallTraits { when_full: None, ..change },
            ChangeCall::Unlock(_) => CallTraits { may_free: false, when_full: None, ..change },
            // It may wait for hours.
            ChangeCall::SetLock { .. } => {
                CallTraits { may_free: false, when_full: Some(Errno::ENOLCK), ..change }
            }
        }
    }
}

/// Calls about a session. Each may be repeated without harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionCall {
    /// First call of a connection → [`Answer::Welcome`].
    Start {
        /// The node that runs the client; devices of the same node are near.
        node: String,
        /// The identifier with which its host connects to targets, new for each session.
        host: HostId,
        /// The session to resume after a lost connection.
        resume: Option<SessionId>,
    },
    /// After a resumed [`SessionCall::Start`]: the rights that the client holds; it has dropped all
    /// others. May come in several parts, the last with `done` → [`Answer::Done`].
    Reclaim {
        /// The WRITE, SIZE, OPEN, SOLE and LOCKS rights that it wants to keep.
        held: Vec<(InodeId, Rights)>,
        /// No further part comes.
        done: bool,
    },
    /// Keeps the session alive → [`Answer::Alive`].
    Heartbeat {
        /// All reads that began under extents from before this epoch have ended.
        ended_through: FreeEpoch,
        /// The recalls whose answers wait for I/O or for calls of this client, by their stamps
        /// ([`crate::lease::Recall::stamp`]): their deadlines count from now.
        working_on: Vec<LeaseStamp>,
    },
    /// The only kind of call on a connection of its own: the session's process lives, even if its
    /// serving thread waits → [`Answer::Alive`]. ESTALE if the session has ended. EAGAIN if the
    /// service cannot reach it because it has no other connection: then this call keeps nothing
    /// alive.
    Pulse {
        /// The session.
        session: SessionId,
        /// Its host identifier.
        host: HostId,
    },
    /// Ends the session, its locks and leases → [`Answer::Done`] at once. Other sessions can get
    /// what it held once it is fenced.
    End,
    /// The pool's devices → [`Answer::Devices`].
    Devices,
    /// Requests admission at a device's target → [`Answer::Admitted`].
    Admit(DeviceId),
    /// Acquires rights over an inode → [`Answer::Attr`] with the grant; waits for recalls from
    /// other sessions. A client acquires WRITE when it opens a regular file for writing, and SIZE
    /// before an append.
    Acquire {
        /// The inode.
        inode: InodeId,
        /// The rights.
        rights: Rights,
    },
    /// Gives rights back without a recall → [`Answer::Done`].
    GiveBack(Vec<Return>),
    /// Makes everything that was answered before this call durable (fsync of a clean file or a
    /// directory), and all commits to the inode, by any session → [`Answer::Done`], or EIO if some
    /// of its data was lost with a device's power.
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
    /// [`Rights::LOCKS`] back → [`Answer::Done`], or ESTALE if the session does not hold that
    /// right. They replace the locks that the service has.
    ReportLocks {
        /// The inode.
        inode: InodeId,
        /// Some of the locks.
        locks: Vec<Lock>,
        /// The first part.
        is_first: bool,
        /// No further part comes.
        is_last: bool,
        /// The session has the inode open, as in the answer to a recall.
        is_open: bool,
    },
}

/// Calls that read stored data.
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
        /// Continue after this entry.
        after: u64,
        /// Most entries of the answer.
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
    /// Small files, at most [`crate::files::READ_FILES_MAX`] → [`Answer::Files`]. The caller needs
    /// the first one now, and probably the others soon.
    ReadFiles(Vec<InodeId>),
}

/// Calls that change stored data. The service executes each of them once and stores its answer in
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
    /// Creates a new inode with a name → [`Answer::Entry`], or EEXIST.
    Create {
        /// The directory.
        parent: InodeId,
        /// The name.
        name: Name,
        /// Its kind.
        creation: Creation,
        /// Permission bits, umask already taken off.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group (a directory with sgid passes on its own).
        gid: u32,
        /// Rights to grant at once (READ | WRITE | OPEN for a file that is created open).
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
        /// The opens of its own that the caller has reported.
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
        /// The handling of an existing object under the new name.
        mode: RenameMode,
        /// The opens of its own, of the replaced inode, that the caller has reported.
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
    /// Adds written data to a file → [`Answer::Attr`]. The data must have been acknowledged by its
    /// devices. With `durable`, EIO if earlier data of the file was lost with a device's power.
    Commit {
        /// The inode.
        inode: InodeId,
        /// The truncate generation of the write; a commit with an older one is dropped.
        generation: Generation,
        /// New allocations. They must lie in space that this session leases, in blocks that no
        /// commit has named.
        allocations: Vec<NewAllocation>,
        /// The checksums of all blocks of the allocations, in their order, or none.
        sums: Sums,
        /// The extents, in the order in which they overwrite each other.
        extents: ExtentList,
        /// Data for the metadata store, ascending and apart; then there are no extents.
        inline: Vec<InlineRun>,
        /// The time of the write.
        mtime: Option<Timestamp>,
        /// Clear suid, sgid and file capabilities, as a write by a user other than root does.
        kill_privileges: bool,
        /// Changes of attributes that have waited for this commit, even if its generation is late.
        attributes: Option<Deferred>,
        /// The commit survives a loss of power when it is answered (fsync).
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
        /// The operation.
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
    /// Replaces extents of a file by others with the same bytes → [`Answer::Attr`]. EAGAIN, without
    /// a change, unless the file has exactly the old extents between the first and the last of
    /// them.
    Compact {
        /// The inode.
        inode: InodeId,
        /// The truncate generation under which the client read the old extents.
        generation: Generation,
        /// The extents that the client read, ascending and apart.
        old: ExtentList,
        /// New allocations, as in a commit. Their devices have flushed them.
        allocations: Vec<NewAllocation>,
        /// As in a commit.
        sums: Sums,
        /// The new extents with the same bytes of the file, ascending and apart.
        new: ExtentList,
    },
    /// Leases space → [`Answer::Space`], ENOSPC when nothing is free after recalls.
    LeaseSpace {
        /// The device.
        device: DeviceId,
        /// Requested bytes; the grant may have more or fewer.
        wanted_bytes: u64,
    },
    /// Gives back leased blocks that no commit has named → [`Answer::Done`]. All writes to them
    /// have ended.
    ReturnSpace {
        /// The device.
        device: DeviceId,
        /// The blocks.
        free: Vec<BlockRange>,
    },
    /// Takes a lock → [`Answer::Done`] or [`Answer::Locks`]; EAGAIN if it conflicts and `wait` is
    /// false. With `wait` the answer comes when the lock is held, or EINTR after
    /// [`SessionCall::CancelLock`], or EDEADLK.
    SetLock {
        /// The lock.
        lock: Lock,
        /// Wait for it.
        wait: bool,
    },
    /// Releases a range, of all modes → [`Answer::Done`].
    Unlock(Lock),
    /// Creates whole small files, all of them or none → [`Answer::Made`], or EEXIST.
    CreateFiles {
        /// The directory.
        parent: InodeId,
        /// The files, 1 to [`crate::files::NEW_FILES_MAX`].
        files: Vec<NewFile>,
    },
}
