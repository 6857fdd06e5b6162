//! One process of the load: waits for a phase's name on its input, does it, and answers with the
//! times at which it began and ended, by the machine's monotonic clock, which all processes share.

use super::Files;
use base::clock::now_ns;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};

/// What is done to every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Made, written, closed.
    Create,
    /// Looked at by name.
    Stat,
    /// Opened, read to its end, closed.
    Read,
    /// Removed.
    Remove,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Create, Self::Stat, Self::Read, Self::Remove];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Remove => "remove",
        }
    }
}

/// What a process says after a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// When it began and ended, in ns of the monotonic clock.
    Done {
        /// Began.
        begun_ns: u64,
        /// Ended.
        ended_ns: u64,
    },
    /// What went wrong.
    Failed(String),
}

impl std::fmt::Display for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done { begun_ns, ended_ns } => write!(formatter, "done {begun_ns} {ended_ns}"),
            Self::Failed(why) => write!(formatter, "failed {}", why.replace('\n', " ")),
        }
    }
}

impl std::str::FromStr for Answer {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        if let Some(why) = line.strip_prefix("failed ") {
            return Ok(Self::Failed(why.into()));
        }
        let numbers = line.strip_prefix("done ").and_then(|rest| {
            let (begun, ended) = rest.split_once(' ')?;
            Some(Self::Done { begun_ns: begun.parse().ok()?, ended_ns: ended.parse().ok()? })
        });
        numbers.ok_or_else(|| format!("{line:?} is no answer"))
    }
}

/// Where a process's files lie.
pub(super) fn directory(root: &Path, files: &Files, rank: u32) -> PathBuf {
    if files.has_own_directories { root.join(format!("rank.{rank}")) } else { root.into() }
}

/// Works as the process with this rank of so many, below `root`, until its input ends.
pub fn work(
    files: &Files,
    (rank, processes): (u32, u32),
    root: &Path,
    commands: impl BufRead,
    mut answers: impl Write,
) -> std::io::Result<()> {
    let data = vec![b'm'; files.write_bytes as usize];
    let mut buffer = vec![0; (files.write_bytes as usize).clamp(1, 1 << 20)];
    writeln!(answers, "{}", Answer::Done { begun_ns: 0, ended_ns: 0 })?;
    answers.flush()?;
    for line in commands.lines() {
        let line = line?;
        let answer = match Phase::ALL.into_iter().find(|phase| phase.name() == line) {
            None => Answer::Failed(format!("{line:?} is no phase")),
            Some(phase) => {
                let is_shifted = files.shifts && phase != Phase::Create;
                let whose = if is_shifted { (rank + 1) % processes.max(1) } else { rank };
                let at = directory(root, files, whose);
                // Names are made beforehand: they are no part of what is measured.
                let names: Vec<PathBuf> =
                    (0..files.items).map(|it| at.join(format!("file.{whose}.{it}"))).collect();
                let begun_ns = now_ns();
                match names.iter().try_for_each(|name| one(phase, files, name, &data, &mut buffer))
                {
                    Ok(()) => Answer::Done { begun_ns, ended_ns: now_ns() },
                    Err(error) => Answer::Failed(error.to_string()),
                }
            }
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

/// Does a phase to one file.
fn one(
    phase: Phase,
    files: &Files,
    name: &Path,
    data: &[u8],
    buffer: &mut [u8],
) -> std::io::Result<()> {
    match phase {
        Phase::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::open(name, flags, Mode::RUSR | Mode::WUSR)?;
            let mut file = std::fs::File::from(file);
            file.write_all(data)?;
            if files.syncs {
                file.sync_all()?;
            }
        }
        Phase::Stat => {
            let found = rustix::fs::statat(CWD, name, AtFlags::empty())?;
            // A wrong size means that a create is not seen: fast, but not a result.
            if found.st_size != data.len() as i64 {
                return Err(Errno::STALE.into());
            }
        }
        Phase::Read => {
            let mut file = std::fs::File::open(name)?;
            let mut left = data.len();
            while left > 0 {
                let part = left.min(buffer.len());
                file.read_exact(&mut buffer[..part])?;
                left -= part;
            }
        }
        Phase::Remove => rustix::fs::unlink(name)?,
    }
    Ok(())
}
