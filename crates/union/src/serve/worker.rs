//! A serving thread: the unions that belong to it, on one reactor. The server's main thread is one.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use fuse::{Negotiated, Unmounter};
use reactor::mailbox::{Receiver, Sender, channel};

use super::book::{Book, Pages};
use super::keeper::{Gone, Keeper};
use super::served::Served;
use crate::copier::Copier;
use crate::error::UnionError;
use crate::mount::{Ready, UnionMount};
use crate::ops::Shared;
use crate::tree::Observer;

/// Orders and events that may wait.
const MESSAGES_MAX: usize = 1024;

/// A mount that a worker is to serve.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) ready: Ready,
    pub(super) device: OwnedFd,
    pub(super) unmounter: Unmounter,
    /// The features that an earlier server negotiated with the kernel.
    pub(super) agreed: Option<Negotiated>,
    /// The memory that survives this server.
    pub(super) pages: Pages,
    pub(super) keeper: Keeper,
    /// Files without a name that an earlier server had open.
    pub(super) gone: Vec<Gone>,
}

/// A worker's report.
#[derive(Debug)]
pub(super) enum Event {
    /// The kernel and the union have found each other.
    Serving(u64, Negotiated),
    /// A union is unmounted and finished, or could not be served.
    Ended(u64, Result<(), String>),
}

/// A worker as the server's main thread knows it; it ends when this is dropped and its unions have
/// ended.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) orders: Sender<Order>,
}

impl Worker {
    /// Makes this thread a worker, too.
    pub(super) fn start_here(copier: Copier, events: Sender<Event>) -> Self {
        let (orders, inbox) = channel(MESSAGES_MAX);
        drop(reactor::spawn(work(inbox, copier, events)));
        Self { orders }
    }

    /// Starts a thread.
    pub(super) fn start(
        index: usize,
        copier: Copier,
        events: Sender<Event>,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = channel(MESSAGES_MAX);
        let config = reactor::Config { sqe128: false, ..reactor::Config::default() };
        let run = move || work(inbox, copier, events);
        drop(reactor::thread::spawn(&format!("union-{index}"), &config, run)?);
        Ok(Self { orders })
    }
}

/// Returns a mailbox of events, of the size that they need.
pub(super) fn events() -> (Sender<Event>, Receiver<Event>) {
    channel(MESSAGES_MAX)
}

async fn work(mut inbox: Receiver<Order>, copier: Copier, events: Sender<Event>) {
    let shared = Rc::new(Shared::with_copier(copier));
    while let Some(order) = inbox.recv().await {
        let (shared, events) = (Rc::clone(&shared), events.clone());
        drop(reactor::spawn(async move {
            let id = order.id;
            let result = serve(order, shared, events.clone()).await;
            let result = result.map_err(|error| error.to_string());
            // Fails only if the server is ending, which then knows.
            let _ = events.send(Event::Ended(id, result)).await;
        }));
    }
}

async fn serve(order: Order, shared: Rc<Shared>, events: Sender<Event>) -> Result<(), UnionError> {
    let Order { id, ready, device, unmounter, agreed, pages, keeper, gone } = order;
    let union = ready.union(&shared);
    let book = Rc::new(Book::new(id, pages, keeper));
    if agreed.is_some() {
        book.restore(&union, gone).map_err(|errno| UnionError::Serving(errno.into()))?;
    }
    // Only now: what was restored is noted by the book itself.
    union.tree().observe_by(Rc::clone(&book) as Rc<dyn Observer>);
    let mount = UnionMount::adopt(&union, device, unmounter, agreed)?;
    mount.run_as(Rc::new(Served::new(union, book, id, events))).await
}
