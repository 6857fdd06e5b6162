//! The keeper: a process that looks after a job's part on one machine.
//!
//! - It starts again what dies: the metadata service and nodes. What dies three times in a minute
//!   stays dead.
//! - It takes the job down when its owner is gone: the owning process or Slurm job has ended, the
//!   lease has lapsed, or `tsumugi up` has died before it was done. Only such evidence counts: a
//!   service that does not answer is no reason to remove a backing file.
//!
//! On the machine where `tsumugi up --nodes` ran, the keeper has no services. There it renews the
//! leases of the job's other machines as long as the owning process lives, and takes all of them
//! down when that has ended. If this machine itself dies, the leases of the others lapse.

mod deaths;
mod record;

use super::job::JobDir;
use super::lease;
use super::life::Held;
use super::process::Process;
use super::remote;
use super::service::Service;
use super::slurm::{self, SlurmRun, SlurmStep, Verdict};
use super::state::State;
use super::stop::Stop;
use crate::print::words;
use anyhow::Context;
use deaths::Deaths;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1, SIGUSR2};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

pub(crate) use record::KeeperRecord;

/// The longest time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The least: what died is not started again in a tight loop.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for nodes to end before they are killed. What they commit goes with the job, and the
/// metadata service that they wait for may have died with the owner.
const DOWN_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two tries to take down what could not be removed, and how often.
const DOWN_AGAIN: (Duration, u32) = (Duration::from_secs(5), 120);
/// Time for a keeper to end that is told to.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Leases of other machines are renewed so often while they last.
const RENEWALS: u32 = 4;

/// The file by which a job's keeper shows that it lives.
pub(crate) fn life_file(dir: &JobDir) -> PathBuf {
    dir.join("keeper.pid")
}

/// Starts the keeper of a job, if it has anything to look after, and notes it in the state.
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

/// Ends the keeper of a job that is taken down, unless this process is it.
pub(crate) fn stop(state: &State) {
    let Some(keeper) = state.living(state.keeper) else { return };
    if keeper.pid == std::process::id().cast_signed() {
        return;
    }
    keeper.signal(Signal::TERM);
    if !super::process::wait_for_end(&[keeper], Instant::now() + END_WITHIN).is_empty() {
        keeper.signal(Signal::KILL);
        super::process::wait_for_end(&[keeper], Instant::now() + END_WITHIN);
    }
}

/// Looks after a job until it is gone.
///
/// # Errors
/// If another keeper does, or the job has no state.
pub(crate) fn keep(dir: &JobDir) -> anyhow::Result<ExitCode> {
    // Whoever started the job may go, and with it a terminal.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))
            .context("cannot watch for signals")?;
    }
    let _life = Held::take(&life_file(dir))?;
    let state = State::read(dir)?.context("the job has no state")?;
    let mut keeper = Keeper {
        dir: dir.clone(),
        id: state.id,
        deaths: Deaths::new(dir),
        renewed: Instant::now(),
        asked: Instant::now(),
    };
    loop {
        let state = match State::read(dir) {
            Ok(Some(state)) if state.id == keeper.id => state,
            Ok(_) => return Ok(ExitCode::SUCCESS),
            Err(error) => {
                tracing::error!(error = words(&error), "the job's state cannot be read");
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
        };
        if let Some(why) = keeper.reason_to_end(&state)? {
            return Ok(keeper.take_down(&why));
        }
        keeper.deaths.look(&state);
        keeper.renew_others(&state);
        std::thread::sleep(PAUSE);
        wait(&state);
    }
}

struct Keeper {
    dir: JobDir,
    id: String,
    deaths: Deaths,
    /// When the leases of other machines were renewed.
    renewed: Instant,
    /// When Slurm was asked about the job that owns this one.
    asked: Instant,
}

impl Keeper {
    /// Why the job is to be taken down, if it is.
    fn reason_to_end(&mut self, state: &State) -> anyhow::Result<Option<String>> {
        if let Some(owner) = state.owner_process
            && state.living(Some(owner)).is_none()
        {
            return Ok(Some(format!("its owner, process {}, has ended", owner.pid)));
        }
        if let Some(why) = self.ask_slurm(state) {
            return Ok(Some(why));
        }
        if !state.is_ready && state.living(Some(state.up)).is_none() {
            // It may have become ready, and `up` have ended, since the state was read.
            let now = State::read(&self.dir)?;
            if now.is_some_and(|now| now.id == self.id && !now.is_ready) {
                return Ok(Some("it was never ready, and what made it has died".into()));
            }
        }
        // The lease begins when the job is ready: until then what makes it shows that it is wanted.
        let Some(lasts) = state.lease().filter(|_| state.is_ready) else { return Ok(None) };
        match lease::left(&self.dir) {
            Ok(Some(Duration::ZERO)) => Ok(Some(format!(
                "its lease of {} was not renewed",
                humantime::format_duration(lasts)
            ))),
            Ok(Some(_)) => Ok(None),
            // Not evidence that nobody wants the job: it begins anew.
            lost => {
                let error = lost.err().map(|error| words(&error));
                tracing::warn!(error, "the job's lease is not readable and begins anew");
                lease::renew(&self.dir, lasts).map(|()| None)
            }
        }
    }

    /// Asks Slurm from time to time about the run that owns the job, and about the step when its
    /// `srun` has ended.
    fn ask_slurm(&mut self, state: &State) -> Option<String> {
        let run = state.owner_run.as_ref().filter(|_| self.asked.elapsed() >= slurm::ASK_EVERY);
        let is_silent = |step: &&SlurmStep| {
            state.living(Some(step.srun)).is_none() && self.asked.elapsed() >= slurm::STEP_EVERY
        };
        let step = state.owner_step.as_ref().filter(is_silent);
        let mut verdicts: Vec<_> = run.map(SlurmRun::ask).into_iter().collect();
        verdicts.extend(step.map(SlurmStep::ask));
        if !verdicts.is_empty() {
            self.asked = Instant::now();
        }
        verdicts.into_iter().find_map(|verdict| match verdict {
            Verdict::Lives | Verdict::Ends => None,
            Verdict::Over(why) => Some(why),
            Verdict::Unknown(why) => {
                tracing::warn!(why, "Slurm does not report whether the job lives");
                None
            }
        })
    }

    fn take_down(&self, why: &str) -> ExitCode {
        tracing::warn!(job = self.dir.job(), why, "the job is taken down");
        for _ in 0..DOWN_AGAIN.1 {
            match remote::down(&self.dir, DOWN_WITHIN, None) {
                Ok(report) if report.left.is_empty() => return ExitCode::SUCCESS,
                Ok(report) => tracing::error!(left = ?report.left, "something is left"),
                Err(error) => tracing::error!(error = words(&error), "it is not gone"),
            }
            std::thread::sleep(DOWN_AGAIN.0);
        }
        ExitCode::FAILURE
    }

    /// Says on the job's other machines that its owner lives. Those that cannot be reached lapse in
    /// the end.
    fn renew_others(&mut self, state: &State) {
        let Some(lasts) = state.lease() else { return };
        let is_due = self.renewed.elapsed() >= lasts / RENEWALS;
        if state.owner_process.is_none() || !state.is_ready || !is_due {
            return;
        }
        self.renewed = Instant::now();
        match remote::renew(&self.dir, None) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => tracing::warn!(?left, "leases of some machines are not renewed"),
            Err(error) => tracing::warn!(error = words(&error), "leases are not renewed"),
        }
    }
}

/// Waits until a process that matters ends, or for a moment.
fn wait(state: &State) {
    let mut processes: Vec<Process> = state.owner_process.into_iter().collect();
    processes.extend(state.owner_step.iter().map(|step| step.srun));
    if state.is_ready {
        processes.extend(state.nodes.iter().filter_map(|node| state.living_node(node)));
        processes.extend(state.living_meta());
    } else {
        processes.push(state.up);
    }
    let handles: Vec<_> = processes.iter().filter_map(Process::open).collect();
    let mut polled: Vec<_> =
        handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: LOOK_EVERY.as_secs() as i64, tv_nsec: 0 };
    // A signal ends the wait early, which is harmless.
    let _ = rustix::event::poll(&mut polled, Some(&timeout));
}
