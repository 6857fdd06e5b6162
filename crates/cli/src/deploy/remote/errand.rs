//! Sending a command to all machines of a job: over the tree of [`super::tree`], or as one Slurm
//! step ([`super::called`]). `tsumugi errand` on a machine runs the command for its own part of the
//! job, sends it to the machines below at the same time, and prints all answers.
//!
//! If a machine is dead or cannot reach those below it, their answers are missing. The first
//! machine then asks them itself. A machine that hangs is given up after a time; the others do not
//! wait for it.

use super::answers::{ANSWER_BYTES_MAX, Answers, COMPLAINT_BYTES_MAX, Errand, Printed, Sent};
use super::called;
use super::messages::{Addressed, line};
use super::tree::{branches, depth};
use crate::deploy::bounded::{self, NoLine, Running};
use crate::deploy::state::HostState;
use anyhow::Context;
use serde::de::DeserializeOwned;
use std::io::{BufRead, Write};
use std::process::{ChildStdin, ExitCode};
use std::time::{Duration, Instant};

/// Number of machines to ask at once outside a tree.
const ASKED_MAX: usize = 32;
/// The exit code of an ssh that has not reached its machine.
const SSH_FAILED: i32 = 255;
/// How long it may take to reach a machine from the one above it. ssh gives up on a dead machine
/// after half of it.
const REACH_WITHIN: Duration = Duration::from_secs(20);

/// Runs an errand on all these machines. Returns their answers in the same order.
pub(crate) fn ask_all<T: DeserializeOwned>(
    hosts: &[HostState],
    errand: &Errand,
) -> Vec<anyhow::Result<T>> {
    ask_in_turn(&[hosts], errand, false)
}

/// Runs an errand on these groups of machines, one group after the other. With `is_strict`, a group
/// with a failure is the last one. Returns the answers in the same order.
pub(crate) fn ask_in_turn<T: DeserializeOwned>(
    groups: &[&[HostState]],
    errand: &Errand,
    is_strict: bool,
) -> Vec<anyhow::Result<T>> {
    let answers = Answers::default();
    let goes_on = |group: &[HostState]| !is_strict || answers.are_good::<T>(group);
    if let Some(run) = groups.iter().copied().flatten().find_map(|host| host.run.as_ref()) {
        called::ask(run.job, groups, errand, &answers, &goes_on);
    } else {
        for group in groups {
            ask_tree(group, errand, &answers);
            if !goes_on(group) {
                break;
            }
        }
    }
    let mut answers = answers.into_inner();
    let read = |host: &HostState| answers.remove(&host.name).context("it was not asked")?.read();
    groups.iter().copied().flatten().map(read).collect()
}

/// Asks machines that ssh reaches.
fn ask_tree(hosts: &[HostState], errand: &Errand, answers: &Answers) {
    send(hosts, errand, true, &|answer| answers.add(answer));
    for some in answers.silent(hosts).chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            for host in some {
                scope.spawn(|| answers.add(errand.ask(host).0));
            }
        });
    }
}

/// Runs `tsumugi errand`: an errand from standard input, for this machine and those below it.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text).context("no errand on standard input")?;
    let (errand, own, rest) =
        match serde_json::from_str::<Sent>(&text).context("the input is not an errand")? {
            Sent::Branch { errand, own, rest } => (errand, own, rest),
            Sent::Step { errand, like, hosts } => return called::run(&errand, like, &hosts),
        };
    let pass = |answer: Addressed<Printed>| {
        if let Ok(line) = line(&answer) {
            let mut output = std::io::stdout().lock();
            // The process that asked may have ended.
            let _ = output.write_all(&line).and_then(|()| output.flush());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&rest, &errand, false, &pass));
        pass(errand.run_here(&own));
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
    /// Runs the command on one machine. Also returns whether another attempt would be useless,
    /// because the machine was reached.
    fn ask(&self, host: &HostState) -> (Addressed<Printed>, bool) {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        let command = match &self.job {
            Some(job) => host.command(job, &words),
            None => host.bare_command(&words),
        };
        let within = self.within + REACH_WITHIN;
        let (content, is_reached) =
            match bounded::output(command, ANSWER_BYTES_MAX as usize, within) {
                Ok(Some(output)) => {
                    (Printed::of(&output), output.status.code() != Some(SSH_FAILED))
                }
                Ok(None) => (Printed::late(within), true),
                Err(error) => (Printed::nothing(format!("cannot run ssh: {error}")), false),
            };
        (Addressed { node: host.name.clone(), content }, is_reached)
    }

    /// Makes a machine ask others besides itself. Returns its error if it is not reached.
    fn ask_branch(
        &self,
        head: &HostState,
        rest: &[HostState],
        pass: &impl Fn(Addressed<Printed>),
    ) -> Option<Addressed<Printed>> {
        let within = self.within + REACH_WITHIN * (1 + depth(rest));
        let deadline = Instant::now() + within;
        let sent = Sent::Branch { errand: self.clone(), own: head.clone(), rest: rest.to_vec() };
        let mut text = serde_json::to_vec(&sent).ok()?;
        text.push(b'\n');
        let mut command = head.bare_command(&["errand"]);
        // If the process has ended already, its error output shows why.
        let input = move |mut input: ChildStdin| drop(input.write_all(&text));
        let running =
            Running::start(&mut command, ANSWER_BYTES_MAX, COMPLAINT_BYTES_MAX, input).ok()?;
        let mut has_answered = false;
        let is_late = loop {
            match running.line(deadline) {
                // The output of a shell at login is not an answer.
                Ok(line) => {
                    if let Ok(answer) = serde_json::from_str::<Addressed<Printed>>(&line) {
                        has_answered |= answer.node == head.name;
                        pass(answer);
                    }
                }
                Err(why) => break why == NoLine::Late,
            }
        };
        let (status, complaint) = running.end(deadline);
        let answer = |content| Addressed { node: head.name.clone(), content };
        if is_late && !has_answered {
            pass(answer(Printed::late(within)));
        }
        let is_lost = status.and_then(|status| status.code()) == Some(SSH_FAILED) && !has_answered;
        let why = if complaint.is_empty() { "the connection ended".into() } else { complaint };
        is_lost.then(|| answer(Printed::nothing(why)))
    }
}
