//! The jobs of this machine: those with a directory, and those that only a record lists.
//!
//! Jobs of this user are in its base directory, in records ([`super::record`]), and in the
//! directories of its running services. [`super::others`] has the jobs of other users, for root.

use super::job::default_base;
use super::process;
use super::record;
use super::state::{State, read_file};
use super::users;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The state of a job's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    /// All its processes on this machine run.
    Running,
    /// Some of its processes run.
    Damaged,
    /// `tsumugi up` is building it.
    Starting,
    /// `tsumugi up` was killed; some of its processes run.
    Unfinished,
    /// Its nodes are on other machines.
    Remote,
    /// Its processes are in another PID namespace: see [`State::lives_elsewhere`].
    Elsewhere,
    /// No process of it is left on this machine: `tsumugi gc` removes the rest.
    Dead,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Its name.
    pub(crate) name: String,
    /// Its directory, which may be gone.
    pub(crate) path: PathBuf,
    /// The job's user.
    pub(crate) user: u32,
    /// Its state, if it can be read.
    pub(crate) state: Option<State>,
    /// The state of its processes.
    pub(crate) condition: Condition,
}

/// A report: jobs, and what could not be read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// The jobs.
    pub(crate) jobs: Vec<Job>,
    /// What could not be read, and users that did not answer.
    pub(crate) trouble: Vec<String>,
}

impl Job {
    /// Returns the job in a directory; `None` if it is not a job of the user.
    fn of_directory(path: &Path, user: u32) -> Option<Job> {
        if !users::is_owned_by(path, user) {
            return None;
        }
        let name = path.file_name()?.to_str()?.to_string();
        if name.starts_with('.') {
            return None;
        }
        let state = read_file(&path.join("state.json")).ok().flatten();
        let state = state.map(|state| State { dir: path.into(), ..state });
        // Mount directories of jobs by ssh are beside the jobs' directories.
        if state.is_none() && !path.join("lock").exists() {
            return None;
        }
        let condition = state.as_ref().map_or(Condition::Dead, condition);
        Some(Job { name, path: path.into(), user, state, condition })
    }

    fn of_record(state: State, user: u32) -> Job {
        let condition = condition(&state);
        Job {
            name: state.job.clone(),
            path: state.dir.clone(),
            user,
            state: Some(state),
            condition,
        }
    }
}

/// Returns the state of a job whose directory belongs to a later job: nothing in the directory is
/// its own any more.
fn superseded(mut state: State) -> State {
    state.dir = record::directory().join(format!("{}.gone", state.id));
    state.nodes.iter_mut().for_each(|node| node.mount = state.dir.join(&node.name));
    state
}

fn condition(state: &State) -> Condition {
    if state.lives_elsewhere() {
        return Condition::Elsewhere;
    }
    let is_complete = state.meta.is_none() == state.living_meta().is_none()
        && state.nodes.iter().all(|node| state.living_node(node).is_some());
    if !state.is_ready && state.living(Some(state.up)).is_some() {
        return Condition::Starting;
    }
    if !state.hosts.is_empty() {
        return Condition::Remote;
    }
    match (state.is_seen_alive(), state.is_ready) {
        (false, _) => Condition::Dead,
        (true, false) => Condition::Unfinished,
        (true, true) if is_complete => Condition::Running,
        (true, true) => Condition::Damaged,
    }
}

/// Returns this user's jobs: those below `base`, if it is given, else all. Also returns what could
/// not be read.
pub(crate) fn own(base: Option<&Path>) -> (Vec<Job>, Vec<String>) {
    let default = default_base();
    own_that(&[base.unwrap_or(&default)], base, |_| true)
}

/// Returns all of this user's jobs, for root, which does not know which of the two usual bases the
/// user's shells have.
pub(crate) fn own_for_root() -> Found {
    let user = rustix::process::geteuid().as_raw();
    let bases = [format!("/run/user/{user}/tsumugi"), format!("/tmp/tsumugi-{user}")];
    let bases: Vec<_> = bases.iter().map(Path::new).collect();
    let (jobs, trouble) = own_that(&bases, None, |_| true);
    Found { jobs, trouble }
}

/// As [`own`], for jobs with certain names, in these bases and, unless it is given, anywhere. Finding a job's condition reads all processes; with
/// hundreds of jobs, as in a test of many nodes on one machine, this skips other jobs.
pub(super) fn own_that(
    bases: &[&Path],
    base: Option<&Path>,
    is_wanted: impl Fn(&str) -> bool,
) -> (Vec<Job>, Vec<String>) {
    let user = rustix::process::geteuid().as_raw();
    let (records, trouble) = record::all();
    let mut paths: BTreeSet<_> = bases.iter().flat_map(|base| entries(base)).collect();
    for path in records.iter().map(|state| state.dir.clone()).chain(started_in()) {
        if base.is_none_or(|base| path.parent() == Some(base)) {
            paths.insert(path);
        }
    }
    let is_named =
        |path: &&PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(&is_wanted);
    let named = paths.iter().filter(is_named);
    let mut jobs: Vec<_> = named.filter_map(|path| Job::of_directory(path, user)).collect();
    let known: BTreeSet<_> =
        jobs.iter().filter_map(|job| Some(job.state.as_ref()?.id.clone())).collect();
    let unknown = |state: &State| is_wanted(&state.job) && !known.contains(&state.id);
    for state in records.into_iter().filter(unknown) {
        if base.is_none_or(|base| state.dir.parent() == Some(base)) {
            let is_taken = paths.contains(&state.dir) && state.dir.exists();
            let state = if is_taken { superseded(state) } else { state };
            jobs.push(Job::of_record(state, user));
        }
    }
    jobs.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
    (jobs, trouble)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the directories of jobs with running services of this user.
fn started_in() -> Vec<PathBuf> {
    process::environments()
        .iter()
        .filter_map(|environment| environment.get(process::DIRECTORY))
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
