//! The tasks of one reactor and their run queue.
//!
//! A task is a boxed future in a slab and a small atomically counted header, to which wakers point.
//! Waking on the task's own thread pushes the header onto a plain queue. Waking from another thread
//! pushes it onto a lock-free stack and, only if the owner sleeps, kicks its eventfd.

mod wake;

use crate::context::{try_with_context, with_context};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};
use wake::{Header, Remote};

/// Key of the future that `block_on` runs.
const ROOT: u32 = u32::MAX;

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// `None` while it is being polled.
    future: Option<BoxFuture>,
    header: Arc<Header>,
    /// The simulated node it belongs to; 0 without a simulation.
    node: u32,
}

pub(crate) struct Executor {
    tasks: RefCell<slab::Slab<Task>>,
    ready: RefCell<VecDeque<Arc<Header>>>,
    /// Tasks that let I/O and all other tasks go first.
    yielded: RefCell<Vec<Waker>>,
    remote: Arc<Remote>,
    root: Arc<Header>,
    /// The root future is ready, and a thread that cannot poll it has found that.
    root_waits: Cell<bool>,
    /// Node of the task that runs; spawned tasks inherit it.
    pub(crate) node: Cell<u32>,
    /// In a simulation: state of the generator that picks the next of the ready tasks.
    pub(crate) shuffle: Cell<Option<u64>>,
    /// In a simulation: a hash over all polls.
    pub(crate) trace: Cell<u64>,
    /// In a simulation: nodes whose tasks do not run, and those of them that are ready.
    paused: RefCell<Vec<u32>>,
    parked: RefCell<Vec<(u32, Arc<Header>)>>,
}

impl Executor {
    /// Makes an executor. `kick` ends the owner's sleep, from any thread.
    pub(crate) fn new(kick: Box<dyn Fn() + Send + Sync>) -> Self {
        let remote = Arc::new(Remote {
            stack: AtomicPtr::new(ptr::null_mut()),
            sleeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            kick,
        });
        let root = Self::header(ROOT, &remote);
        Self {
            tasks: RefCell::default(),
            ready: RefCell::default(),
            yielded: RefCell::default(),
            remote,
            root,
            root_waits: Cell::new(false),
            node: Cell::new(0),
            shuffle: Cell::new(None),
            trace: Cell::new(0),
            paused: RefCell::default(),
            parked: RefCell::default(),
        }
    }

    fn header(key: u32, remote: &Arc<Remote>) -> Arc<Header> {
        Arc::new(Header {
            key,
            queued: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
            remote: Arc::clone(remote),
        })
    }

    /// Makes the root future ready.
    pub(crate) fn wake_root(&self) {
        Arc::clone(&self.root).wake();
    }

    /// Leaves the ready root future to the owner.
    pub(crate) fn leave_root(&self) {
        self.root_waits.set(true);
    }

    /// Returns whether the root future was left to the owner.
    pub(crate) fn root_waits(&self) -> bool {
        self.root_waits.get()
    }

    /// Makes the root future ready if it was left to the owner, who calls this.
    pub(crate) fn take_root(&self) {
        if self.root_waits.take() {
            self.wake_root();
        }
    }

    /// Returns whether the owner sleeps and was not kicked. Any thread may call this.
    pub(crate) fn is_asleep(&self) -> bool {
        self.remote.sleeping.load(Ordering::Acquire)
    }

    /// Ends the owner's sleep.
    pub(crate) fn kick_owner(&self) {
        self.remote.kick_sleeper();
    }

    fn insert(&self, future: BoxFuture, node: u32) -> Arc<Header> {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let header = Self::header(entry.key() as u32, &self.remote);
        entry.insert(Task { future: Some(future), header: Arc::clone(&header), node });
        header.queued.store(true, Ordering::Relaxed);
        self.ready.borrow_mut().push_back(Arc::clone(&header));
        header
    }

    /// Returns whether a task is ready, including tasks woken by other threads.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
            || !self.yielded.borrow().is_empty()
            || !self.remote.is_empty()
    }

    /// Announces that the owner is about to sleep. Returns `false` if a task became ready
    /// meanwhile.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.remote.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = self.remote.is_empty();
        if !may_sleep {
            self.end_sleep();
        }
        may_sleep
    }

    /// Announces that the owner is awake again.
    pub(crate) fn end_sleep(&self) {
        self.remote.sleeping.store(false, Ordering::Relaxed);
    }

    /// Polls up to `limit` ready tasks. Returns true as soon as `root` has completed.
    pub(crate) fn run(&self, limit: usize, mut root: impl FnMut(&mut Context<'_>) -> bool) -> bool {
        if !self.remote.is_empty() {
            self.remote.drain(|header| self.ready.borrow_mut().push_back(header));
        }
        let mut yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        yielded.drain(..).for_each(Waker::wake);
        *self.yielded.borrow_mut() = yielded;
        for _ in 0..limit {
            let Some(header) = self.next_ready() else { return false };
            header.queued.store(false, Ordering::Release);
            if header.key == ROOT {
                let waker = Waker::from(header);
                if root(&mut Context::from_waker(&waker)) {
                    return true;
                }
            } else if self.park(&header) {
                header.queued.store(true, Ordering::Release);
            } else {
                self.poll_task(header);
            }
        }
        false
    }

    fn next_ready(&self) -> Option<Arc<Header>> {
        let mut ready = self.ready.borrow_mut();
        let Some(mut state) = self.shuffle.get() else { return ready.pop_front() };
        let number = crate::sim::splitmix(&mut state);
        self.shuffle.set(Some(state));
        let index = number as usize % ready.len().max(1);
        let header = ready.swap_remove_front(index)?;
        let trace = (self.trace.get() ^ u64::from(header.key)).wrapping_mul(0x0100_0000_01b3);
        self.trace.set(trace.rotate_left(17));
        Some(header)
    }

    /// Pauses or resumes the tasks of a simulated node.
    pub(crate) fn set_paused(&self, node: u32, paused: bool) {
        self.paused.borrow_mut().retain(|&other| other != node);
        if paused {
            self.paused.borrow_mut().push(node);
            return;
        }
        let parked = std::mem::take(&mut *self.parked.borrow_mut());
        for (other, header) in parked {
            if other == node {
                self.ready.borrow_mut().push_back(header);
            } else {
                self.parked.borrow_mut().push((other, header));
            }
        }
    }

    /// Sets a ready task aside if its node is paused. Returns whether it did.
    fn park(&self, header: &Arc<Header>) -> bool {
        let paused = self.paused.borrow();
        if paused.is_empty() {
            return false;
        }
        let tasks = self.tasks.borrow();
        let task = tasks.get(header.key as usize);
        let node = task.filter(|task| Arc::ptr_eq(&task.header, header)).map(|task| task.node);
        let Some(node) = node.filter(|node| paused.contains(node)) else { return false };
        self.parked.borrow_mut().push((node, Arc::clone(header)));
        true
    }

    fn poll_task(&self, header: Arc<Header>) {
        let (key, address) = (header.key as usize, Arc::as_ptr(&header));
        // The key may belong to another task by now.
        let is_it = |task: &&mut Task| Arc::as_ptr(&task.header) == address;
        let taken = {
            let mut tasks = self.tasks.borrow_mut();
            tasks
                .get_mut(key)
                .filter(is_it)
                .and_then(|task| task.future.take().map(|future| (future, task.node)))
        };
        let Some((mut future, node)) = taken else { return };
        let outer = self.node.replace(node);
        let waker = Waker::from(header);
        let is_done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(key).filter(is_it) {
                Some(task) if !is_done => {
                    task.future = Some(future);
                    self.node.set(outer);
                    return;
                }
                Some(_) => drop(tasks.remove(key).header),
                // The task was aborted while it ran.
                None => {}
            }
        }
        drop(future);
        self.node.set(outer);
    }

    fn abort(&self, header: &Arc<Header>) {
        let task = {
            let mut tasks = self.tasks.borrow_mut();
            let key = header.key as usize;
            let is_it = tasks.get(key).is_some_and(|task| Arc::ptr_eq(&task.header, header));
            is_it.then(|| tasks.remove(key))
        };
        drop(task);
    }

    /// Drops all tasks on the nodes for which `which` is true.
    pub(crate) fn drop_tasks(&self, which: impl Fn(u32) -> bool) {
        // Dropping a task may spawn others: repeat until none is left.
        loop {
            let keys: Vec<usize> = {
                let tasks = self.tasks.borrow();
                tasks.iter().filter(|(_, task)| which(task.node)).map(|(key, _)| key).collect()
            };
            if keys.is_empty() {
                return;
            }
            for key in keys {
                let task = self.tasks.borrow_mut().try_remove(key);
                drop(task);
            }
        }
    }

    /// Drops all tasks and ignores later wakers.
    pub(crate) fn close(&self) {
        self.remote.closed.store(true, Ordering::Release);
        self.drop_tasks(|_| true);
        let ready = std::mem::take(&mut *self.ready.borrow_mut());
        let yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        let parked = std::mem::take(&mut *self.parked.borrow_mut());
        drop((ready, yielded, parked));
        self.remote.drain(drop);
    }
}

/// The task was aborted (or its thread or node ended) before it had an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted")]
pub struct Aborted;

struct JoinState<T> {
    output: Option<Result<T, Aborted>>,
    waker: Option<Waker>,
}

/// Notifies the join handle when the task is dropped early.
struct JoinGuard<T>(Rc<RefCell<JoinState<T>>>);

impl<T> JoinGuard<T> {
    fn finish(&self, output: Result<T, Aborted>) {
        let mut state = self.0.borrow_mut();
        if state.output.is_none() {
            state.output = Some(output);
        }
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for JoinGuard<T> {
    fn drop(&mut self) {
        self.finish(Err(Aborted));
    }
}

/// Awaits a task's output. Dropping it lets the task continue.
pub struct JoinHandle<T> {
    state: Rc<RefCell<JoinState<T>>>,
    header: Arc<Header>,
}

impl<T> JoinHandle<T> {
    /// Drops the task at its present await point. A task that aborts itself is dropped when it next
    /// awaits. Runs on the task's thread; the type ensures that.
    pub fn abort(&self) {
        let _ = try_with_context(Rc::clone).map(|context| context.executor.abort(&self.header));
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.state.borrow().output.is_some() || Rc::strong_count(&self.state) == 1
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        if let Some(output) = state.output.take() {
            return Poll::Ready(output);
        }
        if Rc::strong_count(&self.state) == 1 {
            return Poll::Ready(Err(Aborted));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("task", &self.header.key).finish_non_exhaustive()
    }
}

/// Runs a future as a task of its own on this thread's reactor.
///
/// # Panics
/// If the thread has no reactor.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    spawn_on(None, future)
}

/// Returns whether [`spawn`] can be called: whether the thread has a reactor.
pub fn has_reactor() -> bool {
    crate::context::try_with_context(|_| ()).is_some()
}

/// As [`spawn`], on a simulated node (`None`: the spawning task's).
pub(crate) fn spawn_on<F: Future + 'static>(node: Option<u32>, future: F) -> JoinHandle<F::Output> {
    let state = Rc::new(RefCell::new(JoinState { output: None, waker: None }));
    let guard = JoinGuard(Rc::clone(&state));
    let task = Box::pin(async move {
        let output = future.await;
        guard.finish(Ok(output));
    });
    with_context(|context| {
        let executor = &context.executor;
        let header = executor.insert(task, node.unwrap_or(executor.node.get()));
        JoinHandle { state, header }
    })
}

/// Lets all other ready tasks, and I/O, take their turn first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        wake_after_others(cx.waker());
        Poll::Pending
    })
    .await;
}

/// Wakes a task once I/O and all ready tasks have had their turn: for futures that pause in the
/// middle of long work. As [`yield_now`], but without waiting.
///
/// # Panics
/// If the thread runs no reactor.
pub fn wake_after_others(waker: &Waker) {
    with_context(|context| context.executor.yielded.borrow_mut().push(waker.clone()));
}

#[cfg(test)]
mod tests {
    use super::Executor;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    /// Goal: a wake from another thread before the owner sleeps prevents the sleep, one during the
    /// sleep kicks exactly once, and each makes the task run once.
    #[test]
    fn no_wake_is_slept_through() {
        let kicks = Arc::new(AtomicUsize::new(0));
        let executor = Executor::new(Box::new({
            let kicks = Arc::clone(&kicks);
            move || {
                kicks.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let waker = Waker::from(Arc::clone(&executor.root));
        let wake = || std::thread::scope(|scope| drop(scope.spawn(|| waker.wake_by_ref())));
        let polls = || {
            let mut count = 0;
            executor.run(10, |_| {
                count += 1;
                false
            });
            count
        };
        wake();
        wake();
        assert!(executor.has_ready() && !executor.prepare_sleep());
        assert_eq!((polls(), kicks.load(Ordering::Relaxed)), (1, 0));
        assert!(executor.prepare_sleep());
        wake();
        wake();
        assert_eq!(kicks.load(Ordering::Relaxed), 1);
        executor.end_sleep();
        assert_eq!(polls(), 1);
        executor.close();
        wake();
        assert!(!executor.has_ready());
    }
    /// Goal: ended, aborted and self-aborting tasks leave nothing behind.
    #[test]
    fn ended_tasks_are_forgotten() {
        let count =
            || crate::context::with_context(|context| context.executor.tasks.borrow().len());
        crate::Runtime::new(&crate::Config::default()).unwrap().block_on(async {
            for _ in 0..10 {
                crate::spawn(async {}).await.unwrap();
                crate::spawn(std::future::pending::<()>()).abort();
                let (sender, receiver) = crate::local::oneshot::<crate::JoinHandle<()>>();
                let own = crate::spawn(async move {
                    receiver.await.unwrap().abort();
                    std::future::pending::<()>().await;
                });
                assert!(sender.send(own).is_ok());
                crate::yield_now().await;
                crate::yield_now().await;
            }
            assert_eq!(count(), 0);
        });
    }
}
