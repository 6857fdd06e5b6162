//! The keeper of a job on one machine, as a process: its start, its end and its record. [`super::watch`] is its work.

mod record;

use super::job::JobDir;
use super::process;
use super::service::Service;
use super::state::State;
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use record::{KeeperRecord, Restart};

/// Time for a keeper to end after the request.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Returns the path of the keeper's life file.
pub(crate) fn life_file(dir: &JobDir) -> PathBuf {
    dir.join("keeper.pid")
}

/// Starts the keeper of a job, if the job needs one, and notes it in the state.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn start(dir: &JobDir, state: &mut State) -> anyhow::Result<()> {
    let is_step = state.hosts.iter().any(|host| host.run.is_some());
    let has_owner = state.owner_process.is_some() || state.owner_run.is_some() || is_step;
    if !state.is_kept && !has_owner && state.lease().is_none() {
        return Ok(());
    }
    let arguments = ["keep".as_ref(), dir.path().as_os_str()];
    state.start(
        dir,
        |state| Service::start(dir, &state.id, state.engine.as_deref(), "keeper", &arguments),
        |state, service| state.keeper = Some(service.process),
    )?;
    Ok(())
}

/// Ends the keeper of a job that is taken down, unless it is this process.
pub(crate) fn stop(state: &State) {
    let Some(keeper) = state.living(state.keeper) else { return };
    if keeper.pid == std::process::id().cast_signed() {
        return;
    }
    keeper.signal(Signal::TERM);
    if !process::wait_for_end(&[keeper], Instant::now() + END_WITHIN).is_empty() {
        keeper.signal(Signal::KILL);
        process::wait_for_end(&[keeper], Instant::now() + END_WITHIN);
    }
}
