//! The threads that do for the serving ones what may wait for a disk: copying files, and making them
//! durable.
//!
//! A serving thread answers everybody; whatever stops it stops all its unions. So making a copy's file
//! and copying its bytes are one [`Copy`], carried out here. Copies take turns of a few hundred microseconds, so that a large one makes nobody wait
//! ([`copy`]).
//!
//! Syncs go through this thread's reactor, for a reason of their own: the kernel carries a thread's
//! buffered writes and syncs out in one queue, and whoever writes would wait for the syncs that came
//! before.

mod copy;
mod range;

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::File;
use ring::local::Semaphore;
use ring::mailbox::{self, Receiver, Sender};
use rustix::io::Errno;

use crate::commit::errno_of;

pub(crate) use copy::{Copied, Copy, To};
pub(crate) use range::copy_range;

/// Orders that may wait; who sends more waits for room.
const ORDERS_MAX: usize = 1024;
/// Syncs of files that are in flight at a time over all orders.
const SYNCS_MAX: usize = 256;
/// How long the last copy is kept from its way to the disk, for the write that it was made for.
const LAST_TIME_MAX: Duration = Duration::from_millis(2);

/// A thread, which is started when it is first needed and ends with the last of its handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copier {
    orders: Arc<Mutex<Option<Sender<Order>>>>,
}

/// What the thread is to do, and where it tells the outcome. Nobody may be waiting for it any more:
/// then it is not needed.
enum Order {
    Copy(Copy, Sender<Result<Copied, Errno>>),
    Sync(Vec<File>, Sender<Vec<Result<(), Errno>>>),
}

impl Copier {
    /// Copies a file.
    pub(crate) async fn copy(&self, copy: Copy) -> Result<Copied, Errno> {
        let (answer, mut wait) = mailbox::channel(1);
        self.send(Order::Copy(copy, answer)).await?;
        wait.recv().await.unwrap_or(Err(Errno::IO))
    }

    /// Makes files durable, all at a time: first all data goes to the device, with no commit of the
    /// file system's journal between, and then they find themselves in one. Answers in their order.
    pub(crate) async fn sync(&self, files: Vec<File>) -> Vec<Result<(), Errno>> {
        let count = files.len();
        if count == 0 {
            return Vec::new();
        }
        let (answer, mut wait) = mailbox::channel(1);
        if let Err(errno) = self.send(Order::Sync(files, answer)).await {
            return vec![Err(errno); count];
        }
        wait.recv().await.unwrap_or_else(|| vec![Err(Errno::IO); count])
    }

    async fn send(&self, order: Order) -> Result<(), Errno> {
        let orders = self.sender().map_err(errno_of)?;
        orders.send(order).await.map_err(|_| Errno::IO)
    }

    fn sender(&self) -> io::Result<Sender<Order>> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*orders {
            return Ok(sender.clone());
        }
        let (sender, receiver) = mailbox::channel(ORDERS_MAX);
        let config = ring::Config::default();
        ring::thread::spawn("union-copy", &config, move || serve(receiver))?;
        Ok(orders.insert(sender).clone())
    }
}

/// A copy that is not at its end.
struct Job {
    copy: Copy,
    answer: Sender<Result<Copied, Errno>>,
}

async fn serve(mut orders: Receiver<Order>) {
    let syncs = Semaphore::new(SYNCS_MAX);
    let mut jobs: VecDeque<Job> = VecDeque::new();
    // The last copy: not on its way to the disk yet.
    let mut last = None;
    loop {
        let order = if jobs.is_empty() {
            // The end: all who could want something are gone.
            let Some(order) = next_order(&mut orders, &mut last).await else { return };
            Some(order)
        } else {
            orders.try_recv().ok()
        };
        match order {
            Some(Order::Copy(copy, answer)) => jobs.push_back(Job { copy, answer }),
            Some(Order::Sync(files, answer)) => {
                // It may be among them; and its file must not be held open beyond its union's end.
                send_off(&mut last);
                let syncs = syncs.clone();
                drop(ring::spawn(async move {
                    let _ = answer.try_send(sync_all(&syncs, files).await);
                }));
            }
            None => {}
        }
        if let Some(job) = jobs.pop_front() {
            take_turn(job, &mut jobs, &mut last);
            // What was ordered meanwhile, and syncs that have come to an end.
            ring::yield_now().await;
        }
    }
}

/// The next order, when nothing else is to be done.
async fn next_order(orders: &mut Receiver<Order>, last: &mut Option<File>) -> Option<Order> {
    if last.is_some() {
        let next = pin!(orders.recv());
        match ring::race(next, ring::time::sleep(LAST_TIME_MAX)).await {
            ring::Either::First(order) => return order,
            ring::Either::Second(()) => send_off(last),
        }
    }
    orders.recv().await
}

/// Starts to write a copy back.
fn send_off(last: &mut Option<File>) {
    if let Some(file) = last.take() {
        file.start_write_back(0, 0);
    }
}

/// One step of a copy, which goes to the end of the queue if it is not done.
fn take_turn(mut job: Job, jobs: &mut VecDeque<Job>, last: &mut Option<File>) {
    match job.copy.step() {
        Ok(None) => jobs.push_back(job),
        Ok(Some(copied)) => {
            let file = (job.copy.writes_back && !copied.is_clone).then(|| copied.file.clone());
            // Before anything that may take long: somebody waits.
            let _ = job.answer.try_send(Ok(copied));
            send_off(last);
            *last = file;
        }
        Err(errno) => {
            job.copy.give_up();
            let _ = job.answer.try_send(Err(errno));
        }
    }
}

/// Makes files durable. An error of writing data back is one of the sync: it is told once.
async fn sync_all(syncs: &Semaphore, files: Vec<File>) -> Vec<Result<(), Errno>> {
    let _permit = syncs.acquire(files.len().min(SYNCS_MAX)).await;
    // An operation goes out when it is made: all of them, before the first is waited for.
    let writes: Vec<_> = files.iter().map(File::write_back).collect();
    let mut results = Vec::with_capacity(files.len());
    for write in writes {
        results.push(write.await.map_err(errno_of));
    }
    let syncs: Vec<_> = files.iter().map(File::sync_all).collect();
    for (sync, result) in syncs.into_iter().zip(&mut results) {
        *result = result.and(sync.await.map_err(errno_of));
    }
    results
}
