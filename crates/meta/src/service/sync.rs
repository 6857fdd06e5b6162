//! Syncs of the store on a thread of its own, shared by all waiting calls.
//!
//! A sync takes milliseconds, and other calls go on meanwhile. A call that needs a sync while one
//! is under way waits for the next one, which serves all waiting calls.

use super::outbox::Then;
use super::shared::Shared;
use crate::store::{Error, Syncer};
use reactor::local::{Notify, oneshot};
use reactor::mailbox::{Receiver, Sender, channel};
use reactor::time::{now, timeout};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// After this time without a request for a sync, the thread records outside of the journal what was
/// synced.
const REST: Duration = Duration::from_millis(2);

/// Interval between these records while requests for syncs never stop.
const REMEMBER_EVERY: Duration = Duration::from_millis(20);

/// Making the store durable.
const SYNC: metrics::Point = metrics::Point::new(metrics::Family::Serve, 129, "store_sync");

/// The channel to the sync thread, and the waiting requests.
pub(super) struct Syncing {
    requests: Sender<()>,
    results: RefCell<Option<Receiver<Result<(), Error>>>>,
    waiting: RefCell<Vec<Then>>,
    wanted: Notify,
}

impl Syncing {
    /// Starts the thread.
    pub(super) fn start(syncer: Box<dyn Syncer>) -> io::Result<Syncing> {
        let (requests, mut incoming) = channel::<()>(2);
        let (outgoing, results) = channel::<Result<(), Error>>(2);
        let config = reactor::Config { entries: 8, ..reactor::Config::default() };
        reactor::thread::spawn("meta-sync", &config, move || async move {
            let mut remembered = now();
            let mut wanted = incoming.recv().await;
            while wanted.is_some() {
                let counted = metrics::start(SYNC, 0);
                let synced = syncer.sync();
                counted.end(if synced.is_ok() { 0 } else { protocol::Errno::EIO.raw() });
                if outgoing.send(synced).await.is_err() {
                    return;
                }
                // Answers do not wait for this record, and mostly the next sync does not either.
                let next = timeout(REST, incoming.recv()).await;
                if next.is_err() || remembered.elapsed() > REMEMBER_EVERY {
                    syncer.remember();
                    remembered = now();
                }
                wanted = match next {
                    Ok(next) => next,
                    Err(_) => incoming.recv().await,
                };
            }
            syncer.remember();
        })?;
        Ok(Syncing {
            requests,
            results: RefCell::new(Some(results)),
            waiting: RefCell::default(),
            wanted: Notify::new(),
        })
    }
}

impl Shared {
    /// Runs `then` once all changes flushed so far are durable.
    pub(super) fn sync_then(&self, then: impl FnOnce(&Rc<Shared>) + 'static) {
        self.syncing.waiting.borrow_mut().push(Box::new(then));
        self.syncing.wanted.notify();
    }

    /// Syncs whenever a task requests it, once for all requests up to then.
    pub(super) async fn sync_loop(self: Rc<Self>) {
        let Some(mut results) = self.syncing.results.borrow_mut().take() else { return };
        loop {
            self.syncing.wanted.notified().await;
            let waiting = std::mem::take(&mut *self.syncing.waiting.borrow_mut());
            if waiting.is_empty() {
                continue;
            }
            self.is_unsynced.set(false);
            let stored = self.core.borrow().stored_free_epoch();
            if self.syncing.requests.send(()).await.is_err() {
                return;
            }
            match results.recv().await {
                Some(Ok(())) => {}
                Some(Err(error)) => return self.fail(error),
                None => return self.fail(Error::Poisoned),
            }
            self.count(|counts| counts.syncs += 1);
            let later = self.core.borrow().free_epoch();
            let through = if reactor::mutant!("sync-covers-later") { later } else { stored };
            self.core.borrow_mut().synced(through);
            self.reclaim_wanted.notify();
            for then in waiting {
                then(&self);
            }
        }
    }

    /// Makes names durable within a second: syncs the changes that were flushed since the last
    /// sync.
    pub(super) async fn sync_ticks(self: Rc<Self>) {
        loop {
            reactor::time::sleep(self.times.writeback).await;
            if self.is_unsynced.get() {
                self.sync_then(|_| {});
            }
        }
    }

    /// Makes everything durable now.
    pub(super) async fn sync_now(self: &Rc<Self>) -> Result<(), Error> {
        let (done, is_done) = oneshot();
        self.sync_then(move |_| {
            // The waiting task may have ended.
            let _ = done.send(());
        });
        is_done.await.map_err(|_| Error::Poisoned)
    }
}
