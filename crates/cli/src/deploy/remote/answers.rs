//! A command for all machines of a job, on its way to them, and their answers.

use super::messages::{Addressed, locked};
use crate::deploy::bounded;
use crate::deploy::state::HostState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

/// Longest answer.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Bytes of error output to keep.
pub(super) const COMPLAINT_BYTES_MAX: usize = 4096;

/// A command for all machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Errand {
    /// The job; none for a command about the machine.
    pub(crate) job: Option<String>,
    /// Its arguments.
    pub(crate) words: Vec<String>,
    /// How long it may take on a machine.
    pub(crate) within: Duration,
}

/// An errand on its way to a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Sent {
    /// For a machine of the tree, and those below it.
    Branch { errand: Errand, own: HostState, rest: Vec<HostState> },
    /// For the tasks of a step, which wait until their group is called. `hosts` has Slurm's name of
    /// each machine, its group, and its name in the pool; all else is as with `like`. All tasks get
    /// all of it, so it is short.
    Step { errand: Errand, like: HostState, hosts: BTreeMap<String, (usize, String)> },
}

/// The output of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Printed {
    output: String,
    complaint: String,
}

/// Answers of machines, by node. The first answer of a node counts.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<BTreeMap<String, Printed>>);

impl Answers {
    pub(super) fn add(&self, answer: Addressed<Printed>) {
        locked(&self.0).entry(answer.node).or_insert(answer.content);
    }

    /// Notes why a machine does not answer.
    pub(super) fn lament(&self, host: &HostState, why: &str) {
        self.add(Addressed { node: host.name.clone(), content: Printed::nothing(why.into()) });
    }

    /// Returns the machines without an answer.
    pub(super) fn silent(&self, hosts: &[HostState]) -> Vec<HostState> {
        let answers = locked(&self.0);
        hosts.iter().filter(|host| !answers.contains_key(&host.name)).cloned().collect()
    }

    /// Returns all answers, by node.
    pub(super) fn into_inner(self) -> BTreeMap<String, Printed> {
        self.0.into_inner().unwrap_or_default()
    }

    /// Returns whether all machines have given an answer of this kind.
    pub(super) fn are_good<T: DeserializeOwned>(&self, hosts: &[HostState]) -> bool {
        let answers = locked(&self.0);
        let mut found = hosts.iter().map(|host| answers.get(&host.name));
        found.all(|printed| printed.is_some_and(|printed| printed.read::<T>().is_ok()))
    }
}

impl Errand {
    /// Runs the command on this machine.
    pub(super) fn run_here(&self, own: &HostState) -> Addressed<Printed> {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        let mut command = Command::new("/proc/self/exe");
        match &self.job {
            Some(job) => command.args(own.words(job, &words)),
            None => command.args(words),
        };
        let content = match bounded::output(command, ANSWER_BYTES_MAX as usize, self.within) {
            Ok(Some(output)) => Printed::of(&output),
            Ok(None) => Printed::late(self.within),
            Err(error) => Printed::nothing(format!("cannot run tsumugi: {error}")),
        };
        Addressed { node: own.name.clone(), content }
    }
}

impl Printed {
    pub(super) fn nothing(complaint: String) -> Printed {
        Printed { output: String::new(), complaint }
    }

    pub(super) fn late(within: Duration) -> Printed {
        let within = humantime::format_duration(within);
        Printed::nothing(format!("no answer within {within}: the machine or its mount hangs"))
    }

    pub(super) fn of(output: &Output) -> Printed {
        let text = String::from_utf8_lossy(&output.stderr);
        let complaint = match text.trim().trim_start_matches("tsumugi: ") {
            "" => format!("no answer ({})", output.status),
            text => text.into(),
        };
        Printed { output: String::from_utf8_lossy(&output.stdout).into_owned(), complaint }
    }

    /// Parses the output, even of a failed command.
    pub(super) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.output).map_err(|_| anyhow::anyhow!("{}", self.complaint))
    }
}
