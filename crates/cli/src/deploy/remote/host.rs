//! The commands that reach a job's machines by ssh or srun, and their answers.

use crate::deploy::slurm::{self, SlurmRun, SlurmStep};
use crate::deploy::state::HostState;
use anyhow::Context;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// What ssh shall do in any case: never ask, and notice a dead machine.
const SSH_OPTIONS: [&str; 4] = [
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
];
impl HostState {
    /// The command that runs the program there, for its part of the job.
    pub(super) fn command(&self, job: &str, arguments: &[&str]) -> Command {
        let part = format!("{job}.{}", self.name);
        let base = self.base.as_ref().map(|base| base.to_string_lossy());
        let mut words = arguments.to_vec();
        words.extend(["--job", &part]);
        if let Some(base) = &base {
            words.extend(["--dir", base]);
        }
        self.bare_command(&words)
    }

    /// The command that runs the program there.
    pub(crate) fn bare_command(&self, arguments: &[&str]) -> Command {
        if let Some(run) = &self.run {
            let mut command = slurm::srun(run.job, "tsumugi", &[&self.host]);
            command.arg("--").arg(&self.binary).args(arguments);
            return command;
        }
        let mut words = self.ssh.iter();
        let mut command = Command::new(words.next().map_or("ssh", String::as_str));
        command.args(words).args(SSH_OPTIONS).arg("--").arg(&self.host);
        // ssh hands the words to a shell there.
        // srun passes the environment on, ssh does not.
        let log = std::env::var("TSUMUGI_LOG").map(|log| format!("TSUMUGI_LOG={log}"));
        let set = log.iter().flat_map(|log| ["env", log.as_str()]);
        let all = set.chain([self.binary.as_str()]).chain(arguments.iter().copied());
        command.arg(all.map(quote).collect::<Vec<_>>().join(" "));
        command
    }
}

/// A word that no shell takes apart.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs a command whose output is JSON, whatever its status.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(command: &mut Command) -> anyhow::Result<T> {
    let output = command.stdin(Stdio::null()).output().context("cannot run ssh or srun")?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim().trim_start_matches("tsumugi: ");
        match text {
            "" => anyhow::anyhow!("no answer ({})", output.status),
            text => anyhow::anyhow!("{text}"),
        }
    })
}

/// The command that runs the agents of all these nodes, in the foreground, as one step.
pub(super) fn agents(run: &SlurmRun, job: &str, hosts: &[HostState]) -> Command {
    let names: Vec<_> = hosts.iter().map(|host| host.host.as_str()).collect();
    let mut command = slurm::srun(run.job, &SlurmStep::name_of(job), &names);
    let binary = hosts.first().map_or("tsumugi", |host| host.binary.as_str());
    command.args(["--", binary, "agent", "--job", job]);
    let base = hosts.first().and_then(|host| host.base.as_ref());
    command.args(base.into_iter().flat_map(|base| [OsStr::new("--dir"), base.as_os_str()]));
    command
}
