//! Names that partial files have lost, as long as that may not be durable.
//!
//! The upper directory loses a name first: a whiteout, or the file that replaced it, hides the partial
//! file from then on. The journal keeps the name until that directory is durable, and only then
//! records the end. So after a crash the directory alone decides: with the whiteout the file is gone,
//! without it the file is there, with all of it that was durable. In the other order a flush of the
//! journal, for any other file, would make the end durable before the whiteout, and the lower file would show
//! in place of the synced content.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Store, failed};
use crate::commit::Flusher;
use crate::journal::{FileId, JournalError, NameChange};
use crate::node::Node;

/// A lost name.
#[derive(Debug)]
struct Loss {
    /// The directory that lost it; `None` if an earlier process made the change.
    directory: Option<Rc<Node>>,
    /// Its number among all losses.
    number: u64,
    /// Whether the file is not open any more.
    is_closed: bool,
}

/// The lost names of a store.
#[derive(Debug, Default)]
pub(super) struct Losses {
    by_file: RefCell<BTreeMap<FileId, Loss>>,
    count: Cell<u64>,
    /// Whether ends were recorded since the journal was flushed last.
    has_ends: Cell<bool>,
    /// Flushes the journal then; with the last partial file its marker goes.
    flusher: OnceCell<Rc<Flusher>>,
}

impl Losses {
    fn insert(&self, file: FileId, directory: Option<Rc<Node>>) {
        let (number, is_closed) = (self.count.get(), directory.is_none());
        self.count.set(number + 1);
        self.by_file.borrow_mut().insert(file, Loss { directory, number, is_closed });
    }

    /// Notes files that have ended, as their directories show, by the doing of an earlier process.
    pub(super) fn inherit(&self, files: Vec<FileId>) {
        for file in files {
            self.insert(file, None);
        }
    }
}

impl Store {
    /// Notes that a file has lost its name in a directory whose change is not durable.
    pub(super) fn lose(&self, file: FileId, directory: &Rc<Node>) {
        self.losses.insert(file, Some(Rc::clone(directory)));
    }

    /// Notes that a file without a name is not open any more. `false` if its end is recorded already.
    pub(super) fn close_lost(&self, file: FileId) -> bool {
        match self.losses.by_file.borrow_mut().get_mut(&file) {
            Some(loss) => {
                loss.is_closed = true;
                true
            }
            None => false,
        }
    }

    /// Whether a file has lost its name, although the journal has it still.
    pub(super) fn is_lost(&self, file: FileId) -> bool {
        self.losses.by_file.borrow().contains_key(&file)
    }

    /// The number of losses so far: a sync of directories that begins now covers these.
    pub(crate) fn loss_count(&self) -> u64 {
        self.losses.count.get()
    }

    /// Notes that a directory has lost its own name: what was lost in it is durable with its parent.
    pub(crate) fn lose_directory(&self, directory: &Rc<Node>, parent: &Rc<Node>) {
        for loss in self.losses.by_file.borrow_mut().values_mut() {
            if loss.directory.as_ref().is_some_and(|of| Rc::ptr_eq(of, directory)) {
                loss.directory = Some(Rc::clone(parent));
                loss.number = self.losses.count.get();
            }
        }
        self.losses.count.set(self.losses.count.get() + 1);
    }

    /// Records what was lost in directories before their sync began, which has succeeded.
    pub(crate) fn record_losses(&self, directories: &[&Rc<Node>], before: u64) {
        let is_durable = |loss: &Loss| {
            let of =
                |directory: &Rc<Node>| directories.iter().any(|one| Rc::ptr_eq(one, directory));
            loss.number < before && loss.directory.as_ref().is_some_and(of)
        };
        self.record(is_durable);
    }

    /// Records the ends that an earlier process has left: they are durable now.
    pub(crate) fn record_inherited(&self) {
        self.record(|loss| loss.directory.is_none());
    }

    /// From now on this flushes the journal when the end of a file was recorded.
    pub(crate) fn flush_ends_by(&self, flusher: &Rc<Flusher>) {
        // A union is served once.
        let _ = self.losses.flusher.set(Rc::clone(flusher));
    }

    /// Notes that the end of a file is recorded, or about to be.
    pub(super) fn note_end(&self) {
        self.losses.has_ends.set(true);
        if let Some(flusher) = self.losses.flusher.get() {
            flusher.wake();
        }
    }

    /// Whether ends were recorded since this was asked last: a flush of the journal lets them go.
    pub(crate) fn take_ends(&self) -> bool {
        self.losses.has_ends.take()
    }

    fn record(&self, is_durable: impl Fn(&Loss) -> bool) {
        let due: Vec<_> = {
            let losses = self.losses.by_file.borrow();
            let due = losses.iter().filter(|(_, loss)| is_durable(loss));
            due.map(|(&file, loss)| (file, loss.is_closed)).collect()
        };
        for (file, is_closed) in due {
            match self.record_end(file, is_closed) {
                Ok(()) | Err(JournalError::NoSuchFile(_)) => {
                    self.note_end();
                    let loss = self.losses.by_file.borrow_mut().remove(&file);
                    drop(loss);
                }
                Err(error) => {
                    let errno = failed(&error);
                    // The whiteout, or what replaced the file, hides it from the next mount.
                    tracing::warn!(%errno, "the end of a partial copy's name could not be recorded");
                }
            }
        }
    }

    fn record_end(&self, file: FileId, is_closed: bool) -> Result<(), JournalError> {
        let mut journal = self.journal_mut();
        if is_closed {
            return journal.drop_file(file);
        }
        let name = journal.file(file).and_then(|copy_up| copy_up.names().first().cloned());
        let Some(name) = name else { return Ok(()) };
        journal.change_names(vec![NameChange::Remove(file, name.parent, name.name)])
    }
}
