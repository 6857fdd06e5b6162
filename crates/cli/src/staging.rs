//! Staging: copying trees into and out of the file system with many threads.
//!
//! One scanner creates the directories and sends all other entries to workers through a bounded
//! queue. A worker writes each file under a temporary name and gives it the final name when it is
//! complete (and verified, if asked), so that an interrupted copy leaves no partial file under a
//! final name. Hard links follow after the files. Directories get their modes and times last,
//! because writing into them would change these again. Small files for a Tsumugi mount are created
//! many at a time ([`together`]).

mod file;
mod scan;
mod tally;
mod task;
mod together;
mod xattrs;

#[cfg(test)]
pub(crate) use tally::Summary;
pub(crate) use tally::Tally;

use crate::deploy::stop::Stop;
use anyhow::{Context, bail};
use scan::Scanned;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use together::{Group, Made};

/// Number of tasks that may wait for a worker.
const TASKS_MAX: usize = 4096;

/// The settings of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Number of workers.
    pub(crate) threads: usize,
    /// Read each copy back and compare digests.
    pub(crate) checksum: bool,
    /// Copy directories, too.
    pub(crate) recursive: bool,
    /// Copy extended attributes too.
    pub(crate) xattrs: bool,
}

/// A source and the path of its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// What is copied.
    pub(crate) source: PathBuf,
    /// The copy's name.
    pub(crate) target: PathBuf,
}

/// Returns the paths of the copies, chosen as in cp(1): in `target` if that is a directory, else
/// `target` itself. A source that is given twice is copied once.
pub(crate) fn pairs(sources: &[PathBuf], target: &Path) -> anyhow::Result<Vec<Pair>> {
    let is_directory = target.is_dir();
    if sources.len() > 1 && !is_directory {
        bail!("{} is not a directory, and there are several sources", target.display());
    }
    let (mut pairs, mut known) = (Vec::new(), HashSet::new());
    for source in sources {
        let data = source
            .symlink_metadata()
            .with_context(|| format!("cannot copy {}", source.display()))?;
        let mut copy = target.to_path_buf();
        if is_directory {
            // ".", "/", "a/." and "a/.." have no last name: their content is copied.
            if let Some(name) = last_name(source) {
                copy.push(name);
            }
        }
        if data.is_dir() {
            refuse_inside(source, &copy)?;
        }
        if known.insert(source) {
            pairs.push(Pair { source: source.clone(), target: copy });
        }
    }
    Ok(pairs)
}

/// Returns the last name of a path. [`Path::file_name`] takes "a/." for "a".
fn last_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    if bytes[..end].ends_with(b"/.") { None } else { path.file_name() }
}

/// Refuses to copy a tree into itself, which would never end.
fn refuse_inside(source: &Path, target: &Path) -> anyhow::Result<()> {
    let source =
        source.canonicalize().with_context(|| format!("cannot copy {}", source.display()))?;
    let there = target.ancestors().find_map(|path| path.canonicalize().ok());
    if there.is_some_and(|there| there.starts_with(&source)) {
        bail!("{} lies in {}: cannot copy a tree into itself", target.display(), source.display());
    }
    Ok(())
}

/// Copies all pairs. Errors of single files go into the tally, and the copy continues.
pub(crate) fn copy(pairs: &[Pair], options: &Options, tally: &Tally, stop: &Stop) {
    let (sender, tasks) = sync_channel(TASKS_MAX);
    let (tasks, made) = (Mutex::new(tasks), Made::default());
    let scanned = std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| work(&tasks, &made, options, tally, stop));
        }
        // Dropping the sender ends the workers.
        scan::scan(pairs, options, tally, stop, sender)
    });
    if stop.check().is_ok() {
        finish(&scanned, options, tally);
        made.sync(tally);
    }
}

fn work(
    tasks: &Mutex<Receiver<Group>>,
    made: &Made,
    options: &Options,
    tally: &Tally,
    stop: &Stop,
) {
    let mut copier = file::Copier::new(options, stop.clone());
    loop {
        let group = tasks.lock().ok().and_then(|tasks| tasks.recv().ok());
        // After a stop the worker empties the queue, so that the scanner never waits for space in
        // it.
        let Some(group) = group else { return };
        if stop.check().is_err() {
            continue;
        }
        for task in copier.copy_together(group, made, tally) {
            match copier.copy(&task, tally) {
                Ok(()) => tally.file_done(),
                Err(error) if stop.check().is_ok() => tally.failed(&task.source, &error),
                Err(_) => break,
            }
        }
    }
}

fn finish(scanned: &Scanned, options: &Options, tally: &Tally) {
    for (first, name) in &scanned.links {
        match file::link(first, name) {
            Ok(()) => tally.file_done(),
            Err(error) => tally.failed(name, &error),
        }
    }
    for (pair, data) in scanned.directories.iter().rev() {
        if let Err(error) = file::set_attributes(pair, data, options.xattrs) {
            tally.failed(&pair.target, &error);
        }
    }
}

#[cfg(test)]
mod tests;
