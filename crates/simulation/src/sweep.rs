//! Runs many seeds on all cores: each thread takes the next seed and runs it.

use crate::block_path::{BlockOutcome, run_block_path};
use crate::mutants;
use crate::parts::{PartOutcome, run_parts};
use crate::plan::Plan;
use crate::random::mix;
use crate::run::{Outcome, run, run_worlds};
use crate::world::Area;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How often a sweep checks for seeds that do not end.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The report of a sweep about a seed.
#[derive(Debug)]
pub enum Report<T> {
    /// The seed has ended.
    Ended(T),
    /// The seed panicked, with this message.
    Panicked(String),
    /// The seed has exceeded its time limit and still runs. Reported once.
    Hangs,
}

enum Message<T> {
    Begun(u64),
    Ended(u64, Report<T>),
}

/// The result of a seed.
#[derive(Debug)]
pub struct SeedOutcome {
    /// Result of the whole cluster.
    pub cluster: Outcome,
    /// Results of the focused worlds.
    pub worlds: Vec<(Area, Outcome)>,
    /// Result of the host and target alone.
    pub block_path: BlockOutcome,
    /// Results of the parts that run without a cluster.
    pub parts: Vec<PartOutcome>,
    /// How often the seed evaluated a condition of each planted bug, if that is counted.
    pub reached: BTreeMap<&'static str, u64>,
}

impl SeedOutcome {
    /// Returns the outcome of a seed whose other parts did not run.
    pub fn of_cluster(cluster: Outcome) -> SeedOutcome {
        let block_path = BlockOutcome::default();
        let (worlds, parts, reached) = (Vec::new(), Vec::new(), mutants::noted());
        SeedOutcome { cluster, worlds, block_path, parts, reached }
    }

    /// Runs a seed without its large run and its block path.
    pub fn of_small_parts(seed: u64) -> SeedOutcome {
        drop(mutants::noted());
        let (cluster, block_path) = (Outcome::default(), BlockOutcome::default());
        let (worlds, parts) = (run_worlds(seed, false), run_parts(seed));
        SeedOutcome { cluster, worlds, block_path, parts, reached: mutants::noted() }
    }

    /// Returns a hash of the courses of the cluster and all worlds.
    pub fn trace_hash(&self) -> u64 {
        let hashes = self.worlds.iter().map(|(_, world)| world.trace_hash);
        hashes.fold(self.cluster.trace_hash, |all, hash| mix(all ^ hash))
    }
}

/// Runs all parts of a seed; `is_logged` as in [`Plan`].
pub fn run_seed(seed: u64, is_logged: bool) -> SeedOutcome {
    // Counts of an earlier seed that panicked may be left.
    drop(mutants::noted());
    let cluster = run(&Plan { is_logged, ..Plan::of_seed(seed) });
    let worlds = run_worlds(seed, is_logged);
    let block_path = run_block_path(seed, is_logged);
    let parts = run_parts(seed);
    SeedOutcome { cluster, worlds, block_path, parts, reached: mutants::noted() }
}

/// Returns the number of seeds that this machine runs at once.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `job` for each seed, `jobs` of them at once, and reports each seed when it ends. A seed
/// that takes longer than `longest` is reported at that time; the sweep still waits for it.
pub fn sweep<T: Send>(
    seeds: &[u64],
    jobs: usize,
    longest: Duration,
    job: impl Fn(u64) -> T + Sync,
    mut report: impl FnMut(u64, Report<T>),
) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let sender = sender.clone();
            let (next, job) = (&next, &job);
            scope.spawn(move || take_seeds(next, seeds, job, &sender));
        }
        drop(sender);
        let mut running: Vec<(u64, Instant)> = Vec::new();
        loop {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(Message::Begun(seed)) => running.push((seed, Instant::now())),
                Ok(Message::Ended(seed, ended)) => {
                    running.retain(|(other, _)| *other != seed);
                    report(seed, ended);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            for (seed, _) in running.extract_if(.., |(_, begun)| begun.elapsed() > longest) {
                report(seed, Report::Hangs);
            }
        }
    });
}

fn take_seeds<T>(
    next: &AtomicUsize,
    seeds: &[u64],
    job: impl Fn(u64) -> T,
    sender: &Sender<Message<T>>,
) {
    while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
        if sender.send(Message::Begun(seed)).is_err() {
            return;
        }
        let ended = match catch_unwind(AssertUnwindSafe(|| job(seed))) {
            Ok(outcome) => Report::Ended(outcome),
            Err(payload) => Report::Panicked(panic_text(&*payload)),
        };
        if sender.send(Message::Ended(seed, ended)).is_err() {
            return;
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
}
