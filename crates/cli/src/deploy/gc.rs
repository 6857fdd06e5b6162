//! Removing the leftovers of dead jobs, e.g. after a reboot.
//!
//! Removes only what a job's state or record names, and dead mounts of this user's file systems
//! that belong to no job. Never touches a job with a running process: this is checked again under
//! the job's lock.

use super::cleanup::{self, Report};
use super::job::JobDir;
use super::jobs::{self, Condition, Job};
use super::mounts;
use super::state::{MetaState, State};
use crate::print::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// A younger directory without a state may be one that `up` is about to fill.
const YOUNG: Duration = Duration::from_mins(1);
/// How long a mount may take to show whether it is alive.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// The type of our mounts.
const KIND: &str = "fuse.tsumugi";

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Collected {
    /// Removed, or to be removed, in words.
    pub(crate) removed: Vec<String>,
    /// Left alone, with the reasons.
    pub(crate) kept: Vec<String>,
    /// Could not be removed, with the reasons.
    pub(crate) left: Vec<String>,
}

/// Removes the leftovers of this user's dead jobs, below `base` if it is given. With `is_dry` it
/// only lists them.
pub(crate) fn collect(base: Option<&Path>, is_dry: bool, within: Duration) -> Collected {
    let mut all = Collected::default();
    let (jobs, trouble) = jobs::own(base);
    all.left.extend(trouble);
    for job in &jobs {
        match job.condition {
            Condition::Dead if is_young(job) => {
                all.kept.push(format!("{}: it is too new", job.path.display()));
            }
            Condition::Dead => match heir(job, &jobs) {
                Some(heir) => all.kept.push(format!(
                    "job {}: job {} in {} now uses a backing file of it",
                    job.name,
                    heir.name,
                    heir.path.display()
                )),
                None => collect_job(job, is_dry, within, &mut all),
            },
            Condition::Remote => all.kept.push(format!(
                "job {} has nodes on other machines: end it with `tsumugi down --job {0}`",
                job.name
            )),
            Condition::Unfinished => all.kept.push(format!(
                "job {} was never ready, but processes of it run: end it with `tsumugi down --job \
                 {0}`",
                job.name
            )),
            Condition::Running
            | Condition::Damaged
            | Condition::Starting
            | Condition::Elsewhere => {}
        }
    }
    if base.is_none() {
        collect_mounts(&jobs, is_dry, &mut all);
    }
    all
}

/// Returns a living job that uses a backing file of a dead one.
fn heir<'a>(dead: &Job, jobs: &'a [Job]) -> Option<&'a Job> {
    let devices = |job: &Job| -> BTreeSet<PathBuf> {
        let nodes = job.state.iter().flat_map(|state| &state.nodes);
        nodes.filter_map(|node| node.device.clone()).collect()
    };
    let of_dead = devices(dead);
    jobs.iter()
        .filter(|job| job.condition != Condition::Dead)
        .find(|job| !of_dead.is_disjoint(&devices(job)))
}

fn is_young(job: &Job) -> bool {
    let made = std::fs::symlink_metadata(&job.path).and_then(|data| data.modified());
    let age = made.ok().and_then(|made| SystemTime::now().duration_since(made).ok());
    job.state.is_none() && age.is_none_or(|age| age < YOUNG)
}

fn collect_job(job: &Job, is_dry: bool, within: Duration, all: &mut Collected) {
    let items = items(job);
    if is_dry {
        all.removed.extend(items);
        return;
    }
    let deadline = Instant::now() + within;
    let result = match &job.state {
        Some(state) if !job.path.exists() => Ok(Some(cleanup::clean_recorded(state, deadline))),
        _ => JobDir::at(&job.path).and_then(|dir| cleanup::clean_dead(&dir, deadline)),
    };
    match result {
        Ok(Some(Report { left, .. })) if left.is_empty() => all.removed.extend(items),
        Ok(Some(Report { left, .. })) => all.left.extend(left),
        Ok(None) => all.kept.push(format!("job {}: in use now", job.name)),
        Err(error) => all.left.push(format!("job {}: {}", job.name, words(&error))),
    }
}

/// Returns the leftovers of a dead job, in words.
fn items(job: &Job) -> Vec<String> {
    let named = |what: &str, path: &Path| format!("job {}: {what} {}", job.name, path.display());
    let mut items = Vec::new();
    if let Some(state) = &job.state {
        for node in &state.nodes {
            if mounts::is_mounted(&node.mount) {
                items.push(named("mount", &node.mount));
            }
            let made = node.device.as_ref().filter(|_| node.is_device_made && !state.keep_devices);
            for path in made.into_iter().chain(&node.part).filter(|path| path.exists()) {
                items.push(named("backing file", path));
            }
        }
        let store =
            state.meta.as_ref().and_then(MetaState::directory).filter(|store| store.exists());
        items.extend(store.map(|store| named("metadata store", store)));
        let outside = |path: &&PathBuf| {
            path.exists() && !path.starts_with(&job.path) && store != Some(path.as_path())
        };
        items.extend(state.directories.iter().filter(outside).map(|p| named("directory", p)));
    }
    if job.path.exists() {
        items.push(named("directory", &job.path));
    } else {
        items.push(format!("job {}: record of it", job.name));
    }
    items
}

/// Removes dead mounts that belong to no job.
fn collect_mounts(jobs: &[Job], is_dry: bool, all: &mut Collected) {
    let states = jobs.iter().filter_map(|job| job.state.as_ref());
    let of_jobs: BTreeSet<_> =
        states.flat_map(|s: &State| s.nodes.iter().map(|n| &n.mount)).collect();
    let user = rustix::process::geteuid().as_raw();
    for mount in mounts::all().unwrap_or_default() {
        if mount.kind != KIND || mount.user != Some(user) || of_jobs.contains(&mount.path) {
            continue;
        }
        if mounts::condition(&mount.path, LOOK_WITHIN) != mounts::Condition::Dead {
            continue;
        }
        let removed = if is_dry { Ok(true) } else { mounts::take_down(&mount.path) };
        match removed {
            Ok(_) => all.removed.push(format!("dead mount {}", mount.path.display())),
            Err(error) => all.left.push(words(&error)),
        }
    }
}
