//! A queue with several servers, for notifications that may wait in the kernel for seconds.
//!
//! A subject (a file or directory) that waits takes one server, and the others go on with other
//! subjects. A further server starts when the last idle one takes a subject, up to [`SERVERS_MAX`].
//!
//! No two servers work on one subject, because both might wait. What is queued for a subject while a
//! server works on it is done after that, all together.

use super::NOTICES_MAX;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Most servers, so most subjects that may wait while others go on.
pub(super) const SERVERS_MAX: usize = 16;

/// A subject in the queue, or one on which a server works.
#[derive(Debug)]
struct Subject<J> {
    jobs: Vec<J>,
    is_wanted: bool,
    is_served: bool,
}

#[derive(Debug)]
struct State<K, J> {
    /// Subjects that a server may take.
    queue: VecDeque<K>,
    subjects: HashMap<K, Subject<J>>,
    /// Jobs in `subjects`.
    jobs: usize,
    servers: usize,
    /// The number that the next server gets.
    next_server: usize,
    /// Servers that wait for a subject.
    idle: BTreeMap<usize, Waker>,
    has_ended: bool,
}

#[derive(Debug)]
struct Shared<K, J>(Mutex<State<K, J>>);

impl<K, J> Shared<K, J> {
    fn lock(&self) -> MutexGuard<'_, State<K, J>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What stands in the way of a job when it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// A server works on the subject.
    Subject,
    /// All servers work on other subjects.
    Servers,
}

/// The sending end. The servers end when it is dropped and the queue is empty. Without servers it
/// refuses everything.
#[derive(Debug)]
pub(super) struct Jobs<K, J>(Arc<Shared<K, J>>);

impl<K: Copy + Eq + Hash, J> Jobs<K, J> {
    /// Queues a subject, with a job or none. Calls `hinder` with a job for which something stands in
    /// the way. Returns whether there was room.
    pub(super) fn send(&self, key: K, job: Option<J>, hinder: impl FnOnce(&J, Obstacle)) -> bool {
        let mut locked = self.0.lock();
        let state = &mut *locked;
        if state.servers == 0 {
            return false;
        }
        let is_full = state.jobs >= NOTICES_MAX || state.subjects.len() >= NOTICES_MAX;
        if is_full && (job.is_some() || !state.subjects.contains_key(&key)) {
            return false;
        }
        let is_occupied = state.servers >= SERVERS_MAX && state.idle.is_empty();
        let subject = state.subjects.entry(key).or_insert_with(|| Subject {
            jobs: Vec::new(),
            is_wanted: false,
            is_served: false,
        });
        if let Some(job) = job {
            if subject.is_served {
                hinder(&job, Obstacle::Subject);
            } else if is_occupied {
                hinder(&job, Obstacle::Servers);
            }
            subject.jobs.push(job);
            state.jobs += 1;
        }
        if !subject.is_wanted {
            subject.is_wanted = true;
            if !subject.is_served {
                state.queue.push_back(key);
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

impl<K, J> Drop for Jobs<K, J> {
    fn drop(&mut self) {
        let idle = {
            let mut state = self.0.lock();
            state.has_ended = true;
            std::mem::take(&mut state.idle)
        };
        idle.into_values().for_each(Waker::wake);
    }
}

/// A server of the queue.
#[derive(Debug)]
pub(super) struct Server<K, J> {
    shared: Arc<Shared<K, J>>,
    number: usize,
}

/// Makes a queue, with its first server.
pub(super) fn servers<K, J>() -> (Jobs<K, J>, Server<K, J>) {
    let state = State {
        queue: VecDeque::new(),
        subjects: HashMap::new(),
        jobs: 0,
        servers: 1,
        next_server: 1,
        idle: BTreeMap::new(),
        has_ended: false,
    };
    let shared = Arc::new(Shared(Mutex::new(state)));
    (Jobs(Arc::clone(&shared)), Server { shared, number: 0 })
}

impl<K: Copy + Eq + Hash + std::fmt::Debug, J> Server<K, J> {
    /// Works on the subjects in the queue, each with all its jobs. What the work returns is called
    /// when others may work on the subject again. Calls `start_another` with a further server when no
    /// other one is idle. Returns when the sender is gone.
    pub(super) async fn serve<R: FnOnce()>(
        self,
        work: impl AsyncFn(K, Vec<J>) -> R,
        start_another: impl Fn(Server<K, J>),
    ) {
        while let Some((key, jobs)) = poll_fn(|context| self.poll_next(context)).await {
            if let Some(another) = self.another() {
                start_another(another);
            }
            let report = work(key, jobs).await;
            self.end(key);
            report();
        }
    }

    /// Takes the next subject and its jobs.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<(K, Vec<J>)>> {
        let mut locked = self.shared.lock();
        let state = &mut *locked;
        state.idle.remove(&self.number);
        let Some(key) = state.queue.pop_front() else {
            if state.has_ended {
                return Poll::Ready(None);
            }
            state.idle.insert(self.number, context.waker().clone());
            return Poll::Pending;
        };
        let Some(subject) = state.subjects.get_mut(&key) else {
            panic!("{key:?} waits, and is not listed")
        };
        assert!(subject.is_wanted && !subject.is_served, "{key:?} is served twice");
        (subject.is_wanted, subject.is_served) = (false, true);
        let jobs = std::mem::take(&mut subject.jobs);
        state.jobs -= jobs.len();
        Poll::Ready(Some((key, jobs)))
    }

    /// Notes the end of the work on a subject. It is queued anew if that was asked meanwhile.
    fn end(&self, key: K) {
        let mut locked = self.shared.lock();
        let state = &mut *locked;
        let Some(subject) = state.subjects.get_mut(&key) else { return };
        subject.is_served = false;
        if subject.is_wanted {
            state.queue.push_back(key);
        } else {
            state.subjects.remove(&key);
        }
    }

    /// Returns a further server, if no other one is idle and there may be more.
    fn another(&self) -> Option<Server<K, J>> {
        let mut state = self.shared.lock();
        if !state.idle.is_empty() || state.servers >= SERVERS_MAX || state.has_ended {
            return None;
        }
        let number = state.next_server;
        state.next_server += 1;
        state.servers += 1;
        Some(Server { shared: Arc::clone(&self.shared), number })
    }
}

impl<K, J> Drop for Server<K, J> {
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.shared.lock();
            state.servers -= 1;
            state.idle.remove(&self.number);
            if state.servers > 0 {
                return;
            }
            // No server will do them: their channels close.
            state.queue.clear();
            state.jobs = 0;
            std::mem::take(&mut state.subjects)
        };
        drop(jobs);
    }
}
