//! What loads that run in this process share: offsets, counts, CPUs, the ends of threads.

use hdrhistogram::Histogram;
use reactor::Aborted;
use reactor::thread::JoinHandle;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// An error of the threads of a load, or of their histograms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadError {
    /// The machine cannot have such a CPU.
    #[error("--cpus: there is no CPU {0}")]
    NoCpu(usize),
    /// A thread cannot be pinned.
    #[error("--cpus: cannot run on CPU {cpu}: {cause}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The cause.
        cause: Errno,
    },
    /// The thread of a job panicked.
    #[error("a job died")]
    Died(#[source] Aborted),
    /// A histogram cannot have its bounds.
    #[error(transparent)]
    Bounds(#[from] hdrhistogram::CreationError),
    /// Histograms cannot be added.
    #[error(transparent)]
    Sum(#[from] hdrhistogram::AdditionError),
}

/// The number of completed requests of each job.
#[derive(Debug, Default)]
pub struct Done(Vec<Count>);

/// A count that one thread writes and another reads, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

impl Done {
    /// Returns the counts of this number of jobs.
    pub fn new(jobs: usize) -> Self {
        Self((0..jobs).map(|_| Count::default()).collect())
    }

    /// Sets the count of a job.
    #[inline]
    pub fn set(&self, job: usize, done: u64) {
        self.0[job].0.store(done, Ordering::Relaxed);
    }

    /// Returns the sum of all jobs.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}

/// xorshift64*: cheap and good enough to spread requests.
#[derive(Debug)]
pub struct Spread(Cell<u64>);

impl Spread {
    /// Returns the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed | 1))
    }

    /// Returns the next number.
    #[inline]
    pub fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the next number, below a limit.
    #[inline]
    pub fn below(&self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// Returns the seed of one job of a load.
pub fn seed_of_job(seed: u64, job: u64) -> u64 {
    seed.wrapping_add(job.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Pins the calling thread to a CPU of `--cpus`, which the jobs use in turn, if any are given.
pub fn pin(cpus: &[usize], job: usize) -> Result<(), ThreadError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[job % cpus.len()];
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(ThreadError::NoCpu(cpu));
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|cause| ThreadError::Pin { cpu, cause })
}

/// Returns the results of all jobs, or the first failure once all have ended.
pub fn join<T, E: From<ThreadError>>(handles: Vec<JoinHandle<Result<T, E>>>) -> Result<Vec<T>, E> {
    let mut results = Vec::new();
    let mut failure = None;
    for handle in handles {
        match handle.join().map_err(ThreadError::Died)? {
            Ok(result) => results.push(result),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(results), Err)
}

/// Returns upper ends and counts of all buckets that are not empty, with two significant digits.
pub fn coarse(latency: &Histogram<u64>) -> Result<Vec<(u64, u64)>, ThreadError> {
    let mut coarse = Histogram::<u64>::new_with_bounds(1, latency.high(), 2)?;
    coarse.add(latency)?;
    Ok(coarse.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value())).collect())
}

/// Returns the CPU time of all threads of this process.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
