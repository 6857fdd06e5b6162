//! The crate's error.

use std::io;
use std::path::PathBuf;

/// Why a request's bytes were refused. The peer is the kernel, so this means either a newer
/// protocol or memory gone wrong; the request is answered with `EIO`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends within an argument.
    #[error("opcode {opcode}: {argument} needs {needed_bytes} bytes, {available_bytes} are there")]
    Truncated {
        /// The operation code.
        opcode: u32,
        /// The argument's name.
        argument: &'static str,
        /// Bytes that the argument takes.
        needed_bytes: usize,
        /// Bytes that are left.
        available_bytes: usize,
    },
    /// The length in the header is not the length of what arrived.
    #[error("opcode {opcode}: the header says {header_bytes} bytes, {received_bytes} arrived")]
    Length {
        /// The operation code.
        opcode: u32,
        /// The header's length.
        header_bytes: usize,
        /// What was received.
        received_bytes: usize,
    },
    /// A name is empty, not terminated, or holds a slash.
    #[error("opcode {opcode}: {argument} is not a file name")]
    Name {
        /// The operation code.
        opcode: u32,
        /// The argument's name.
        argument: &'static str,
    },
    /// An argument has a value that the protocol does not allow.
    #[error("opcode {opcode}: {argument} has the value {value}")]
    Value {
        /// The operation code.
        opcode: u32,
        /// The argument's name.
        argument: &'static str,
        /// What it holds.
        value: u64,
    },
    /// An operation that this crate does not know; answered with `ENOSYS`.
    #[error("opcode {opcode} is not known")]
    Unknown {
        /// The operation code.
        opcode: u32,
    },
}

/// What can go wrong when a file system is mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// `/dev/fuse` cannot be opened.
    #[error(
        "cannot open /dev/fuse: {0} (load the module with `modprobe fuse`; in a container, pass \
         the device in with `--device /dev/fuse`)"
    )]
    Device(io::Error),
    /// The mount point is missing or is no directory.
    #[error("cannot mount at {path}: {source} (the mount point must be an existing directory)")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A mount option cannot be expressed.
    #[error("mount option {option}: {reason}")]
    Option {
        /// The option.
        option: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// mount(2) refused.
    #[error("mount(2) at {path} with options \"{options}\": {source}{}", needed_to_mount(source))]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The options given.
        options: String,
        /// What the system said.
        source: io::Error,
    },
    /// `fusermount3` is not installed.
    #[error(
        "mounting without root needs fusermount3, which was not found in PATH (install the \
         package fuse3, or run as root)"
    )]
    HelperMissing,
    /// `fusermount3` refused.
    #[error("fusermount3 could not mount at {path}: {message}{advice}")]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// What it printed.
        message: String,
        /// What to do about it; empty or starting with a space.
        advice: &'static str,
    },
    /// The process that mounts for this one could not; what it said.
    #[error("{0}")]
    Mounter(String),
    /// The mount could not be taken down.
    #[error("cannot unmount {path}: {message}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// What the system or `fusermount3` said.
        message: String,
    },
    /// The kernel speaks a protocol that this crate does not.
    #[error("the kernel speaks FUSE {major}.{minor}; this program needs 7.31 or later (Linux 5.4)")]
    Version {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// The first message was not INIT, or not a valid one.
    #[error("the kernel's first message is not a valid INIT: {0}")]
    Init(DecodeError),
    /// The kernel gave up the connection before INIT was answered.
    #[error("the FUSE connection ended before it was set up: {0}")]
    NotConnected(io::Error),
    /// Reading requests or writing replies failed.
    #[error("FUSE connection: cannot {action}: {source}")]
    Transport {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A notification was refused; `ENOENT` (not cached) is no error and not reported.
    #[error("FUSE notification {kind}: {source}")]
    Notify {
        /// Which notification.
        kind: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A backing file could not be registered for passthrough.
    #[error(
        "cannot register a backing file for passthrough: {0} (needs CAP_SYS_ADMIN, Linux 6.9 and \
         a backing file that is not itself on a stacked file system)"
    )]
    Backing(io::Error),
    /// A limit of the session is out of range.
    #[error("{name} is {value}, but must be {range}")]
    Limit {
        /// Which limit.
        name: &'static str,
        /// What it was.
        value: u64,
        /// What is allowed.
        range: &'static str,
    },
}

/// The advice that goes with an error of mount(2); empty for most.
fn needed_to_mount(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (mounting as root needs the capability CAP_SYS_ADMIN: give it to a container with \
             `--cap-add SYS_ADMIN`)"
        }
        _ => "",
    }
}
