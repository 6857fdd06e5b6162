//! A bounded pool of threads for system calls that may block.
//!
//! The thread that owns the pool starts threads as they are needed. So they inherit its confinement
//! (Landlock, seccomp) and its scheduling settings. All end with the pool.
//!
//! A job names memory by address. The caller that pushes it keeps that memory, and the descriptor,
//! untouched until the job has completed.

use super::{Reaped, kick};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Default number of threads per CPU; the kernel's own rule for `io_uring`.
const THREADS_PER_CPU: usize = 4;
/// Small, because a thread only makes one system call at a time.
const STACK_BYTES: usize = 128 << 10;

/// A job for the threads of a pool.
pub(crate) trait Work: Send + 'static {
    /// Does the work, blocking. The result is not negative, or a negated errno.
    fn run(&self) -> i32;
}

struct Queue<W> {
    jobs: VecDeque<(u32, W)>,
    idle: usize,
    is_closing: bool,
}

struct Shared<W> {
    queue: Mutex<Queue<W>>,
    work: Condvar,
    /// Threads that run a job. It falls before the job's completion can be seen, so that a caller
    /// with one job at a time finds its thread free.
    running: AtomicUsize,
    done: Mutex<Vec<Reaped>>,
    /// Length of `done`.
    done_count: AtomicUsize,
    /// Whether the owner sleeps or is about to.
    is_sleeping: AtomicBool,
    kick: Arc<OwnedFd>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Work> Shared<W> {
    /// Serves jobs until the pool ends.
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some((key, job)) = queue.jobs.pop_front() {
                self.running.fetch_add(1, Ordering::Relaxed);
                drop(queue);
                let code = job.run();
                self.running.fetch_sub(1, Ordering::Relaxed);
                self.complete(key, code);
                queue = lock(&self.queue);
            } else if queue.is_closing {
                return;
            } else {
                queue.idle += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }

    fn complete(&self, key: u32, code: i32) {
        let mut done = lock(&self.done);
        done.push((key, code));
        self.done_count.store(done.len(), Ordering::Release);
        drop(done);
        fence(Ordering::SeqCst);
        if self.is_sleeping.load(Ordering::Relaxed)
            && self.is_sleeping.swap(false, Ordering::AcqRel)
        {
            kick(&self.kick);
        }
    }
}

pub(crate) struct Pool<W> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
}

impl<W: Work> Pool<W> {
    /// Makes a pool of at most `threads_max` threads (0: four for each CPU), which end the owner's
    /// sleep by `kick`.
    pub(crate) fn new(threads_max: usize, kick: Arc<OwnedFd>) -> Self {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = if threads_max == 0 { THREADS_PER_CPU * cpus() } else { threads_max };
        let queue = Queue { jobs: VecDeque::new(), idle: 0, is_closing: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            work: Condvar::new(),
            running: AtomicUsize::new(0),
            done: Mutex::default(),
            done_count: AtomicUsize::new(0),
            is_sleeping: AtomicBool::new(false),
            kick,
        });
        Self { shared, threads: Vec::new(), threads_max }
    }

    /// Queues a job, and starts a thread for it if too few are free and the bound allows one.
    pub(crate) fn push(&mut self, key: u32, job: W) {
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back((key, job));
        let idle = queue.idle;
        let wanted = queue.jobs.len() + self.shared.running.load(Ordering::Relaxed);
        drop(queue);
        if idle > 0 {
            self.shared.work.notify_one();
        }
        if wanted > self.threads.len() && self.threads.len() < self.threads_max {
            match self.start() {
                Ok(thread) => self.threads.push(thread),
                // The existing threads execute it later.
                Err(_) if !self.threads.is_empty() => {}
                Err(error) => {
                    self.cancel(key);
                    self.shared.complete(key, -error.raw_os_error().unwrap_or(libc::EAGAIN));
                }
            }
        }
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        let home = crate::affinity::home();
        let thread =
            std::thread::Builder::new().name("reactor-file".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            crate::affinity::adopt(home);
            shared.serve();
        })
    }

    /// Takes back a job that no thread has begun. Returns false if one has.
    pub(crate) fn cancel(&mut self, key: u32) -> bool {
        let mut queue = lock(&self.shared.queue);
        let before = queue.jobs.len();
        queue.jobs.retain(|(other, _)| *other != key);
        queue.jobs.len() < before
    }

    /// Returns whether there are completions that were not taken.
    pub(crate) fn has_done(&self) -> bool {
        self.shared.done_count.load(Ordering::Acquire) > 0
    }

    /// Moves all completions to `reaped`.
    pub(crate) fn take_done(&self, reaped: &mut Vec<Reaped>) {
        if self.has_done() {
            let mut done = lock(&self.shared.done);
            reaped.append(&mut done);
            self.shared.done_count.store(0, Ordering::Release);
        }
    }

    /// Announces that the owner is about to sleep. Returns false if a job has completed meanwhile.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.shared.is_sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = !self.has_done();
        if !may_sleep {
            self.end_sleep();
        }
        may_sleep
    }

    /// Announces that the owner is awake again.
    pub(crate) fn end_sleep(&self) {
        self.shared.is_sleeping.store(false, Ordering::Relaxed);
    }
}

impl<W> Drop for Pool<W> {
    /// Waits for the running jobs.
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closing = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A job that reports when it runs, and ends when released.
    struct Gate(Sender<()>, Mutex<Receiver<()>>, i32);

    impl Work for Gate {
        fn run(&self) -> i32 {
            self.0.send(()).unwrap();
            let _ = lock(&self.1).recv();
            self.2
        }
    }

    fn eventfd() -> Arc<OwnedFd> {
        Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap())
    }

    /// Goal: no more threads than allowed work at a time. Only jobs that no thread has begun can be
    /// taken back; every other job completes once with its result, and ends the owner's sleep.
    #[test]
    fn jobs_are_bounded_cancelled_and_reported() {
        let kick = eventfd();
        let mut pool = Pool::new(2, Arc::clone(&kick));
        let (begun, began) = channel();
        let mut gates = Vec::new();
        for key in 0..4_u32 {
            let (gate, wait) = channel();
            gates.push(gate);
            pool.push(key, Gate(begun.clone(), Mutex::new(wait), key as i32 + 10));
        }
        began.recv().unwrap();
        began.recv().unwrap();
        assert_eq!((pool.threads.len(), lock(&pool.shared.queue).jobs.len()), (2, 2));
        assert!(!pool.cancel(0) && !pool.cancel(1) && pool.cancel(3) && !pool.cancel(3));
        assert!(pool.prepare_sleep());
        drop(gates);
        let mut count = [0; 8];
        while rustix::io::read(&*kick, &mut count).is_err() {
            std::thread::yield_now();
        }
        let mut done = Vec::new();
        while done.len() < 3 {
            pool.take_done(&mut done);
        }
        drop(pool);
        done.sort_unstable();
        assert_eq!(done, [(0, 10), (1, 11), (2, 12)]);
    }

    /// Goal: a caller with one job at a time starts one thread, however late that thread goes idle.
    #[test]
    fn one_job_at_a_time_takes_one_thread() {
        struct Nothing;
        impl Work for Nothing {
            fn run(&self) -> i32 {
                0
            }
        }
        let mut pool = Pool::new(8, eventfd());
        let mut done = Vec::new();
        for key in 0..2000 {
            pool.push(key, Nothing);
            while done.is_empty() {
                pool.take_done(&mut done);
            }
            done.clear();
        }
        assert_eq!(pool.threads.len(), 1);
    }

    /// Goal: an owner that is about to sleep sees a completion that came just before.
    #[test]
    fn no_completion_is_slept_through() {
        let pool = Pool::<Gate>::new(1, eventfd());
        pool.shared.complete(1, 5);
        assert!(!pool.prepare_sleep());
        let mut done = Vec::new();
        pool.take_done(&mut done);
        assert_eq!((done.as_slice(), pool.prepare_sleep()), ([(1, 5)].as_slice(), true));
    }
}
