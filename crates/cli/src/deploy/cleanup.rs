//! Taking a job down on one machine, from whatever state it is in.
//!
//! Order: whoever still builds it is stopped; nodes are asked to end, then the metadata service
//! (nodes commit and end their sessions with it); who has not ended in time is killed; then mounts,
//! namespaces, files and directories go. Every step looks at what is there instead of believing that
//! an earlier step went well, so all of it may be done again at any time.

use super::job::JobDir;
use super::prepare::Backing;
use super::process::{self, Process};
use super::state::State;
use super::{fabric, mounts};
use anyhow::{Context, bail};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for killed processes to disappear.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Time for the process that mounts for a node to end by itself once its node has.
const HELPER_WAIT: Duration = Duration::from_secs(1);

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// There was something to take down.
    pub(crate) was_there: bool,
    /// Who had to be killed: what they had not committed is lost.
    pub(crate) killed: Vec<String>,
    /// What could not be removed, and why.
    pub(crate) left: Vec<String>,
}

impl Report {
    fn note<T>(&mut self, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.left.push(format!("{error:#}"))).ok()
    }

    /// Adds what was done elsewhere.
    pub(crate) fn merge(&mut self, place: &str, other: Report) {
        let named = |text: String| format!("{place}: {text}");
        self.was_there |= other.was_there;
        self.killed.extend(other.killed.into_iter().map(named));
        self.left.extend(other.left.into_iter().map(named));
    }
}

/// Takes this machine's part of the job down. `is_own` if the caller itself was building the job
/// (and has dropped its lock).
pub(crate) fn clean(dir: &JobDir, deadline: Instant, is_own: bool) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let state = State::read(dir)?;
    if state.is_none() && !dir.path().exists() {
        return Ok(report);
    }
    report.was_there = true;
    if let Some(state) = &state
        && !is_own
    {
        stop_builder(state, deadline, &mut report);
    }
    let Some(_lock) = dir.lock_until(deadline)? else {
        if !dir.path().exists() {
            return Ok(report);
        }
        bail!("another tsumugi works on {}: try again", dir.path().display());
    };
    // Read again: who was stopped may have gone on or cleaned up itself.
    if let Some(state) = State::read(dir)? {
        end_processes(&state, deadline, &mut report);
        remove_mounts(&state, &mut report);
        remove_fabric(dir, &mut report);
        if report.left.is_empty() {
            remove_files(&state, &mut report);
        }
    }
    if report.left.is_empty() {
        let removed = remove_tree(dir.path());
        report.note(removed);
        dir.remove_base();
    }
    Ok(report)
}

/// Ends a `tsumugi up` that still works on the job; it cleans up itself if it can.
fn stop_builder(state: &State, deadline: Instant, report: &mut Report) {
    let own = std::process::id().cast_signed();
    let Some(up) = state.living(Some(state.up)).filter(|up| up.pid != own && !state.is_ready)
    else {
        return;
    };
    up.signal(Signal::TERM);
    let third = (deadline.saturating_duration_since(Instant::now())) / 3;
    if !process::wait_for_end(&[up], Instant::now() + third).is_empty() {
        up.signal(Signal::KILL);
        process::wait_for_end(&[up], Instant::now() + KILL_WAIT);
        report.killed.push(format!("tsumugi up (process {})", up.pid));
    }
}

/// Nodes first, then the metadata service, then by force whatever carries the job's mark.
fn end_processes(state: &State, deadline: Instant, report: &mut Report) {
    let nodes: Vec<_> = state.nodes.iter().filter_map(|node| state.living(node.process)).collect();
    let meta: Vec<_> = state.meta.iter().filter_map(|meta| state.living(meta.process)).collect();
    // The metadata service ends within a moment; the nodes get most of the time.
    let now = Instant::now();
    let most = now + deadline.saturating_duration_since(now) * 4 / 5;
    for (group, until) in [(&nodes, most), (&meta, deadline)] {
        for process in group {
            process.signal(Signal::TERM);
        }
        process::wait_for_end(group, until);
    }
    for process in nodes.iter().chain(&meta).filter(|process| process.is_alive()) {
        if process.signal(Signal::KILL) {
            report.killed.push(describe(state, *process));
        }
    }
    process::wait_for_end(&process::marked(&state.id), Instant::now() + HELPER_WAIT);
    // Who was started but never written down, too; twice, for children of the killed.
    for _ in 0..2 {
        let mut left = process::marked(&state.id);
        left.extend(nodes.iter().chain(&meta).filter(|process| process.is_alive()));
        left.sort_by_key(|process| process.pid);
        left.dedup();
        for process in &left {
            let told = describe(state, *process);
            if process.signal(Signal::KILL) && !report.killed.contains(&told) {
                report.killed.push(told);
            }
        }
        let now = Instant::now();
        abort_waiting(state, &left);
        for process in process::wait_for_end(&left, now + KILL_WAIT) {
            report.left.push(format!("{} does not end", describe(state, process)));
        }
    }
}

/// A process may hang in its own mount until that is gone.
fn abort_waiting(state: &State, left: &[Process]) {
    let soon = Instant::now() + Duration::from_millis(200);
    if !process::wait_for_end(left, soon).is_empty() {
        for node in &state.nodes {
            let _ = mounts::take_down(&node.mount);
        }
    }
}

fn describe(state: &State, process: Process) -> String {
    let is_it = |candidate: Option<Process>| candidate == Some(process);
    let name = state.nodes.iter().find(|node| is_it(node.process)).map(|node| node.name.as_str());
    let is_meta = state.meta.as_ref().is_some_and(|meta| is_it(meta.process));
    let name = name.unwrap_or(if is_meta { "the metadata service" } else { "a started program" });
    format!("{name} (process {})", process.pid)
}

fn remove_mounts(state: &State, report: &mut Report) {
    for node in &state.nodes {
        let removed = mounts::take_down(&node.mount);
        report.note(removed);
    }
}

fn remove_fabric(dir: &JobDir, report: &mut Report) {
    if let Some(left) = report.note(fabric::remove(&dir.join("netns"))) {
        report.left.extend(
            left.iter().map(|path| format!("cannot unmount the namespace {}", path.display())),
        );
    }
}

fn remove_files(state: &State, report: &mut Report) {
    for node in state.nodes.iter().filter(|node| node.is_device_made) {
        let Some(device) = &node.device else { continue };
        let removed = remove_file(&Backing::unfinished(device));
        report.note(removed);
        if !state.keep_devices {
            let removed = remove_file(device);
            report.note(removed);
        }
    }
    for directory in state.directories.iter().rev() {
        // In use by others, or the job's own, which goes last.
        let _ = std::fs::remove_dir(directory);
    }
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory and what is in it, but never what lies on another file system: whatever was
/// left mounted there is not ours to delete.
fn remove_tree(path: &Path) -> anyhow::Result<()> {
    if let Some(mount) = mounts::below(path)?.first() {
        bail!(
            "{} is still a mount: nothing in {} was deleted",
            mount.path.display(),
            path.display()
        );
    }
    let device = std::fs::symlink_metadata(path)
        .with_context(|| format!("cannot look at {}", path.display()))?
        .dev();
    remove_below(path, device).with_context(|| format!("cannot remove {}", path.display()))
}

/// The depth is bounded by what the job itself made there.
fn remove_below(path: &Path, device: u64) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let data = entry.path().symlink_metadata()?;
        if data.dev() != device {
            return Err(io::Error::other(format!("{} is a mount", entry.path().display())));
        }
        if data.is_dir() {
            remove_below(&entry.path(), device)?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::process::MARK;
    use crate::deploy::state::NodeState;
    use std::process::Command;

    fn job(base: &Path) -> JobDir {
        JobDir::new(Some("j"), Some(base)).unwrap()
    }

    /// Goal: taking down what is not there, or is empty, is no error, and is repeatable.
    #[test]
    fn nothing_is_taken_down_quietly() {
        let base = tempfile::tempdir().unwrap();
        let dir = job(base.path());
        let deadline = Instant::now() + Duration::from_secs(5);
        assert_eq!(clean(&dir, deadline, false).unwrap(), Report::default());
        dir.create().unwrap();
        assert!(clean(&dir, deadline, false).unwrap().was_there);
        assert!(!dir.path().exists());
        assert!(!clean(&dir, deadline, false).unwrap().was_there);
    }

    /// Goal: a process that was started but never written down is found and killed; files that the
    /// job made go, files that were there stay.
    #[test]
    fn interrupted_job_is_cleaned() {
        let base = tempfile::tempdir().unwrap();
        let dir = job(base.path());
        dir.create().unwrap();
        let id = format!("clean-{}", std::process::id());
        let mut state = State::new(&dir, &id, false).unwrap();
        state.up = Process { pid: i32::MAX, start_ticks: 0 };
        for (name, is_made) in [("made", true), ("there", false)] {
            let device = base.path().join("devices").join(name);
            state.nodes.push(NodeState {
                name: name.into(),
                process: None,
                mount: base.path().join("mnt"),
                device: Some(device),
                is_device_made: is_made,
                target: None,
                namespace: None,
            });
        }
        state.directories = vec![base.path().join("devices"), base.path().join("gone")];
        std::fs::create_dir(base.path().join("devices")).unwrap();
        for name in ["made", "made.part", "there"] {
            std::fs::write(base.path().join("devices").join(name), "x").unwrap();
        }
        state.write(&dir).unwrap();
        let mut child = Command::new("sleep").arg("60").env(MARK, &id).spawn().unwrap();
        let reaper = std::thread::spawn(move || child.wait());
        let report = clean(&dir, Instant::now() + Duration::from_millis(50), false).unwrap();
        assert_eq!(report.killed.len(), 1, "{report:?}");
        assert!(report.left.is_empty(), "{report:?}");
        assert!(!reaper.join().unwrap().unwrap().success());
        assert!(base.path().join("devices/there").exists());
        assert!(!base.path().join("devices/made").exists());
        assert!(!base.path().join("devices/made.part").exists());
        assert!(!dir.path().exists());
    }
}
