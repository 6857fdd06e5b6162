//! Syncing the store on a thread of its own, shared by all who wait.
//!
//! A sync takes milliseconds during which other calls go on. Whoever wants one while one is under
//! way waits for the next, which then serves all of them.

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

/// When no sync has been wanted for so long, what was synced is remembered outside of the journal.
const REST: Duration = Duration::from_millis(2);

/// While syncs are wanted all the time it is remembered so often.
const REMEMBER_EVERY: Duration = Duration::from_millis(20);

/// Making the store durable.
const SYNC: metrics::Point = metrics::Point::new(metrics::Family::Serve, 129, "store_sync");

/// The way to the sync thread, and who waits.
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
                // Answers do not wait for this, and the next sync mostly need not either.
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
    /// Runs `then` once all that is flushed now is durable.
    pub(super) fn sync_then(&self, then: impl FnOnce(&Rc<Shared>) + 'static) {
        self.syncing.waiting.borrow_mut().push(Box::new(then));
        self.syncing.wanted.notify();
    }

    /// Syncs whenever somebody wants it, once for all who want it by then.
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

    /// Names are durable within a second: syncs whatever was flushed since the last sync.
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
            // Whoever waited may have gone.
            let _ = done.send(());
        });
        is_done.await.map_err(|_| Error::Poisoned)
    }
}
