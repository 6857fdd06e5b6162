//! The threads that do for the serving ones what may wait for a disk: copying files, and making them
//! durable.
//!
//! A serving thread answers everybody; whatever stops it stops all its unions. So making a copy's file
//! and copying its bytes are one [`Copy`], carried out here. Copies take turns of a few hundred
//! microseconds, so that a large one makes nobody wait ([`copy`]).
//!
//! Syncs go through this thread's reactor ([`sync`]), for reasons of their own: the kernel carries a
//! thread's buffered writes and syncs out in one queue, and whoever writes would wait for the syncs that
//! came before; and what all unions of several threads want durable meets here.

mod copy;
mod range;
mod sync;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::File;
use ring::mailbox::{self, Receiver, Sender};
use rustix::io::Errno;

use crate::commit::errno_of;

pub(crate) use copy::{Copied, Copy, To};
pub(crate) use range::copy_range;
pub(crate) use sync::{Goal, ToSync, Way};

use sync::Syncs;

/// Orders that may wait; who sends more waits for room.
const ORDERS_MAX: usize = 1024;
/// Threads of the kernel for syncs and what else waits: as many as a batch has files, so that these
/// share flushes of the disk.
const BLOCKING_MAX: u32 = 64;
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
    Sync(Vec<ToSync>, Way, Goal, Sender<Vec<Result<(), Errno>>>),
}

impl Copier {
    /// Copies a file.
    pub(crate) async fn copy(&self, copy: Copy) -> Result<Copied, Errno> {
        let (answer, mut wait) = mailbox::channel(1);
        self.send(Order::Copy(copy, answer)).await?;
        wait.recv().await.unwrap_or(Err(Errno::IO))
    }

    /// Makes files of one file system durable, all at a time. Answers in their order.
    pub(crate) async fn sync(
        &self,
        files: Vec<ToSync>,
        way: Way,
        goal: Goal,
    ) -> Vec<Result<(), Errno>> {
        let count = files.len();
        if count == 0 {
            return Vec::new();
        }
        let (answer, mut wait) = mailbox::channel(1);
        if let Err(errno) = self.send(Order::Sync(files, way, goal, answer)).await {
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
        let config = ring::Config { blocking_max: BLOCKING_MAX, ..ring::Config::default() };
        ring::thread::spawn("union-copy", &config, move || serve(receiver))?;
        Ok(orders.insert(sender).clone())
    }
}

/// Works orders off. The end: all who could want something are gone.
async fn serve(mut orders: Receiver<Order>) {
    let desk = Rc::new(Desk::default());
    while let Some(order) = orders.recv().await {
        let desk = Rc::clone(&desk);
        match order {
            Order::Copy(copy, answer) => {
                drop(ring::spawn(async move { desk.carry_out(copy, &answer).await }));
            }
            Order::Sync(files, way, goal, answer) => {
                // It may be among them; and its file must not be held open beyond its union's end.
                desk.last.send_off();
                drop(ring::spawn(async move {
                    let _ = answer.try_send(desk.syncs.sync(&files, &way, goal).await);
                }));
            }
        }
    }
}

/// What copies and syncs of this thread share.
#[derive(Default)]
struct Desk {
    syncs: Syncs,
    last: Last,
}

impl Desk {
    /// A copy from its beginning to its end, in steps; others have their turns between these.
    async fn carry_out(&self, mut copy: Copy, answer: &Sender<Result<Copied, Errno>>) {
        let outcome = loop {
            match copy.step() {
                Ok(None) => ring::yield_now().await,
                Ok(Some(copied)) => break Ok(copied),
                Err(errno) => {
                    copy.give_up();
                    break Err(errno);
                }
            }
        };
        let to_write = outcome.as_ref().ok().filter(|copied| copy.writes_back && !copied.is_clone);
        let to_write = to_write.map(|copied| copied.file.clone());
        // Before anything that may take long: somebody waits.
        let _ = answer.try_send(outcome);
        if let Some(file) = to_write {
            self.last.keep(file).await;
        }
    }
}

/// The copy that was made last, if it is not on its way to the disk yet.
#[derive(Default)]
struct Last {
    file: RefCell<Option<File>>,
    count: Cell<u64>,
}

impl Last {
    /// Keeps a copy back for some time, and sends the one before off.
    async fn keep(&self, file: File) {
        self.send_off();
        *self.file.borrow_mut() = Some(file);
        let count = self.count.get() + 1;
        self.count.set(count);
        ring::time::sleep(LAST_TIME_MAX).await;
        if self.count.get() == count {
            self.send_off();
        }
    }

    /// Starts to write it back.
    fn send_off(&self) {
        if let Some(file) = self.file.take() {
            file.start_write_back(0, 0);
        }
    }
}
