//! The committer of a thread: lets copies of all its unions gather, and makes them durable in
//! batches.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use metrics::{Family, Point};
use reactor::local::{Notify, Permit, Semaphore};
use reactor::time::Instant;
use rustix::io::Errno;

use super::{Durability, History};
use crate::copier::Copier;
use crate::tree::{Node, Pending};

/// Making copies durable together, and giving them their names.
const COMMIT: Point = Point::new(Family::Union, 2, "commit_batch");

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
    pub(super) copier: Copier,
    pub(super) history: History,
}

/// Batches that are made durable at a time. While one waits for the disk, the next ones fill, and
/// their syncs share its flushes.
const BATCHES_MAX: usize = 4;

/// Limits their number.
#[derive(Debug)]
struct Batches(Semaphore);

impl Default for Batches {
    fn default() -> Self {
        Self(Semaphore::new(BATCHES_MAX))
    }
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) pending: Rc<Pending>,
    // These keep the union and the node alive.
    pub(super) durability: Rc<Durability>,
    pub(super) node: Rc<Node>,
    since: Instant,
}

impl Committer {
    /// Makes a committer whose copies and syncs a thread executes.
    pub(crate) fn with_copier(copier: Copier) -> Self {
        Self { copier, ..Self::default() }
    }

    /// Returns the copier of the thread.
    pub(crate) fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Adds a copy to the next batch.
    pub(super) fn add(self: &Rc<Self>, of: &Rc<Durability>, node: &Rc<Node>, pending: Rc<Pending>) {
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
    pub(super) async fn room(&self, copies: &Semaphore) -> Permit {
        if let Some(room) = copies.try_acquire(1) {
            return room;
        }
        let room = copies.acquire(1);
        self.is_urgent.set(true);
        self.woken.notify();
        room.await
    }

    /// Waits until a copy has its name, or could not get it.
    pub(super) async fn finish(&self, pending: &Rc<Pending>) -> Result<(), Errno> {
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
            // The batch includes copies that are added meanwhile.
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

    /// Returns the arrival time of the oldest copy, and the limits of its union.
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
