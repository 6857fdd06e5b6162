//! Threads that copy files and make them durable, so that serving threads never wait for a disk.
//!
//! A serving thread answers all requests of its unions; when it waits, all of them wait. So
//! creating a copy's file and copying its bytes are one `Copy`, executed here. Copies take turns
//! of a few hundred microseconds, so that a large one delays no other ([`copy`]).
//!
//! Syncs go through the reactor of such a thread ([`sync`]) for two reasons: the kernel executes a
//! thread's buffered writes and syncs in one queue, so a writer would wait for earlier syncs; and
//! the requests of all unions of several threads meet here.
//!
//! One thread makes a union's copies, and another one starts their write-back and makes them
//! durable: starting to write back takes as long as copying, and a caller that changes one file
//! after the other would wait for it.

mod copy;
mod range;
mod sync;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reactor::File;
use reactor::mailbox::{self, Receiver, Sender};
use rustix::io::Errno;

use crate::free_run::Run;
use crate::sys::errno_of;

pub(crate) use copy::{Copied, Copy, To};
pub(crate) use range::copy_range;
pub(crate) use sync::{Goal, SyncMethod, ToSync};

use copy::Step;
use sync::Syncs;

/// Number of orders that may wait; a sender of more waits for space.
const ORDERS_MAX: usize = 1024;
/// Threads of the kernel for syncs and other calls that wait: as many as a batch has files, so that
/// their syncs share flushes of the disk.
const BLOCKING_MAX: u32 = 64;
/// How long write-back of the last copy is delayed, for the write that caused the copy.
const LAST_TIME_MAX: Duration = Duration::from_millis(2);

/// A thread, which is started when it is first needed and ends with the last of its handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopyThread {
    orders: Arc<Mutex<Option<Sender<Order>>>>,
}

/// The threads that work for a union. They may be one thread, and may work for other unions too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copier {
    copies: CopyThread,
    syncs: CopyThread,
}

/// An order for the thread, and the channel for its outcome. If no caller waits any more, the order
/// is not needed.
enum Order {
    /// The second is the thread that starts to write back.
    Copy(Copy, Sender<Order>, Sender<Result<Copied, Errno>>),
    WriteBack(WriteBack),
    Sync(Vec<ToSync>, SyncMethod, Goal, Sender<Vec<Result<(), Errno>>>),
}

/// The part of a copy whose write-back starts.
enum WriteBack {
    /// A part of it.
    Part(File, Range<u64>),
    /// All of it, which has just been copied.
    Last(File),
}

impl Copier {
    /// Makes a copier of a thread that copies, and one that makes files durable.
    pub(crate) fn new(copies: &CopyThread, syncs: &CopyThread) -> Self {
        Self { copies: copies.clone(), syncs: syncs.clone() }
    }

    /// Copies a file: in this call if it is small and writing need not wait.
    pub(crate) async fn copy(&self, mut copy: Copy, run: Option<Run<'_>>) -> Result<Copied, Errno> {
        let syncs = self.syncs.sender().map_err(errno_of)?;
        if let Some(run) = run {
            let copied = copy.at_once().inspect_err(|_| copy.give_up())?;
            drop(run);
            if let Some(copied) = copied {
                finish(&copied, copy.writes_back, &syncs);
                return Ok(copied);
            }
        }
        let (answer, mut wait) = mailbox::channel(1);
        self.copies.send(Order::Copy(copy, syncs, answer)).await?;
        wait.recv().await.unwrap_or(Err(Errno::IO))
    }

    /// Makes files of one file system durable, all at a time. Returns in their order.
    pub(crate) async fn sync(
        &self,
        files: Vec<ToSync>,
        method: SyncMethod,
        goal: Goal,
    ) -> Vec<Result<(), Errno>> {
        let count = files.len();
        if count == 0 {
            return Vec::new();
        }
        let (answer, mut wait) = mailbox::channel(1);
        if let Err(errno) = self.syncs.send(Order::Sync(files, method, goal, answer)).await {
            return vec![Err(errno); count];
        }
        wait.recv().await.unwrap_or_else(|| vec![Err(Errno::IO); count])
    }
}

impl CopyThread {
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
        let config = reactor::Config { blocking_max: BLOCKING_MAX, ..reactor::Config::default() };
        reactor::thread::spawn("union-copy", &config, move || serve(receiver))?;
        Ok(orders.insert(sender).clone())
    }
}

/// Executes orders until all possible senders are gone.
async fn serve(mut orders: Receiver<Order>) {
    let desk = Rc::new(Desk::default());
    while let Some(order) = orders.recv().await {
        let desk = Rc::clone(&desk);
        match order {
            Order::Copy(copy, syncs, answer) => {
                drop(reactor::spawn(async move { carry_out(copy, &syncs, &answer).await }));
            }
            Order::WriteBack(WriteBack::Part(file, part)) => {
                file.start_write_back(part.start, part.end - part.start);
            }
            Order::WriteBack(WriteBack::Last(file)) => {
                let count = desk.last.keep(file);
                drop(reactor::spawn(async move { desk.last.keep_no_longer(count).await }));
            }
            Order::Sync(files, method, goal, answer) => {
                // It may be among them; and its file must not be held open beyond its union's end.
                desk.last.send_off();
                drop(reactor::spawn(async move {
                    let _ = answer.try_send(desk.syncs.sync(&files, &method, goal).await);
                }));
            }
        }
    }
}

/// The state that the syncs of this thread share.
#[derive(Default)]
struct Desk {
    syncs: Syncs,
    last: Last,
}

/// Makes a copy in steps; other copies have their turns in between.
async fn carry_out(mut copy: Copy, syncs: &Sender<Order>, answer: &Sender<Result<Copied, Errno>>) {
    let writes_back = copy.writes_back;
    let outcome = loop {
        match copy.step() {
            Ok(Step::More(file, part)) => {
                if writes_back {
                    write_back(syncs, WriteBack::Part(file, part));
                }
                reactor::yield_now().await;
            }
            Ok(Step::Done(copied)) => break Ok(copied),
            Err(errno) => {
                copy.give_up();
                break Err(errno);
            }
        }
    };
    // Before the caller gets the copy and can sync it: no thread may hold it open after that sync.
    if let Ok(copied) = &outcome {
        finish(copied, writes_back, syncs);
    }
    let _ = answer.try_send(outcome);
}

/// Starts write-back of a copy soon, if there are bytes to write.
fn finish(copied: &Copied, writes_back: bool, syncs: &Sender<Order>) {
    if writes_back && !copied.is_clone {
        write_back(syncs, WriteBack::Last(copied.file.clone()));
    }
}

/// Requests write-back from a thread. Write-back only makes a later sync shorter; if too many
/// orders wait, the sync does all of it.
fn write_back(syncs: &Sender<Order>, what: WriteBack) {
    let _ = syncs.try_send(Order::WriteBack(what));
}

/// The last copy, if its write-back has not started.
#[derive(Default)]
struct Last {
    file: RefCell<Option<File>>,
    count: Cell<u64>,
}

impl Last {
    /// Delays the write-back of a copy, and starts that of the one before. Returns the number of
    /// the copy.
    fn keep(&self, file: File) -> u64 {
        self.send_off();
        *self.file.borrow_mut() = Some(file);
        self.count.set(self.count.get() + 1);
        self.count.get()
    }

    /// Starts write-back of a copy after some time, if it is still the last.
    async fn keep_no_longer(&self, count: u64) {
        reactor::time::sleep(LAST_TIME_MAX).await;
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
