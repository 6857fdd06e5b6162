//! The FUSE protocol and its transports; no policy.
#![allow(unsafe_code, reason = "talks to the kernel; see the SAFETY notes")]

mod abi;
mod cancellation;
mod error;
mod passthrough;
mod reply;
mod request;
mod types;

pub use cancellation::Cancellation;
pub use error::{DecodeError, FuseError};
pub use passthrough::BackingId;
pub use reply::{
    Attributes, Chunks, DirectoryBuffer, DirectoryEntry, Entry, FileSystemStatistics, FileType,
    Lock, Opened, Response, Statx,
};
pub use request::{
    CopyFileRange, Creation, Extensions, Ioctl, LockKind, LockRequest, Operation, Read,
    ReadDirectory, Release, Request, SecurityContext, SetAttributes, SetTime, StatxRequest, Write,
};
pub use types::{
    Capabilities, Errno, FileHandle, LockOwner, Name, NodeId, OpenFlags, PollHandle, Time, Unique,
};
