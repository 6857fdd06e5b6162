//! Group commit: many copies become durable together, and only then take their names.
//!
//! A copy is used as soon as it is made. Until its data is on the disk, it lies in
//! `WORKDIR/tsumugi/pending/` and the lower file keeps its name, so a crash shows either the old
//! file or the whole copy. One committer serves all unions of a thread: it collects copies (by
//! number, bytes and time), makes them durable together, renames them, and makes the names durable
//! ([`batch`]).
//!
//! A process that is killed loses nothing: when a copy is complete, its path is noted with the boot
//! and the mount that it lies on ([`marks`]). The next union on the same mount finishes them
//! ([`recover()`]), because the page cache still has their data. After a reboot or a new mount it
//! discards them, because it is unknown which of their bytes reached the disk.

mod batch;
mod committer;
mod copies;
mod dirty;
mod entries;
mod history;
mod inherited;
mod losses;
mod marks;
mod names;
mod partial;
mod recover;
mod requests;

pub(crate) use committer::Committer;
pub(crate) use history::History;
pub(crate) use inherited::{Inherited, NAME as RUNNING, Sign};
pub(crate) use marks::read_below as waiting_copies;
pub(crate) use recover::recover;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use reactor::local::Permit;
use rustix::io::Errno;

use crate::copier::Copier;
use crate::journal::FileId;
use crate::tree::{Node, Pending, Tree};

use dirty::Flusher;
use losses::Losses;
use marks::Marks;

/// The changes of a union that are not durable, and the means to make them durable.
#[derive(Debug)]
pub(crate) struct Durability {
    /// Dropped before the tree: its layers hold the locks.
    inherited: Inherited,
    committer: Rc<Committer>,
    /// Copies that wait for their names, and their nodes.
    copies: RefCell<Vec<(Weak<Pending>, Weak<Node>)>>,
    /// Copies that could not get their names, and are tried again.
    deferred: RefCell<Vec<(Rc<Pending>, Rc<Node>)>>,
    marks: Marks,
    /// Changed nodes that are not known to be durable, by number.
    dirty: RefCell<HashMap<u64, Rc<Node>>>,
    flusher: Flusher,
    /// Names that partial files have lost.
    losses: Losses,
    /// Directories of new partial files, whose names must become durable with them; a flush is due
    /// if there are any.
    new_partials: RefCell<Vec<Rc<Node>>>,
    tree: Rc<Tree>,
}

impl Durability {
    /// Makes the durability of a tree, with the changes and the ended partial files of an earlier
    /// process.
    pub(crate) fn new(
        tree: &Rc<Tree>,
        committer: &Rc<Committer>,
        inherited: Inherited,
        ended: &[FileId],
    ) -> Self {
        Self {
            inherited,
            committer: Rc::clone(committer),
            copies: RefCell::default(),
            deferred: RefCell::default(),
            marks: Marks::default(),
            dirty: RefCell::default(),
            flusher: Flusher::default(),
            losses: Losses::inherit(ended),
            new_partials: RefCell::default(),
            tree: Rc::clone(tree),
        }
    }

    /// Notes that changes begin, or that all of them are durable.
    pub(crate) fn set_clean(&self, is_clean: bool) {
        self.inherited.set_clean(is_clean);
    }

    /// Returns the copier of the thread.
    pub(crate) fn copier(&self) -> &Copier {
        &self.committer.copier
    }

    /// Returns the batches of the thread so far.
    pub(crate) fn history(&self) -> &History {
        &self.committer.history
    }

    /// Returns how many copies wait for their names.
    pub(crate) fn waiting_count(&self) -> usize {
        self.copies.borrow().iter().filter(|(copy, _)| copy.strong_count() > 0).count()
    }

    /// Returns how many files and directories are not known to be durable.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.borrow().len()
    }

    /// Waits until one more copy may be made and wait.
    pub(crate) async fn room(&self) -> Permit {
        self.committer.room(&self.tree.kept().descriptors().copies).await
    }

    /// Waits until a copy has its name, or could not get it.
    pub(crate) async fn finish(self: &Rc<Self>, pending: &Rc<Pending>) -> Result<(), Errno> {
        self.retry_deferred();
        self.committer.finish(pending).await
    }

    fn waiting(&self) -> Vec<Rc<Pending>> {
        self.copies.borrow().iter().filter_map(|(copy, _)| copy.upgrade()).collect()
    }

    /// Waits until everything that waits now has its name.
    pub(crate) async fn finish_all(self: &Rc<Self>) -> Result<(), Errno> {
        self.retry_deferred();
        let mut result = Ok(());
        for pending in self.waiting() {
            result = self.committer.finish(&pending).await.and(result);
        }
        result
    }
}
