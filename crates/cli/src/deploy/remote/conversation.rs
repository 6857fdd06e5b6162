//! The conversations of `up` with the agents: orders to each, and its answers.

use super::messages::{Addressed, Order, Reply, Sink, line, locked};
use super::step::Step;
use super::tree::Tree;
use crate::deploy::process::Process;
use crate::deploy::state::HostState;
use crate::deploy::stop::Stop;
use anyhow::bail;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of answers that may wait to be read.
const REPLIES_MAX: usize = 8;
/// Interval of looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A connection to an agent.
#[derive(Debug)]
pub(crate) struct Conversation {
    host: String,
    node: String,
    link: Link,
    inbox: Inbox,
}

/// The answers of an agent.
#[derive(Debug)]
struct Inbox {
    replies: Receiver<Reply>,
    /// The latest report of progress. Reports come without an order, so they could fill a queue.
    progress: Arc<Mutex<Option<(u64, u64)>>>,
}

/// The other end of an [`Inbox`].
#[derive(Debug)]
struct Slot {
    replies: SyncSender<Reply>,
    progress: Arc<Mutex<Option<(u64, u64)>>>,
}

/// How to reach an agent.
#[derive(Clone, Debug)]
enum Link {
    /// By ssh, from here or from another machine of the job.
    Tree(Arc<Tree>),
    /// As one of the tasks of a step.
    Step(Arc<Step>),
}

impl Conversation {
    /// Starts the agents of a job on machines that ssh reaches, and returns a conversation with
    /// each.
    pub(crate) fn start(job: &str, hosts: &[HostState]) -> Vec<Conversation> {
        let (slots, inboxes) = inboxes(hosts);
        let sink: Sink = Arc::new(move |line| deal(line, &slots));
        let link = Link::Tree(Arc::new(Tree::start(job, hosts, true, &sink)));
        Conversation::all(hosts, &link, inboxes)
    }

    /// Runs `srun`, and returns a conversation with the agent of each of these nodes.
    pub(super) fn start_step(
        hosts: &[HostState],
        command: &mut Command,
        log: &Path,
    ) -> anyhow::Result<Vec<Conversation>> {
        let (slots, inboxes) = inboxes(hosts);
        let sink: Sink = Arc::new(move |line| deal(line, &slots));
        let step = Step::start(command, log, sink)?;
        Ok(Conversation::all(hosts, &Link::Step(Arc::new(step)), inboxes))
    }

    /// Returns the conversations with agents that are starting.
    fn all(hosts: &[HostState], link: &Link, inboxes: Vec<Inbox>) -> Vec<Conversation> {
        let new = |(host, inbox): (&HostState, Inbox)| Conversation {
            host: host.host.clone(),
            node: host.name.clone(),
            link: link.clone(),
            inbox,
        };
        hosts.iter().zip(inboxes).map(new).collect()
    }

    /// Returns the process of `srun`, if the agent is one of the tasks of a step.
    pub(super) fn srun(&self) -> Option<Process> {
        match &self.link {
            Link::Tree(_) => None,
            Link::Step(step) => step.process(),
        }
    }

    /// Notes that the agent has the order to leave its processes running.
    pub(crate) fn keep(&self) {
        match &self.link {
            Link::Tree(_) => {}
            Link::Step(step) => step.keep(),
        }
    }

    /// Returns the machine's name for ssh.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Sends an order.
    pub(crate) fn order(&self, order: &Order) -> anyhow::Result<()> {
        let line = line(&Addressed { node: self.node.clone(), content: order })?;
        match &self.link {
            Link::Tree(tree) => {
                // When a connection ends, each agent at its end has a last answer, which shows the
                // reason.
                let _ = tree.pass(&self.node, &line);
                Ok(())
            }
            Link::Step(step) => step.pass(&line).map_err(|_| self.lost()),
        }
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
            let reply = self.inbox.replies.recv_timeout(LOOK_EVERY);
            if let Some((done, all)) = locked(&self.inbox.progress).take() {
                progress(done, all);
            }
            match reply {
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

    /// Returns an error with the reason for the end of the connection.
    fn lost(&self) -> anyhow::Error {
        let complaint = match &self.link {
            Link::Tree(_) => String::new(),
            Link::Step(step) => step.complaint(),
        };
        let why = if complaint.is_empty() { "the connection ended" } else { &complaint };
        anyhow::anyhow!("{}: {why}", self.host)
    }
}

/// Returns the receiving ends of the conversations with these machines, by node, and the
/// conversations' inboxes in the order of the machines.
fn inboxes(hosts: &[HostState]) -> (BTreeMap<String, Slot>, Vec<Inbox>) {
    let made = hosts.iter().map(|host| {
        let (sender, replies) = sync_channel(REPLIES_MAX);
        let progress = Arc::new(Mutex::new(None));
        let slot = Slot { replies: sender, progress: Arc::clone(&progress) };
        ((host.name.clone(), slot), Inbox { replies, progress })
    });
    made.unzip()
}

/// Passes an answer to its conversation. Other lines come from shells and task prologs.
fn deal(line: &str, slots: &BTreeMap<String, Slot>) {
    let Ok(answer) = serde_json::from_str::<Addressed<Reply>>(line) else { return };
    let Some(slot) = slots.get(&answer.node) else { return };
    match answer.content {
        Reply::Progress { done, all } => *locked(&slot.progress) = Some((done, all)),
        // A conversation that has ended, or does not read, does not block the others. An agent
        // answers orders one at a time: the queue has space for that.
        reply => drop(slot.replies.try_send(reply)),
    }
}
