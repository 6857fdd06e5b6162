//! Names that partial files have lost, while the loss may not be durable.
//!
//! The upper directory loses a name first: from then on a whiteout, or the file that replaced it,
//! hides the partial file. The journal keeps the name until that directory is durable, and records
//! the end afterwards. So after a crash the directory alone decides: with the whiteout the file is
//! gone; without it the file exists, with all its durable content. In the other order, a flush of
//! the journal for another file could make the end durable before the whiteout, and the lower file
//! would show instead of the synced content.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::Durability;
use crate::journal::FileId;
use crate::store::Partial;
use crate::tree::Node;

/// A lost name.
#[derive(Debug)]
struct Loss {
    /// The directory that lost it; `None` if an earlier process made the change.
    directory: Option<Rc<Node>>,
    /// Its number among all losses.
    number: u64,
}

/// The lost names of a union.
#[derive(Debug, Default)]
pub(super) struct Losses {
    by_file: RefCell<BTreeMap<FileId, Loss>>,
    count: Cell<u64>,
}

impl Losses {
    /// With files that have ended, as their directories show, by the doing of an earlier process.
    pub(super) fn inherit(files: &[FileId]) -> Self {
        let losses = Self::default();
        for &file in files {
            losses.insert(file, None);
        }
        losses
    }

    fn insert(&self, file: FileId, directory: Option<Rc<Node>>) {
        let number = self.count.get();
        self.count.set(number + 1);
        self.by_file.borrow_mut().insert(file, Loss { directory, number });
    }

    /// Returns the number of losses so far: a sync of directories that begins now covers these.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }
}

impl Durability {
    /// Removes the name of a partial file; programs that have it open continue. The journal keeps
    /// the name until the directory is durable.
    pub(crate) fn lose_partial_name(&self, partial: &Partial, parent: &Rc<Node>) {
        partial.lose_name();
        self.losses.insert(partial.file(), Some(Rc::clone(parent)));
    }

    /// Notes that a directory has lost its own name. Losses in it become durable with its parent.
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
    pub(super) fn record_losses(&self, directories: &[&Rc<Node>], before: u64) {
        let is_durable = |loss: &Loss| {
            let of =
                |directory: &Rc<Node>| directories.iter().any(|one| Rc::ptr_eq(one, directory));
            loss.number < before && loss.directory.as_ref().is_some_and(of)
        };
        self.record(is_durable);
    }

    /// Records the ends that an earlier process has left: they are durable now.
    pub(super) fn record_inherited(&self) {
        self.record(|loss| loss.directory.is_none());
    }

    fn record(&self, is_durable: impl Fn(&Loss) -> bool) {
        let Some(store) = self.tree.store() else { return };
        let due: Vec<FileId> = {
            let losses = self.losses.by_file.borrow();
            let due = losses.iter().filter(|(_, loss)| is_durable(loss));
            due.map(|(&file, _)| file).collect()
        };
        for file in due {
            if store.record_end(file) {
                let loss = self.losses.by_file.borrow_mut().remove(&file);
                drop(loss);
            }
        }
    }
}
