//! The file system's FUSE front end.
//!
//! The client caches names, attributes and listings, under rights that the metadata service
//! recalls. It lends them to the kernel for a few seconds (`entry_valid`, `attr_valid`,
//! `FOPEN_CACHE_DIR`). Before the client answers a recall, it takes back what another node wants to
//! change (`client::kernel_cache` has the rules). The kernel also caches pages and keeps them from one open
//! to the next as long as the data has the same version; `writers` chooses which writers go through
//! these pages.
//!
//! [`Server`] answers requests, and [`notices()`] carries what the kernel has to drop. [`Mount`]
//! connects both to `/dev/fuse`; the simulation connects them to a model of the kernel.

mod closes;
mod convert;
mod counts;
mod directories;
mod lock_owners;
mod locks;
mod mount;
mod nodes;
mod notices;
mod operations;
mod privileges;
mod server;
mod walks;
mod writers;
mod xattrs;

pub use mount::{Mount, MountSettings, READ_BYTES_MAX, serve_mounter, session_options};
pub use notices::{NameQueue, Notices, PageQueue, PromptQueue, notices};
pub use server::{Kept, Server};
