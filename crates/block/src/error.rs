//! Errors of devices.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable.
    Flush,
    /// Discard.
    Discard,
    /// Write zeros.
    WriteZeroes,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write zeroes",
        })
    }
}

/// The reason why a command or the opening of a device failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Offset or length is not a multiple of the block size.
    #[error("{access} of {len} bytes at {offset} is not aligned to blocks of {block_size} bytes")]
    Unaligned {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The device's block size in bytes.
        block_size: u32,
    },
    /// The range reaches past the device's end.
    #[error("{access} of {len} bytes at {offset} reaches past the device's end at {size}")]
    OutOfRange {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The device's size in bytes.
        size: u64,
    },
    /// The device returned an error.
    #[error("{access} of {len} bytes at {offset} failed: {source}")]
    Io {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The device transferred fewer bytes than requested, e.g. because its file was truncated.
    #[error("{access} of {len} bytes at {offset} ended after {done} bytes")]
    Short {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Number of bytes transferred.
        done: u64,
    },
    /// Another program uses the device.
    #[error("{path} is in use: {source}; stop that process or name another file")]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process that holds it, if known.
        source: Arc<io::Error>,
    },
    /// There is too little memory for a memory device.
    #[error(
        "{size} bytes of memory are asked for, and {limit} leaves {room} to take: ask for less, \
         raise the limit, or let it be taken as it is written (lazy)"
    )]
    MemoryLimit {
        /// Bytes of the device.
        size: u64,
        /// Bytes that are available.
        room: u64,
        /// The limit.
        limit: String,
    },
    /// The device could not be opened or created.
    #[error("cannot {action} {path}: {source}")]
    Open {
        /// The failed action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A thin device has no space left for the write.
    #[error("{access} of {len} bytes at {offset} failed: no space is left in the pool")]
    NoSpace {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The device is read-only.
    #[error("{access} of {len} bytes at {offset} failed: the device is read-only")]
    ReadOnly {
        /// The operation.
        access: Access,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The device does not have this operation.
    #[error("{what}, {len} bytes at {offset}, is not possible on this device")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A file of marks of uncorrectable blocks cannot be used.
    #[error("cannot use {path} for the marks of uncorrectable blocks: {fault}")]
    Marks {
        /// The file.
        path: PathBuf,
        /// The reason, and what to do.
        fault: String,
    },
    /// A number of the device's geometry is invalid.
    #[error("{what}: {value} {expected}")]
    Geometry {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Its condition.
        expected: &'static str,
    },
}

impl Error {
    /// Returns the errno that a file system call reports for it.
    pub fn to_errno(&self) -> i32 {
        match self {
            Self::Unaligned { .. } | Self::Geometry { .. } => libc::EINVAL,
            Self::OutOfRange { .. } => libc::ENXIO,
            Self::Unsupported { .. } => libc::EOPNOTSUPP,
            Self::Short { .. } | Self::Marks { .. } => libc::EIO,
            Self::Locked { .. } => libc::EBUSY,
            Self::MemoryLimit { .. } => libc::ENOMEM,
            Self::NoSpace { .. } => libc::ENOSPC,
            Self::ReadOnly { .. } => libc::EROFS,
            Self::Io { source, .. } | Self::Open { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }

    pub(crate) fn io(access: Access, offset: u64, len: u64, source: io::Error) -> Self {
        Self::Io { access, offset, len, source: Arc::new(source) }
    }
}
