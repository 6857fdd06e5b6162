//! Loads that are this program itself: a process per run, so that its CPU time is that of the load alone
//! and a crash of it is one failed run.

use crate::engine::Work;
use crate::outcome::Outcome;
use crate::process::{self, Finished};
use base::{Error, Stop};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long an ending load may take.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How much longer than its load a run may take: connecting, and draining a slow device.
const RUN_PATIENCE: Duration = Duration::from_mins(1);
/// Limit of a load's kept error output.
const COMPLAINT_CHARS_MAX: usize = 2000;

/// Times of operations, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Mean.
    pub avg: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

/// Runs one load to its end; `parse` reads what it says.
pub(crate) fn run(
    name: &'static str,
    (program, arguments): (&Path, Vec<String>),
    work: &Work<'_>,
    stop: &Stop,
    parse: impl FnOnce(&str) -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let place = work.place.ok_or_else(|| Error::program(name, "needs a storage"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    place.mark(&mut command);
    let shown = process::shown(&command);
    let patience = work.time + work.ramp + RUN_PATIENCE;
    let Finished { status, stdout, stderr } =
        process::run(&mut command, stop, patience, END_PATIENCE)?;
    if !status.success() {
        let tail: String = stderr.trim().chars().take(COMPLAINT_CHARS_MAX).collect();
        return Err(Error::program(name, format!("{status}: {tail}")));
    }
    let mut outcome = parse(&stdout)?;
    outcome.load_seconds += work.ramp.as_secs_f64();
    outcome.command = shown;
    Ok(outcome)
}
