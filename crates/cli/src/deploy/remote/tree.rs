//! A job's machines as a tree: this machine reaches some of them, and each of those reaches some of
//! the rest.
//!
//! Reaching a machine by ssh costs tens of milliseconds of processor time on both ends. From one
//! machine, hundreds would wait for that machine's processors; in a tree the machines share the
//! work, and the time grows with the tree's depth. Orders go down as lines that name their node,
//! answers come up the same way, and each machine in between passes on what is for or from others.
//!
//! If the ssh of a machine does not reach the others, the job does not fail: the machine reports
//! those that it did not reach, and the root reaches them itself.

use super::messages::{Addressed, LINE_BYTES_MAX, Order, Reply, Sink, line, locked};
use crate::deploy::bounded::lines;
use crate::deploy::state::HostState;
use crate::print::words;
use anyhow::Context;
use serde::de::IgnoredAny;
use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for agents without the order to stay to undo their work. ssh takes as long to give up on an
/// unreachable machine.
const UNDO_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two looks for their end.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Bytes of error output to keep.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// Splits machines into branches. The first machine of a branch reaches its others.
pub(super) fn branches(hosts: &[HostState]) -> impl Iterator<Item = &[HostState]> {
    let fan_out = hosts.first().map_or(1, |host| usize::from(host.fan_out.max(1)));
    hosts.chunks(hosts.len().div_ceil(fan_out).max(1))
}

/// Returns the number of steps to the farthest of these machines.
pub(super) fn depth(hosts: &[HostState]) -> u32 {
    let (mut left, mut depth) = (hosts, 0);
    while let Some(branch) = branches(left).next() {
        // The first branch is the longest.
        (left, depth) = (&branch[1..], depth + 1);
    }
    depth
}

/// Running agents: those that were started here, and those that they have started.
#[derive(Debug)]
pub(super) struct Tree {
    branches: Vec<Branch>,
}

#[derive(Debug)]
struct Branch {
    members: BTreeSet<String>,
    child: Mutex<Child>,
    orders: Mutex<Option<ChildStdin>>,
    listener: Mutex<Option<JoinHandle<()>>>,
}

impl Tree {
    /// Starts the agents of a job on these machines. Their output goes to `sink`, and so does a
    /// last answer for each machine when its branch has ended. `is_root`: no machine above can try
    /// those that this one does not reach.
    pub(super) fn start(job: &str, hosts: &[HostState], is_root: bool, sink: &Sink) -> Tree {
        let mut started = Vec::new();
        for hosts in branches(hosts) {
            match Branch::start(job, hosts, is_root, sink) {
                Ok(branch) => started.push(branch),
                Err(error) => lament(hosts, &BTreeSet::new(), is_root, &words(&error), sink),
            }
        }
        Tree { branches: started }
    }

    /// Passes a line on to a node's agent.
    ///
    /// # Errors
    /// If the connection to it has ended, or there is none.
    pub(super) fn pass(&self, node: &str, line: &[u8]) -> anyhow::Result<()> {
        let branch = self.branches.iter().find(|branch| branch.members.contains(node));
        let mut orders = locked(&branch.context("no branch leads to it")?.orders);
        let orders = orders.as_mut().context("the connection ended")?;
        orders.write_all(line).context("the connection ended")
    }

    /// Closes the agents' input. An agent without the order to stay then undoes its work.
    pub(super) fn end_orders(&self) {
        self.branches.iter().for_each(|branch| *locked(&branch.orders) = None);
    }

    /// Waits until all branches have ended.
    pub(super) fn wait(&self) {
        for branch in &self.branches {
            let listener = locked(&branch.listener).take();
            listener.map(JoinHandle::join);
        }
    }
}

impl Drop for Tree {
    /// Closes the agents' input instead of killing them, so that an agent without the order to stay
    /// can undo its work.
    fn drop(&mut self) {
        self.end_orders();
        let deadline = Instant::now() + UNDO_WITHIN;
        for branch in &self.branches {
            let mut child = locked(&branch.child);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(LOOK_EVERY);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Branch {
    fn start(job: &str, hosts: &[HostState], is_root: bool, sink: &Sink) -> anyhow::Result<Branch> {
        let (head, rest) = hosts.split_first().context("a branch has machines")?;
        let mut command = head.command(job, &["up", "--agent", &head.name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Only `up` receives Ctrl-C; it then ends the connections.
        let mut child = command.process_group(0).spawn().context("cannot run ssh")?;
        let mut orders = child.stdin.take();
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both are pipes");
        };
        if !rest.is_empty()
            && let Some(orders) = &mut orders
        {
            let content = Order::Spread { job: job.into(), rest: rest.to_vec() };
            // If the process has ended already, its error output shows why.
            let _ = orders.write_all(&line(&Addressed { node: head.name.clone(), content })?);
        }
        let members = hosts.iter().map(|host| host.name.clone()).collect();
        let (hosts, sink) = (hosts.to_vec(), Arc::clone(sink));
        let listener = std::thread::spawn(move || listen(&hosts, is_root, output, errors, &sink));
        let (child, orders) = (Mutex::new(child), Mutex::new(orders));
        Ok(Branch { members, child, orders, listener: Mutex::new(Some(listener)) })
    }
}

/// Passes answers on until a branch ends.
fn listen(
    hosts: &[HostState],
    is_root: bool,
    output: ChildStdout,
    errors: ChildStderr,
    sink: &Sink,
) {
    let complaint = std::thread::spawn(move || complaint(errors));
    let mut heard = BTreeSet::new();
    for line in lines(BufReader::new(output), LINE_BYTES_MAX) {
        // The output of a shell at login is not an answer.
        if let Ok(answer) = serde_json::from_str::<Addressed<IgnoredAny>>(&line) {
            heard.insert(answer.node);
            sink(&line);
        }
    }
    let complaint = complaint.join().unwrap_or_default();
    let why = if complaint.is_empty() { "the connection ended" } else { &complaint };
    lament(hosts, &heard, is_root, why, sink);
}

fn complaint(mut errors: ChildStderr) -> String {
    let mut text = Vec::new();
    let _ = errors.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut text);
    // Reads and drops the rest, because the process would block on a full pipe.
    let _ = std::io::copy(&mut errors, &mut std::io::sink());
    String::from_utf8_lossy(&text).trim().into()
}

/// Sends the last answers of a branch: machines that had answered have ended; others were not
/// reached.
fn lament(hosts: &[HostState], heard: &BTreeSet<String>, is_root: bool, why: &str, sink: &Sink) {
    for (index, host) in hosts.iter().enumerate() {
        let is_lost = heard.contains(&host.name) || (is_root && index == 0);
        let content =
            if is_lost { Reply::Failed(why.into()) } else { Reply::Unreached(why.into()) };
        let answer = Addressed { node: host.name.clone(), content };
        if let Ok(line) = line(&answer) {
            sink(&String::from_utf8_lossy(&line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: usize, fan_out: u16) -> Vec<HostState> {
        let host = |number| HostState {
            host: format!("h{number}"),
            name: format!("n{number}"),
            ssh: vec!["false".into()],
            binary: "tsumugi".into(),
            base: None,
            run: None,
            fan_out,
        };
        (0..count).map(host).collect()
    }

    /// Returns the highest number of machines that one machine reaches directly, and the longest
    /// path.
    fn shape(hosts: &[HostState]) -> (usize, usize) {
        let mut widest = branches(hosts).count();
        let mut deepest = 0;
        for branch in branches(hosts) {
            let (width, below) = shape(&branch[1..]);
            widest = widest.max(width);
            deepest = deepest.max(below + 1);
        }
        assert_eq!(depth(hosts), u32::try_from(deepest).unwrap());
        (widest, deepest)
    }

    /// Goal: a tree has all machines, no machine reaches more than the fan-out, and hundreds are a
    /// few steps away.
    #[test]
    fn trees_are_flat_and_narrow() {
        assert_eq!(shape(&hosts(0, 16)), (0, 0));
        assert_eq!(shape(&hosts(16, 16)), (16, 1));
        assert_eq!(shape(&hosts(17, 16)), (9, 2));
        assert_eq!(shape(&hosts(512, 16)), (16, 3));
        assert_eq!(shape(&hosts(24, 3)), (3, 3));
        assert_eq!(shape(&hosts(3, 1)), (1, 3));
        for count in [1, 5, 100, 513] {
            let hosts = hosts(count, 7);
            assert_eq!(branches(&hosts).map(<[HostState]>::len).sum::<usize>(), count);
        }
    }

    /// Goal: if the first machine of a branch does not answer, the root reports that it has failed,
    /// and that the others must be reached in another way.
    #[test]
    fn machines_behind_a_dead_one_are_unreached() {
        for is_root in [true, false] {
            let heard = Arc::new(Mutex::new(Vec::new()));
            let (sink, hosts) = (Arc::clone(&heard), hosts(3, 1));
            let sink: Sink = Arc::new(move |line| {
                locked(&sink).push(serde_json::from_str::<Addressed<Reply>>(line).unwrap());
            });
            let tree = Tree::start("j", &hosts, is_root, &sink);
            tree.wait();
            let is_failed: Vec<_> = locked(&heard)
                .iter()
                .map(|answer| (answer.node.clone(), matches!(answer.content, Reply::Failed(_))))
                .collect();
            let expected = [("n0", is_root), ("n1", false), ("n2", false)];
            assert_eq!(is_failed, expected.map(|(name, is_failed)| (name.to_string(), is_failed)));
            assert!(tree.pass("n9", b"\n").is_err());
        }
    }
}
