//! Getting data to the device before it is made durable, on a thread of its own.
//!
//! Fifty files synced at a time, each with data still to be written, finish their data at different
//! times and so fall into different commits of the file system's journal, each with a flush and a
//! pause for everybody who changes metadata. With the data written before, all find themselves in
//! one. The reactor has no operation that only writes back, and waiting for one would stall the
//! mount; so a thread does it, which ends when there have been no commits for a while.

use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;

use ring::File;
use ring::mailbox::{self, Receiver, Sender};

/// Batches that may wait: the committer has one under way at a time.
const BATCHES_MAX: usize = 2;

/// How long the thread waits for the next batch before it ends.
const IDLE_TIME_MAX: Duration = Duration::from_secs(2);

/// Files to write back, and where to say that it is done.
type Batch = (Vec<File>, Sender<()>);

/// The thread that writes back; started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct WriteBack {
    batches: RefCell<Option<Sender<Batch>>>,
}

impl WriteBack {
    /// Writes files back. Errors are for the syncs that follow, which tell them too; if there is no
    /// thread to be had, these do all the work.
    pub(super) async fn run(&self, files: Vec<File>) {
        let Some(batches) = self.sender() else { return };
        let (done, mut wait) = mailbox::channel(1);
        if batches.send((files, done)).await.is_ok() {
            wait.recv().await;
        }
    }

    fn sender(&self) -> Option<Sender<Batch>> {
        let mut batches = self.batches.borrow_mut();
        if batches.as_ref().is_none_or(Sender::is_closed) {
            let (sender, receiver) = mailbox::channel(BATCHES_MAX);
            let config = ring::Config { entries: 8, ..ring::Config::default() };
            match ring::thread::spawn("write-back", &config, move || serve(receiver)) {
                Ok(_) => *batches = Some(sender),
                Err(error) => tracing::warn!(%error, "no thread for writing back"),
            }
        }
        batches.clone()
    }
}

async fn serve(mut batches: Receiver<Batch>) {
    loop {
        let next = pin!(batches.recv());
        let late = pin!(ring::time::sleep(IDLE_TIME_MAX));
        // What is sent at this very moment is dropped, and its sender goes on without.
        let ring::Either::First(Some((files, done))) = ring::race(next, late).await else { return };
        for file in &files {
            if let Err(error) = file.write_back_blocking() {
                tracing::debug!(%error, "writing back failed; the sync will tell");
            }
        }
        drop(files);
        let _ = done.try_send(());
    }
}
