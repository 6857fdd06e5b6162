//! Group commit: many copies become durable together, and only then take their names.
//!
//! A copy is used from the moment it is made; until its data is on the disk it lies in
//! `WORKDIR/tsumugi/pending/` and the lower file keeps its place in the layers, so that a crash
//! shows the old file or the whole copy and nothing else. One committer serves all unions of a
//! thread: it lets copies gather (by number, bytes and time), makes them durable together, renames
//! them, and makes the names durable ([`batch`]).
//!
//! A process that is killed loses nothing: when a copy is complete, its path is noted with the boot and
//! the mount that it lies on ([`marks`]). The next union on the same mount, whose page cache still has
//! what was written, finishes them ([`recover`]); after a reboot or a new mount they are discarded, since it is
//! unknown which of their bytes reached the disk.

mod batch;
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

pub(crate) use history::History;
pub(crate) use inherited::{Inherited, NAME as RUNNING, Sign};
pub(crate) use marks::read_below as waiting_copies;
pub(crate) use recover::recover;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::time::Duration;

use metrics::{Family, Point};
use reactor::local::{Notify, Permit, Semaphore};
use reactor::time::Instant;
use rustix::io::Errno;

use crate::copier::Copier;
use crate::journal::FileId;
use crate::sys::{self, Fd};
use crate::tree::{Node, Pending, Place, Tree, path_of};

use dirty::Flusher;
use losses::Losses;
use marks::Marks;

/// Making copies durable together, and giving them their names.
const COMMIT: Point = Point::new(Family::Union, 2, "commit_batch");

/// What of a union is not durable, and how it becomes so.
#[derive(Debug)]
pub(crate) struct Durability {
    /// Dropped before the tree, whose layers hold the locks.
    inherited: Inherited,
    committer: Rc<Committer>,
    /// Copies that wait for their names.
    copies: RefCell<Vec<Weak<Pending>>>,
    marks: Marks,
    /// What was changed and is not known to be durable, by node.
    dirty: RefCell<HashMap<u64, Rc<Node>>>,
    flusher: Flusher,
    /// Names that partial files have lost.
    losses: Losses,
    /// Directories of new partial files, whose names are to be durable with them; a flush is due if
    /// there are any.
    new_partials: RefCell<Vec<Rc<Node>>>,
    tree: Rc<Tree>,
}

/// When a batch is full.
#[derive(Debug, Clone, Copy)]
struct Limits {
    files: usize,
    bytes: u64,
    time: Duration,
}

/// Makes copies durable, together.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    queue: RefCell<Vec<Waiting>>,
    bytes: Cell<u64>,
    batches: Batches,
    is_running: Cell<bool>,
    is_urgent: Cell<bool>,
    woken: Notify,
    copier: Copier,
    history: History,
}

/// Batches that are made durable at a time: while one waits for the disk the next ones gather, and
/// their syncs share its flushes.
const BATCHES_MAX: usize = 4;

/// Places for them.
#[derive(Debug)]
struct Batches(Semaphore);

impl Default for Batches {
    fn default() -> Self {
        Self(Semaphore::new(BATCHES_MAX))
    }
}

#[derive(Debug)]
struct Waiting {
    pending: Rc<Pending>,
    // Keep alive what the batch is about.
    durability: Rc<Durability>,
    node: Rc<Node>,
    since: Instant,
}

impl Committer {
    /// One that a thread makes durable for.
    pub(crate) fn with_copier(copier: Copier) -> Self {
        Self { copier, ..Self::default() }
    }

    /// What copies and syncs for the thread.
    pub(crate) fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Lets a copy wait for the next batch.
    fn add(self: &Rc<Self>, of: &Rc<Durability>, node: &Rc<Node>, pending: Rc<Pending>) {
        assert!(
            pending.outcome().is_none() && !pending.is_cancelled(),
            "a copy is to wait that has ended: {pending:?}"
        );
        self.bytes.set(self.bytes.get() + pending.bytes());
        let (durability, node) = (Rc::clone(of), Rc::clone(node));
        let waiting = Waiting { pending, durability, node, since: reactor::time::now() };
        self.queue.borrow_mut().push(waiting);
        self.woken.notify();
        if !self.is_running.replace(true) {
            let committer = Rc::clone(self);
            drop(reactor::spawn(async move { committer.run().await }));
        }
    }

    /// Waits until one more copy may be made and wait.
    async fn room(&self, copies: &Semaphore) -> Permit {
        if let Some(room) = copies.try_acquire(1) {
            return room;
        }
        let room = copies.acquire(1);
        self.is_urgent.set(true);
        self.woken.notify();
        room.await
    }

    /// Waits until a copy has its name, or could not get it.
    async fn finish(&self, pending: &Rc<Pending>) -> Result<(), Errno> {
        loop {
            if let Some(outcome) = pending.outcome() {
                return outcome;
            }
            let ended = pending.ended();
            self.is_urgent.set(true);
            self.woken.notify();
            ended.await;
        }
    }

    async fn run(self: &Rc<Self>) {
        while let Some((first, limits)) = self.first() {
            let deadline = first + limits.time;
            while !self.is_full(limits) && reactor::time::now() < deadline {
                let more = std::pin::pin!(self.woken.notified());
                let _ = reactor::race(more, reactor::time::sleep_until(deadline)).await;
            }
            // What is added meanwhile comes along.
            let turn = self.batches.0.acquire(1).await;
            self.is_urgent.set(false);
            let batch = self.take(limits.files);
            let committer = Rc::clone(self);
            drop(reactor::spawn(async move {
                let (count, begin) = (batch.len(), reactor::time::now());
                let counted = metrics::start(COMMIT, 0);
                counted.during(committer.commit(batch)).await;
                counted.end(0);
                committer.history.note(count, reactor::time::now() - begin);
                drop(turn);
            }));
        }
        self.is_running.set(false);
    }

    /// When the oldest copy came, and what its union asks for.
    fn first(&self) -> Option<(Instant, Limits)> {
        let queue = self.queue.borrow();
        let oldest = queue.first()?;
        let options = oldest.durability.tree.options();
        let limits = Limits {
            files: options.batch_files_max,
            bytes: options.batch_bytes_max,
            time: options.batch_time,
        };
        Some((oldest.since, limits))
    }

    fn is_full(&self, limits: Limits) -> bool {
        self.is_urgent.get()
            || self.queue.borrow().len() >= limits.files
            || self.bytes.get() >= limits.bytes
    }

    fn take(&self, files_max: usize) -> Vec<Waiting> {
        let mut queue = self.queue.borrow_mut();
        let count = queue.len().min(files_max);
        let batch: Vec<Waiting> = queue.drain(..count).collect();
        let bytes: u64 = batch.iter().map(|waiting| waiting.pending.bytes()).sum();
        assert!(
            bytes <= self.bytes.get(),
            "{count} copies have {bytes} of {} bytes",
            self.bytes.get()
        );
        self.bytes.set(self.bytes.get() - bytes);
        batch
    }
}

impl Durability {
    /// Of a tree, with what an earlier process has left: changes, and ends of partial files.
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

    /// What copies and syncs for the thread.
    pub(crate) fn copier(&self) -> &Copier {
        &self.committer.copier
    }

    /// The batches of the thread so far.
    pub(crate) fn history(&self) -> &History {
        &self.committer.history
    }

    /// How many copies wait for their names.
    pub(crate) fn waiting_count(&self) -> usize {
        self.copies.borrow().iter().filter(|copy| copy.strong_count() > 0).count()
    }

    /// How many files and directories are not known to be durable.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.borrow().len()
    }

    /// Waits until one more copy may be made and wait.
    pub(crate) async fn room(&self) -> Permit {
        self.committer.room(&self.tree.kept().descriptors().copies).await
    }

    /// Waits until a copy has its name, or could not get it.
    pub(crate) async fn finish(&self, pending: &Rc<Pending>) -> Result<(), Errno> {
        self.committer.finish(pending).await
    }

    /// Waits until everything that waits now has its name.
    pub(crate) async fn finish_all(&self) -> Result<(), Errno> {
        let mut result = Ok(());
        let waiting: Vec<_> = self.copies.borrow().iter().filter_map(Weak::upgrade).collect();
        for pending in waiting {
            result = self.finish(&pending).await.and(result);
        }
        result
    }

    /// Marks a copy as complete and makes it the node's place, to be made durable later.
    pub(crate) fn enqueue(self: &Rc<Self>, node: &Rc<Node>, pending: Pending) -> Result<(), Errno> {
        let path = match pending.entry() {
            Some(entry) => {
                Tree::count_links(node, entry);
                marks::path_in_index(entry)
            }
            None => path_of(node),
        };
        self.marks.note(self.tree.upper()?, pending.name(), &path)?;
        let pending = Rc::new(pending);
        assert!(
            node.pending().is_none() && !node.is_in_upper(),
            "a copy of inode {} waits for its name, and the node is at {:?}",
            node.inode.get(),
            node.place.borrow()
        );
        node.set_place(Place::Pending(Rc::clone(&pending)));
        self.copies.borrow_mut().push(Rc::downgrade(&pending));
        self.committer.add(self, node, pending);
        Ok(())
    }

    fn forget_waiting(&self, pending: &Rc<Pending>) {
        let pending = Rc::downgrade(pending);
        let mut copies = self.copies.borrow_mut();
        copies.retain(|known| !Weak::ptr_eq(known, &pending) && known.strong_count() > 0);
        if copies.is_empty() {
            self.marks.forget_all();
        }
    }

    /// Gives a copy its name. Answers the directories that it is in now; none if it was unlinked.
    fn publish(
        &self,
        node: &Rc<Node>,
        pending: &Rc<Pending>,
        times: &mut KeptTimes,
    ) -> Result<Vec<Rc<Node>>, Errno> {
        if pending.is_cancelled() {
            return Ok(Vec::new());
        }
        let is_its =
            matches!(&*node.place.borrow(), Place::Pending(place) if Rc::ptr_eq(place, pending));
        assert!(
            is_its,
            "inode {} would get the name of a copy that is not its own: {:?}",
            node.inode.get(),
            node.place.borrow()
        );
        let upper = self.tree.upper()?;
        if let Some(entry) = pending.entry() {
            return self.enter(node, entry, &upper.pending, pending.name());
        }
        let link = node.link().ok_or(Errno::NOENT)?;
        let parent = self.tree.upper_part(&link.parent)?;
        times.keep(&parent)?;
        rustix::fs::renameat(&upper.pending, pending.name(), &parent, &*link.name)?;
        node.set_place(Place::Upper);
        self.note_new_name(&link.parent);
        self.tree.set_impure(&link.parent)?;
        Ok(vec![link.parent])
    }
}

/// Times of directories that shall not show what is done in them; given back all together, as each
/// costs a change of metadata.
#[derive(Debug, Default)]
struct KeptTimes(Vec<(Fd, sys::Stat)>);

impl KeptTimes {
    /// Remembers a directory's times, before it is changed first.
    fn keep(&mut self, directory: &Fd) -> Result<(), Errno> {
        let is_known = |(known, _): &(Fd, _)| Rc::ptr_eq(known, directory);
        if !self.0.iter().any(is_known) {
            self.0.push((Rc::clone(directory), sys::stat_at(directory.as_fd(), b"")?));
        }
        Ok(())
    }

    /// Gives the times back; the first that were kept of a directory last, should it have been opened
    /// anew meanwhile.
    fn restore(self) {
        for (directory, before) in self.0.into_iter().rev() {
            let set = sys::set_times(directory.as_fd(), Some(before.atime), Some(before.mtime));
            if let Err(errno) = set {
                tracing::warn!(%errno, "a directory's time tells of a copy-up");
            }
        }
    }
}
