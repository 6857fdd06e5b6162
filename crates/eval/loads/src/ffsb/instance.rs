//! One instance of a profile: creates its files, waits for the start, loads, flushes, and reports its counts.

use super::FfsbError;
use super::account::{Measured, Part};
use super::fileset::Set;
use super::profile::Profile;
use super::worker::Worker;
use base::clock::now_ns;
use stats::random::Random;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Seconds for which operations are counted one by one; later ones are counted in the last.
const SERIES_SECONDS_MAX: u64 = 100_000;

/// What an instance has to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// The profile.
    pub profile: Profile,
    /// A directory of ours for each of its file systems, which need not be there yet.
    pub roots: Vec<PathBuf>,
    /// Seed of sizes, choices and offsets.
    pub seed: u64,
    /// Seconds of load, instead of the profile's.
    pub seconds: Option<f64>,
    /// Whether the profile's command may be run.
    pub allows_callout: bool,
    /// The files are there, made for all instances, whatever the profile says of reuse.
    pub finds_files: bool,
}

/// An instance whose files are there.
#[derive(Debug)]
pub struct Prepared {
    job: Job,
    sets: Vec<Set>,
    setup_s: f64,
}

/// The state that the load's threads share with the thread that watches them.
struct Shared {
    barrier: Barrier,
    is_over: AtomicBool,
    /// The first thing that went wrong.
    failed: Mutex<Option<FfsbError>>,
    wake: Condvar,
    series: Vec<AtomicU64>,
}

impl Job {
    /// Makes the files of all file systems at the same time, or takes those that are there; flushes them; and
    /// runs the profile's command if that is allowed.
    pub fn prepare(self) -> Result<Prepared, FfsbError> {
        let begun = Instant::now();
        let (profile, finds, seed) = (&self.profile, self.finds_files, self.seed);
        let sets: Vec<Result<Set, FfsbError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .roots
                .iter()
                .enumerate()
                .map(|(number, root)| {
                    scope.spawn(move || Set::prepare(profile, number, (root, finds), seed))
                })
                .collect();
            let gone = || Err(FfsbError::Gone);
            threads.into_iter().map(|it| it.join().unwrap_or_else(|_| gone())).collect()
        });
        let sets = sets.into_iter().collect::<Result<Vec<_>, _>>()?;
        let setup_s = begun.elapsed().as_secs_f64();
        sets.iter().try_for_each(Set::flush)?;
        if let (Some(command), true) = (&self.profile.callout, self.allows_callout) {
            callout(command)?;
        }
        Ok(Prepared { job: self, sets, setup_s })
    }
}

/// Runs a profile's command to its end; its output goes where complaints go.
fn callout(command: &str) -> Result<(), FfsbError> {
    let wrong = |why: String| FfsbError::Callout(command.into(), why);
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(io::stderr());
    let status = shell.status().map_err(|error| wrong(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(wrong(status.to_string())) }
}

impl Prepared {
    /// Loads for as long as the job says; `begin` waits for the start, when all threads are there, and `flush`
    /// makes durable what syncfs(2) of the profile's file systems does not reach.
    pub fn run(
        self,
        begin: impl FnOnce() -> io::Result<()>,
        flush: impl FnOnce() -> io::Result<()>,
    ) -> Result<Measured, FfsbError> {
        let profile = &self.job.profile;
        let seconds = self.job.seconds.unwrap_or(f64::from(profile.time_s));
        let shared = Shared::new(profile.threads() as usize, seconds);
        let mut measured = Measured {
            groups: vec![Part::default(); profile.groups.len()],
            setup_s: self.setup_s,
            notes: profile.notes.clone(),
            ..Measured::default()
        };
        let mut random = Random::of(self.job.seed, u64::MAX);
        let begun = Mutex::new(None);
        let parts: Vec<(usize, Option<Part>)> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, group) in profile.groups.iter().enumerate() {
                for _ in 0..group.threads {
                    let mut worker = Worker::new(profile, group, &self.sets, random.next_u64());
                    let (shared, begun) = (&shared, &begun);
                    let thread = scope.spawn(move || {
                        shared.barrier.wait();
                        let begun =
                            begun.lock().ok().and_then(|it| *it).unwrap_or_else(Instant::now);
                        shared.load(&mut worker, begun);
                        worker.part
                    });
                    threads.push((number, thread));
                }
            }
            if let Err(cause) = begin() {
                shared.fail(FfsbError::file("cannot wait for the start at", Path::new("barrier"))(
                    cause,
                ));
            }
            let cpu = cpu_seconds();
            measured.begun_ns = now_ns();
            if let Ok(mut begun) = begun.lock() {
                *begun = Some(Instant::now());
            }
            shared.barrier.wait();
            shared.watch(Duration::from_secs_f64(seconds));
            let parts = threads.into_iter().map(|(number, it)| (number, it.join().ok())).collect();
            measured.done_ns = now_ns();
            measured.cpu_s = cpu;
            parts
        });
        for (number, part) in parts {
            measured.groups[number].add(&part.ok_or(FfsbError::Gone)?);
        }
        if let Some(error) = shared.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        self.sets.iter().try_for_each(Set::flush)?;
        flush().map_err(FfsbError::Flush)?;
        measured.flushed_ns = now_ns();
        let (user, system) = cpu_seconds();
        measured.cpu_s = (user - measured.cpu_s.0, system - measured.cpu_s.1);
        measured.series = shared.series.into_iter().map(AtomicU64::into_inner).collect();
        while measured.series.last() == Some(&0) {
            measured.series.pop();
        }
        Ok(measured)
    }
}

impl Shared {
    fn new(threads: usize, seconds: f64) -> Self {
        // Operations may end after the load should; those count in the last second.
        let seconds = (seconds.ceil() as u64 + 1).min(SERIES_SECONDS_MAX);
        Self {
            barrier: Barrier::new(threads + 1),
            is_over: AtomicBool::new(false),
            failed: Mutex::default(),
            wake: Condvar::new(),
            series: (0..seconds).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// A thread's load.
    fn load(&self, worker: &mut Worker<'_>, begun: Instant) {
        while !self.is_over.load(Ordering::Relaxed) {
            match worker.step() {
                Ok(ended) => {
                    let second = (ended - begun).as_secs() as usize;
                    let second = second.min(self.series.len() - 1);
                    self.series[second].fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&self, error: FfsbError) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert(error);
        self.is_over.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// Waits until the time is over, or something goes wrong, and ends the load.
    fn watch(&self, time: Duration) {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let until = self.wake.wait_timeout_while(failed, time, |failed| failed.is_none());
        drop(until);
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// CPU seconds of this process, user's and system's, in ticks of a hundredth; zeros if they are unknown.
fn cpu_seconds() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have blanks, fields 14 and 15 are the 12th and 13th.
    let mut fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
    let mut next = || fields.next().and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    (next(), next())
}
