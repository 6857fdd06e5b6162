//! The union mount: an overlay of directories in user space, in overlayfs's own format.
//!
//! Copied-up files are used at once, but take their name in the upper directory only after their
//! data is durable; one committer makes all waiting copies of a file system durable together.
//! `docs/union.md` is the contract; [`Options`] are all options, [`UnionMount`] mounts and serves.
//!
//! The crate has three layers, and each module uses only modules before it:
//! - [`journal`]: the store of partial files, on its own; below and beside it the options, the formats
//!   and the system calls (`options`, `sys`, `format`, `copier`, `error`, `layers`, `record`).
//! - The union: `store` (the journal's partial files), `tree` (names and nodes), `durability`
//!   (waiting copies, changes, batches), `partial` (making and completing partial files), `copyup`,
//!   `ops` (the operations of FUSE on these), `mount`, `offline` and `check`.
//! - `serve`: the process that serves all unions of a user.

mod backing;
mod check;
mod copier;
mod copyup;
mod descriptors;
mod durability;
mod error;
mod format;
mod free_run;
mod ids;
pub mod journal;
mod layers;
mod mount;
mod offline;
mod ops;
mod options;
mod partial;
mod record;
mod serve;
mod signal;
mod store;
mod sys;
mod tree;

pub use check::{Checked, Finding, Severity, check_union};
pub use error::UnionError;
pub use mount::{UnionMount, sync_mount};
pub use offline::{PartialFile, complete_partial_files, options_of_upper, partial_files};
pub use ops::{IOCTL_STATUS, IOCTL_SYNC, mount_status};
pub use options::{
    FillMode, IdRange, LOWER_LAYERS_MAX, OptionError, Options, OwnerXattr, Pass, RedirectMode,
    SyncMode, XattrClass,
};
pub use serve::{Command, Ending, HandOver, hand_over, run_keeper, run_server};
