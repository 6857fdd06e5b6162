//! Taking a job down on one machine, from any state.
//!
//! Order: stop the process that still builds the job; ask the nodes to end, then the metadata
//! service (nodes commit and end their sessions with it); kill processes that have not ended in
//! time; then remove mounts, namespaces, files and directories. Every step looks at the machine
//! instead of relying on the success of an earlier step, so all of them can be repeated at any
//! time.

use super::job::JobDir;
use super::life::Holder;
use super::process::{self, Process};
use super::state::{MetaState, NodeState, State};
use super::{fabric, files, fuse_uring, keeper, mounts, record};
use crate::print::words;
use anyhow::bail;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Time to undo what was created when something fails.
const UNDO_WITHIN: Duration = Duration::from_secs(20);
/// Time for killed processes to disappear.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Time for a node's mount helper to end after its node.
const HELPER_WAIT: Duration = Duration::from_secs(1);

/// The result of taking a job down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Whether there was anything to take down.
    pub(crate) was_there: bool,
    /// Processes that had to be killed: their uncommitted data is lost.
    pub(crate) killed: Vec<String>,
    /// Leftovers that could not be removed, with the reasons.
    pub(crate) left: Vec<String>,
}

impl Report {
    fn note<T>(&mut self, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.left.push(words(&error))).ok()
    }

    fn merge_own(&mut self, other: Report) {
        self.was_there |= other.was_there;
        self.killed.extend(other.killed);
        self.left.extend(other.left);
    }

    /// Adds the result of another machine or job.
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
        for recorded in record::of_directory(dir.path()) {
            report.merge_own(clean_recorded(&recorded, deadline));
        }
        return Ok(report);
    }
    report.was_there = true;
    state.as_ref().map_or(Ok(()), State::refuse_elsewhere)?;
    if let Some(state) = &state
        && !is_own
    {
        stop_builder(state, deadline, &mut report);
    }
    // First, so that the keeper restarts nothing that ends below.
    state.iter().for_each(keeper::stop);
    let Some(_lock) = dir.lock_until(deadline)? else {
        if !dir.path().exists() {
            return Ok(report);
        }
        bail!("another tsumugi works on {}: try again", dir.path().display());
    };
    clean_locked(dir, deadline, &mut report)?;
    Ok(report)
}

/// As [`clean`], for a job without living processes; `None` if the job is in use.
pub(crate) fn clean_dead(dir: &JobDir, deadline: Instant) -> anyhow::Result<Option<Report>> {
    let Some(_lock) = dir.try_lock()? else { return Ok(None) };
    if State::read(dir)?.is_some_and(|state| state.is_in_use()) {
        return Ok(None);
    }
    let mut report = Report { was_there: true, ..Report::default() };
    clean_locked(dir, deadline, &mut report)?;
    Ok(Some(report))
}

/// Takes down the leftovers in a record, of a job without a directory.
pub(crate) fn clean_recorded(state: &State, deadline: Instant) -> Report {
    let mut report = Report { was_there: true, ..Report::default() };
    clean_parts(state, deadline, &mut report);
    if report.left.is_empty() {
        record::remove(&state.id);
    }
    report
}

/// Forgets a job although a part of it could not be removed.
pub(crate) fn forget(dir: &JobDir) -> anyhow::Result<()> {
    for state in State::read(dir)?.into_iter().chain(record::of_directory(dir.path())) {
        record::remove(&state.id);
    }
    if dir.path().exists() {
        files::remove_tree(dir.path())?;
    }
    dir.remove_base();
    Ok(())
}

fn clean_locked(dir: &JobDir, deadline: Instant, report: &mut Report) -> anyhow::Result<()> {
    // Read again: the builder may have continued before it stopped, or cleaned up itself.
    let state = State::read(dir)?;
    if let Some(state) = &state {
        clean_parts(state, deadline, report);
    }
    if report.left.is_empty() {
        // The record first: if a keeper ends in between, its leftovers are found by the directory.
        if let Some(state) = &state {
            record::remove(&state.id);
        }
        let removed = files::remove_tree(dir.path());
        report.note(removed);
        dir.remove_base();
    }
    Ok(())
}

fn clean_parts(state: &State, deadline: Instant, report: &mut Report) {
    end_processes(state, deadline, report);
    remove_mounts(state, report);
    remove_fabric(state, report);
    let restored = fuse_uring::release(&state.id);
    report.note(restored);
    if report.left.is_empty() {
        remove_files(state, report);
    }
}

/// Ends a `tsumugi up` that is still building the job; it cleans up itself if it can.
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

/// Ends the nodes first, then the metadata service, then kills all processes with the job's mark.
/// Finds processes however they were started, see [`super::life`].
fn end_processes(state: &State, deadline: Instant, report: &mut Report) {
    let nodes: Vec<_> = state.nodes.iter().filter_map(|node| state.living_node(node)).collect();
    let meta: Vec<_> = state.living_meta().into_iter().collect();
    let is_whole = nodes.len() == state.nodes.len() && meta.len() == state.meta.iter().count();
    // The metadata service ends within a moment; the nodes get most of the time.
    let now = Instant::now();
    let most = now + deadline.saturating_duration_since(now) * 4 / 5;
    for (group, until) in [(&nodes, most), (&meta, deadline)] {
        for process in group {
            process.signal(Signal::TERM);
        }
        process::wait_for_end(group, until);
    }
    let mut known: Vec<_> = nodes.into_iter().chain(meta).collect();
    known.retain(Process::is_alive);
    for process in &known {
        if process.signal(Signal::KILL) {
            report.killed.push(describe(state, *process));
        }
    }
    // Processes that ended cleanly have waited for their children. A search for others reads all
    // processes of the machine, for each of its parts when a job has many there.
    let is_known = state.is_ready && !state.is_starting;
    if !is_whole || !is_known || !known.is_empty() {
        end_marked(state, &known, report);
    }
    let nodes = state.nodes.iter().map(|node| (node.name.as_str(), state.node_life(node)));
    for (name, path) in nodes.chain([("the metadata service", state.meta_life())]) {
        if Holder::settled(&path) == Holder::Unknown {
            report
                .left
                .push(format!("{name} runs out of sight of this process ({})", path.display()));
        }
    }
}

/// Ends processes with the job's mark, also those that the state does not list.
fn end_marked(state: &State, known: &[Process], report: &mut Report) {
    let marked = process::marked(&state.id).unwrap_or_default();
    process::wait_for_end(&marked, Instant::now() + HELPER_WAIT);
    // Twice, for children of killed processes.
    for _ in 0..2 {
        let mut left = state.all_living();
        left.extend(known.iter().filter(|process| process.is_alive()));
        left.sort_by_key(|process| process.pid);
        left.dedup();
        for process in &left {
            let name = describe(state, *process);
            if process.signal(Signal::KILL) && !report.killed.contains(&name) {
                report.killed.push(name);
            }
        }
        let now = Instant::now();
        abort_waiting(state, &left);
        process::wait_for_end(&left, now + KILL_WAIT);
    }
    for process in state.all_living() {
        report.left.push(format!("{} does not end", describe(state, process)));
    }
    if let Err(error) = process::marked(&state.id) {
        report.left.push(format!("processes of job {} may run: {error}", state.job));
    }
}

/// A process may hang in its own mount until the mount is gone.
fn abort_waiting(state: &State, left: &[Process]) {
    let soon = Instant::now() + Duration::from_millis(200);
    if !process::wait_for_end(left, soon).is_empty() {
        for node in &state.nodes {
            let _ = mounts::take_down(&node.mount);
        }
    }
}

fn describe(state: &State, process: Process) -> String {
    let is_node = |node: &&NodeState| {
        node.process == Some(process)
            || Holder::of(&state.node_life(node)).process() == Some(process)
    };
    let name = state.nodes.iter().find(is_node).map(|node| node.name.as_str());
    let is_meta = state.meta.as_ref().is_some_and(|meta| meta.process == Some(process))
        || Holder::of(&state.meta_life()).process() == Some(process);
    let name = name.unwrap_or(if is_meta { "the metadata service" } else { "a started program" });
    format!("{name} (process {})", process.pid)
}

fn remove_mounts(state: &State, report: &mut Report) {
    for node in &state.nodes {
        let removed = mounts::take_down(&node.mount);
        report.note(removed);
    }
}

fn remove_fabric(state: &State, report: &mut Report) {
    if let Some(left) = report.note(fabric::remove(&state.dir.join("netns"))) {
        report.left.extend(
            left.iter().map(|path| format!("cannot unmount the namespace {}", path.display())),
        );
    }
}

fn remove_files(state: &State, report: &mut Report) {
    for node in &state.nodes {
        if let Some(part) = &node.part {
            let removed = files::remove_part(part);
            report.note(removed);
        }
        if let Some(device) = node.device.as_ref().filter(|_| node.is_device_made)
            && !state.keep_devices
        {
            let removed = files::remove_unused(device);
            report.note(removed);
        }
    }
    if let Some(store) = state.meta.as_ref().and_then(MetaState::directory)
        && store.exists()
    {
        let removed = files::remove_tree(store);
        report.note(removed);
    }
    for directory in state.directories.iter().rev() {
        // In use by others, or the job's own directory, which is removed last.
        let _ = std::fs::remove_dir(directory);
    }
}

/// Cleans up after a failure, and reports what could not be removed. Leaves a job alone that
/// another process has created.
pub(crate) fn undo(dir: &JobDir) {
    if !dir.is_made_here() {
        return;
    }
    match clean(dir, Instant::now() + UNDO_WITHIN, true) {
        Ok(report) => {
            for left in report.left {
                eprintln!("tsumugi: left behind: {left}");
            }
        }
        Err(error) => {
            eprintln!("tsumugi: left behind {}: {}", dir.path().display(), words(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::process::MARK;
    use std::path::Path;
    use std::process::Command;

    fn job(base: &Path) -> JobDir {
        JobDir::new(Some("j"), Some(base)).unwrap()
    }

    /// Goal: taking down a missing or empty job is no error, and can be repeated.
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

    /// Goal: a started process that the state does not list is found and killed; files that the job
    /// created are removed, earlier files stay.
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
                part: is_made.then(|| device.with_extension("part")),
                device: Some(device),
                is_device_made: is_made,
                transport: None,
                transport_reason: None,
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
