//! The types of requests: the operations that the kernel asks the file system to perform.
//!
//! A request owns all its data, so a handler can answer later and from another task. Names are
//! small allocations. The data of a WRITE is the buffer that the transport read it into, without a
//! copy.

mod arguments;
mod decode;
mod extensions;
mod opcode_name;

use crate::cancellation::Cancellation;
use crate::types::{FileHandle, LockOwner, Name, NodeId, PollHandle, Unique};

pub use arguments::{
    CopyFileRange, Creation, Extensions, Ioctl, LockKind, LockRequest, Read, ReadDirectory,
    Release, SecurityContext, SetAttributes, SetTime, StatxRequest, Write,
};
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
