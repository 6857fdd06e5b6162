//! The containers of a run, as their starter holds them.

use super::{COMPLAINT_LETTERS_MAX, COMPLAINTS, FINISH, NAME, PHASE_PATIENCE, WRITE};
use crate::place::{Layers, Place};
use crate::process;
use crate::worker::Worker;
use base::Error;
use base::Stop;
use serde::{Deserialize, Serialize};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a container answers, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is there, and sees its files.
    Ready {
        /// Since when, in ns of the monotonic clock.
        at_ns: u64,
    },
    /// All is written.
    Written {
        /// How long each write took, with its open and close.
        latencies_ns: Vec<u64>,
        /// When the first began, in ns of the monotonic clock.
        begun_ns: u64,
        /// From then to the end of the last of them.
        elapsed_ns: u64,
    },
    /// All is durable.
    Finished,
    /// Bytes of the files in the upper and work directories.
    Usage {
        /// As allocated.
        bytes: u64,
    },
}

impl Answer {
    /// An error that names the unexpected answer.
    pub(super) fn confuses(&self) -> Error {
        Error::program(NAME, format!("answers what was not asked: {self:?}"))
    }
}

/// A container. Dropped, it ends.
#[derive(Debug)]
pub struct Container {
    worker: Worker,
    /// The file that has its error output, unless that goes where ours goes.
    complaints: Option<PathBuf>,
    /// How long it may take for an answer.
    patience: Duration,
    command: String,
}

impl Container {
    /// Starts one at its place, whose layers are mounted; it is to write to so many files.
    pub fn start(
        layers: &dyn Layers,
        place: &dyn Place,
        scratch: &Path,
        (files, seed): (u32, u64),
    ) -> Result<Self, Error> {
        let complaints = scratch.join(COMPLAINTS);
        let file = std::fs::File::options().create(true).append(true).open(&complaints);
        let file = file.map_err(Error::io("cannot write", &complaints))?;
        let mut command = layers.container(place, scratch, files, seed);
        command.stderr(Stdio::from(file));
        Ok(Self { complaints: Some(complaints), patience: PHASE_PATIENCE, ..Self::of(command)? })
    }

    /// Starts a command that serves as a container, and may take any time for its work.
    pub fn of(mut command: Command) -> Result<Self, Error> {
        let shown = process::shown(&command);
        // Ctrl-C is for the one that cleans up.
        command.process_group(0);
        let worker = Worker::start(NAME, command)?;
        Ok(Self { worker, complaints: None, patience: Duration::MAX, command: shown })
    }

    /// What was executed.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn tell(&mut self, word: &str) -> Result<(), Error> {
        self.worker.tell(word).map_err(|error| self.explain(error))
    }

    pub(super) fn hear(&mut self, stop: &Stop) -> Result<Answer, Error> {
        let line = self.worker.answer(self.patience, stop).map_err(|error| self.explain(error))?;
        serde_json::from_str(&line).map_err(|error| Error::program(NAME, error.to_string()))
    }

    /// Waits until it is ready; since when, in ns of the monotonic clock.
    pub fn expect_ready(&mut self, stop: &Stop) -> Result<u64, Error> {
        match self.hear(stop)? {
            Answer::Ready { at_ns } => Ok(at_ns),
            other => Err(other.confuses()),
        }
    }

    /// Lets it write once, and make that durable, to see whether it can.
    pub fn try_once(&mut self, stop: &Stop) -> Result<(), Error> {
        self.expect_ready(stop)?;
        for word in [WRITE, FINISH] {
            self.tell(word)?;
            match (word, self.hear(stop)?) {
                (WRITE, Answer::Written { .. }) | (FINISH, Answer::Finished) => {}
                (_, other) => return Err(other.confuses()),
            }
        }
        Ok(())
    }

    /// An error with what containers complained about.
    fn explain(&self, error: Error) -> Error {
        let said = self.complaints.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let said = said.unwrap_or_default();
        let said = said.trim();
        if matches!(error, Error::Interrupted) || said.is_empty() {
            return error;
        }
        let what = match error {
            Error::Program { message, .. } => message,
            other => other.to_string(),
        };
        let from = said.char_indices().rev().nth(COMPLAINT_LETTERS_MAX).map_or(0, |(at, _)| at);
        // Whole lines.
        let lines = said[from..].split_once('\n').filter(|_| from > 0);
        Error::program(NAME, format!("{what}: {}", lines.map_or(&said[from..], |(_, rest)| rest)))
    }
}

/// The containers of a run. Dropped, all end at a time.
#[derive(Debug, Default)]
pub struct Containers {
    pub(super) all: Vec<Container>,
    /// When the last one was ready, in ns of the monotonic clock.
    pub(super) last_ready_ns: u64,
}

impl Containers {
    /// Adds one that was started.
    pub fn add(&mut self, container: Container) {
        self.all.push(container);
    }

    /// Waits until all are ready.
    pub fn expect_ready(&mut self, stop: &Stop) -> Result<(), Error> {
        for container in &mut self.all {
            self.last_ready_ns = self.last_ready_ns.max(container.expect_ready(stop)?);
        }
        Ok(())
    }

    /// Lets all end by themselves, however long that takes; fails if one does not end well.
    pub fn finish(mut self) -> Result<(), Error> {
        // All of them, also if one fails.
        let ended: Vec<_> = self.all.iter_mut().map(|it| it.worker.wait()).collect();
        for status in ended {
            let status = status?;
            if !status.success() {
                return Err(Error::program(NAME, format!("could not end ({status})")));
            }
        }
        Ok(())
    }

    /// Sends all of them a word, and reads each answer.
    pub(super) fn ask(
        &mut self,
        word: &str,
        stop: &Stop,
        mut take: impl FnMut(Answer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.all.iter_mut().try_for_each(|container| container.tell(word))?;
        self.all.iter_mut().try_for_each(|container| take(container.hear(stop)?))
    }

    /// Bytes in all upper and work directories.
    pub(super) fn usage(&mut self, word: &str, stop: &Stop) -> Result<u64, Error> {
        let mut sum = 0;
        self.ask(word, stop, |answer| match answer {
            Answer::Usage { bytes } => {
                sum += bytes;
                Ok(())
            }
            other => Err(other.confuses()),
        })?;
        Ok(sum)
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        Worker::end_all(self.all.iter_mut().map(|container| &mut container.worker));
    }
}
