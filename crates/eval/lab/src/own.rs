//! Directories of ours: made new, marked, locked while their maker lives, cleaned up when it died.
//!
//! A directory holds a *marker*: a file with a random token and the steps to undo. Its creator holds a lock on
//! the marker, which the kernel releases however the process ends. So a directory whose marker can be locked
//! belongs to no living process, and is [reclaimed]: by the *reaper*, a process that waits for that lock from
//! the start, or by the next experiment below the same directory. Only what is proven to be ours is ended and
//! removed: processes by the token in their environment, mounts and loop devices by their place below the
//! directory, the directory by its owner and its marker. A directory without a marker is never touched.
//!
//! [reclaimed]: reclaim_below

mod processes;
mod reclaim;

use crate::clearing;
use base::Error;
use loads::process;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use reclaim::{mounts_below, reclaim_below, wait_and_reclaim};

/// Names of our directories begin so.
const PREFIX: &str = "tsumugi-eval-";
/// The marker.
const MARKER: &str = ".tsumugi-eval";
/// The marker until it is locked and whole.
const MARKER_NEW: &str = ".tsumugi-eval.new";
/// In the environment of each process that an experiment starts: its token.
const OWNER_VARIABLE: &str = "TSUMUGI_EVAL_OWNER";
/// In the environment of those that other things of the experiment need: ended last.
const SERVICE_VARIABLE: &str = "TSUMUGI_EVAL_SERVICE";
/// Label of containers, with the token for a value.
pub(crate) const CONTAINER_LABEL: &str = "tsumugi-eval";

/// An experiment's name for all that it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner(String);

impl Owner {
    /// A new, unique one.
    pub fn new() -> Result<Self, Error> {
        let path = Path::new("/proc/sys/kernel/random/uuid");
        let text = fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
        Ok(Self(text.trim().into()))
    }

    /// Marks a command's process as ours.
    pub fn mark<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(OWNER_VARIABLE, &self.0)
    }

    /// Marks a command's process as one that others depend on.
    pub fn mark_service<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        self.mark(command).env(SERVICE_VARIABLE, "1")
    }

    /// Ends its processes that nothing else needs, and says if one does not end.
    pub(crate) fn end_loads(&self) -> Result<(), Error> {
        let loads: Vec<_> =
            processes::owned_by(self).into_iter().filter(|process| !process.is_service).collect();
        match processes::end(&loads, reclaim::END_PATIENCE) {
            0 => Ok(()),
            left => Err(Error::Refused(format!("{left} processes of the experiment do not end"))),
        }
    }

    /// Removes its containers, of a runtime that keeps them.
    pub(crate) fn remove_containers(&self, runtime: &Path) {
        let program = runtime.display().to_string();
        let filter = format!("label={}", self.label());
        let listed = process::output(&program, &["ps", "-aq", "--filter", &filter]);
        for container in listed.unwrap_or_default().split_whitespace() {
            // Who has just ended by itself is gone.
            let _ = process::output(&program, &["rm", "-f", container]);
        }
    }

    /// The name of its image, where a runtime keeps images of its own.
    pub fn image(&self) -> String {
        format!("{CONTAINER_LABEL}:{}", self.0)
    }

    /// How names of its cgroups begin.
    pub fn group(&self) -> String {
        format!("{CONTAINER_LABEL}-{}", self.0)
    }

    /// The label of its containers.
    pub fn label(&self) -> String {
        format!("{CONTAINER_LABEL}={}", self.0)
    }
}

/// A line of a marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Line {
    /// The first one. What runs or is mounted ends with the boot that it was made in.
    Made {
        /// The token of started processes.
        owner: Owner,
        /// The kernel's name of this boot.
        boot: String,
    },
    /// A shell command that leaves a condition.
    Leave(String),
    /// Another directory of the same experiment.
    Further(PathBuf),
    /// A runtime that may have containers with the experiment's label.
    Runtime(PathBuf),
}

/// The kernel's name of this boot.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

/// A directory that was made for the experiment.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    /// Open and locked for as long as this lives.
    marker: File,
    is_kept: bool,
}

impl OwnDirectory {
    /// Makes one below `parent`.
    pub fn make(parent: &Path, owner: &Owner) -> Result<Self, Error> {
        let parent = parent.canonicalize().map_err(Error::io("cannot use", parent))?;
        let process = std::process::id();
        for number in 0..10_000_u32 {
            let path = parent.join(format!("{PREFIX}{process}-{number}"));
            // Fails if it exists: the directory of another process is never used.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => return Self::mark(path, owner),
                Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(Error::io("cannot make", &path)(errno.into())),
            }
        }
        Err(Error::Refused(format!("{} is full of leftovers of ours", parent.display())))
    }

    /// Puts the marker into a new directory. It is locked before it has its name, so that no process can take
    /// the directory for a dead one's.
    fn mark(path: PathBuf, owner: &Owner) -> Result<Self, Error> {
        let new = path.join(MARKER_NEW);
        let wrong = |errno: rustix::io::Errno| Error::io("cannot mark", &new)(errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::CLOEXEC;
        let marker = rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
        rustix::fs::flock(&marker, FlockOperation::NonBlockingLockExclusive).map_err(wrong)?;
        let directory = Self { path, marker: marker.into(), is_kept: false };
        directory.note(&Line::Made { owner: owner.clone(), boot: boot() })?;
        rustix::fs::rename(&new, directory.path.join(MARKER)).map_err(wrong)?;
        Ok(directory)
    }

    /// Keeps in the marker what else has to be undone.
    fn note(&self, line: &Line) -> Result<(), Error> {
        let mut text = serde_json::to_string(line)
            .map_err(|error| Error::io("cannot mark", &self.path)(error.into()))?;
        text.push('\n');
        (&self.marker).write_all(text.as_bytes()).map_err(Error::io("cannot mark", &self.path))
    }

    /// Keeps a shell command that leaves a condition, for the reaper.
    pub fn note_leave(&self, command: &str) -> Result<(), Error> {
        self.note(&Line::Leave(command.into()))
    }

    /// Keeps that there is another directory of the same experiment.
    pub fn note_further(&self, other: &Self) -> Result<(), Error> {
        self.note(&Line::Further(other.path.clone()))
    }

    /// Keeps that this runtime may have containers of the experiment.
    pub fn note_runtime(&self, program: &Path) -> Result<(), Error> {
        self.note(&Line::Runtime(program.into()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with what is in it; refuses while anything is mounted below, whose files are not
    /// ours.
    pub fn remove(mut self) -> Result<(), Error> {
        self.is_kept = true;
        remove(&self.path)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if !self.is_kept && remove(&self.path).is_err() {
            eprintln!("left behind: {}", self.path.display());
        }
    }
}

/// Removes a directory of ours, its marker last: what is left of an interrupted removal can still be
/// reclaimed.
fn remove(path: &Path) -> Result<(), Error> {
    let mounted = mounts_below(path)?;
    if let Some(mount) = mounted.first() {
        return Err(Error::Refused(format!("{} is still mounted", mount.display())));
    }
    let wrong = || Error::io("cannot remove", path);
    clearing::remove_containers(path).map_err(wrong())?;
    for entry in fs::read_dir(path).map_err(wrong())? {
        let entry = entry.map_err(wrong())?;
        if entry.file_name() == MARKER {
            continue;
        }
        let is_directory = entry.file_type().map_err(wrong())?.is_dir();
        let at = entry.path();
        let removed = if is_directory { fs::remove_dir_all(&at) } else { fs::remove_file(&at) };
        removed.map_err(Error::io("cannot remove", &at))?;
    }
    fs::remove_dir_all(path).map_err(wrong())
}

/// Whether a file or directory is ours alone: it belongs to our user, and no other user can change it.
fn is_only_ours(found: &rustix::fs::Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o022 == 0
}

#[cfg(test)]
mod tests;
