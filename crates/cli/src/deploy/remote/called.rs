//! Sending a command to the nodes of a Slurm job, as one step: `srun` with a task `tsumugi errand`
//! on each node.
//!
//! srun copies its standard input to all tasks. Its first line is the errand with all machines; each
//! task finds itself by Slurm's name of its node, and waits until a later line calls its group. So
//! one step serves commands whose machines take turns, as `down` with the metadata service last.
//!
//! One bad node can fail a whole step: srun refuses a step with a node that is not available, and
//! ends the step if one task cannot be launched. Nodes that Slurm reports as down are not asked, a
//! node that srun names is not asked again, and machines that then have no answer are asked by
//! another step, or by two for half of them each, until srun has no node to refuse. Commands can
//! therefore be interrupted and run twice.

use super::answers::{ANSWER_BYTES_MAX, Answers, COMPLAINT_BYTES_MAX, Errand, Printed, Sent};
use super::messages::{Addressed, line};
use super::pieces::{self, Pieces};
use crate::deploy::bounded::{NoLine, Running};
use crate::deploy::slurm::{self, AtFailure};
use crate::deploy::state::HostState;
use anyhow::Context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::process::{ChildStdin, ExitCode};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long Slurm may take to create a step and launch its tasks.
const LAUNCH_WITHIN: Duration = Duration::from_secs(30);
/// How long srun may take to end after the last answer, and again after a signal.
const END_WITHIN: Duration = Duration::from_secs(3);
/// Number of steps for one command.
const ATTEMPTS_MAX: usize = 24;
/// The name of the step.
const NAME: &str = "tsumugi";
/// The part of srun's errors before the name of a node on which it could not launch a task.
const FAILED_ON: &str = " on node ";

/// Asks groups of nodes, one group after the other as long as `goes_on`.
pub(super) fn ask(
    job: u32,
    groups: &[&[HostState]],
    errand: &Errand,
    answers: &Answers,
    goes_on: &impl Fn(&[HostState]) -> bool,
) {
    let all = groups.concat();
    let names: Vec<_> = all.iter().map(|host| host.host.as_str()).collect();
    let lost = slurm::lost(&names);
    for host in &all {
        if let Some(state) = lost.get(&host.host) {
            answers.lament(host, &format!("Slurm reports this node as {state}"));
        }
    }
    let mut complaint = attempt(job, groups, errand, answers, goes_on);
    let mut attempts = 1;
    for group in groups {
        let mut parts = vec![group.to_vec()];
        while let Some(part) = parts.pop() {
            let before = answers.silent(&part);
            if before.is_empty() {
                continue;
            }
            if attempts < ATTEMPTS_MAX {
                attempts += 1;
                complaint = attempt(job, &[&before], errand, answers, goes_on);
            }
            let after = answers.silent(&before);
            if after.len() < before.len() {
                parts.push(after);
            } else if let [only] = after.as_slice() {
                answers.lament(only, &complaint);
            } else {
                let (one, other) = after.split_at(after.len() / 2);
                parts.extend([other.to_vec(), one.to_vec()]);
            }
        }
        if !goes_on(group) {
            return;
        }
    }
}

/// Asks those nodes of the groups that have not answered, by one step. A node that hangs gets an
/// answer that says so. Returns the reason why nodes have no answer.
fn attempt(
    job: u32,
    groups: &[&[HostState]],
    errand: &Errand,
    answers: &Answers,
    goes_on: &impl Fn(&[HostState]) -> bool,
) -> String {
    let silent: Vec<_> = groups.iter().map(|group| answers.silent(group)).collect();
    let hosts = silent.concat();
    let Some(first) = hosts.first() else { return String::new() };
    let names: Vec<_> = hosts.iter().map(|host| host.host.as_str()).collect();
    let mut command = slurm::srun(job, NAME, &names, AtFailure::GoOn);
    command.args(["--", &first.binary, "errand"]);
    let (orders, lines) = channel();
    let started =
        Running::start(&mut command, ANSWER_BYTES_MAX, COMPLAINT_BYTES_MAX, move |input| {
            feed(input, &lines);
        });
    let running = match started {
        Ok(running) => running,
        Err(error) => return format!("cannot run srun: {error}"),
    };
    let mut step = Step { running, orders, pieces: Pieces::default() };
    let groups_of = silent.iter().enumerate().flat_map(|(number, group)| {
        group.iter().map(move |host| (host.host.clone(), (number, host.name.clone())))
    });
    let (errand, like) = (errand.clone(), first.clone());
    let within = errand.within;
    step.order(&Sent::Step { errand, like, hosts: groups_of.collect() });
    for (number, (group, silent)) in groups.iter().zip(&silent).enumerate() {
        step.order(&number);
        if !step.hear(silent, within, answers) || !goes_on(group) {
            break;
        }
    }
    let complaint = step.end();
    for host in answers.silent(&hosts) {
        let of_host = |line: &&str| {
            let node = line.split_once(FAILED_ON).map(|(_, rest)| rest);
            node.and_then(|rest| rest.split([':', ' ', ',']).next()) == Some(host.host.as_str())
        };
        if let Some(line) = complaint.lines().find(of_host) {
            answers.lament(&host, line);
        }
    }
    if complaint.is_empty() { "srun ended without an answer".into() } else { complaint }
}

/// A running step.
struct Step {
    running: Running,
    orders: Sender<Vec<u8>>,
    pieces: Pieces,
}

impl Step {
    /// Sends a line to all tasks.
    fn order<T: Serialize>(&self, order: &T) {
        let mut text = serde_json::to_vec(order).unwrap_or_default();
        text.push(b'\n');
        // If srun has ended already, its error output shows why.
        let _ = self.orders.send(text);
    }

    /// Takes the answers of called machines in. Returns whether the step goes on.
    fn hear(&mut self, called: &[HostState], within: Duration, answers: &Answers) -> bool {
        let deadline = Instant::now() + within + LAUNCH_WITHIN;
        let mut waiting: BTreeSet<_> = called.iter().map(|host| host.name.clone()).collect();
        while !waiting.is_empty() {
            match self.running.line(deadline) {
                Ok(line) => {
                    let line = self.pieces.take(&line, ANSWER_BYTES_MAX);
                    let read = |line: String| serde_json::from_str::<Addressed<Printed>>(&line);
                    if let Some(Ok(answer)) = line.map(read) {
                        waiting.remove(&answer.node);
                        answers.add(answer);
                    }
                }
                Err(NoLine::Ended) => return false,
                Err(NoLine::Late) => {
                    for host in answers.silent(called) {
                        answers.add(Addressed {
                            node: host.name,
                            content: Printed::late(within + LAUNCH_WITHIN),
                        });
                    }
                    return true;
                }
            }
        }
        true
    }

    /// Ends the input of the tasks, and waits for the end of srun. Returns its error output.
    fn end(self) -> String {
        let Step { mut running, orders, .. } = self;
        drop(orders);
        running.ask_to_end(Instant::now() + END_WITHIN);
        running.end(Instant::now() + END_WITHIN).1
    }
}

/// Writes the orders to srun as they come. srun reads nothing before it has a step.
fn feed(mut input: ChildStdin, orders: &Receiver<Vec<u8>>) {
    while let Ok(order) = orders.recv()
        && input.write_all(&order).is_ok()
    {}
}

/// Runs `tsumugi errand` as a task of a step.
pub(super) fn run(
    errand: &Errand,
    like: HostState,
    hosts: &BTreeMap<String, (usize, String)>,
) -> anyhow::Result<ExitCode> {
    let node = slurm::node_here().context("no task of a Slurm step")?;
    let own =
        hosts.get(&node).with_context(|| format!("{node} is not one of the job's machines"))?;
    let (group, name) = own.clone();
    let own = HostState { host: node, name, ..like };
    for call in std::io::stdin().lock().lines() {
        if call?.parse() == Ok(group) {
            // The process that asked may have ended.
            let _ = pieces::print(&own.name, &line(&errand.run_here(&own))?);
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
