//! Long computations beside the reactors: milliseconds of CPU time must not delay I/O.
//!
//! A few threads of the process work on the jobs of all reactors, one after the other. They are
//! made when they are needed and end when they are not. They give way to the threads that serve
//! I/O.

use super::{Guard, JoinHandle, JoinState, Shared, with_sim};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread waits for another job before it ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// Difference in niceness to the other threads (`nice(2)`).
const NICER: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    threads: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static ARRIVAL: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Option<Pool>> {
    // Each change is complete in itself.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes `work` on a thread of the pool, and returns a handle that awaits it. Work that has
/// begun continues if the handle is dropped. In a simulation it runs at once.
///
/// The queue has no bound: callers limit the work that they hand over.
///
/// # Errors
/// Errors of making the first thread.
pub fn compute<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let state = Mutex::new(JoinState { output: None, waker: None });
    let shared = Arc::new(Shared { state, ended: Condvar::new() });
    let guard = Guard(Arc::clone(&shared));
    let job = move || guard.0.finish(Ok(work()));
    if with_sim() {
        job();
        return Ok(JoinHandle { shared });
    }
    let mut pool = pool();
    let it = pool.get_or_insert_default();
    it.jobs.push_back(Box::new(job));
    if it.idle >= it.jobs.len() || it.threads >= threads_max() {
        ARRIVAL.notify_one();
        return Ok(JoinHandle { shared });
    }
    let home = crate::affinity::home();
    match std::thread::Builder::new().name("compute".into()).spawn(move || run(home)) {
        Ok(_) => it.threads += 1,
        // The existing threads execute it.
        Err(_) if it.threads > 0 => {}
        Err(error) => {
            it.jobs.pop_back();
            return Err(error);
        }
    }
    Ok(JoinHandle { shared })
}

/// Returns a quarter of the CPUs, so that computations never take more from I/O.
fn threads_max() -> usize {
    std::thread::available_parallelism().map_or(1, |count| (count.get() / 4).max(1))
}

fn run(home: Option<rustix::thread::CpuSet>) {
    crate::affinity::adopt(home);
    // On failure the thread competes like any other.
    let _ = rustix::process::nice(NICER);
    while let Some(job) = next() {
        // The waiting caller learns of a panic by the job's guard.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// Returns the next job; [`None`] ends the thread, which is not counted any more then.
fn next() -> Option<Job> {
    let mut guard = pool();
    loop {
        let pool = guard.as_mut()?;
        if let Some(job) = pool.jobs.pop_front() {
            return Some(job);
        }
        pool.idle += 1;
        let (again, waited) =
            ARRIVAL.wait_timeout(guard, PATIENCE).unwrap_or_else(PoisonError::into_inner);
        guard = again;
        let pool = guard.as_mut()?;
        pool.idle -= 1;
        if waited.timed_out() && pool.jobs.is_empty() {
            pool.threads -= 1;
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Config, Runtime};

    /// Goal: results reach the waiting callers, in a reactor and without one; a panic ends only its
    /// own computation; no more threads work than allowed.
    #[test]
    fn results_come_back() {
        let mut runtime = Runtime::new(&Config::default()).unwrap();
        let sum: u64 = runtime.block_on(async {
            let all: Vec<_> = (0..100).map(|n| compute(move || n * n).unwrap()).collect();
            let mut sum = 0;
            for one in all {
                sum += one.await.unwrap();
            }
            sum
        });
        assert_eq!(sum, 328_350);
        let broken = compute(|| -> u32 { std::panic::resume_unwind(Box::new(())) }).unwrap();
        assert!(broken.join().is_err());
        assert_eq!(compute(|| 7).unwrap().join(), Ok(7));
        let pool = pool();
        let pool = pool.as_ref().unwrap();
        assert!((1..=threads_max()).contains(&pool.threads), "{}", pool.threads);
    }
}
