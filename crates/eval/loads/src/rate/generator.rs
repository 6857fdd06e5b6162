//! Open-loop load at a fixed rate, over many files or parts of them.
//!
//! Without a rate the loop is closed: as many requests as [`Parameters::depth_max`] allows are always under way.
//!
//! Requests are due at times that follow from the rate alone, in batches; each batch is one submission (one
//! system call, on a file). A request that is late is not put off: it is sent as soon as possible, and its
//! latency counts from when it was due. Each job is a thread with a ring of its own that sleeps until the next
//! batch is due or something completes; nothing spins unless [`Parameters::spin`] says so. So CPU time per
//! request is the storage stack's, and what the generator itself takes is what the device [`Null`] takes, which
//! does nothing at all.
//!
//! On files, block devices and nothing the loop is a plain one ([`straight`]); devices behind a network,
//! memory and the queues of our block layer take a task for each request ([`futures`]), which costs some
//! CPU time more. What is to be compared has to go the same way.
//!
//! The caller opens the devices ([`Source`]), because it knows where they are and what may be lost on them.

mod error;
mod futures;
mod job;
mod load;
mod null;
mod outcome;
mod schedule;
mod source;
mod straight;
#[cfg(test)]
mod tests;
mod thread;
mod times;

pub use error::{Cause, LoadError};
pub use load::Parameters;
pub use null::Null;
pub use source::{Attached, LocalFuture, Remote, Source, Storage};

use super::summary::Summary;
use crate::threads;
use job::{Control, Job};
use load::Load;
use outcome::Measured;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the end is looked for.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// From when all jobs are ready until the first request is due.
const START_DELAY: Duration = Duration::from_millis(5);

/// Runs a load on devices, until its end or until `is_interrupted`.
pub fn run(
    parameters: Parameters,
    devices: Vec<Storage>,
    is_interrupted: &AtomicBool,
) -> Result<Summary, LoadError> {
    let load = Arc::new(Load::new(parameters, devices)?);
    let parameters = &load.parameters;
    let control = Arc::new(Control::new(parameters.jobs));
    let config = reactor::Config {
        entries: parameters.batch.max(256),
        spin: parameters.spin,
        ..reactor::Config::default()
    };
    let mut handles = Vec::new();
    for index in 0..parameters.jobs {
        let job = Job { index, load: Arc::clone(&load), control: Arc::clone(&control) };
        let name = format!("rate-{index}");
        handles.push(reactor::thread::spawn(&name, &config, move || thread::run(job))?);
    }
    let measured = watch(parameters, &control, is_interrupted);
    outcome::summary(&load, &measured, threads::join(handles)?)
}

/// Has all jobs begin together, and measures.
fn watch(parameters: &Parameters, control: &Control, is_interrupted: &AtomicBool) -> Measured {
    let is_over = || is_interrupted.load(Ordering::Relaxed) || control.is_stopping();
    let wait_until = |moment: reactor::time::Instant| {
        while !is_over() && reactor::time::now() < moment {
            std::thread::sleep(WATCH_PERIOD.min(moment.since(reactor::time::now())));
        }
    };
    while !is_over() && control.ready() < parameters.jobs {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = reactor::time::now() + START_DELAY;
    let (start, end) = (begin + parameters.ramp, begin + parameters.ramp + parameters.runtime);
    control.begin(begin, start, end);
    wait_until(start);
    let (done_before, cpu_before, from) =
        (control.done(), threads::cpu_seconds(), reactor::time::now());
    let mut series = Vec::new();
    let mut counted = done_before;
    loop {
        let next = from + Duration::from_secs(series.len() as u64 + 1);
        wait_until(next.min(end));
        if is_over() || next > end {
            break;
        }
        let done = control.done();
        series.push(done - counted);
        counted = done;
    }
    wait_until(end);
    let (done, cpu, to) = (control.done(), threads::cpu_seconds(), reactor::time::now());
    if is_over() {
        control.stop();
    }
    Measured {
        seconds: to.since(from).as_secs_f64(),
        cpu_seconds: cpu - cpu_before,
        ios: done - done_before,
        series,
        is_interrupted: is_interrupted.load(Ordering::Relaxed),
    }
}
