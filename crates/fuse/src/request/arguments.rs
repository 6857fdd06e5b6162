//! Arguments of operations that need more than one field.

use crate::types::{FileHandle, LockOwner, NodeId, Time};
use reactor::{Chunk, RegionSlice};

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
