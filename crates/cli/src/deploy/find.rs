//! The job that a command's arguments name: one of this user, or, for root, of another.

use super::job::{FindArgs, JobDir, default_base};
use super::jobs::{Found, Job, own_that};
use super::users::User;
use super::{others, record};
use crate::output::plain;
use anyhow::bail;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
    let dir = args.job.job().dir()?;
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
    if args.job.base().is_some() {
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
    if let Some(base) = args.job.base() {
        return base.display().to_string();
    }
    let own = format!("{}, {}", default_base().display(), record::directory().display());
    if rustix::process::geteuid().is_root() {
        format!("{own}, /run/user/*/tsumugi, /tmp/tsumugi-*, /var/tmp/tsumugi-*/jobs")
    } else {
        own
    }
}
