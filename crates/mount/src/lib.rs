//! The file system's FUSE front end.
//!
//! Names and attributes are cached in the client, under rights that the metadata service recalls;
//! the kernel is told to ask each time (`entry_valid = attr_valid = 0`). So a recall never has to
//! enter the kernel, and cannot wait for an operation that itself waits for the service. What the
//! kernel does cache are pages of files opened read-only, kept from one open to the next as long as
//! the data has the same version.
//!
//! [`Server`] answers requests and [`notices`] carries what the kernel has to drop. [`Mount`] connects both to
//! `/dev/fuse`; the simulation connects them to a model of the kernel.

mod convert;
mod directories;
mod locks;
mod mount;
mod nodes;
mod notices;
mod operations;
mod privileges;
mod server;
mod walks;
mod xattrs;

pub use mount::{Mount, MountSettings, READ_BYTES_MAX, serve_mounter, session_options};
pub use notices::{NoticeQueue, Notices, notices};
pub use server::{Kept, Server};
