//! The work of the keeper ([`super::keeper`]), a process that watches a job's part on one machine.
//!
//! - It restarts dead processes: the metadata service and nodes. A part that dies three times in a
//!   minute stays dead.
//! - It takes the job down when its owner is gone: the owning process or Slurm job has ended, the
//!   lease has lapsed, or `tsumugi up` has died before it was done. Only such evidence counts: a
//!   service that does not answer is no reason to remove a backing file.
//!
//! On the machine where `tsumugi up --nodes` ran, the keeper has no services. There it renews the
//! leases of the job's other machines as long as the owning process lives, and takes all of them
//! down when it has ended. If this machine itself dies, the leases of the others lapse.

mod deaths;

use super::job::JobDir;
use super::keeper::life_file;
use super::lease;
use super::life::Held;
use super::process::Process;
use super::remote;
use super::slurm::{self, SlurmRun, SlurmStep, Verdict};
use super::state::State;
use crate::print::words;
use anyhow::Context;
use deaths::Deaths;
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1, SIGUSR2};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two looks, so that dead processes are not restarted in a tight loop.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for nodes to end before they are killed. Their commits go with the job, and the metadata
/// service that they wait for may have died with the owner.
const DOWN_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two attempts to remove leftovers, and the number of attempts.
const DOWN_AGAIN: (Duration, u32) = (Duration::from_secs(5), 120);
/// Number of renewals of other machines' leases during one lease.
const RENEWALS: u32 = 4;

/// Watches a job until it is gone.
///
/// # Errors
/// If another keeper watches it, or the job has no state.
pub(crate) fn keep(dir: &JobDir) -> anyhow::Result<ExitCode> {
    // The process that started the job may end, and its terminal with it.
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
    /// The last renewal of other machines' leases.
    renewed: Instant,
    /// The last request to Slurm about the job that owns this one.
    asked: Instant,
}

impl Keeper {
    /// Returns the reason to take the job down, if there is one.
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
            // The job may have become ready, and `up` may have ended, since the state was read.
            let now = State::read(&self.dir)?;
            if now.is_some_and(|now| now.id == self.id && !now.is_ready) {
                return Ok(Some("it was never ready, and what made it has died".into()));
            }
        }
        // The lease begins when the job is ready. Until then `up` shows that the job is wanted.
        let Some(lasts) = state.lease().filter(|_| state.is_ready) else { return Ok(None) };
        match lease::left(&self.dir) {
            Ok(Some(Duration::ZERO)) => Ok(Some(format!(
                "its lease of {} was not renewed",
                humantime::format_duration(lasts)
            ))),
            Ok(Some(_)) => Ok(None),
            // No evidence that the job is unwanted: the lease begins anew.
            lost => {
                let error = lost.err().map(|error| words(&error));
                tracing::warn!(error, "the job's lease is not readable and begins anew");
                lease::renew(&self.dir, lasts).map(|()| None)
            }
        }
    }

    /// Asks Slurm from time to time about the run that owns the job, and about the step after the
    /// end of its `srun`.
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

    /// Renews the leases of the job's other machines. Leases of unreachable machines lapse in the
    /// end.
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

/// Waits until a process of the job ends, or for a moment.
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
