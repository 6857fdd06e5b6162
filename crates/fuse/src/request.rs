//! Requests in words: what the kernel asks the file system to do.
//!
//! Everything in a request is owned, so that a handler can answer later and from another task.
//! Names are small allocations; the data of a WRITE is the buffer that the transport read it into,
//! handed over without a copy.

mod decode;
mod extensions;
mod opcode_name;

use reactor::{Chunk, RegionSlice};

use crate::cancellation::Cancellation;
use crate::types::{FileHandle, LockOwner, Name, NodeId, PollHandle, Time, Unique};

pub(crate) use decode::{Decoder, Message, decode_write, first_argument_len};

/// One request that wants an answer.
#[derive(Debug)]
pub struct Request {
    /// The kernel's number for it.
    pub unique: Unique,
    /// The inode it is about (the parent, for operations on names).
    pub node: NodeId,
    /// The caller's user id, as the mount's user namespace sees it.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The caller's thread id; 0 for requests of the kernel itself.
    pub pid: u32,
    /// Whether an earlier process may have carried it out without answering, see
    /// [`Notifier::resend`](crate::Notifier::resend).
    pub is_resent: bool,
    /// What to do.
    pub operation: Operation,
    /// Completes when the caller was interrupted by a signal or the connection ended.
    pub cancellation: Cancellation,
}

/// One security context that a new inode shall get (`SECURITY_CTX`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityContext {
    /// The extended attribute's name, such as `security.selinux`.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

/// What a creation may carry beside its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions {
    /// Security contexts for the new inode.
    pub security_contexts: Vec<SecurityContext>,
    /// The caller's supplementary groups that matter: that of a set-group-id parent.
    pub groups: Vec<u32>,
}

/// The mode of a new inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// File type and permission bits (`S_IF*`, `07777`).
    pub mode: u32,
    /// The caller's umask; already applied to `mode` unless `DONT_MASK` was agreed.
    pub umask: u32,
    /// Security contexts and groups.
    pub extensions: Extensions,
}

/// A new value for a time of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the request is carried out.
    Now,
    /// This time.
    At(Time),
}

/// Which attributes of an inode shall change, and to what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The handle that it is done through (ftruncate, fchmod …).
    pub handle: Option<FileHandle>,
    /// Permission bits (and the unchanged file type).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<SetTime>,
    /// Time of last modification.
    pub mtime: Option<SetTime>,
    /// Time of last change, only with the write-back cache.
    pub ctime: Option<Time>,
    /// Who truncates, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// Drop suid, and sgid where group execution is allowed.
    pub kill_suid_sgid: bool,
}

impl SetAttributes {
    /// Whether the request names nothing to change. With `HANDLE_KILLPRIV_V2` the kernel sends such a
    /// request before a write, fallocate or copy that takes suid or sgid from a file, and for a chown
    /// without an owner and a group. It holds the inode's lock from this request to the write, and takes
    /// the answer's mode for its own: here is the only place where the kernel learns the new mode before
    /// the data changes.
    pub fn names_nothing(&self) -> bool {
        let Self { handle: _, mode, uid, gid, size, atime, mtime, ctime: _, .. } = self;
        let has_none = mode.is_none() && uid.is_none() && gid.is_none() && size.is_none();
        has_none && atime.is_none() && mtime.is_none() && !self.kill_suid_sgid
    }
}

/// A byte range lock, POSIX or flock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: FileHandle,
    /// Who locks.
    pub owner: LockOwner,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for "to the end".
    pub end: u64,
    /// What is asked for.
    pub kind: LockKind,
    /// The locking process.
    pub pid: u32,
    /// Whether this is a flock lock (else POSIX).
    pub is_flock: bool,
}

/// The kinds of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared (`F_RDLCK`, `LOCK_SH`).
    Read,
    /// Exclusive (`F_WRLCK`, `LOCK_EX`).
    Write,
    /// None (`F_UNLCK`, `LOCK_UN`).
    Unlock,
}

/// A READ.
#[derive(Debug)]
pub struct Read {
    /// The open file.
    pub handle: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted, at most the session's `max_read`. Fewer in the answer mean end of file.
    pub size: u32,
    /// The reader, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// The file's open flags (`O_*`).
    pub flags: u32,
    /// With the `io_uring` transport: where the answer has to lie in the end, `size` bytes. Data put
    /// here and answered as this slice, or as its front parts in order, is not copied again; any other
    /// data is. Never answer parts of it in another order. `None` with `/dev/fuse`, which sends
    /// chunks from wherever they are.
    pub destination: Option<RegionSlice>,
}

/// A WRITE.
#[derive(Debug)]
pub struct Write {
    /// The open file.
    pub handle: FileHandle,
    /// Where the first byte goes. Meaningless if `flags` has `O_APPEND` and others append too.
    pub offset: u64,
    /// The bytes, starting 4096-aligned in memory. From `/dev/fuse` this is a buffer of its own. With
    /// the `io_uring` transport it is a `Chunk::Region` of the ring entry's payload, into which the
    /// kernel puts the next request after the answer: the answer is held back until the chunk is
    /// dropped. `Chunk::into_shared` and `Chunk::into_buffer` make what may live longer, copying
    /// only where they must.
    pub data: Chunk,
    /// The writer, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// The file's open flags (`O_*`).
    pub flags: u32,
    /// Written back from the page cache; `handle` is some handle of the inode then.
    pub is_from_cache: bool,
    /// Drop suid, and sgid where group execution is allowed.
    pub kill_suid_sgid: bool,
}

/// A position and size in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDirectory {
    /// The open directory.
    pub handle: FileHandle,
    /// 0, or the offset of the last entry that the kernel has.
    pub offset: u64,
    /// Room for the answer, in bytes.
    pub size: u32,
}

/// A RELEASE: the last reference to an open file is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The open file.
    pub handle: FileHandle,
    /// The file's open flags (`O_*`).
    pub flags: u32,
    /// Whether to flush first.
    pub flush: bool,
    /// Drop this owner's flock locks.
    pub flock_unlock: Option<LockOwner>,
}

/// An IOCTL of the restricted kind (its number tells sizes and directions).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ioctl {
    /// The open file.
    pub handle: FileHandle,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether the caller is a 32-bit process.
    pub is_compat: bool,
    /// The command.
    pub command: u32,
    /// The argument as the caller gave it (a pointer in its own memory).
    pub argument: u64,
    /// Data in.
    pub input: Box<[u8]>,
    /// Room for data out, in bytes.
    pub output_size: u32,
}

/// Bytes to be shared or copied from one file into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The source's open file; its inode is the request's node.
    pub handle_in: FileHandle,
    /// First byte of the source.
    pub offset_in: u64,
    /// The destination's inode.
    pub node_out: NodeId,
    /// The destination's open file.
    pub handle_out: FileHandle,
    /// First byte of the destination.
    pub offset_out: u64,
    /// Bytes to copy.
    pub length: u64,
    /// Flags of `copy_file_range(2)`; none are defined.
    pub flags: u64,
}

/// What the kernel wants to know with STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatxRequest {
    /// The handle, for fstat.
    pub handle: Option<FileHandle>,
    /// `AT_STATX_*`
    pub flags: u32,
    /// `STATX_*`: what is wanted.
    pub mask: u32,
}

/// The operations of the protocol that a file system answers.
///
/// INIT, FORGET, BATCH\_FORGET, INTERRUPT and DESTROY are handled by the session. Answer `ENOSYS` to
/// what is not supported: for many operations the kernel then asks no more.
#[derive(Debug)]
pub enum Operation {
    /// Find a name in a directory; answer an entry. The entry's lookup count rises by one.
    Lookup {
        /// The name.
        name: Name,
    },
    /// Attributes of an inode.
    GetAttributes {
        /// The handle, for fstat.
        handle: Option<FileHandle>,
    },
    /// Attributes of an inode, in statx form (birth time).
    Statx(StatxRequest),
    /// Change attributes; answer the new ones.
    SetAttributes(SetAttributes),
    /// The target of a symbolic link; answer bytes.
    ReadLink,
    /// Make a symbolic link; answer an entry.
    Symlink {
        /// Its name.
        name: Name,
        /// What it points to.
        target: Box<[u8]>,
        /// Security contexts and groups.
        extensions: Extensions,
    },
    /// Make a file, device, socket or fifo; answer an entry.
    MakeNode {
        /// Its name.
        name: Name,
        /// Mode.
        creation: Creation,
        /// Device number, for devices.
        rdev: u32,
    },
    /// Make a directory; answer an entry.
    MakeDirectory {
        /// Its name.
        name: Name,
        /// Mode (without the file type).
        creation: Creation,
    },
    /// Remove a name that is not a directory's.
    Unlink {
        /// The name.
        name: Name,
    },
    /// Remove an empty directory.
    RemoveDirectory {
        /// The name.
        name: Name,
    },
    /// Move a name.
    Rename {
        /// The name.
        name: Name,
        /// The directory it goes to.
        new_parent: NodeId,
        /// Its name there.
        new_name: Name,
        /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
        flags: u32,
    },
    /// Give an inode a further name in the request's node; answer an entry.
    Link {
        /// The inode.
        inode: NodeId,
        /// The new name.
        new_name: Name,
    },
    /// Open a file; answer a handle.
    Open {
        /// `O_*`
        flags: u32,
        /// Drop suid and sgid (with `O_TRUNC`).
        kill_suid_sgid: bool,
    },
    /// Make a file and open it; answer an entry and a handle.
    Create {
        /// Its name.
        name: Name,
        /// Mode.
        creation: Creation,
        /// `O_*`
        flags: u32,
        /// Drop suid and sgid (with `O_TRUNC`).
        kill_suid_sgid: bool,
    },
    /// Make a file without a name in this directory and open it; answer an entry and a handle.
    TemporaryFile {
        /// Mode.
        creation: Creation,
        /// `O_*`
        flags: u32,
    },
    /// Read bytes; answer data.
    Read(Read),
    /// Write bytes; answer their number.
    Write(Write),
    /// One of perhaps several handles was closed; errors are seen by close(2).
    Flush {
        /// The open file.
        handle: FileHandle,
        /// Drop this owner's POSIX locks.
        lock_owner: LockOwner,
    },
    /// The last reference to an open file is gone; the answer is not waited for.
    Release(Release),
    /// Make a file durable.
    Fsync {
        /// The open file.
        handle: FileHandle,
        /// Data only, as fdatasync(2).
        data_only: bool,
    },
    /// Open a directory; answer a handle.
    OpenDirectory {
        /// `O_*`
        flags: u32,
    },
    /// List a directory; answer a directory buffer.
    ReadDirectory(ReadDirectory),
    /// List a directory with entries; answer a directory buffer. Each entry but "." and ".." raises
    /// its lookup count by one.
    ReadDirectoryPlus(ReadDirectory),
    /// The last reference to an open directory is gone.
    ReleaseDirectory(Release),
    /// Make a directory durable.
    FsyncDirectory {
        /// The open directory.
        handle: FileHandle,
        /// Data only.
        data_only: bool,
    },
    /// Sizes and free space.
    StatFs,
    /// Set an extended attribute.
    SetXattr {
        /// Its name.
        name: Box<[u8]>,
        /// Its value.
        value: Box<[u8]>,
        /// `XATTR_CREATE`, `XATTR_REPLACE`
        flags: u32,
        /// Drop sgid while setting an access control list.
        acl_kill_sgid: bool,
    },
    /// Read an extended attribute; answer bytes, or its size if `size` is 0, or `ERANGE`.
    GetXattr {
        /// Its name.
        name: Box<[u8]>,
        /// Room for the answer, in bytes.
        size: u32,
    },
    /// Names of the extended attributes, each with a NUL; answered like `GetXattr`.
    ListXattr {
        /// Room for the answer, in bytes.
        size: u32,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// Its name.
        name: Box<[u8]>,
    },
    /// Check access (not sent with `default_permissions`).
    Access {
        /// `R_OK`, `W_OK`, `X_OK`
        mask: u32,
    },
    /// Which lock stands in the way; answer a lock.
    GetLock(LockRequest),
    /// Take or drop a lock.
    SetLock {
        /// The lock.
        lock: LockRequest,
        /// Wait until it can be had (SETLKW); else answer `EAGAIN`.
        wait: bool,
    },
    /// Allocate, punch or zero a range.
    Fallocate {
        /// The open file.
        handle: FileHandle,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// `FALLOC_FL_*`
        mode: u32,
    },
    /// Find data or a hole; answer an offset.
    Lseek {
        /// The open file.
        handle: FileHandle,
        /// Where to start.
        offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`
        whence: u32,
    },
    /// Copy within the file system; answer the number of bytes (with `Copied`).
    CopyFileRange(CopyFileRange),
    /// Device control; answer an ioctl result.
    Ioctl(Ioctl),
    /// Which events are there; answer them.
    Poll {
        /// The open file.
        handle: FileHandle,
        /// Where to send the notification when one comes, if wanted.
        notify: Option<PollHandle>,
        /// `POLL*` of interest.
        events: u32,
    },
    /// Make everything durable (sent for virtio-fs and block-backed mounts only).
    SyncFs,
    /// Map a block of the file to one of the device (block-backed mounts only).
    BlockMap {
        /// The file's block.
        block: u64,
        /// Its size in bytes.
        block_size: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only a request that sets nothing announces a write; one that says what it takes does not.
    #[test]
    fn an_announcement_sets_nothing() {
        assert!(SetAttributes::default().names_nothing());
        let handle = Some(FileHandle(1));
        assert!(SetAttributes { handle, ..SetAttributes::default() }.names_nothing());
        let now = Some(SetTime::Now);
        for other in [
            SetAttributes { mode: Some(0o644), ..SetAttributes::default() },
            SetAttributes { uid: Some(0), ..SetAttributes::default() },
            SetAttributes { gid: Some(0), ..SetAttributes::default() },
            SetAttributes { size: Some(0), ..SetAttributes::default() },
            SetAttributes { atime: now, ..SetAttributes::default() },
            SetAttributes { mtime: now, ..SetAttributes::default() },
            SetAttributes { kill_suid_sgid: true, ..SetAttributes::default() },
        ] {
            assert!(!other.names_nothing(), "{other:?}");
        }
    }
}
