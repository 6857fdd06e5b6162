//! The orders that `up` gives to the agents, and their answers: one line of JSON each.

use super::step::Step;
use crate::deploy::hosts::Spot;
use crate::deploy::machine::ReadyNode;
use crate::deploy::plan::Plan;
use crate::deploy::process::Process;
use crate::deploy::stop::Stop;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Longest line either side accepts.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Answers that may wait to be looked at.
pub(super) const REPLIES_MAX: usize = 64;
/// How often the stop flag is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of an agent's complaints that are kept.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// What an agent shall do next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Look where the machine is in the network → [`Reply::Spot`].
    Look {
        /// Addresses of others.
        peers: Vec<IpAddr>,
    },
    /// Make the job's directory → [`Reply::Done`].
    Begin(Box<Plan>),
    /// Make backing files → [`Reply::Progress`], then [`Reply::Done`].
    Prepare,
    /// Start the metadata service → [`Reply::Meta`].
    StartMeta {
        /// Milliseconds it may take.
        within_ms: u64,
    },
    /// Start the node → [`Reply::Nodes`].
    StartNodes {
        /// Where the metadata service listens.
        meta: SocketAddr,
        /// Milliseconds it may take.
        within_ms: u64,
    },
    /// All machines are ready: stay, and end → [`Reply::Done`].
    Finish,
}

/// An agent's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Where the machine is.
    Spot(Spot),
    /// Done.
    Done,
    /// Where the metadata service listens.
    Meta(SocketAddr),
    /// The nodes are ready.
    Nodes(Vec<ReadyNode>),
    /// Bytes of backing files written.
    Progress {
        /// So far.
        done: u64,
        /// Of all.
        all: u64,
    },
    /// It failed; the agent undoes and ends.
    Failed(String),
}

/// An order for one node of several that get it, or an answer of one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Addressed<T> {
    /// The node.
    pub(crate) node: String,
    /// The order or the answer.
    pub(crate) content: T,
}

/// A connection to an agent.
#[derive(Debug)]
pub(crate) struct Conversation {
    host: String,
    link: Link,
    replies: Receiver<Reply>,
}

/// How an agent is reached.
#[derive(Debug)]
pub(super) enum Link {
    /// By a program of its own.
    Own {
        child: Child,
        orders: Option<ChildStdin>,
        complaint: Option<std::thread::JoinHandle<String>>,
    },
    /// As one of the tasks of a step.
    Step(Arc<Step>),
}

impl Conversation {
    /// Runs the command that leads to the agent.
    pub(crate) fn start(host: &str, command: &mut Command) -> anyhow::Result<Conversation> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for `up`, which ends the connections when it has seen it.
        let mut child = command.process_group(0).spawn().context("cannot run ssh")?;
        let (sender, replies) = sync_channel(REPLIES_MAX);
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("ssh has no output");
        };
        std::thread::spawn(move || forward(output, &sender));
        let complaint = std::thread::spawn(move || {
            let mut text = Vec::new();
            let mut errors = errors;
            let _ = errors.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut text);
            // The rest is read so that nobody blocks on it.
            let _ = std::io::copy(&mut errors, &mut std::io::sink());
            String::from_utf8_lossy(&text).trim().into()
        });
        let (orders, complaint) = (child.stdin.take(), Some(complaint));
        Ok(Conversation::new(host, Link::Own { child, orders, complaint }, replies))
    }

    /// With an agent that is being started.
    pub(super) fn new(host: &str, link: Link, replies: Receiver<Reply>) -> Conversation {
        Conversation { host: host.into(), link, replies }
    }

    /// The process of `srun`, if the agent is one of the tasks of a step.
    pub(super) fn srun(&self) -> Option<Process> {
        match &self.link {
            Link::Own { .. } => None,
            Link::Step(step) => step.process(),
        }
    }

    /// Notes that the agent was told to stay.
    pub(crate) fn keep(&self) {
        match &self.link {
            Link::Own { .. } => {}
            Link::Step(step) => step.keep(),
        }
    }

    /// What ssh calls the machine.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Gives an order.
    pub(crate) fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let is_sent = match &mut self.link {
            Link::Own { orders, .. } => {
                let mut line = Zeroizing::new(serde_json::to_vec(order)?);
                line.push(b'\n');
                orders.as_mut().is_some_and(|orders| orders.write_all(&line).is_ok())
            }
            Link::Step(step) => step.order(&self.host, order).is_ok(),
        };
        if is_sent { Ok(()) } else { Err(self.lost()) }
    }

    /// Waits for the answer to the last order.
    pub(crate) fn wait(
        &mut self,
        deadline: Instant,
        stop: &Stop,
        mut progress: impl FnMut(u64, u64),
    ) -> anyhow::Result<Reply> {
        loop {
            stop.check()?;
            match self.replies.recv_timeout(LOOK_EVERY) {
                Ok(Reply::Progress { done, all }) => progress(done, all),
                Ok(Reply::Failed(why)) => bail!("{}: {why}", self.host),
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    bail!(
                        "{}: no answer in time (is the machine up, and does ssh or srun reach it?)",
                        self.host
                    );
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for [`Reply::Done`].
    pub(crate) fn expect_done(
        &mut self,
        deadline: Instant,
        stop: &Stop,
        progress: impl FnMut(u64, u64),
    ) -> anyhow::Result<()> {
        match self.wait(deadline, stop, progress)? {
            Reply::Done => Ok(()),
            other => bail!("{}: answered {other:?}", self.host),
        }
    }

    /// Why the connection has ended.
    fn lost(&mut self) -> anyhow::Error {
        let complaint = match &mut self.link {
            Link::Own { child, orders, complaint } => {
                *orders = None;
                let _ = child.kill();
                let _ = child.wait();
                complaint.take().and_then(|thread| thread.join().ok())
            }
            Link::Step(step) => Some(step.complaint()),
        };
        let why = complaint.filter(|text| !text.is_empty());
        let why = why.unwrap_or_else(|| "the connection ended".into());
        anyhow::anyhow!("{}: {why}", self.host)
    }
}

impl Drop for Conversation {
    /// Ends the connection; an agent that was not told to stay undoes what it made.
    fn drop(&mut self) {
        match &mut self.link {
            Link::Own { child, orders, .. } => {
                *orders = None;
                let _ = child.kill();
                let _ = child.wait();
            }
            // It ends with the last of its conversations.
            Link::Step(_) => {}
        }
    }
}

/// Returns the lines of a stream until its end or an error. No line is longer than [`LINE_BYTES_MAX`].
pub(super) fn lines(mut from: impl BufRead) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        let length = from.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        length.is_ok_and(|bytes| bytes > 0).then_some(line)
    })
}

fn forward(output: impl Read, sender: &SyncSender<Reply>) {
    for line in lines(BufReader::new(output)) {
        let reply = serde_json::from_str(&line)
            .unwrap_or_else(|_| Reply::Failed(format!("said {:?}", line.trim())));
        if sender.send(reply).is_err() {
            return;
        }
    }
}
