//! The ranks of a test: processes of this machine, or of an MPI.

use super::hints::Effective;
use super::phase::{Answer, Phase};
use super::rank::{self, Team};
use base::Stop;
use rustix::process::{Pid, Signal, kill_process_group, setsid};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How often a wish to stop is looked for.
const STOP_PERIOD: Duration = Duration::from_millis(50);

/// Why a test ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IorError {
    /// The test cannot be run as it is written.
    #[error("{0}")]
    Parameters(String),
    /// A file could not be used.
    #[error("{what} {}: {cause}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A file is there that no test made.
    #[error("refused to overwrite {} (useExistingTestFile=1 to allow it)", .0.display())]
    InTheWay(PathBuf),
    /// A rank failed.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Which.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// Ranks cannot be had.
    #[error("not available: {0}")]
    NotAvailable(String),
    /// Ranks are gone.
    #[error("the ranks ended: {0}")]
    Gone(String),
    /// Data is wrong and the script wants to end then.
    #[error("{0} words of data are not what was written (quitOnError)")]
    Data(u64),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// Where ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Ranks that there are.
    pub ranks: usize,
    /// Nodes.
    pub nodes: usize,
    /// Ranks on the node of rank 0.
    pub per_node: usize,
    /// Ranks fill one node after the other (else they go round).
    pub is_block: bool,
}

impl Layout {
    /// All on this node.
    pub fn here(ranks: usize) -> Self {
        Self { ranks, nodes: 1, per_node: ranks, is_block: true }
    }
}

/// What a phase gave.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Each rank's answer.
    pub answers: Vec<Answer>,
    /// The hints that the open file reports, if the phase asked for them.
    pub effective: Effective,
}

/// Ranks that execute orders.
pub trait Crew {
    /// Where they run.
    fn layout(&self) -> Layout;

    /// What they are, for reports.
    fn describe(&self) -> String;

    /// Does one phase.
    fn phase(&mut self, phase: &Phase) -> Result<Reply, IorError>;
}

/// Ranks that are processes of this machine.
#[derive(Debug)]
pub struct Processes {
    members: Vec<Member>,
    watch: Option<Watch>,
}

/// Ends ranks when the user wants to stop: a waiting caller then learns that they are gone.
#[derive(Debug)]
pub(super) struct Watch {
    is_over: Stop,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    /// Watches over process groups.
    pub(super) fn start(stop: &Stop, groups: Vec<Pid>) -> Self {
        let (stop, is_over) = (stop.clone(), Stop::default());
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            while !over.is_requested() {
                if stop.is_requested() {
                    for group in groups {
                        // One that is gone already needs no signal.
                        let _ = kill_process_group(group, Signal::TERM);
                    }
                    return;
                }
                std::thread::park_timeout(STOP_PERIOD);
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.request();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Member {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What a rank says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// It stands, in a session of its own.
    Ready,
    Barrier,
    Largest(u64),
    Done(Answer),
    Failed(String),
}

impl Processes {
    /// Starts `ranks` of them by a command that becomes a rank ([`serve`]).
    pub fn start(
        ranks: usize,
        command: &dyn Fn() -> Command,
        stop: &Stop,
    ) -> Result<Self, IorError> {
        let mut all = Self { members: Vec::with_capacity(ranks), watch: None };
        for rank in 0..ranks {
            let wrong = |error: &dyn std::fmt::Display| {
                IorError::NotAvailable(format!("rank {rank} does not start: {error}"))
            };
            let mut command = command();
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(|error| wrong(&error))?;
            let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(wrong(&"no pipe"));
            };
            all.members.push(Member { child, to, from: BufReader::new(from) });
        }
        for rank in 0..ranks {
            if !matches!(all.hear(rank)?, Said::Ready) {
                return Err(IorError::Gone(format!("rank {rank} is out of step")));
            }
        }
        let groups = all.members.iter().map(|member| Pid::from_child(&member.child)).collect();
        all.watch = Some(Watch::start(stop, groups));
        Ok(all)
    }

    fn hear(&mut self, rank: usize) -> Result<Said, IorError> {
        let gone = |why: String| IorError::Gone(format!("rank {rank}: {why}"));
        let mut line = String::new();
        self.members[rank].from.read_line(&mut line).map_err(|error| gone(error.to_string()))?;
        if line.is_empty() {
            return Err(gone("its pipe is closed".into()));
        }
        serde_json::from_str(&line).map_err(|error| gone(error.to_string()))
    }

    fn tell(&mut self, rank: usize, text: &str) -> Result<(), IorError> {
        let told = self.members[rank].to.write_all(text.as_bytes());
        told.map_err(|error| IorError::Gone(format!("rank {rank}: {error}")))
    }
}

impl Crew for Processes {
    fn layout(&self) -> Layout {
        Layout::here(self.members.len())
    }

    fn describe(&self) -> String {
        "processes of this machine, without MPI".into()
    }

    fn phase(&mut self, phase: &Phase) -> Result<Reply, IorError> {
        if phase.is_mpiio {
            return Err(IorError::NotAvailable("MPI-IO needs an MPI".into()));
        }
        let text = serde_json::to_string(phase)
            .map_err(|error| IorError::Parameters(error.to_string()))?;
        for rank in 0..phase.ranks {
            self.tell(rank, &format!("{rank} {text}\n"))?;
        }
        // All ranks say the same kinds of things in the same order.
        loop {
            let mut said = Vec::with_capacity(phase.ranks);
            for rank in 0..phase.ranks {
                said.push(self.hear(rank)?);
            }
            let largest = said.iter().filter_map(|said| match said {
                Said::Largest(value) => Some(*value),
                _ => None,
            });
            let largest = largest.max().unwrap_or(0);
            if said.iter().all(|said| matches!(said, Said::Barrier | Said::Largest(_))) {
                for rank in 0..phase.ranks {
                    self.tell(rank, &format!("{largest}\n"))?;
                }
                continue;
            }
            let mut reply = Reply::default();
            for (rank, said) in said.into_iter().enumerate() {
                match said {
                    Said::Done(answer) => reply.answers.push(answer),
                    Said::Failed(message) => return Err(IorError::Rank { rank, message }),
                    Said::Ready | Said::Barrier | Said::Largest(_) => {
                        return Err(IorError::Gone(format!("rank {rank} is out of step")));
                    }
                }
            }
            return Ok(reply);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Closed pipes end those that wait; the others are ended.
        self.watch = None;
        for member in self.members.drain(..) {
            let Member { mut child, to, from } = member;
            drop((to, from));
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

struct Piped<R, W> {
    from: R,
    to: W,
}

impl<R: BufRead, W: Write> Piped<R, W> {
    fn say(&mut self, said: &Said) -> io::Result<()> {
        let mut text = serde_json::to_string(said).map_err(io::Error::other)?;
        text.push('\n');
        self.to.write_all(text.as_bytes())?;
        self.to.flush()
    }

    fn hear(&mut self) -> io::Result<u64> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        line.trim().parse().map_err(io::Error::other)
    }
}

impl<R: BufRead, W: Write> Team for Piped<R, W> {
    fn barrier(&mut self) -> io::Result<()> {
        self.say(&Said::Barrier)?;
        self.hear().map(drop)
    }

    fn largest(&mut self, value: u64) -> io::Result<u64> {
        self.say(&Said::Largest(value))?;
        self.hear()
    }
}

/// Is a rank, until the conductor closes the pipe: reads phases, answers.
///
/// It leaves the caller's session, as the launchers of MPIs start each rank in one of its own: Ctrl-C
/// reaches the conductor alone, which decides; and a kernel that shares CPU time out by session
/// (`sched_autogroup_enabled`) gives each rank the part that a rank of an MPI gets beside other load, instead of one
/// for all of them and for what started them.
pub fn serve(from: impl BufRead, to: impl Write) -> io::Result<()> {
    setsid()?;
    let mut team = Piped { from, to };
    team.say(&Said::Ready)?;
    let mut hog = Vec::new();
    loop {
        let mut line = String::new();
        if team.from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (rank, text) = line.split_once(' ').unwrap_or_default();
        let rank: usize = rank.parse().map_err(io::Error::other)?;
        let phase: Phase = serde_json::from_str(text).map_err(io::Error::other)?;
        if phase.memory_bytes as usize != hog.len() {
            hog = vec![1_u8; phase.memory_bytes as usize];
        }
        let said = match rank::run(&phase, rank, &mut team)? {
            Ok(answer) => Said::Done(answer),
            Err(message) => Said::Failed(message),
        };
        team.say(&said)?;
    }
}

/// The command that makes a program of ours a rank.
pub fn rank_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["eval", "ior-rank"]);
    command
}

#[cfg(test)]
pub(super) mod threads;
