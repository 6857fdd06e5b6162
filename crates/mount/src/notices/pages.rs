//! Files whose pages the kernel has to drop: a queue with several servers.
//!
//! Dropping pages waits for those that are being read or written, for seconds if a device does not
//! answer. So a file that waits takes one server, and the others go on with the other files. A
//! further server starts when the last idle one takes a file, up to [`SERVERS_MAX`].
//!
//! No two servers drop the pages of one file, because both might wait. What is queued for a file
//! while a server drops its pages is done once more after it, for all requests together.
//!
//! A request learns when its drop begins, because a server may get no processor for long. What
//! stands in its way before that, it learns at once: an earlier drop of the same file, or other
//! files that occupy all servers.

use super::NOTICES_MAX;
use client::Dropping;
use fuse::{FuseError, NodeId};
use reactor::mailbox::Sender;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most servers, so most files that may wait while other files go on.
const SERVERS_MAX: usize = 16;

/// A file in the queue, or one whose pages are being dropped.
#[derive(Debug, Default)]
struct OfFile {
    /// The channels that report how far the drop is.
    done: Vec<Sender<Dropping>>,
    is_wanted: bool,
    is_served: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Files that a server may take.
    queue: VecDeque<NodeId>,
    files: HashMap<NodeId, OfFile>,
    /// Channels in `files`.
    reports: usize,
    servers: usize,
    /// The number that the next server gets.
    next_server: usize,
    /// Servers that wait for a file.
    idle: BTreeMap<usize, Waker>,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end. The servers end when it is dropped and the queue is empty. Without servers it
/// refuses all files.
#[derive(Debug)]
pub(super) struct PageSender(Arc<Shared>);

impl PageSender {
    /// Queues a file. `done` reports how far the drop of its pages is. Returns whether there was
    /// room.
    pub(super) fn send(&self, node: NodeId, done: Option<Sender<Dropping>>) -> bool {
        let mut locked = self.0.lock();
        let state = &mut *locked;
        if state.servers == 0 {
            return false;
        }
        let is_full = state.reports >= NOTICES_MAX || state.files.len() >= NOTICES_MAX;
        if is_full && (done.is_some() || !state.files.contains_key(&node)) {
            return false;
        }
        state.reports += usize::from(done.is_some());
        let is_occupied = state.servers >= SERVERS_MAX && state.idle.is_empty();
        let file = state.files.entry(node).or_default();
        if let Some(done) = done {
            if file.is_served {
                report(&done, Dropping::Begun);
            } else if is_occupied {
                report(&done, Dropping::Hindered);
            }
            file.done.push(done);
        }
        if !file.is_wanted {
            file.is_wanted = true;
            if !file.is_served {
                state.queue.push_back(node);
            }
        }
        let waker = if state.queue.is_empty() { None } else { state.idle.pop_first() };
        drop(locked);
        if let Some((_, waker)) = waker {
            waker.wake();
        }
        true
    }
}

impl Drop for PageSender {
    fn drop(&mut self) {
        let idle = {
            let mut state = self.0.lock();
            state.has_ended = true;
            std::mem::take(&mut state.idle)
        };
        idle.into_values().for_each(Waker::wake);
    }
}

/// A server of the files whose pages the kernel has to drop.
#[derive(Debug)]
pub struct PageQueue {
    shared: Arc<Shared>,
    number: usize,
}

/// Makes the queue, with its first server.
pub(super) fn pages() -> (PageSender, PageQueue) {
    let state = State { servers: 1, next_server: 1, ..State::default() };
    let shared = Arc::new(Shared(Mutex::new(state)));
    (PageSender(Arc::clone(&shared)), PageQueue { shared, number: 0 })
}

impl PageQueue {
    /// Makes the kernel drop the pages of the files in the queue, and reports each. Calls
    /// `start_another` with a further server when no other one is idle. Returns when the sender is
    /// gone.
    pub async fn serve(
        self,
        drop_pages: impl AsyncFn(NodeId) -> Result<(), FuseError>,
        start_another: impl Fn(PageQueue),
    ) {
        while let Some((node, mut done)) = poll_fn(|context| self.poll_next(context)).await {
            if let Some(another) = self.another() {
                start_another(another);
            }
            done.iter().for_each(|done| report(done, Dropping::Begun));
            if reactor::mutant!("dropped-too-early") {
                done.drain(..).for_each(|done| report(&done, Dropping::Done));
            }
            // ENOENT: the kernel does not know the inode (any more).
            if let Err(error) = drop_pages(node).await {
                tracing::debug!(node = node.0, %error, "kernel not notified of a change");
            }
            self.end(node);
            done.iter().for_each(|done| report(done, Dropping::Done));
        }
    }

    /// Takes the next file and the channels of those that wait for it.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<(NodeId, Vec<Sender<Dropping>>)>> {
        let mut state = self.shared.lock();
        state.idle.remove(&self.number);
        let Some(node) = state.queue.pop_front() else {
            if state.has_ended {
                return Poll::Ready(None);
            }
            state.idle.insert(self.number, context.waker().clone());
            return Poll::Pending;
        };
        let file = state.files.entry(node).or_default();
        assert!(file.is_wanted && !file.is_served, "{node:?} is served twice: {file:?}");
        (file.is_wanted, file.is_served) = (false, true);
        let done = std::mem::take(&mut file.done);
        state.reports -= done.len();
        Poll::Ready(Some((node, done)))
    }

    /// Notes that the pages of a file are dropped. It is queued anew if that was asked meanwhile.
    fn end(&self, node: NodeId) {
        let mut locked = self.shared.lock();
        let state = &mut *locked;
        let Some(file) = state.files.get_mut(&node) else { return };
        file.is_served = false;
        if file.is_wanted {
            state.queue.push_back(node);
        } else {
            state.files.remove(&node);
        }
    }

    /// Returns a further server, if no other one is idle and there may be more.
    fn another(&self) -> Option<PageQueue> {
        let mut state = self.shared.lock();
        if !state.idle.is_empty() || state.servers >= SERVERS_MAX || state.has_ended {
            return None;
        }
        let number = state.next_server;
        state.next_server += 1;
        state.servers += 1;
        Some(PageQueue { shared: Arc::clone(&self.shared), number })
    }
}

impl Drop for PageQueue {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.servers -= 1;
        state.idle.remove(&self.number);
        if state.servers == 0 {
            // No server will report: the channels close.
            state.queue.clear();
            state.files.clear();
            state.reports = 0;
        }
    }
}

/// Reports how far a drop is, unless its caller has gone.
fn report(done: &Sender<Dropping>, dropping: Dropping) {
    let _ = done.try_send(dropping);
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::mailbox::{TryRecvError, channel};
    use reactor::time::sleep;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    const MOMENT: Duration = Duration::from_millis(1);
    /// Files with larger numbers have locked pages.
    const LOCKED_FROM: u64 = 100;

    /// A kernel whose locked files wait until they are unlocked.
    #[derive(Default)]
    struct Kernel {
        is_unlocked: Cell<bool>,
        dropped: RefCell<Vec<u64>>,
        servers: Cell<usize>,
    }

    fn serve(kernel: Rc<Kernel>, pages: PageQueue) {
        kernel.servers.set(kernel.servers.get() + 1);
        drop(reactor::spawn(async move {
            let of_pages = Rc::clone(&kernel);
            let drop_pages = async move |node: NodeId| {
                while node.0 >= LOCKED_FROM && !of_pages.is_unlocked.get() {
                    sleep(MOMENT).await;
                }
                of_pages.dropped.borrow_mut().push(node.0);
                Ok(())
            };
            pages.serve(drop_pages, move |another| serve(Rc::clone(&kernel), another)).await;
        }));
    }

    fn play(scene: impl AsyncFnOnce(PageSender, Rc<Kernel>) + 'static) {
        let whole = async move {
            let (sender, first) = pages();
            let kernel = Rc::new(Kernel::default());
            serve(Rc::clone(&kernel), first);
            scene(sender, kernel).await;
        };
        reactor::sim::Simulation::new(1).run(whole).unwrap();
    }

    /// Goal: files with locked pages delay no other file, and the number of servers is bounded.
    #[test]
    fn locked_pages_delay_no_other_file() {
        const LOCKED: u64 = 8;
        const MANY: u64 = 2 * SERVERS_MAX as u64;
        play(async |sender, kernel| {
            assert!((0..LOCKED).all(|file| sender.send(NodeId(LOCKED_FROM + file), None)));
            let (done, mut dropped) = channel(Dropping::REPORTS_MAX);
            assert!(sender.send(NodeId(5), Some(done)));
            sleep(MOMENT).await;
            assert_eq!(dropped.try_recv(), Ok(Dropping::Begun));
            assert_eq!(dropped.try_recv(), Ok(Dropping::Done), "it waits for other files");
            assert_eq!(*kernel.dropped.borrow(), [5]);
            assert!((0..MANY).all(|file| sender.send(NodeId(LOCKED_FROM + file), None)));
            sleep(MOMENT).await;
            assert_eq!(kernel.servers.get(), SERVERS_MAX);
            let (done, mut dropped) = channel(Dropping::REPORTS_MAX);
            assert!(sender.send(NodeId(5), Some(done)));
            assert_eq!(dropped.try_recv(), Ok(Dropping::Hindered), "all servers wait");
            kernel.is_unlocked.set(true);
            sleep(MOMENT * 4).await;
            assert!((0..MANY).all(|file| kernel.dropped.borrow().contains(&(LOCKED_FROM + file))));
        });
    }

    /// Goal: one file takes one server, and what is queued for it meanwhile is done after it, once.
    #[test]
    fn a_file_takes_one_server() {
        play(async |sender, kernel| {
            let file = NodeId(LOCKED_FROM);
            assert!(sender.send(file, None));
            sleep(MOMENT).await;
            let (done, mut dropped) = channel(2 * Dropping::REPORTS_MAX);
            assert!((0..2).all(|_| sender.send(file, Some(done.clone()))));
            for _ in 0..2 {
                assert_eq!(dropped.try_recv(), Ok(Dropping::Begun), "the first drop has begun");
            }
            sleep(MOMENT).await;
            assert!(kernel.servers.get() <= 2, "one waits for the file, one is idle");
            assert!(dropped.try_recv().is_err(), "the pages are not dropped yet");
            kernel.is_unlocked.set(true);
            for dropping in [Dropping::Begun, Dropping::Begun, Dropping::Done, Dropping::Done] {
                assert_eq!(dropped.recv().await, Some(dropping));
            }
            assert_eq!(*kernel.dropped.borrow(), [file.0, file.0]);
        });
    }

    /// Goal: the queue is bounded, also for one file, and refused requests close their channel.
    #[test]
    fn the_queue_is_bounded() {
        let (sender, _servers) = pages();
        let (done, mut dropped) = channel(1);
        assert!((0..NOTICES_MAX).all(|_| sender.send(NodeId(1), Some(done.clone()))));
        assert!(!sender.send(NodeId(1), Some(done)));
        assert!(sender.send(NodeId(1), None), "it is queued already");
        assert!(!sender.send(NodeId(2), None));
        assert_eq!(dropped.try_recv(), Err(TryRecvError::Empty));
    }

    /// Goal: without a server no report is waited for.
    #[test]
    fn without_servers_channels_close() {
        let (sender, server) = pages();
        let (done, mut dropped) = channel(1);
        assert!(sender.send(NodeId(1), Some(done.clone())));
        drop(server);
        assert!(!sender.send(NodeId(1), Some(done)));
        assert_eq!(dropped.try_recv(), Err(TryRecvError::Closed));
    }
}
