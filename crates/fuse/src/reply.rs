//! The types of answers, and their encoding.
//!
//! An answer is a header, a fixed structure and perhaps payload. Payload stays where it is: the
//! device transport sends the chunks with one vectored write, and the `io_uring` transport copies
//! only what does not lie in the ring entry already.

mod directory;
mod encode;

use std::time::Duration;

use reactor::Chunk;
use smallvec::SmallVec;

use crate::passthrough::BackingId;
use crate::request::LockKind;
use crate::types::{Errno, FileHandle, NodeId, OpenFlags, Time};

pub use directory::{DirectoryBuffer, DirectoryEntry, FileType};
pub(crate) use encode::{Encoded, encode, encode_error};

/// Payload of an answer, in order; a single chunk takes no allocation.
pub type Chunks = SmallVec<[Chunk; 1]>;

/// An inode's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Inode number as stat(2) shows it.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last modification.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// File type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number (in the kernel's 32-bit form), for devices.
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
}

/// A directory entry's inode, for the kernel to cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The inode; `NodeId(0)` makes a negative entry that is cached for `entry_valid`.
    pub node: NodeId,
    /// Unique together with `node` for the lifetime of the file system.
    pub generation: u64,
    /// How long the kernel may use the name without asking.
    pub entry_valid: Duration,
    /// How long the kernel may use the attributes without asking.
    pub attributes_valid: Duration,
    /// The attributes.
    pub attributes: Attributes,
}

/// Attributes in statx form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statx {
    /// The common attributes; `rdev` is split for the answer.
    pub attributes: Attributes,
    /// Birth time, if known.
    pub btime: Option<Time>,
    /// `STATX_ATTR_*` that are set.
    pub flags: u64,
    /// `STATX_ATTR_*` that are meaningful.
    pub flags_mask: u64,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opened {
    /// The number that comes back with each operation on this open file.
    pub handle: FileHandle,
    /// How the kernel treats it.
    pub flags: OpenFlags,
    /// With `OpenFlags::PASSTHROUGH`: the file that reads and writes go to.
    pub backing: Option<BackingId>,
}

/// Sizes and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystemStatistics {
    /// Size, in fragments.
    pub blocks: u64,
    /// Free, in fragments.
    pub blocks_free: u64,
    /// Free for users without privilege, in fragments.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Inodes free.
    pub files_free: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Fragment size in bytes: the unit of `blocks`.
    pub fragment_size: u32,
    /// Longest name in bytes.
    pub name_length_max: u32,
}

/// A conflicting lock, or `LockKind::Unlock` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// Kind.
    pub kind: LockKind,
    /// The process that holds it.
    pub pid: u32,
}

/// An answer.
#[derive(Debug)]
pub enum Response {
    /// The request failed.
    Error(Errno),
    /// The request succeeded; there is no result.
    Done,
    /// Answer to lookup, link and the making of inodes.
    Entry(Entry),
    /// Answer to get and set attributes.
    Attributes {
        /// The attributes.
        attributes: Attributes,
        /// How long the kernel may use them without asking.
        valid: Duration,
    },
    /// Answer to statx.
    Statx {
        /// The attributes.
        statx: Statx,
        /// How long the kernel may use them without asking.
        valid: Duration,
    },
    /// Answer to open and opendir.
    Opened(Opened),
    /// Answer to create and tmpfile.
    Created(Entry, Opened),
    /// Answer to read, readlink, getxattr and listxattr: bytes.
    Data(Chunks),
    /// Answer to write: the number of bytes written.
    Written(u32),
    /// Answer to a copy: the number of bytes copied.
    Copied(u64),
    /// Answer to readdir and readdirplus.
    Directory(DirectoryBuffer),
    /// Answer to getxattr and listxattr with size 0: the number of bytes.
    XattrSize(u32),
    /// Answer to statfs.
    Statistics(FileSystemStatistics),
    /// Answer to getlk.
    Lock(Lock),
    /// Answer to lseek.
    Offset(u64),
    /// Answer to poll: `POLL*`.
    Events(u32),
    /// Answer to ioctl.
    Ioctl {
        /// The return value of ioctl(2).
        result: i32,
        /// Data out.
        output: Chunks,
    },
    /// Answer to bmap: the device's block.
    Block(u64),
}

impl Response {
    /// Returns an answer with a copy of `bytes`, for small data that is not in a buffer already.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Data(if bytes.is_empty() {
            Chunks::new()
        } else {
            SmallVec::from_buf([Chunk::copy_from(bytes)])
        })
    }

    /// Returns an answer with one chunk of data.
    pub fn chunk(chunk: impl Into<Chunk>) -> Self {
        Self::Data(SmallVec::from_buf([chunk.into()]))
    }

    /// Returns an extended attribute's value (or list of names) as the answer to a request with
    /// room for `size` bytes: only the size if that is 0, `ERANGE` if it is too small.
    pub fn xattr(value: &[u8], size: u32) -> Self {
        match size {
            0 => Self::XattrSize(value.len() as u32),
            size if value.len() > size as usize => Self::Error(Errno::RANGE),
            _ => Self::bytes(value),
        }
    }

    /// Returns the bytes of file data, or of a value, that the answer carries or confirms.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Data(chunks) => chunks.iter().map(|chunk| chunk.len() as u64).sum(),
            Self::Written(bytes) => u64::from(*bytes),
            Self::Copied(bytes) => *bytes,
            _ => 0,
        }
    }
}

impl From<Errno> for Response {
    fn from(errno: Errno) -> Self {
        Self::Error(errno)
    }
}

impl From<Result<Response, Errno>> for Response {
    fn from(result: Result<Response, Errno>) -> Self {
        result.unwrap_or_else(Self::Error)
    }
}
