//! The types of requests: the operations that the kernel asks the file system to perform.
//!
//! A request owns all its data, so a handler can answer later and from another task. Names are
//! small allocations. The data of a WRITE is the buffer that the transport read it into, without a
//! copy.

mod decode;
mod extensions;
mod opcode_name;

use reactor::{Chunk, RegionSlice};

use crate::cancellation::Cancellation;
use crate::types::{FileHandle, LockOwner, Name, NodeId, PollHandle, Time, Unique};

pub(crate) use decode::{Decoder, Message, decode_write, first_argument_len};

/// A request that needs an answer.
#[derive(Debug)]
pub struct Request {
    /// The kernel's number of the request.
    pub unique: Unique,
    /// The inode of the operation (the parent, for operations on names).
    pub node: NodeId,
    /// The caller's user id, as the mount's user namespace sees it.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The caller's thread id; 0 for requests of the kernel itself.
    pub pid: u32,
    /// Whether an earlier process may have carried out the request without answering, see
    /// [`Notifier::resend`](crate::Notifier::resend).
    pub is_resent: bool,
    /// The operation.
    pub operation: Operation,
    /// Completes when the caller was interrupted by a signal or the connection ended.
    pub cancellation: Cancellation,
}

/// A security context for a new inode (`SECURITY_CTX`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityContext {
    /// The extended attribute's name, such as `security.selinux`.
    pub name: Box<[u8]>,
    /// Its value.
    pub value: Box<[u8]>,
}

/// Optional data of a creation beside its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions {
    /// Security contexts for the new inode.
    pub security_contexts: Vec<SecurityContext>,
    /// The caller's relevant supplementary groups: that of a set-group-id parent.
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

/// The attributes of an inode that change, with their new values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The open file through which the change is made (ftruncate, fchmod …).
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
    /// The owner that truncates, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// Drop suid, and sgid where group execution is allowed.
    pub kill_suid_sgid: bool,
}

impl SetAttributes {
    /// Returns whether the request changes nothing. With `HANDLE_KILLPRIV_V2` the kernel sends such
    /// a request before a write, fallocate or copy that removes suid or sgid from a file, and for a
    /// chown without an owner and a group. The kernel holds the inode's lock from this request to
    /// the write, and adopts the mode in the answer. Only in this way does it learn the new mode
    /// before the data changes.
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
    /// The owner of the lock.
    pub owner: LockOwner,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for "to the end".
    pub end: u64,
    /// The kind of lock that is requested.
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
    /// Number of bytes to read, at most the session's `max_read`. A shorter answer means end of
    /// file.
    pub size: u32,
    /// The reader, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// The file's open flags (`O_*`).
    pub flags: u32,
    /// With the `io_uring` transport: the final place of the answer, `size` bytes. Data that the
    /// handler puts here and answers as this slice, or as its front parts in order, is not copied
    /// again; any other data is. Never answer parts of it in another order. `None` with
    /// `/dev/fuse`, which sends chunks from where they lie.
    pub destination: Option<RegionSlice>,
}

/// A WRITE.
#[derive(Debug)]
pub struct Write {
    /// The open file.
    pub handle: FileHandle,
    /// The offset of the first byte. Meaningless if `flags` has `O_APPEND` and others append
    /// too.
    pub offset: u64,
    /// The bytes, 4096-aligned in memory. From `/dev/fuse` this is a buffer of its own. With the
    /// `io_uring` transport it is a `Chunk::Region` of the ring entry's payload. The kernel puts
    /// the next request there after the answer, so the answer is held back until the chunk is
    /// dropped. `Chunk::into_shared` and `Chunk::into_buffer` make data that may live longer; they
    /// copy only where they must.
    pub data: Chunk,
    /// The writer, for mandatory locks.
    pub lock_owner: Option<LockOwner>,
    /// The file's open flags (`O_*`).
    pub flags: u32,
    /// Whether the data is written back from the page cache; then `handle` is any handle of the
    /// inode.
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
    /// The owner whose flock locks have to be released.
    pub flock_unlock: Option<LockOwner>,
}

/// An IOCTL of the restricted kind (its number contains sizes and directions).
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

/// A range of bytes to share or copy from one file into another.
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

/// The arguments of a STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatxRequest {
    /// The handle, for fstat.
    pub handle: Option<FileHandle>,
    /// `AT_STATX_*`
    pub flags: u32,
    /// `STATX_*`: the requested fields.
    pub mask: u32,
}

/// The operations of the protocol that a file system answers.
///
/// The session handles INIT, FORGET, BATCH\_FORGET, INTERRUPT and DESTROY. Answer `ENOSYS` to
/// unsupported operations: for many of them the kernel then sends no more requests.
#[derive(Debug)]
pub enum Operation {
    /// Find a name in a directory; answer an entry. The entry's lookup count rises by one.
    Lookup {
        /// The name.
        name: Name,
    },
    /// Get attributes of an inode; answer them.
    GetAttributes {
        /// The handle, for fstat.
        handle: Option<FileHandle>,
    },
    /// Get attributes of an inode in statx form (birth time); answer them.
    Statx(StatxRequest),
    /// Change attributes; answer the new ones.
    SetAttributes(SetAttributes),
    /// Read the target of a symbolic link; answer bytes.
    ReadLink,
    /// Make a symbolic link; answer an entry.
    Symlink {
        /// Its name.
        name: Name,
        /// Its target.
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
    /// Remove a name of anything but a directory.
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
        /// The directory that it moves to.
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
    /// A handle, perhaps one of several, was closed; close(2) returns the error of the answer.
    Flush {
        /// The open file.
        handle: FileHandle,
        /// The owner whose POSIX locks have to be released.
        lock_owner: LockOwner,
    },
    /// The last reference to an open file is gone; the kernel does not wait for the answer.
    Release(Release),
    /// Make a file durable.
    Fsync {
        /// The open file.
        handle: FileHandle,
        /// Only the data, as fdatasync(2).
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
        /// Only the data.
        data_only: bool,
    },
    /// Get sizes and free space; answer statistics.
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
    /// List the names of the extended attributes, each with a NUL; answered like `GetXattr`.
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
    /// Find a conflicting lock; answer a lock.
    GetLock(LockRequest),
    /// Take or release a lock.
    SetLock {
        /// The lock.
        lock: LockRequest,
        /// Whether to wait until it is free (SETLKW); otherwise answer `EAGAIN`.
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
    /// Get the events that are ready; answer them.
    Poll {
        /// The open file.
        handle: FileHandle,
        /// The handle for a notification when an event comes, if the caller wants one.
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

    /// Goal: only a request that sets nothing announces a write.
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
