//! Changes in the upper directory that are not known to be durable.
//!
//! The kernel does not pass sync(2), syncfs(2) or umount(2) to a FUSE server, and flushing the
//! whole file system would flush the data of other programs too. So the union records the changed
//! files and directories and syncs them within the batch time, at `union sync`, and at unmount.
//!
//! A sync consumes the error that it reports, and a later sync would succeed. So errors of syncs
//! that no caller requested are kept for the next caller.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use reactor::local::Notify;

use rustix::io::Errno;

use super::Durability;
use crate::backing::Backing;
use crate::copier::{Goal, SyncMethod, ToSync};
use crate::options::SyncMode;
use crate::signal::DueSignal;
use crate::tree::Node;

/// At this number a flush starts at once, because each noted file takes memory.
const NOTED_MAX: usize = 4096;
/// How long a flush waits after one that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The state of flushing changes.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    /// A change that is not flushed, or the end.
    pub(super) signal: Rc<DueSignal>,
    is_flushing: Cell<bool>,
    /// Some files' flush has ended.
    flushed: Notify,
    /// The files that are being flushed.
    current: RefCell<HashSet<u64>>,
    is_running: Cell<bool>,
    is_ending: Cell<bool>,
    ended: Notify,
    /// Files whose unrequested sync failed: the next caller gets the error, once. At most
    /// [`NOTED_MAX`].
    failed: RefCell<HashMap<u64, Errno>>,
    /// The error of an unrequested sync that no sync of everything has reported.
    unreported: Cell<Option<Errno>>,
}

impl Durability {
    /// Starts to make changes durable within the batch time, or within twice the time of the last
    /// flush if that is longer: the disk must have time for other work.
    pub(crate) fn start_flushing(self: &Rc<Self>) {
        if self.tree.layers().upper.is_none() || self.tree.options().sync == SyncMode::Volatile {
            return;
        }
        self.flusher.is_running.set(true);
        if let Some(store) = self.tree.store() {
            store.signal_ends_by(&self.flusher.signal);
        }
        self.flusher.signal.set_due(self.inherited.is_due());
        let durability = Rc::clone(self);
        drop(reactor::spawn(async move {
            let flusher = &durability.flusher;
            while !flusher.is_ending.get() {
                while !flusher.signal.is_due() && !flusher.is_ending.get() {
                    flusher.signal.changed().await;
                }
                durability.pause(durability.tree.options().batch_time).await;
                if flusher.is_ending.get() {
                    break;
                }
                flusher.signal.set_due(false);
                let start = reactor::time::now();
                durability.retry_deferred();
                let inherited = durability.sync_inherited().await;
                let committed = durability.commit_partials().await;
                let flushed = durability.flush_dirty().await.and(committed).and(inherited);
                if let Err(errno) = durability.commit_ends().await.and(flushed) {
                    tracing::error!(%errno, "changed files could not be made durable");
                    // What stays due is tried again, but not all the time.
                    durability.pause(RETRY_PAUSE).await;
                }
                durability
                    .pause(start.elapsed().saturating_sub(durability.tree.options().batch_time))
                    .await;
            }
            flusher.is_running.set(false);
            flusher.ended.notify();
        }));
    }

    /// Stops flushing in the background.
    pub(crate) async fn stop_flushing(&self) {
        let flusher = &self.flusher;
        while flusher.is_running.get() {
            flusher.is_ending.set(true);
            let ended = flusher.ended.notified();
            flusher.signal.wake();
            ended.await;
        }
    }

    /// Waits for a time, or the end.
    async fn pause(&self, time: Duration) {
        let flusher = &self.flusher;
        let deadline = reactor::time::now() + time;
        while !flusher.is_ending.get() && reactor::time::now() < deadline {
            let changed = std::pin::pin!(flusher.signal.changed());
            let _ = reactor::race(changed, reactor::time::sleep_until(deadline)).await;
        }
    }

    /// Notes that a file was changed.
    pub(crate) fn note_dirty(self: &Rc<Self>, node: &Rc<Node>) {
        if self.tree.options().sync == SyncMode::Volatile {
            return;
        }
        self.note(node);
        if self.dirty.borrow().len() >= NOTED_MAX && !self.flusher.is_flushing.get() {
            let durability = Rc::clone(self);
            drop(reactor::spawn(async move {
                if let Err(errno) = durability.flush_dirty().await {
                    tracing::error!(%errno, "changed files could not be made durable");
                }
            }));
        }
    }

    /// Keeps the error of a sync for the next sync of everything: a later one of the same file would
    /// succeed without the lost data.
    pub(super) fn keep_error(&self, errno: Errno) {
        self.flusher.unreported.set(Some(errno));
    }

    /// Returns the error of an unrequested sync since the last call, as syncfs(2) does.
    pub(super) fn take_unreported(&self) -> Result<(), Errno> {
        self.flusher.unreported.take().map_or(Ok(()), Err)
    }

    /// Makes the next flush due.
    pub(super) fn raise_flush(&self) {
        self.flusher.signal.raise();
    }

    fn note(&self, node: &Rc<Node>) {
        let mut dirty = self.dirty.borrow_mut();
        if dirty.is_empty() {
            self.flusher.signal.raise();
        }
        dirty.insert(node.id.get(), Rc::clone(node));
    }

    /// Forgets the changes of a file that is about to be synced.
    pub(crate) fn forget_dirty(&self, node: &Node) {
        self.dirty.borrow_mut().remove(&node.id.get());
    }

    /// Waits until no background flush of a file is under way. Returns the error of such a flush,
    /// once.
    pub(crate) async fn flushed(&self, node: &Node) -> Result<(), Errno> {
        let flusher = &self.flusher;
        while flusher.current.borrow().contains(&node.id.get()) {
            flusher.flushed.notified().await;
        }
        flusher.failed.borrow_mut().remove(&node.id.get()).map_or(Ok(()), Err)
    }

    /// Notes that a directory has a name that is not known to be durable.
    pub(crate) fn note_new_name(&self, directory: &Rc<Node>) {
        if let Some(state) = directory.directory()
            && !state.has_new_names.replace(true)
            && self.tree.options().sync != SyncMode::Volatile
        {
            self.note(directory);
        }
    }

    /// Makes everything durable that was changed before the call.
    pub(crate) async fn flush_dirty(self: &Rc<Self>) -> Result<(), Errno> {
        let flusher = &self.flusher;
        // Changes that another flush has taken are not durable until it ends.
        while self.flusher.is_flushing.get() {
            flusher.flushed.notified().await;
        }
        self.flusher.is_flushing.set(true);
        let result = self.flush_noted().await;
        self.flusher.is_flushing.set(false);
        flusher.flushed.notify();
        result
    }

    async fn flush_noted(self: &Rc<Self>) -> Result<(), Errno> {
        let dirty: Vec<Rc<Node>> =
            std::mem::take(&mut *self.dirty.borrow_mut()).into_values().collect();
        let (directories, files): (Vec<_>, Vec<_>) =
            dirty.into_iter().partition(|node| node.is_directory());
        let mut result = Ok(());
        let descriptors = self.tree.kept().descriptors();
        for files in files.chunks(descriptors.flush_max) {
            let room = descriptors.flushes.acquire(files.len()).await;
            let current = &self.flusher.current;
            current.borrow_mut().extend(files.iter().map(|node| node.id.get()));
            result = self.flush_files(files).await.and(result);
            drop(room);
            current.borrow_mut().clear();
            self.flusher.flushed.notify();
        }
        for directories in directories.chunks(descriptors.flush_max) {
            // Also those whose attributes alone have changed.
            for state in directories.iter().filter_map(|directory| directory.directory()) {
                state.has_new_names.set(true);
            }
            let _room = descriptors.flushes.acquire(directories.len()).await;
            result = self.sync_directories(directories.to_vec()).await.and(result);
        }
        result
    }

    /// Makes files durable that cannot be opened: links and special files, which have attributes
    /// alone, and files that the union's user may neither read nor write.
    async fn sync_unopened(&self, has_data: bool) -> Result<(), Errno> {
        let method = self.tree.upper()?.sync_method.clone();
        let SyncMethod::Commit { mark, .. } = &method else {
            return self.sync_all_of_upper().await;
        };
        if has_data {
            return self.sync_all_of_upper().await;
        }
        let commit = vec![ToSync::Names(mark.clone())];
        self.committer.copier.sync(commit, method, Goal::Durable).await.into_iter().collect()
    }

    async fn flush_files(self: &Rc<Self>, nodes: &[Rc<Node>]) -> Result<(), Errno> {
        let mut result = Ok(());
        let mut backings = Vec::with_capacity(nodes.len());
        let (mut unopened, mut has_data) = (Vec::new(), false);
        for node in nodes {
            // A file that was unlinked and closed meanwhile needs no sync.
            let is_gone = node.link().is_none() && node.lookups.get() == 0;
            if is_gone || node.partial().is_some() {
                continue;
            }
            if let Some(pending) = node.pending() {
                // Its commit syncs it; later writes wait for the next flush.
                if pending.outcome().is_none() {
                    self.note(node);
                }
                continue;
            }
            match self.tree.backing_to_sync(node) {
                Ok(Some(backing)) => backings.push((node, backing)),
                Ok(None) => {
                    has_data |= node.file().is_some() && !node.has_data_apart();
                    unopened.push(node);
                }
                Err(Errno::NOENT | Errno::STALE) => {}
                Err(errno) => {
                    // The others are synced all the same, and this one the next time.
                    self.note(node);
                    result = Err(errno);
                }
            }
        }
        if !unopened.is_empty()
            && let Err(errno) = self.sync_unopened(has_data).await
        {
            self.keep_error(errno);
            for node in unopened {
                self.note(node);
            }
            result = Err(errno);
        }
        let file = |(_, backing): &(_, Rc<Backing>)| ToSync::File(backing.file.clone());
        let (files, sync_method) =
            (backings.iter().map(file).collect(), self.tree.upper()?.sync_method.clone());
        let synced = self.committer.copier.sync(files, sync_method, Goal::Durable).await;
        for (synced, (node, _)) in synced.into_iter().zip(&backings) {
            if let Err(errno) = synced {
                let mut failed = self.flusher.failed.borrow_mut();
                if failed.len() < NOTED_MAX {
                    failed.insert(node.id.get(), errno);
                }
                self.keep_error(errno);
                result = Err(errno);
            }
        }
        result
    }
}
