//! The FUSE protocol and its transports; no policy.
//!
//! Kernel interface 7.45, negotiated down to 7.31. A [`Session`] mounts and serves; a
//! [`FileSystem`] answers [`Request`]s with [`Response`]s, asynchronously and in any order, on the
//! `reactor` runtime of one thread. Payloads are `reactor` chunks: the data of a WRITE lies aligned
//! in a buffer of its own as soon as it leaves the kernel, and the data of a READ is sent from
//! where it lies.
//!
//! Two transports carry the same requests: `/dev/fuse`, and FUSE over `io_uring` where the kernel
//! has it enabled, which doubles the rate of small synchronous operations.
#![allow(unsafe_code, reason = "talks to the kernel; see the SAFETY notes")]

mod abi;
mod cancellation;
mod error;
mod ioctl;
mod mount;
mod notify;
mod passthrough;
mod reply;
mod request;
mod session;
mod transport;
mod types;

pub use cancellation::{Cancellation, Registry};
pub use error::{DecodeError, FuseError};
pub use ioctl::{read_ioctl, send_ioctl};
pub use mount::{
    MountOptions, Mounter, Unmounter, has_mounts_below, mount_device, serve_mounter, unmount_stale,
};
pub use notify::Notifier;
pub use passthrough::{BackingId, Backings};
pub use reply::{
    Attributes, Chunks, DirectoryBuffer, DirectoryEntry, Entry, FileSystemStatistics, FileType,
    Lock, Opened, Response, Statx,
};
pub use request::{
    CopyFileRange, Creation, Extensions, Ioctl, LockKind, LockRequest, Operation, Read,
    ReadDirectory, Release, Request, SecurityContext, SetAttributes, SetTime, StatxRequest, Write,
};
pub use session::{FileSystem, Negotiated, Session, SessionOptions, Transport, TransportChoice};
pub use transport::{availability as uring_availability, enable_uring};
pub use types::{
    Capabilities, Errno, FileHandle, LockOwner, Name, NodeId, OpenFlags, PollHandle, Time, Unique,
};
