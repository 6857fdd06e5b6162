//! The versioned messages between client, target agent and metadata service.
//!
//! Every connection carries [`frame`]s. Either side may *call* the other. Each call gets exactly
//! one *answer* with the same tag; answers may come in any order, and many calls may be under way
//! at once. The connection's role, proven by [`auth`] before the first call, decides which calls
//! are possible:
//!
//! | role | connector calls meta | meta calls connector |
//! | --- | --- | --- |
//! | client | [`client::Call`] | [`client::Push`] |
//! | agent (a node's target) | [`agent::Call`] | [`agent::Push`] |
//! | admin | [`admin::Call`] | nothing |
//!
//! Bodies are [postcard](https://postcard.jamesmunns.com/wire-format.html): compact, bounded by the
//! frame's length, and never recursive, so that hostile bytes cost no more than their own length.

pub mod admin;
pub mod agent;
pub mod attr;
pub mod auth;
pub mod client;
pub mod connection;
pub mod data_key;
pub mod errno;
pub mod extent;
pub mod files;
pub mod frame;
pub mod ids;
pub mod inline;
pub mod lease;
pub mod lock;
pub mod space;
pub mod sums;
pub mod times;

pub use attr::{Attr, FileKind, Layout, Timestamp};
pub use data_key::DataKey;
pub use errno::Errno;
pub use extent::{Extent, ExtentList, Place};
pub use ids::{
    AllocationId, DeviceId, Epoch, FreeEpoch, Generation, HostId, Incarnation, InodeId, LeaseStamp,
    SessionId,
};
pub use lease::Rights;

/// Version of the messages. Both ends of a connection must have the same one: a job's processes
/// come from one binary.
pub const VERSION: u16 = 11;

/// Longest name of a directory entry, in bytes (`NAME_MAX`).
pub const NAME_MAX_BYTES: usize = 255;

/// Longest symbolic link target, in bytes (`PATH_MAX` less its NUL).
pub const SYMLINK_MAX_BYTES: usize = 4095;

/// Largest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_MAX_BYTES: usize = 65536;

/// The extended attribute that holds file capabilities: every change of data or size removes it.
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Longest name of an extended attribute, in bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX_BYTES: usize = 255;

/// Largest file offset plus one, in bytes: the largest value of `off_t`.
pub const FILE_SIZE_MAX_BYTES: u64 = i64::MAX as u64;
