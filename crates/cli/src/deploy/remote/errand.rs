//! Sending a command to all machines of a job, over the tree of [`super::tree`]: `tsumugi errand`
//! on a machine runs the command for its own part of the job, sends it to the machines below at the
//! same time, and prints all answers.
//!
//! If a machine is dead or cannot reach those below it, their answers are missing. The first
//! machine then asks them itself.

use super::conversation::{Addressed, lines};
use super::tree::{branches, line};
use crate::deploy::state::HostState;
use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Number of machines to ask at once outside a tree.
const ASKED_MAX: usize = 32;
/// The exit code of an ssh that has not reached its machine.
const SSH_FAILED: i32 = 255;

/// A command for all machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Errand {
    /// The job; none for a command about the machine.
    pub(crate) job: Option<String>,
    /// Its arguments.
    pub(crate) words: Vec<String>,
}

/// An errand on its way to a machine.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    errand: Errand,
    own: HostState,
    rest: Vec<HostState>,
}

/// The output of a command.
#[derive(Debug, Serialize, Deserialize)]
struct Printed {
    output: String,
    complaint: String,
}

/// Runs an errand on all these machines. Returns their answers in the same order.
pub(crate) fn ask_all<T: DeserializeOwned>(
    hosts: &[HostState],
    errand: &Errand,
) -> Vec<anyhow::Result<T>> {
    let answers = Mutex::new(BTreeMap::new());
    let pass = |answer: Addressed<Printed>| {
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.entry(answer.node).or_insert(answer.content);
    };
    // srun is a tree of its own, but takes one command for all its nodes.
    if hosts.iter().all(|host| host.run.is_none()) {
        send(hosts, errand, true, &pass);
    }
    let has_answered = |host: &&HostState| {
        answers.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&host.name)
    };
    let silent: Vec<_> = hosts.iter().filter(|host| !has_answered(host)).collect();
    for some in silent.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            for host in some {
                scope.spawn(|| pass(errand.ask(host).0));
            }
        });
    }
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    let read = |host: &HostState| answers.remove(&host.name).context("no answer")?.read();
    hosts.iter().map(read).collect()
}

/// Runs `tsumugi errand`: an errand from standard input, for this machine and those below it.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text).context("no errand on standard input")?;
    let sent: Sent = serde_json::from_str(&text).context("the input is not an errand")?;
    let pass = |answer: Addressed<Printed>| {
        if let Ok(line) = line(&answer) {
            let mut output = std::io::stdout().lock();
            // The process that asked may have ended.
            let _ = output.write_all(&line).and_then(|()| output.flush());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&sent.rest, &sent.errand, false, &pass));
        pass(sent.errand.run_here(&sent.own));
    });
    Ok(ExitCode::SUCCESS)
}

/// Asks machines, and passes each answer to `pass`. If the root cannot reach a machine, it reports
/// that at once, because a second attempt would take as long and fail too. Other machines leave it
/// to the root, which may reach it.
fn send(
    hosts: &[HostState],
    errand: &Errand,
    is_root: bool,
    pass: &(impl Fn(Addressed<Printed>) + Sync),
) {
    std::thread::scope(|scope| {
        for branch in branches(hosts) {
            scope.spawn(move || {
                let failed = match branch {
                    [] => None,
                    [only] => match errand.ask(only) {
                        (answer, true) => {
                            pass(answer);
                            None
                        }
                        (answer, false) => Some(answer),
                    },
                    [head, rest @ ..] => errand.ask_branch(head, rest, pass),
                };
                failed.filter(|_| is_root).into_iter().for_each(pass);
            });
        }
    });
}

impl Errand {
    /// Runs the command on one machine. Also returns whether the machine was reached.
    fn ask(&self, host: &HostState) -> (Addressed<Printed>, bool) {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        let mut command = match &self.job {
            Some(job) => host.command(job, &words),
            None => host.bare_command(&words),
        };
        let (content, is_reached) = match command.stdin(Stdio::null()).output() {
            Ok(output) => (Printed::of(&output), output.status.code() != Some(SSH_FAILED)),
            Err(error) => (Printed::nothing(format!("cannot run ssh or srun: {error}")), false),
        };
        (Addressed { node: host.name.clone(), content }, is_reached)
    }

    fn run_here(&self, own: &HostState) -> Addressed<Printed> {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        let mut command = Command::new("/proc/self/exe");
        match &self.job {
            Some(job) => command.args(own.words(job, &words)),
            None => command.args(words),
        };
        let content = match command.stdin(Stdio::null()).output() {
            Ok(output) => Printed::of(&output),
            Err(error) => Printed::nothing(format!("cannot run tsumugi: {error}")),
        };
        Addressed { node: own.name.clone(), content }
    }

    /// Makes a machine ask others besides itself. Returns its error if it is not reached.
    fn ask_branch(
        &self,
        head: &HostState,
        rest: &[HostState],
        pass: &impl Fn(Addressed<Printed>),
    ) -> Option<Addressed<Printed>> {
        let mut has_answered = false;
        let mut listen = || -> anyhow::Result<Output> {
            let mut command = head.bare_command(&["errand"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let sent = Sent { errand: self.clone(), own: head.clone(), rest: rest.to_vec() };
            if let Some(mut input) = child.stdin.take() {
                let mut text = serde_json::to_vec(&sent)?;
                text.push(b'\n');
                // If the process has ended already, its error output shows why.
                let _ = input.write_all(&text);
            }
            if let Some(output) = child.stdout.take() {
                for line in lines(BufReader::new(output), ANSWER_BYTES_MAX) {
                    // The output of a shell at login is not an answer.
                    if let Ok(answer) = serde_json::from_str::<Addressed<Printed>>(&line) {
                        has_answered |= answer.node == head.name;
                        pass(answer);
                    }
                }
            }
            Ok(child.wait_with_output()?)
        };
        let output = listen().ok()?;
        let is_lost = output.status.code() == Some(SSH_FAILED) && !has_answered;
        is_lost.then(|| Addressed { node: head.name.clone(), content: Printed::of(&output) })
    }
}

impl Printed {
    fn nothing(complaint: String) -> Printed {
        Printed { output: String::new(), complaint }
    }

    fn of(output: &Output) -> Printed {
        let text = String::from_utf8_lossy(&output.stderr);
        let complaint = match text.trim().trim_start_matches("tsumugi: ") {
            "" => format!("no answer ({})", output.status),
            text => text.into(),
        };
        Printed { output: String::from_utf8_lossy(&output.stdout).into_owned(), complaint }
    }

    /// Parses the output, even of a failed command.
    fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.output).map_err(|_| anyhow::anyhow!("{}", self.complaint))
    }
}
