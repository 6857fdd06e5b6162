//! The commands that reach a job's machines by ssh or srun.

use crate::deploy::slurm::{self, AtFailure, SlurmRun, SlurmStep};
use crate::deploy::state::HostState;
use std::ffi::OsStr;
use std::process::Command;

/// Options that ssh always gets: never prompt, and notice a dead machine.
const SSH_OPTIONS: [&str; 4] = [
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
];

impl HostState {
    /// Returns the ssh that runs the program on the machine, for its part of the job.
    pub(super) fn command(&self, job: &str, arguments: &[&str]) -> Command {
        let words = self.words(job, arguments);
        self.bare_command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the program's arguments, for its part of the job.
    pub(super) fn words(&self, job: &str, arguments: &[&str]) -> Vec<String> {
        let mut words: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        words.extend(["--job".into(), format!("{job}.{}", self.name)]);
        if let Some(base) = &self.base {
            words.extend(["--dir".into(), base.to_string_lossy().into_owned()]);
        }
        words
    }

    /// Returns the ssh that runs the program on the machine.
    pub(crate) fn bare_command(&self, arguments: &[&str]) -> Command {
        let mut words = self.ssh.iter();
        let mut command = Command::new(words.next().map_or("ssh", String::as_str));
        command.args(words).args(SSH_OPTIONS).arg("--").arg(&self.host);
        // ssh passes the words to a shell on the machine, without the environment of this process.
        let log = std::env::var("TSUMUGI_LOG").map(|log| format!("TSUMUGI_LOG={log}"));
        let set = log.iter().flat_map(|log| ["env", log.as_str()]);
        let all = set.chain([self.binary.as_str()]).chain(arguments.iter().copied());
        command.arg(all.map(quote).collect::<Vec<_>>().join(" "));
        command
    }
}

/// Quotes a word, so that a shell keeps it whole.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the command that runs the agents of all these nodes, in the foreground, as one step.
pub(super) fn agents(run: &SlurmRun, job: &str, hosts: &[HostState]) -> Command {
    let names: Vec<_> = hosts.iter().map(|host| host.host.as_str()).collect();
    let mut command = slurm::srun(run.job, &SlurmStep::name_of(job), &names, AtFailure::End);
    let binary = hosts.first().map_or("tsumugi", |host| host.binary.as_str());
    command.args(["--", binary, "agent", "--job", job]);
    let base = hosts.first().and_then(|host| host.base.as_ref());
    command.args(base.into_iter().flat_map(|base| [OsStr::new("--dir"), base.as_os_str()]));
    command
}
