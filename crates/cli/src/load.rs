//! Shared code of commands that put load on storage: kinds of load, offsets, counts, threads.

use anyhow::Context;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Kinds of load, as in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random reads and writes
    Randrw,
}

impl Mode {
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite | Self::Randrw)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }
}

/// The number of completed requests of each job.
#[derive(Debug, Default)]
pub(crate) struct Done(Vec<Count>);

/// A count that one thread writes and another reads, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

impl Done {
    /// Returns the counts of this number of jobs.
    pub(crate) fn new(jobs: usize) -> Self {
        Self((0..jobs).map(|_| Count::default()).collect())
    }

    /// Sets the count of a job.
    pub(crate) fn set(&self, job: usize, done: u64) {
        self.0[job].0.store(done, Ordering::Relaxed);
    }

    /// Returns the sum of all jobs.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}

/// xorshift64*: cheap and good enough to spread requests.
#[derive(Debug)]
pub(crate) struct Spread(Cell<u64>);

impl Spread {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Cell::new(seed | 1))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// Returns the seed of one job of a load.
pub(crate) fn seed_of_job(seed: u64, job: u64) -> u64 {
    seed.wrapping_add(job.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Pins the calling thread to a CPU of `--cpus`, which the jobs use in turn, if any are given.
pub(crate) fn pin(cpus: &[usize], job: usize) -> anyhow::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[job % cpus.len()];
    let mut set = rustix::thread::CpuSet::new();
    anyhow::ensure!(cpu < rustix::thread::CpuSet::MAX_CPU, "--cpus: there is no CPU {cpu}");
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| anyhow::anyhow!("--cpus: cannot run on CPU {cpu}: {error}"))
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Returns the results of all jobs, or the first failure once all have ended.
pub(crate) fn join<T>(
    handles: Vec<reactor::thread::JoinHandle<anyhow::Result<T>>>,
) -> anyhow::Result<Vec<T>> {
    let mut results = Vec::new();
    let mut failure = None;
    for handle in handles {
        match handle.join().context("a job died")? {
            Ok(result) => results.push(result),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(results), Err)
}

/// Returns the duration given to `--NAME`.
pub(crate) fn seconds(name: &str, value: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(value).with_context(|| format!("--{name} {value}"))
}

/// Returns upper ends and counts of all buckets that are not empty, with two significant digits.
pub(crate) fn coarse(latency: &Histogram<u64>) -> anyhow::Result<Vec<(u64, u64)>> {
    let mut coarse = Histogram::<u64>::new_with_bounds(1, latency.high(), 2)?;
    coarse.add(latency)?;
    Ok(coarse.iter_recorded().map(|it| (it.value_iterated_to(), it.count_at_value())).collect())
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
