//! The store of copy-ups that are not yet in the upper directory: the bytes that were written to a
//! lower file, and the new inode's size, attributes, extended attributes and names, in
//! `WORKDIR/tsumugi/`.
//!
//! Mechanism: one log, cut into segment files that are only appended to. Each change is one record,
//! checksummed, numbered, and written with one write before it is acknowledged; data follows its
//! record's head directly, so one fdatasync of the newest segment makes any number of copy-ups
//! durable together, and a record never names data that is less durable than itself. In memory
//! every file has a map of runs: stored here, zero, or (where nothing is mapped) the lower's.
//!
//! Why a log and not one sparse file per copy-up: making a file costs a disk several journal
//! blocks, and this crate exists to avoid an fsync per file. Why one order for everything: a crash
//! leaves a prefix of the log, so acknowledged records are there, and every file is as it was after
//! some operation, without a rule per kind of record.
//!
//! After a crash the store shows the longest prefix of whole records. Records are keyed with a
//! number that is random per segment, so bytes of an older life of the space never pass for new
//! ones. Records that are known to have been durable and cannot be read are damage. The end of the
//! log is noted beside it (`mark`). A store with damage is refused, or opened on request: then the
//! reads concerned fail. Stored data is verified by checksums whenever it is read (`sums`).
//!
//! Use (`S` is [`Directory`]):
//! - [`Journal::open`] recovers; [`Journal::create`], `write`, `zero`, `truncate`,
//!   `set_attributes`, `set_xattr`, `change_names` append, each complete when it returns.
//! - Before a write, [`Journal::plan_write`] says which range to store; read that range's present
//!   content (`pieces`, then the lower for [`Source::Lower`]), lay the new bytes over it, `write`.
//! - Durability: [`Journal::ticket`], flush its handles in any way, [`Journal::synced`]; or
//!   [`Journal::sync`] for all of it. One ticket covers all waiting callers.
//! - Publication: fill a work file from `pieces`, fsync it, [`Journal::publish`], sync, rename the
//!   work file to its name, make the name durable, [`Journal::published`].
//! - [`Journal::clean`] gives space back, in bounded steps; call it after syncs.

mod base;
mod clean;
mod codec;
mod damage;
mod directory;
mod error;
mod inspect;
mod log;
mod map;
mod mark;
mod offline;
mod operations;
mod options;
mod read;
mod record;
mod recover;
mod scan;
mod segment;
mod state;
mod storage;
mod sums;
mod survey;
mod sync;
mod types;

pub use clean::Cleaned;
pub use damage::{Damage, DamageKind};
pub(crate) use directory::RECORD;
pub use directory::{Directory, witness};
pub use error::JournalError;
pub use inspect::Inspection;
pub use offline::{FileStatus, Usage};
pub use options::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Options};
pub use read::{CopyUp, Piece, Source};
pub use recover::Recovery;
pub use storage::{SegmentFile, Storage};
pub use sums::Verifier;
pub use sync::Ticket;
pub use types::{
    Attributes, Creation, FILE_BYTES_MAX, FileId, KEY_BYTES_MAX, Kind, LowerIdentity,
    NAME_BYTES_MAX, NAMES_MAX, Name, NameChange, PATH_BYTES_MAX, ParentKey, SegmentId, Sequence,
    Stage, Time, XATTR_BYTES_MAX, XATTRS_BYTES_MAX, Xattr,
};

/// The store. One owner calls it; other threads can do slow work (flushing, reading data) through
/// handles.
#[derive(Debug)]
pub struct Journal<S> {
    log: log::Log<S>,
    state: state::State,
    cleaner: clean::Cleaner,
}

impl<S: Storage> Journal<S> {
    /// Opens and recovers the store in `storage`. Everything that it shows is durable when this
    /// returns; nothing is written unless a tail had to be dropped. A store with missing durable
    /// records is refused, unless that is accepted ([`Options::accepts_damage`]).
    pub fn open(storage: S, options: Options) -> Result<(Self, Recovery), JournalError> {
        options.check()?;
        let (log, state, recovery) = recover::recover(storage, options)?;
        let mut journal = Self { log, state, cleaner: clean::Cleaner::default() };
        if !recovery.damage.is_empty() {
            journal.record_suspects()?;
        }
        journal.restore_marker()?;
        Ok((journal, recovery))
    }

    /// Records which files cannot be trusted, because the damaged segment that shows it may be
    /// deleted.
    fn record_suspects(&mut self) -> Result<(), JournalError> {
        let is_suspect =
            |(&file, state): (&FileId, &state::FileState)| state.base.is_suspect.then_some(file);
        let suspects: Vec<FileId> = self.state.files.iter().filter_map(is_suspect).collect();
        suspects.into_iter().try_for_each(|file| self.snapshot(file))
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.log.options
    }

    /// Returns the number of the store, random, and kept as long as it lives.
    pub fn number(&self) -> u64 {
        self.log.journal
    }

    /// Returns the number of the last record.
    pub fn appended(&self) -> Sequence {
        self.log.appended
    }

    /// Returns the number of the last record that is known to be durable.
    pub fn durable(&self) -> Sequence {
        self.log.durable
    }

    /// Returns whether a segment was made whose name is not known to be durable: the next one waits
    /// for it.
    pub fn has_new_segment(&self) -> bool {
        self.log.dirt.names > self.log.dirt.names_synced
    }

    /// Returns the storage, for its owner's own questions.
    pub fn storage(&self) -> &S {
        &self.log.storage
    }

    /// Ends the use of the store and gives the storage back; nothing is flushed.
    pub fn into_storage(self) -> S {
        self.log.storage
    }
}
