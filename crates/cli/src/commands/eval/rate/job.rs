//! One thread of load.

use super::RateArgs;
use super::device::{Source, Target};
use super::futures;
use super::schedule::Schedule;
use super::straight::Way;
use super::times::Times;
use crate::load::{self, Done, Spread};
use reactor::Buffer;
use reactor::time::{Instant, sleep};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How long requests may still run when the load ends.
pub(super) const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How long after the end requests that were due before it are still sent. A stall at the end would else
/// hide the longest latencies; a device that cannot keep up is never caught up with.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// How often a job looks whether it may begin, and whether it has to end while it waits.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
pub(super) const STOP_PERIOD: Duration = Duration::from_millis(100);
/// How much later than it should a timer may fire, in ns: as little as the kernel allows (its default
/// is 50 µs).
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// What the jobs do together.
pub(super) struct Load {
    pub(super) args: RateArgs,
    pub(super) sources: Vec<Source>,
    pub(super) units: Vec<Unit>,
    /// Where requests go if no layer of ours is between: by device.
    pub(super) straight: Option<Vec<Target>>,
}

impl Load {
    /// Requests under way from which on there is no room for another batch.
    pub(super) fn room(&self) -> u32 {
        self.args.iodepth_max.saturating_sub(self.args.batch - 1).max(1)
    }
}

/// A part of a device that requests go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) device: usize,
    /// Byte at which it begins.
    pub(super) start: u64,
    /// Requests that fit.
    pub(super) requests: u64,
}

/// What the jobs and the main thread tell each other.
#[derive(Debug, Default)]
pub(super) struct Control {
    ready: AtomicU32,
    /// In ns: first request, first measured one, end; 0 until they are known.
    times: [AtomicU64; 3],
    /// Completed requests of each job.
    done: Done,
    is_stopping: AtomicBool,
}

impl Control {
    /// For so many jobs.
    pub(super) fn new(jobs: u32) -> Self {
        Self { done: Done::new(jobs as usize), ..Self::default() }
    }

    pub(super) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, begin: Instant, start: Instant, end: Instant) {
        for (time, instant) in self.times.iter().zip([begin, start, end]).rev() {
            time.store(instant.as_ns(), Ordering::Release);
        }
    }

    fn times(&self) -> Option<[Instant; 3]> {
        let [begin, start, end] = &self.times;
        let begin = begin.load(Ordering::Acquire);
        let read = |time: &AtomicU64| Instant::from_ns(time.load(Ordering::Acquire));
        (begin > 0).then(|| [Instant::from_ns(begin), read(start), read(end)])
    }

    /// So many requests of this job have completed.
    pub(super) fn set_done(&self, job: u32, ios: u64) {
        self.done.set(job as usize, ios);
    }

    /// Requests of all jobs that completed.
    pub(super) fn done(&self) -> u64 {
        self.done.sum()
    }

    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}

/// A thread's task.
pub(super) struct Job {
    pub(super) index: u32,
    pub(super) load: Arc<Load>,
    pub(super) control: Arc<Control>,
}

/// What came of a job's requests.
pub(super) struct Ended {
    pub(super) times: Times,
    /// System calls that submitted something: requests, and how often it were so many.
    pub(super) submissions: Vec<(usize, u64)>,
    /// All requests, those before measuring too.
    pub(super) ios: u64,
    /// Requests that were not answered in time at the end.
    pub(super) unfinished: u32,
    /// Whether the kernel knew the memory of requests beforehand.
    pub(super) has_registered_memory: bool,
}

/// The same, and how the thread slept.
pub(super) struct JobResult {
    pub(super) ended: Ended,
    /// As the kernel has it.
    pub(super) timer_slack_ns: u64,
}

/// Loads until the end.
pub(super) async fn run(job: Job) -> anyhow::Result<JobResult> {
    let control = Arc::clone(&job.control);
    let result = load(job).await;
    if result.is_err() {
        // One job's failure ends the others' too.
        control.stop();
    }
    result
}

async fn load(job: Job) -> anyhow::Result<JobResult> {
    load::pin(&job.load.args.cpus, job.index as usize)?;
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))?;
    let timer_slack_ns = rustix::thread::current_timer_slack()?;
    let load = Arc::clone(&job.load);
    let mut random =
        eval::statistics::random::Random::new(load::seed_of_job(load.args.seed, job.index.into()));
    let mut payload = Buffer::zeroed(load.args.bs as usize);
    for chunk in payload.chunks_exact_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    let spread = Spread::new(random.next_u64());
    if let Some(targets) = &load.straight {
        let way = Way::new(&load, targets, payload)?;
        let [begin, start, end] = begin(&job.control).await?;
        let schedule = Schedule::new(&job, spread, begin);
        // Nothing else runs on this thread, so that its reactor may be blocked.
        let ended = way.run(job, schedule, Times::new(start, end)?)?;
        return Ok(JobResult { ended, timer_slack_ns });
    }
    let mut attached = Vec::new();
    for source in &load.sources {
        attached.push(source.attach().await?);
    }
    let devices = attached.iter().map(|it| Rc::clone(&it.device)).collect();
    let [begin, start, end] = begin(&job.control).await?;
    let schedule = Schedule::new(&job, spread, begin);
    let ended = futures::run(job, devices, schedule, Times::new(start, end)?, payload).await?;
    for controller in attached.into_iter().filter_map(|it| it.controller) {
        controller.disconnect().await?;
    }
    Ok(JobResult { ended, timer_slack_ns })
}

/// Tells that this job is ready, and waits for when to begin, measure and end.
async fn begin(control: &Control) -> anyhow::Result<[Instant; 3]> {
    control.ready.fetch_add(1, Ordering::Release);
    loop {
        if control.is_stopping() {
            anyhow::bail!("interrupted before it began");
        }
        if let Some(times) = control.times() {
            return Ok(times);
        }
        sleep(LOOK_PERIOD).await;
    }
}
