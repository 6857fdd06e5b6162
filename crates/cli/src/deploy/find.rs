//! The jobs of this machine: those with a directory, and those that only a record lists.
//!
//! Jobs of this user are in its base directory, in records ([`super::record`]), and in the
//! directories of its running services. Root also asks the other users, see [`super::others`].

use super::job::{FindArgs, JobDir, default_base};
use super::others::{self, Found};
use super::output::plain;
use super::process;
use super::record;
use super::state::{State, read_file};
use super::users::{self, User};
use anyhow::bail;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
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
fn own_that(
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

/// The job that a command works on.
#[derive(Debug)]
pub(crate) enum FoundJob {
    /// A job of this user, in this directory, which may not exist.
    Own(JobDir),
    /// A job of another user; the command must run as that user.
    OfUser(User, JobName),
}

/// Name and base of another user's job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobName {
    /// Its name.
    pub(crate) job: String,
    /// The directory above it.
    pub(crate) base: PathBuf,
}

/// Finds the job for a command's arguments.
pub(crate) fn job(args: &FindArgs) -> anyhow::Result<FoundJob> {
    let dir = args.job.dir()?;
    let is_root = rustix::process::geteuid().is_root();
    let owner = args.owner.as_deref().map(User::find).transpose()?;
    if let Some(owner) = &owner
        && !is_root
        && !owner.is_current()
    {
        bail!("only root may name another owner than this user: omit --owner, or run this as root");
    }
    let wanted = |job: &Job| match &owner {
        None => true,
        Some(owner) => {
            let made_for = job.state.as_ref().and_then(|state| state.owner.as_ref());
            made_for.map_or(job.user, |user| user.uid) == owner.uid
        }
    };
    if args.job.dir.is_some() {
        return Ok(FoundJob::Own(dir));
    }
    let own = own_that(&[&default_base()], None, |name| name == dir.job()).0;
    let own: Vec<_> = own.into_iter().filter(wanted).collect();
    if dir.path().exists() && own.iter().any(|job| job.path == dir.path()) {
        return Ok(FoundJob::Own(dir));
    }
    let mut found = own;
    let mut unasked = Vec::new();
    if is_root {
        let of_others = match &owner {
            Some(owner) if owner.uid == 0 => Found::default(),
            Some(owner) => others::jobs_of(&BTreeSet::from([owner.uid])),
            None => others::jobs(),
        };
        found.extend(of_others.jobs.into_iter().filter(|j| j.name == dir.job() && wanted(j)));
        unasked = of_others.trouble;
    } else if let Some(shown) = shown_to_user(dir.job()) {
        return Ok(FoundJob::Own(shown));
    }
    match found.as_slice() {
        [] if unasked.is_empty() => Ok(FoundJob::Own(dir)),
        [] => bail!(
            "job {} was not found, but not all users' jobs are known: {}",
            dir.job(),
            unasked.join("; ")
        ),
        [job] if job.user == rustix::process::geteuid().as_raw() => {
            Ok(FoundJob::Own(JobDir::at(&job.path)?))
        }
        [job] => {
            let base = job.path.parent().unwrap_or(&job.path).to_path_buf();
            let name = JobName { job: job.name.clone(), base };
            Ok(FoundJob::OfUser(User::of_uid(job.user), name))
        }
        several => {
            let list: Vec<_> = several
                .iter()
                .map(|job| {
                    let path = job.path.to_string_lossy();
                    format!("{} ({})", plain(&path), User::name_of(job.user))
                })
                .collect();
            bail!(
                "there are several jobs {}: {}. Choose one with --owner USER or --dir",
                dir.job(),
                list.join(", ")
            )
        }
    }
}

/// Returns the directory of a job that root created for this user.
fn shown_to_user(job: &str) -> Option<JobDir> {
    let dir = JobDir::new(Some(job), Some(Path::new("/run/tsumugi"))).ok()?;
    let user = rustix::process::geteuid().as_raw();
    let is_shown =
        std::fs::symlink_metadata(dir.join("shown.json")).is_ok_and(|data| data.uid() == user);
    is_shown.then_some(dir)
}

/// Returns where a job was searched, in words.
pub(crate) fn looked_in(args: &FindArgs) -> String {
    if let Some(base) = &args.job.dir {
        return base.display().to_string();
    }
    let own = format!("{}, {}", default_base().display(), record::directory().display());
    if rustix::process::geteuid().is_root() {
        format!("{own}, /run/user/*/tsumugi, /tmp/tsumugi-*, /var/tmp/tsumugi-*/jobs")
    } else {
        own
    }
}
