//! Long computations beside the reactors: what takes milliseconds of a CPU must not hold up I/O.
//!
//! A few threads of the process, made when they are needed and ended when they are not, work on what all
//! reactors hand over, one after the other. They give way to the threads that serve I/O.

use super::{Guard, JoinHandle, JoinState, Shared, with_sim};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread waits for more before it ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// By how much the threads are nicer than the others (`nice(2)`).
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

/// Computes `work` on a thread of the pool, and returns what awaits it. Work that was begun goes on when
/// that is dropped. In a simulation it is done at once.
///
/// The queue has no bound: callers bound what they hand over.
///
/// # Errors
/// What making the first thread answers.
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
        // The threads that there are do it.
        Err(_) if it.threads > 0 => {}
        Err(error) => {
            it.jobs.pop_back();
            return Err(error);
        }
    }
    Ok(JoinHandle { shared })
}

/// A quarter of the CPUs, so that computations never take more from I/O.
fn threads_max() -> usize {
    std::thread::available_parallelism().map_or(1, |count| (count.get() / 4).max(1))
}

fn run(home: Option<rustix::thread::CpuSet>) {
    crate::affinity::adopt(home);
    // Without it the thread only competes as any other.
    let _ = rustix::process::nice(NICER);
    while let Some(job) = next() {
        // The one who waits learns of a panic by the job's guard.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// The next job; [`None`] ends the thread, which is not counted any more then.
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

    /// Goal: results come back to those who wait, in a reactor and without one; a panic ends only its own
    /// computation; no more threads work than there may be.
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
