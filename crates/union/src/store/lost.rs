//! Names that partial files have lost and that the journal still has.
//!
//! The journal keeps a lost name until the directory that lost it is durable, and only then records
//! the end (durability/losses.rs).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Store, failed};
use crate::journal::{FileId, JournalError, NameChange};
use crate::signal::DueSignal;

/// The lost names of a store.
#[derive(Debug, Default)]
pub(super) struct LostNames {
    /// By file: whether it is not open any more.
    is_closed: RefCell<BTreeMap<FileId, bool>>,
    /// Whether ends were recorded since the journal was flushed last.
    has_ends: Cell<bool>,
    /// Requests a flush of the journal then. The end of the last partial file removes the marker.
    signal: OnceCell<Rc<DueSignal>>,
}

impl Store {
    /// Notes that a file has lost its name.
    pub(crate) fn lose(&self, file: FileId) {
        self.lost.is_closed.borrow_mut().insert(file, false);
    }

    /// Notes files that have ended, as their directories show, by the doing of an earlier process.
    pub(super) fn inherit(&self, files: &[FileId]) {
        self.lost.is_closed.borrow_mut().extend(files.iter().map(|&file| (file, true)));
    }

    /// Notes that a file without a name is not open any more. `false` if its end is recorded
    /// already.
    pub(super) fn close_lost(&self, file: FileId) -> bool {
        match self.lost.is_closed.borrow_mut().get_mut(&file) {
            Some(is_closed) => {
                *is_closed = true;
                true
            }
            None => false,
        }
    }

    /// Returns whether a file has lost its name, although the journal has it still.
    pub(super) fn is_lost(&self, file: FileId) -> bool {
        self.lost.is_closed.borrow().contains_key(&file)
    }

    /// Sets the signal that is raised when the end of a file is recorded.
    pub(crate) fn signal_ends_by(&self, signal: &Rc<DueSignal>) {
        // A union is served once.
        let _ = self.lost.signal.set(Rc::clone(signal));
    }

    /// Notes that the end of a file is recorded, or about to be.
    pub(super) fn note_end(&self) {
        self.lost.has_ends.set(true);
        if let Some(signal) = self.lost.signal.get() {
            signal.raise();
        }
    }

    /// Returns whether ends were recorded since this was asked last: a flush of the journal lets
    /// them go.
    pub(crate) fn take_ends(&self) -> bool {
        self.lost.has_ends.take()
    }

    /// Records the end of a lost name, whose loss is durable now. Returns whether it is recorded.
    pub(crate) fn record_end(&self, file: FileId) -> bool {
        let is_closed = self.lost.is_closed.borrow().get(&file).copied().unwrap_or_default();
        match self.end(file, is_closed) {
            Ok(()) | Err(JournalError::NoSuchFile(_)) => {
                self.note_end();
                self.lost.is_closed.borrow_mut().remove(&file);
                true
            }
            Err(error) => {
                let errno = failed(&error);
                // The whiteout, or what replaced the file, hides it from the next mount.
                tracing::warn!(%errno, "the end of a partial copy's name could not be recorded");
                false
            }
        }
    }

    fn end(&self, file: FileId, is_closed: bool) -> Result<(), JournalError> {
        let mut journal = self.journal_mut();
        if is_closed {
            return journal.drop_file(file);
        }
        let name = journal.file(file).and_then(|copy_up| copy_up.names().first().cloned());
        let Some(name) = name else { return Ok(()) };
        journal.change_names(vec![NameChange::Remove(file, name.parent, name.name)])
    }
}
