//! The course of one job: it opens its devices, waits for the others, loads, and closes them.

use super::job::{Control, Ended, Job};
use super::schedule::Schedule;
use super::straight::Way;
use super::times::Times;
use super::{LoadError, futures};
use crate::threads::{self, Spread};
use base::statistics::random::Random;
use reactor::Buffer;
use reactor::time::{Instant, sleep};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often a job looks whether it may begin.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
/// How much later than it should a timer may fire, in ns: as little as the kernel allows (its default
/// is 50 µs).
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// What came of a job's requests, and how the thread slept.
pub(super) struct JobResult {
    pub(super) ended: Ended,
    /// As the kernel has it.
    pub(super) timer_slack_ns: u64,
}

/// Loads until the end.
pub(super) async fn run(job: Job) -> Result<JobResult, LoadError> {
    let control = Arc::clone(&job.control);
    let result = load(job).await;
    if result.is_err() {
        // One job's failure ends the others' too.
        control.stop();
    }
    result
}

async fn load(job: Job) -> Result<JobResult, LoadError> {
    let parameters = &job.load.parameters;
    threads::pin(&parameters.cpus, job.index as usize)?;
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))?;
    let timer_slack_ns = rustix::thread::current_timer_slack()?;
    let seed = threads::seed_of_job(parameters.seed, job.index.into());
    let mut random = Random::new(seed);
    let mut payload = Buffer::zeroed(parameters.request_bytes as usize);
    for chunk in payload.chunks_exact_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    let spread = Spread::new(random.next_u64());
    let load = Arc::clone(&job.load);
    if let Some(targets) = &load.straight {
        let way = Way::new(&load, targets, payload)?;
        let [begin, start, end] = begin(&job.control).await?;
        let schedule = Schedule::new(&load, job.index, spread, begin);
        // Nothing else runs on this thread, so that its reactor may be blocked.
        let ended = way.run(job, schedule, Times::new(start, end)?)?;
        return Ok(JobResult { ended, timer_slack_ns });
    }
    let mut attached = Vec::new();
    for device in &load.devices {
        attached.push(device.source.attach().await?);
    }
    let devices = attached.iter().map(|it| Rc::clone(&it.device)).collect();
    let [begin, start, end] = begin(&job.control).await?;
    let schedule = Schedule::new(&load, job.index, spread, begin);
    let ended = futures::run(job, devices, schedule, Times::new(start, end)?, payload).await?;
    for disconnect in attached.into_iter().filter_map(|it| it.disconnect) {
        disconnect.await.map_err(LoadError::Remote)?;
    }
    Ok(JobResult { ended, timer_slack_ns })
}

/// Tells that this job is ready, and waits for when to begin, measure and end.
async fn begin(control: &Control) -> Result<[Instant; 3], LoadError> {
    control.add_ready();
    loop {
        if control.is_stopping() {
            return Err(LoadError::NotBegun);
        }
        if let Some(times) = control.times() {
            return Ok(times);
        }
        sleep(LOOK_PERIOD).await;
    }
}
