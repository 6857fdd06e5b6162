//! Agents that are the tasks of one Slurm step: `srun` with one task on each node.
//!
//! srun copies its standard input to all tasks, and their output to its own. So each order names
//! its node, and each answer the node that it comes from. The step continues after the end of `up`,
//! and so do the agents, which run in the foreground: when Slurm ends the step, each agent gets
//! SIGTERM and takes its node's part of the job down. The end of the orders does not prove that the
//! job is over, so the agents ignore it.
//!
//! `scancel` of a step, or the death of an agent or srun, kills all of the step at once. The keeper
//! beside `up` then learns from Slurm that the step is over, and runs `tsumugi down` on all nodes
//! with another step.

use super::messages::{LINE_BYTES_MAX, Sink};
use super::pieces::Pieces;
use crate::deploy::bounded::lines;
use crate::deploy::process::Process;
use anyhow::Context;
use std::fs::OpenOptions;
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for agents without the order to stay to undo their work.
const UNDO_WITHIN: Duration = Duration::from_secs(20);
/// Pause between two looks for the end of srun.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of srun's error output to show.
const COMPLAINT_BYTES_MAX: usize = 4096;

/// A running `srun`.
#[derive(Debug)]
pub(super) struct Step {
    child: Mutex<Child>,
    orders: Mutex<Option<ChildStdin>>,
    log: PathBuf,
    /// Whether the agents keep running when `up` has ended.
    is_kept: AtomicBool,
}

impl Step {
    /// Runs `srun`. The lines of its tasks go to `sink`.
    pub(super) fn start(command: &mut Command, log: &Path, sink: Sink) -> anyhow::Result<Step> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let errors = options.open(log).with_context(|| format!("cannot open {}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        // Only `up` receives Ctrl-C; it then ends the step.
        let mut child = command.process_group(0).spawn().context("cannot run srun")?;
        let output = child.stdout.take().context("srun has no output")?;
        let orders = Mutex::new(child.stdin.take());
        let (child, is_kept) = (Mutex::new(child), AtomicBool::new(false));
        std::thread::spawn(move || {
            let mut pieces = Pieces::default();
            for piece in lines(BufReader::new(output), LINE_BYTES_MAX) {
                if let Some(line) = pieces.take(&piece, LINE_BYTES_MAX) {
                    sink(&line);
                }
            }
        });
        Ok(Step { child, orders, log: log.into(), is_kept })
    }

    /// Passes a line, which names its node, on to all tasks.
    pub(super) fn pass(&self, line: &[u8]) -> anyhow::Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let orders = orders.as_mut().context("the step has ended")?;
        orders.write_all(line).context("the step has ended")
    }

    /// Returns the process of `srun`.
    pub(super) fn process(&self) -> Option<Process> {
        let child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Process::of(child.id().cast_signed()).ok()
    }

    /// Leaves the agents running.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Returns srun's error output.
    pub(super) fn complaint(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = &text[text.len().saturating_sub(COMPLAINT_BYTES_MAX)..];
        String::from_utf8_lossy(end).trim().into()
    }
}

impl Drop for Step {
    /// At the end of their orders, agents without the order to stay undo their work and end.
    fn drop(&mut self) {
        *self.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        if self.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let deadline = Instant::now() + UNDO_WITHIN;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
