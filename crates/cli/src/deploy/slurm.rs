//! Slurm: a job's nodes, the command that runs a program on them, and whether the job is over.
//!
//! A job is over only if Slurm reports that: a controller that does not answer is no evidence.

use super::process::{self, Process};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Final states of a job, in the words of `scontrol show job`.
const ENDED: [&str; 12] = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REVOKED",
    "TIMEOUT",
];
/// States of a job that waits for nodes: it has lost those that it had.
const WAITING: [&str; 5] = ["PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"];
/// Seconds that `scontrol` may take.
const ASK_SECONDS: &str = "10";

/// Interval at which a keeper asks Slurm about the job that owns a pool.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(15);
/// Interval at which it asks about a step after the end of its `srun`.
pub(crate) const STEP_EVERY: Duration = Duration::from_secs(2);

/// One run of a Slurm job: a requeued job runs again under the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlurmRun {
    /// The job's number.
    pub(crate) job: u32,
    /// Number of earlier starts.
    pub(crate) restarts: u32,
}

/// The step with a job's agents as its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlurmStep {
    /// The `srun` that started it. Its end is a reason to ask Slurm.
    pub(crate) srun: Process,
    /// The Slurm job.
    pub(crate) job: u32,
    /// The step's name.
    pub(crate) name: String,
}

/// Slurm's report about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is running.
    Lives,
    /// Slurm is ending its processes: no step can be started any more.
    Ends,
    /// It is over, for this reason.
    Over(String),
    /// Slurm does not answer, or its answer is not understood.
    Unknown(String),
}

impl SlurmRun {
    /// Returns the present run of a job.
    ///
    /// # Errors
    /// If Slurm does not answer, or the job is over.
    pub(crate) fn find(job: u32) -> anyhow::Result<SlurmRun> {
        let output = show(job).context("cannot run scontrol")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some(restarts) = field(&text, "Restarts").and_then(|text| text.parse().ok()) else {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
            bail!("Slurm does not show job {job}: {text}");
        };
        let run = SlurmRun { job, restarts };
        match run.judge(output.status.success(), &text, "") {
            // A failing prolog of a job that was just cancelled would drain the node.
            Verdict::Lives | Verdict::Ends => Ok(run),
            Verdict::Over(why) | Verdict::Unknown(why) => bail!("{why}"),
        }
    }

    /// Asks Slurm.
    pub(crate) fn ask(&self) -> Verdict {
        match show(self.job) {
            Ok(output) => self.judge(
                output.status.success(),
                &String::from_utf8_lossy(&output.stdout),
                &String::from_utf8_lossy(&output.stderr),
            ),
            Err(error) => Verdict::Unknown(format!("cannot run scontrol: {error}")),
        }
    }

    /// Reads the output of `scontrol show job -o`.
    fn judge(&self, is_success: bool, output: &str, errors: &str) -> Verdict {
        let job = self.job;
        if !is_success {
            return if errors.contains("Invalid job id") {
                Verdict::Over(format!("Slurm does not know job {job} any more"))
            } else {
                Verdict::Unknown(errors.trim().into())
            };
        }
        let Some(state) = field(output, "JobState") else {
            return Verdict::Unknown(format!("scontrol shows no state of job {job}"));
        };
        if ENDED.contains(&state) {
            return Verdict::Over(format!("Slurm job {job} has ended: {state}"));
        }
        let restarts = field(output, "Restarts").and_then(|text| text.parse().ok());
        if WAITING.contains(&state)
            || restarts.is_some_and(|restarts: u32| restarts != self.restarts)
        {
            return Verdict::Over(format!("Slurm job {job} was requeued"));
        }
        if state == "COMPLETING" { Verdict::Ends } else { Verdict::Lives }
    }
}

impl SlurmStep {
    /// Returns the name of the step with the agents of a job.
    pub(crate) fn name_of(job: &str) -> String {
        format!("tsumugi.{job}")
    }

    /// Asks Slurm.
    pub(crate) fn ask(&self) -> Verdict {
        let job = self.job.to_string();
        match asked(&["squeue", "--noheader", "--steps", "--jobs", &job, "--format=%j"]) {
            Ok(output) if output.status.success() => {
                self.judge(&String::from_utf8_lossy(&output.stdout))
            }
            Ok(output) => Verdict::Unknown(String::from_utf8_lossy(&output.stderr).trim().into()),
            Err(error) => Verdict::Unknown(format!("cannot run squeue: {error}")),
        }
    }

    /// Reads the names of a job's steps.
    fn judge(&self, names: &str) -> Verdict {
        if names.lines().any(|name| name.trim() == self.name) {
            Verdict::Lives
        } else {
            Verdict::Over(format!("the step {} of Slurm job {} has ended", self.name, self.job))
        }
    }
}

/// Returns the value of a field of `scontrol show job -o`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')))
}

fn show(job: u32) -> std::io::Result<Output> {
    asked(&["scontrol", "show", "job", "-o", &job.to_string()])
}

/// Runs a command of Slurm, with a time limit.
fn asked(words: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new("timeout");
    // A keeper's children must not look like processes of its job.
    command.arg(ASK_SECONDS).args(words).env_remove(process::MARK).stdin(Stdio::null()).output()
}

/// Returns the number of the Slurm job that this process, or its prolog, belongs to.
pub(crate) fn job_here() -> Option<u32> {
    std::env::var("SLURM_JOB_ID").ok()?.parse().ok()
}

/// Returns Slurm's name of this machine, in a job, a prolog or an epilog.
pub(crate) fn node_here() -> Option<String> {
    std::env::var("SLURMD_NODENAME").ok().filter(|name| !name.is_empty())
}

/// Returns the nodes of this process's allocation, separated by commas.
///
/// # Errors
/// If there is no allocation, or `scontrol` cannot be run.
pub(crate) fn nodes_here() -> anyhow::Result<String> {
    let Ok(list) = std::env::var("SLURM_JOB_NODELIST") else {
        bail!("there is no Slurm allocation here: run this in a job or under salloc");
    };
    let mut command = Command::new("scontrol");
    let output = command.args(["show", "hostnames", &list]).stdin(Stdio::null()).output();
    let output = output.context("cannot run scontrol")?;
    let names = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = names.split_ascii_whitespace().collect();
    if !output.status.success() || names.is_empty() {
        bail!("scontrol shows no nodes: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(names.join(","))
}

/// Returns those of these nodes that Slurm cannot run anything on, with their states.
pub(crate) fn lost(nodes: &[&str]) -> BTreeMap<String, String> {
    let nodes = nodes.join(",");
    match asked(&["sinfo", "--noheader", "--Node", "--nodes", &nodes, "--format=%N %T"]) {
        Ok(output) if output.status.success() => lost_of(&String::from_utf8_lossy(&output.stdout)),
        // srun reports the reason, or reaches all of them.
        Ok(_) | Err(_) => BTreeMap::new(),
    }
}

/// Reads nodes and their states. A state with `*` is that of a node that does not respond.
fn lost_of(states: &str) -> BTreeMap<String, String> {
    let pairs = states.lines().filter_map(|line| line.trim().split_once(' '));
    let is_lost = |state: &str| state.starts_with("down") || state.contains('*');
    let lost = pairs.filter(|(_, state)| is_lost(state));
    lost.map(|(node, state)| (node.into(), state.trim().into())).collect()
}

/// What becomes of a step when one of its tasks fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtFailure {
    /// Slurm ends the others.
    End,
    /// The others go on.
    GoOn,
}

/// Settings of users for their own programs that no option of srun takes back. They would change what
/// srun runs, or how it passes output on.
const USERS: [&str; 4] =
    ["SLURM_LABELIO", "SLURM_UNBUFFEREDIO", "SLURM_MULTI_PROG", "SLURM_EXCLUSIVE"];

/// Returns an `srun` of one task on each of these nodes of a job, beside its other steps.
pub(crate) fn srun(job: u32, name: &str, nodes: &[&str], failure: AtFailure) -> Command {
    let mut command = Command::new("srun");
    let count = nodes.len();
    command.args(["--overlap", "--ntasks-per-node=1", "--mem=0", "--mpi=none", "--cpu-bind=none"]);
    command.args(["--input=all", "--output=all", "--error=all"]);
    let is_fatal = u8::from(failure == AtFailure::End);
    command.arg(format!("--kill-on-bad-exit={is_fatal}"));
    command.args(["--wait=0", "--no-kill", "--quiet"]);
    command.arg(format!("--jobid={job}")).arg(format!("--job-name={name}"));
    command.arg(format!("--nodes={count}")).arg(format!("--ntasks={count}"));
    command.arg(format!("--nodelist={}", nodes.join(",")));
    for name in USERS {
        command.env_remove(name);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a step is over when its job has other steps, or none.
    #[test]
    fn a_step_is_over_when_it_is_not_there() {
        let srun = Process { pid: 1, start_ticks: 0 };
        let step = SlurmStep { srun, job: 7, name: SlurmStep::name_of("pool") };
        assert_eq!(step.judge("batch\ntsumugi.pool\n"), Verdict::Lives);
        for names in ["", "batch\n", "tsumugi.pool2\n"] {
            assert!(matches!(step.judge(names), Verdict::Over(_)), "{names:?}");
        }
    }

    /// Goal: nodes that are down or silent are lost; busy, draining and reserved ones are not.
    #[test]
    fn lost_nodes_are_down_or_silent() {
        let states = "n1 allocated\nn2 down*\nn3 draining\nn4 mixed*\nn5 down\nn6 reserved\n\n";
        assert_eq!(lost_of(states).into_keys().collect::<Vec<_>>(), ["n2", "n4", "n5"]);
    }

    /// Goal: only a report of Slurm ends a pool; a controller that does not answer, and an answer
    /// that is not understood, do not.
    #[test]
    fn a_job_is_over_only_by_evidence() {
        let run = SlurmRun { job: 7, restarts: 1 };
        let shown = |state: &str, restarts: u32| {
            format!("JobId=7 JobName=x Requeue=1 Restarts={restarts} JobState={state} Reason=None")
        };
        for state in ["RUNNING", "CONFIGURING", "STAGE_OUT", "SUSPENDED", "NEW"] {
            assert_eq!(run.judge(true, &shown(state, 1), ""), Verdict::Lives, "{state}");
        }
        assert_eq!(run.judge(true, &shown("COMPLETING", 1), ""), Verdict::Ends);
        for (state, restarts) in [("CANCELLED", 1), ("TIMEOUT", 1), ("PENDING", 1), ("RUNNING", 2)]
        {
            let verdict = run.judge(true, &shown(state, restarts), "");
            assert!(matches!(verdict, Verdict::Over(_)), "{state} {restarts}: {verdict:?}");
        }
        let invalid = "slurm_load_jobs error: Invalid job id specified";
        assert!(matches!(run.judge(false, "", invalid), Verdict::Over(_)));
        let silent = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        for (is_success, text, errors) in [(false, "", silent), (true, "", ""), (false, "", "")] {
            let verdict = run.judge(is_success, text, errors);
            assert!(matches!(verdict, Verdict::Unknown(_)), "{verdict:?}");
        }
    }
}
