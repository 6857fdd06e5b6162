//! Filling partial files in the background, until they are whole.
//!
//! A file is filled in two phases. First the unstored and the stored parts go into a work file,
//! step by step on a thread of the lowest priority ([`worker`]), while the file is read and written
//! as before. Then, for the time of a flush, its writers wait: their changes since are copied over,
//! and the work file becomes durable and takes its name, as when a file is completed for any other
//! reason ([`super::complete`]). Files of the second phase go together, so that one flush covers
//! many.
//!
//! Applications come first: no step begins while a request is in flight, a step is small, bytes per
//! second are bounded, and nothing is filled where the upper file system would have less free than
//! `fill_free` percent. A file that cannot be filled stays partial and is logged: a writer whose
//! write was acknowledged gets no error.
//!
//! The name of a work file contains the number of the journal and of the file, and an attribute of
//! it records its progress, so the next mount continues from there. This is sound because bytes
//! that come from the lower file now have always come from it, and because the lower file is
//! checked to be the one that was copied up.

mod pace;
mod work;
mod worker;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use reactor::local::Notify;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::PartialFiles;
use super::complete::Whole;
use crate::journal::FileId;
use crate::options::FillMode;
use crate::store::{Partial, directories_below};
use crate::sys::errno_of;
use crate::tree::Node;

use pace::Pace;
use work::Filled;
use worker::InUse;
pub(crate) use worker::Worker;

/// How long the thread lives after the last file.
const WORKER_WAIT: Duration = Duration::from_secs(1);
/// Interval of attempts while there is no room.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// A file to be filled.
#[derive(Debug, Clone)]
struct Wanted {
    file: FileId,
    parent: Rc<Node>,
    name: Box<[u8]>,
}

/// Why a file is not filled, now or ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The union is ending.
    Ending,
    /// The file is no longer partial, or is being completed for a waiting request.
    Gone,
    /// There is not enough room, or an application needs it.
    NoRoom,
    /// It failed.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOSPC | Errno::DQUOT => Self::NoRoom,
            errno => Self::Failed(errno),
        }
    }
}

/// The state of filling the partial files of a union.
#[derive(Debug, Default)]
pub(crate) struct Filler {
    /// Files that wait to be filled, the oldest first; at most the files of the journal.
    queue: RefCell<VecDeque<Wanted>>,
    /// Files for which there was no room.
    postponed: RefCell<Vec<Wanted>>,
    is_running: Cell<bool>,
    is_ending: Cell<bool>,
    /// Something is queued, or no request is in flight any more, or the end is near.
    changed: Notify,
    ended: Notify,
    pace: Pace,
}

impl Filler {
    /// Counts a request until the answer is dropped: nothing is filled meanwhile.
    pub(crate) fn request(&self) -> Request<'_> {
        self.pace.requests.set(self.pace.requests.get() + 1);
        Request(self)
    }

    /// A request had no space: releases the space that filling has taken.
    pub(crate) fn give_room(&self) {
        self.pace.is_room_wanted.set(self.is_running.get());
    }

    /// Adds a file to the queue.
    pub(super) fn want(&self, file: FileId, parent: &Rc<Node>, name: &[u8]) {
        if self.is_running.get() {
            let wanted = Wanted { file, parent: Rc::clone(parent), name: name.into() };
            self.queue.borrow_mut().push_back(wanted);
            self.changed.notify();
        }
    }

    /// Waits for something to do; `false` at the end. The thread is kept for a while after the
    /// last.
    async fn wait<'a>(&self, worker: &'a Worker, kept: &mut Option<InUse<'a>>) -> bool {
        loop {
            if self.is_ending.get() {
                return false;
            }
            if !self.queue.borrow().is_empty() {
                kept.get_or_insert_with(|| worker.keep());
                return true;
            }
            let changed = std::pin::pin!(self.changed.notified());
            let has_postponed = !self.postponed.borrow().is_empty();
            let longest = match kept {
                Some(_) => WORKER_WAIT,
                None if has_postponed => ROOM_WAIT,
                None => {
                    changed.await;
                    continue;
                }
            };
            if let reactor::Either::Second(()) =
                reactor::race(changed, reactor::time::sleep(longest)).await
                && kept.take().is_none()
            {
                // No event reports free space.
                self.queue.borrow_mut().extend(self.postponed.borrow_mut().drain(..));
            }
        }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Request<'a>(&'a Filler);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let requests = &self.0.pace.requests;
        requests.set(requests.get() - 1);
        if requests.get() == 0 && self.0.is_running.get() {
            self.0.changed.notify();
        }
    }
}

impl PartialFiles {
    /// Starts to fill partial files, those of earlier mounts first, if the options request it.
    pub(crate) fn start_filling(self: &Rc<Self>) {
        let Some(store) = self.tree.store() else { return };
        let options = &self.tree.options();
        if options.fill != FillMode::Background || store.is_volatile() || options.read_only {
            return;
        }
        self.filler.is_running.set(true);
        self.filler.pace.bound(options.fill_rate_bytes, options.fill_free_percent);
        let files = Rc::clone(self);
        drop(reactor::spawn(async move {
            let (filler, worker) = (&files.filler, &files.worker);
            let mut kept = Some(worker.keep());
            if let Err(errno) = files.queue_known().await {
                tracing::warn!(%errno, "partial copies of earlier mounts are not filled");
            }
            while filler.wait(worker, &mut kept).await {
                let batch = files.gather().await;
                files.publish_filled(batch).await;
            }
            drop(kept);
            filler.is_running.set(false);
            filler.ended.notify();
        }));
    }

    /// Stops filling; the next mount continues with half-filled files.
    pub(crate) async fn stop_filling(&self) {
        while self.filler.is_running.get() {
            self.filler.is_ending.set(true);
            let ended = self.filler.ended.notified();
            self.filler.changed.notify();
            ended.await;
        }
        self.filler.queue.borrow_mut().clear();
        self.filler.postponed.borrow_mut().clear();
    }

    /// Queues the partial files of earlier mounts.
    async fn queue_known(&self) -> Result<(), Errno> {
        let known = self.tree.store().map(|store| store.named()).unwrap_or_default();
        if known.is_empty() {
            return Ok(());
        }
        let root = self.tree.upper()?.root.try_clone().map_err(errno_of)?;
        let worker = &self.worker;
        let directories = worker.run(move || directories_below(root.as_fd())).await?;
        for (file, name) in known {
            // Each is a lookup, and there may be thousands: other tasks run in between.
            reactor::yield_now().await;
            let Some(path) = directories.get(&name.parent) else { continue };
            let parent = if path.is_empty() {
                Ok(Rc::clone(self.tree.root()))
            } else {
                self.tree.node_at(path)
            };
            match parent {
                Ok(parent) => self.filler.want(file, &parent, &name.name),
                Err(errno) => tracing::debug!(%errno, "a partial copy's directory has gone"),
            }
        }
        Ok(())
    }

    /// Returns the first phase, of as many files as go together.
    async fn gather(self: &Rc<Self>) -> Vec<Filled> {
        let filler = &self.filler;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let (options, fills) = (&self.tree.options(), &self.tree.kept().descriptors().fills);
        while batch.len() < options.batch_files_max && bytes < options.batch_bytes_max {
            let room = match &batch[..] {
                [] => fills.acquire(1).await,
                _ => match fills.try_acquire(1) {
                    Some(room) => room,
                    None => break,
                },
            };
            let Some(wanted) = filler.queue.borrow_mut().pop_front() else { break };
            match self.fill(&wanted, room).await {
                Ok(filled) => {
                    bytes += filled.bytes;
                    batch.push(filled);
                }
                Err(Stop::Gone) => {}
                Err(Stop::NoRoom) => self.postpone(wanted),
                Err(Stop::Failed(errno)) => Self::log_failure(&wanted, errno),
                Err(Stop::Ending) => break,
            }
        }
        batch
    }

    /// The second phase.
    async fn publish_filled(self: &Rc<Self>, batch: Vec<Filled>) {
        let filler = &self.filler;
        let files: Vec<_> = batch.iter().map(|filled| filled.whole.file.clone()).collect();
        if files.is_empty() {
            return;
        }
        // Before a request has to wait for it. The kernel reports an error of write-back here, and
        // not to the later sync.
        let write = move || {
            let write = |file: &reactor::File| file.write_back_blocking().map_err(errno_of);
            Ok(files.iter().map(write).collect::<Vec<_>>())
        };
        let worker = &self.worker;
        let written = worker.run(write).await;
        let written = written.unwrap_or_else(|errno| vec![Err(errno); batch.len()]);
        filler.quiet().await;
        let mut ready = Vec::with_capacity(batch.len());
        let (mut wanted, mut rooms) = (Vec::new(), Vec::new());
        for (filled, written) in batch.into_iter().zip(written) {
            if !is_partial(&filled.whole.node, &filled.whole.partial) {
                self.remove_fill_file(&filled.whole.partial);
                continue;
            }
            filled.whole.partial.begin_completing();
            let caught_up = match written {
                Ok(()) => filled.catch_up(&self.tree, &self.worker).await,
                Err(errno) => Err(errno),
            };
            match caught_up {
                Ok(()) => {
                    ready.push(filled.whole);
                    wanted.push(filled.wanted);
                    rooms.push(filled.room);
                }
                Err(errno) => {
                    self.take_back(&filled.whole);
                    filled.whole.partial.end_completing();
                    self.not_filled(filled.wanted, errno);
                }
            }
        }
        let results = self.name_whole(ready).await;
        for (wanted, result) in wanted.into_iter().zip(results) {
            if let Err(errno) = result {
                self.not_filled(wanted, errno);
            }
        }
    }

    fn not_filled(&self, wanted: Wanted, errno: Errno) {
        match Stop::from(errno) {
            Stop::NoRoom => self.postpone(wanted),
            _ => Self::log_failure(&wanted, errno),
        }
    }

    fn postpone(&self, wanted: Wanted) {
        let mut postponed = self.filler.postponed.borrow_mut();
        if postponed.is_empty() {
            let percent = self.tree.options().fill_free_percent;
            tracing::warn!(
                "partial copies are not filled: the upper file system would have less \
                than {percent} % free"
            );
        }
        postponed.push(wanted);
    }

    fn log_failure(wanted: &Wanted, errno: Errno) {
        let directory = crate::tree::path_of(&wanted.parent);
        let path = crate::sys::join(&directory, &wanted.name);
        let path = String::from_utf8_lossy(&path);
        tracing::error!(%path, %errno, "a partial copy cannot be filled and stays partial");
    }

    /// Removes what was filled of a file that is not partial any more.
    pub(super) fn remove_fill_file(&self, partial: &Partial) {
        if self.tree.options().fill == FillMode::Background
            && let Ok(upper) = self.tree.upper()
        {
            let name = partial.store().fill_name(partial.file());
            let _ = rustix::fs::unlinkat(&upper.pending, name, AtFlags::empty());
        }
    }
}

/// Returns whether a node is still this partial file and is not being completed.
fn is_partial(node: &Node, partial: &Rc<Partial>) -> bool {
    node.partial().is_some_and(|now| Rc::ptr_eq(&now, partial)) && !partial.is_completing()
}
