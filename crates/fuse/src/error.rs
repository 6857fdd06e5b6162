//! The crate's error.

use std::io;
use std::path::PathBuf;

/// The reason why a request's bytes were refused. The peer is the kernel, so this means either a
/// newer protocol or corrupt memory; the request is answered with `EIO`.
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
    /// The length in the header differs from the length of the received message.
    #[error("opcode {opcode}: the header says {header_bytes} bytes, {received_bytes} arrived")]
    Length {
        /// The operation code.
        opcode: u32,
        /// The header's length.
        header_bytes: usize,
        /// The length of the received message.
        received_bytes: usize,
    },
    /// A name is empty, not terminated, or contains a slash.
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
        /// The value.
        value: u64,
    },
    /// An operation that this crate does not know; answered with `ENOSYS`.
    #[error("opcode {opcode} is not known")]
    Unknown {
        /// The operation code.
        opcode: u32,
    },
}

/// An error of mounting, serving or unmounting a file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// `/dev/fuse` cannot be opened.
    #[error(
        "cannot open /dev/fuse: {0} (load the module with `modprobe fuse`; in a container, pass \
         the device in with `--device /dev/fuse`)"
    )]
    Device(io::Error),
    /// The mount point is missing or is not a directory.
    #[error("cannot mount at {path}: {source} (the mount point must be an existing directory)")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A mount option cannot be expressed.
    #[error("mount option {option}: {reason}")]
    Option {
        /// The option.
        option: String,
        /// The reason.
        reason: &'static str,
    },
    /// mount(2) failed.
    #[error("mount(2) at {path} with options \"{options}\": {source}{}", needed_to_mount(source))]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The options that were given.
        options: String,
        /// The system's error.
        source: io::Error,
    },
    /// `fusermount3` is not installed.
    #[error(
        "mounting without root needs fusermount3, which was not found in PATH (install the \
         package fuse3, or run as root)"
    )]
    HelperMissing,
    /// `fusermount3` failed.
    #[error("fusermount3 could not mount at {path}: {message}{advice}")]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// Its output.
        message: String,
        /// Advice for the user; empty or starting with a space.
        advice: &'static str,
    },
    /// The process that mounts for this one failed, with this message.
    #[error("{0}")]
    Mounter(String),
    /// The mount could not be removed.
    #[error("cannot unmount {path}: {message}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The message of the system or of `fusermount3`.
        message: String,
    },
    /// The kernel uses a protocol version that this crate does not support.
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
    /// The kernel closed the connection before INIT was answered.
    #[error("the FUSE connection ended before it was set up: {0}")]
    NotConnected(io::Error),
    /// Reading requests or writing replies failed.
    #[error("FUSE connection: cannot {action}: {source}")]
    Transport {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A notification was refused. `ENOENT` (not cached) is not an error and is not reported.
    #[error("FUSE notification {kind}: {source}")]
    Notify {
        /// The kind of notification.
        kind: &'static str,
        /// The system's error.
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
        /// The name of the limit.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The allowed range.
        range: &'static str,
    },
}

/// Returns the advice for an error of mount(2); empty for most.
fn needed_to_mount(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (mounting as root needs the capability CAP_SYS_ADMIN: give it to a container with \
             `--cap-add SYS_ADMIN`)"
        }
        _ => "",
    }
}
