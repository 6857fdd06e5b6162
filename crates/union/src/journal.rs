//! The store of copy-ups that are not yet in the upper: what was written to a lower file, and the
//! new inode's size, attributes, extended attributes and names, in `WORKDIR/tsumugi/`.
//!
//! Mechanism: one log, cut into segment files that are only appended to. Each change is one record,
//! checksummed, numbered, and written with one write before it is acknowledged; data follows its
//! record's head directly, so one fdatasync of the newest segment makes any number of copy-ups
//! durable together, and a record never names data that is less durable than itself. In memory
//! every file has a map of runs: stored here, zero, or (where nothing is mapped) the lower's.
//!
//! Why a log and not a sparse file each: making a file costs a disk several journal blocks, and an
//! fsync per file is what this crate exists to avoid. Why one order for everything: a crash leaves
//! a prefix of the log, so that what was acknowledged as durable is there, and every file is as it
//! was after some operation, with no rule per kind of record.
//!
//! What is shown after a crash: the longest prefix of records that are whole. Records are keyed
//! with a number that is random per segment, so bytes of an older life of the space never pass for
//! new ones. A hole in what is known to have been durable is damage, is reported, and makes the
//! reads concerned fail; it never shows the lower's bytes instead.
//!
//! Use (`S` is [`Directory`]):
//! - [`Journal::open`] recovers; [`Journal::create`], `write`, `zero`, `truncate`,
//!   `set_attributes`, `set_xattr`, `change_names` append, each complete when it returns.
//! - Before a write, [`Journal::plan_write`] says which range to store; read that range's present
//!   content (`pieces`, then the lower for [`Source::Lower`]), lay the new bytes over it, `write`.
//! - Durability: [`Journal::ticket`], flush its handles in any way, [`Journal::synced`]; or
//!   [`Journal::sync`] for all of it. One ticket stands for all who wait.
//! - Publication: fill a work file from `pieces`, fsync it, [`Journal::publish`], sync, rename the
//!   work file to its name, make the name durable, [`Journal::published`].
//! - [`Journal::clean`] gives space back, in bounded steps; call it after syncs.

mod error;
mod storage;
mod types;

pub use error::JournalError;
pub use storage::{SegmentFile, Storage};
pub use types::{
    Attributes, Creation, FILE_BYTES_MAX, FileId, KEY_BYTES_MAX, Kind, LowerIdentity,
    NAME_BYTES_MAX, NAMES_MAX, Name, NameChange, PATH_BYTES_MAX, ParentKey, SegmentId, Sequence,
    Stage, Time, XATTR_BYTES_MAX, XATTRS_BYTES_MAX, Xattr,
};
