//! Group commit: many copies become durable together, and only then take their names.
//!
//! A copy is used from the moment it is made; until its data is on the disk it lies in
//! `WORKDIR/tsumugi/pending/` and the lower file keeps its place in the layers, so that a crash
//! shows the old file or the whole copy and nothing else. One committer serves all unions of a
//! thread: it lets copies gather (by number, bytes and time), makes them durable with concurrent
//! syncs, whose journal commits the file system merges, renames them, and makes the names durable.
//!
//! A process that is killed loses nothing: when a copy is complete, its path is noted with the boot and
//! the mount that it lies on ([`marks`]). The next union on the same mount, whose page cache still has
//! what was written, finishes them ([`recover`]); after a reboot or a new mount they are discarded,
//! since nobody knows which of their bytes reached the disk.

mod dirty;
mod marks;
mod recover;

pub(crate) use recover::recover;

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ring::local::Notify;
use ring::time::Instant;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::copier::Copier;
use crate::files::Backing;
use crate::node::{Node, Place};
use crate::sys::{self, Fd};
use crate::tree::Union;

use dirty::Flusher;
use marks::Marks;

/// A copy that waits for its data to be durable.
#[derive(Debug)]
pub(crate) struct Pending {
    union: Weak<Union>,
    /// The copy.
    pub(crate) file: Fd,
    /// The copy, for reading and writing.
    pub(crate) backing: Rc<Backing>,
    /// Its name among the waiting ones.
    name: Vec<u8>,
    /// The entry of the index that it will be, if it is for one.
    entry: Option<Box<[u8]>>,
    bytes: u64,
    /// Unlinked meanwhile: nothing is to be published.
    is_cancelled: Cell<bool>,
    outcome: Cell<Option<Result<(), Errno>>>,
    ended: Notify,
}

impl Pending {
    pub(crate) fn new(
        union: &Rc<Union>,
        (file, backing): (Fd, Rc<Backing>),
        (name, entry): (Vec<u8>, Option<Box<[u8]>>),
        bytes: u64,
    ) -> Self {
        Self {
            union: Rc::downgrade(union),
            file,
            backing,
            name,
            entry,
            bytes,
            is_cancelled: Cell::new(false),
            outcome: Cell::new(None),
            ended: Notify::new(),
        }
    }

    /// Gives the copy's name up: the node has lost its own.
    pub(crate) fn cancel(&self) {
        if !self.is_cancelled.replace(true)
            && let Some(union) = self.union.upgrade()
            && let Ok(upper) = union.upper()
        {
            // What stays after an error is discarded by the next mount.
            let _ = rustix::fs::unlinkat(&upper.pending, &self.name, AtFlags::empty());
        }
    }

    fn end(&self, outcome: Result<(), Errno>) {
        self.outcome.set(Some(outcome));
        self.ended.notify();
    }
}

/// A union's copies that wait for their names, and changes that wait to be durable.
#[derive(Debug, Default)]
pub(crate) struct WaitingCopies {
    copies: RefCell<Vec<Weak<Pending>>>,
    marks: Marks,
    flusher: Flusher,
}

impl WaitingCopies {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.copies.borrow().iter().filter(|copy| copy.strong_count() > 0).count()
    }
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
    is_running: Cell<bool>,
    is_urgent: Cell<bool>,
    woken: Notify,
    pub(crate) copier: Copier,
    pub(crate) history: crate::status::History,
    pub(crate) filling: crate::partial::Worker,
}

#[derive(Debug)]
struct Waiting {
    pending: Rc<Pending>,
    // Keep alive what the batch is about.
    union: Rc<Union>,
    node: Rc<Node>,
    since: Instant,
}

impl Committer {
    /// One that a thread makes durable for.
    pub(crate) fn with_copier(copier: Copier) -> Self {
        Self { copier, ..Self::default() }
    }

    /// Lets a copy wait for the next batch.
    pub(crate) fn add(self: &Rc<Self>, union: &Rc<Union>, node: &Rc<Node>, pending: Rc<Pending>) {
        self.bytes.set(self.bytes.get() + pending.bytes);
        let (union, node) = (Rc::clone(union), Rc::clone(node));
        let waiting = Waiting { pending, union, node, since: ring::time::now() };
        self.queue.borrow_mut().push(waiting);
        self.woken.notify();
        if !self.is_running.replace(true) {
            let committer = Rc::clone(self);
            drop(ring::spawn(async move { committer.run().await }));
        }
    }

    /// Waits until a copy has its name, or could not get it.
    pub(crate) async fn finish(&self, pending: &Rc<Pending>) -> Result<(), Errno> {
        loop {
            if let Some(outcome) = pending.outcome.get() {
                return outcome;
            }
            let ended = pending.ended.notified();
            self.is_urgent.set(true);
            self.woken.notify();
            ended.await;
        }
    }

    /// Waits until everything of a union that waits now has its name.
    pub(crate) async fn finish_all(&self, union: &Rc<Union>) -> Result<(), Errno> {
        let mut result = Ok(());
        let waiting: Vec<_> =
            union.waiting.copies.borrow().iter().filter_map(Weak::upgrade).collect();
        for pending in waiting {
            result = self.finish(&pending).await.and(result);
        }
        result
    }

    async fn run(&self) {
        while let Some((first, limits)) = self.first() {
            let deadline = first + limits.time;
            while !self.is_full(limits) && ring::time::now() < deadline {
                let more = std::pin::pin!(self.woken.notified());
                let _ = ring::race(more, ring::time::sleep_until(deadline)).await;
            }
            self.is_urgent.set(false);
            let batch = self.take(limits.files);
            let (count, begin) = (batch.len(), ring::time::now());
            self.commit(batch).await;
            self.history.note(count, ring::time::now() - begin);
        }
        self.is_running.set(false);
    }

    /// When the oldest copy came, and what its union asks for.
    fn first(&self) -> Option<(Instant, Limits)> {
        let queue = self.queue.borrow();
        let oldest = queue.first()?;
        let options = &oldest.union.options;
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

    /// Makes a batch durable, gives it its names, and makes these durable.
    async fn commit(&self, batch: Vec<Waiting>) {
        let mut live = Vec::with_capacity(batch.len());
        for waiting in batch {
            if waiting.pending.is_cancelled.get() {
                waiting.pending.end(Ok(()));
            } else {
                waiting.union.forget_dirty(&waiting.node);
                live.push(waiting);
            }
        }
        let synced = sync_data(&self.copier, &live).await;
        let mut named: Vec<Named> = Vec::new();
        let mut times = KeptTimes::default();
        for (waiting, result) in live.into_iter().zip(synced) {
            let Waiting { union, node, pending, .. } = &waiting;
            let published = result.and_then(|()| union.publish(node, pending, &mut times));
            match published {
                Ok(parents) => note_named(&mut named, waiting, parents),
                Err(errno) => {
                    tracing::error!(%errno, "a copied-up file could not be made durable");
                    waiting.union.last_error.note("making a copy durable", errno);
                    waiting.union.forget_waiting(&waiting.pending);
                    waiting.pending.end(Err(errno));
                }
            }
        }
        times.restore();
        for Named { union, parents, copies } in named {
            let result = union.sync_directories(parents).await;
            for pending in copies {
                union.forget_waiting(&pending);
                pending.end(result);
            }
        }
    }

    fn take(&self, files_max: usize) -> Vec<Waiting> {
        let mut queue = self.queue.borrow_mut();
        let count = queue.len().min(files_max);
        let batch: Vec<Waiting> = queue.drain(..count).collect();
        let bytes: u64 = batch.iter().map(|waiting| waiting.pending.bytes).sum();
        self.bytes.set(self.bytes.get() - bytes);
        batch
    }
}

/// What of a batch belongs to one union and has its names.
struct Named {
    union: Rc<Union>,
    parents: Vec<Rc<Node>>,
    copies: Vec<Rc<Pending>>,
}

fn note_named(named: &mut Vec<Named>, waiting: Waiting, parents: Vec<Rc<Node>>) {
    let Waiting { pending, union, .. } = waiting;
    let at = named.iter().position(|group| Rc::ptr_eq(&group.union, &union));
    let at = at.unwrap_or_else(|| {
        named.push(Named { union, parents: Vec::new(), copies: Vec::new() });
        named.len() - 1
    });
    let group = &mut named[at];
    group.copies.push(pending);
    for parent in parents {
        if !group.parents.iter().any(|known| Rc::ptr_eq(known, &parent)) {
            group.parents.push(parent);
        }
    }
}

/// Flushes the data of every copy, all at a time.
async fn sync_data(copier: &Copier, batch: &[Waiting]) -> Vec<Result<(), Errno>> {
    let whole = batch.iter().find(|waiting| waiting.union.options.sync_whole_file_system);
    if let Some(waiting) = whole {
        let result = sync_file_system(&waiting.union).await;
        return batch.iter().map(|_| result).collect();
    }
    copier.sync(batch.iter().map(|waiting| waiting.pending.backing.file.clone()).collect()).await
}

/// `syncfs(2)` on a thread of its own, since it may take seconds.
async fn sync_file_system(union: &Rc<Union>) -> Result<(), Errno> {
    let root = union.upper()?.root.try_clone().map_err(errno_of)?;
    let config = ring::Config { entries: 8, ..ring::Config::default() };
    let sync = move || async move { rustix::fs::syncfs(root) };
    let thread = ring::thread::spawn("syncfs", &config, sync).map_err(errno_of)?;
    thread.await.unwrap_or(Err(Errno::IO))
}

/// The system's number of an error of the reactor.
#[allow(clippy::needless_pass_by_value, reason = "the shape that `map_err` wants")]
pub(crate) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Union {
    /// Marks a copy as complete and makes it the node's place, to be made durable later.
    pub(crate) fn enqueue(self: &Rc<Self>, node: &Rc<Node>, pending: Pending) -> Result<(), Errno> {
        let path = match &pending.entry {
            Some(entry) => {
                Self::count_links(node, entry);
                marks::path_in_index(entry)
            }
            None => crate::tree::path_of(node),
        };
        self.waiting.marks.note(self.upper()?, &pending.name, &path)?;
        let pending = Rc::new(pending);
        node.set_place(Place::Pending(Rc::clone(&pending)));
        self.waiting.copies.borrow_mut().push(Rc::downgrade(&pending));
        self.shared.committer.add(self, node, pending);
        Ok(())
    }

    fn forget_waiting(&self, pending: &Rc<Pending>) {
        let pending = Rc::downgrade(pending);
        let mut copies = self.waiting.copies.borrow_mut();
        copies.retain(|known| !Weak::ptr_eq(known, &pending) && known.strong_count() > 0);
        if copies.is_empty() {
            self.waiting.marks.forget_all();
        }
    }

    /// Gives a copy its name. Answers the directories that it is in now; none if it was unlinked.
    fn publish(
        &self,
        node: &Rc<Node>,
        pending: &Rc<Pending>,
        times: &mut KeptTimes,
    ) -> Result<Vec<Rc<Node>>, Errno> {
        if pending.is_cancelled.get() {
            return Ok(Vec::new());
        }
        let upper = self.upper()?;
        if let Some(entry) = &pending.entry {
            return self.enter(node, entry, (upper.pending.as_fd(), &pending.name));
        }
        let link = node.link().ok_or(Errno::NOENT)?;
        let parent = self.upper_part(&link.parent)?;
        times.keep(&parent)?;
        rustix::fs::renameat(&upper.pending, &pending.name, &parent, &*link.name)?;
        node.set_place(Place::Upper);
        self.note_new_name(&link.parent);
        self.set_impure(&link.parent)?;
        Ok(vec![link.parent])
    }

    /// Makes the names of directories durable, and of those above them that are new too.
    pub(crate) async fn sync_directories(&self, directories: Vec<Rc<Node>>) -> Result<(), Errno> {
        let mut to_sync: Vec<Rc<Node>> = Vec::new();
        for mut directory in directories {
            loop {
                let state = directory.directory().ok_or(Errno::NOTDIR)?;
                if state.has_new_names.replace(false) {
                    to_sync.push(Rc::clone(&directory));
                }
                let Some(link) = directory.link() else { break };
                directory = link.parent;
            }
        }
        let sync = |directory: BorrowedFd<'_>| {
            let open = sys::open_below(directory, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok::<_, Errno>(ring::File::from_handle(ring::Handle::from_fd(open)).sync_all())
        };
        let mut syncs = Vec::with_capacity(to_sync.len());
        for directory in &to_sync {
            syncs.push(sync(self.upper_part(directory)?.as_fd())?);
        }
        let mut result = Ok(());
        if let Some(index) = &self.index
            && index.has_new_names.replace(false)
            && let Err(error) = sync(index.directory.as_fd())?.await
        {
            index.has_new_names.set(true);
            result = Err(errno_of(error));
        }
        for (sync, directory) in syncs.into_iter().zip(&to_sync) {
            if let Err(error) = sync.await {
                // Not durable: whoever asks next is told so again.
                self.note_new_name(directory);
                result = Err(errno_of(error));
            }
        }
        result
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

/// Does something in a directory that shall not show in its times.
pub(crate) fn keeping_times<T>(
    directory: BorrowedFd<'_>,
    change: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let before = sys::stat_at(directory, b"")?;
    let done = change()?;
    sys::set_times(directory, Some(before.atime), Some(before.mtime))?;
    Ok(done)
}
