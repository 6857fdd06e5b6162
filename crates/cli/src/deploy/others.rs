//! For root: the jobs of other users.
//!
//! Root reads nothing below a directory of another user. A path there may lead into a file system
//! whose server, a program of that user, never answers; there may be any number of files, and their
//! content is whatever the user wrote. Root itself reads only names in `/run/user`, `/tmp` and
//! `/var/tmp`. The rest is a report of this program, run as the user, which has a time and a size.

use super::jobs::{Found, Job};
use super::mounts;
use super::users::User;
use crate::output::plain;
use crate::print::words;
use anyhow::{Context, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of users that are asked.
const USERS_MAX: usize = 1024;
/// Users that are asked at a time.
const AT_ONCE: usize = 8;
/// How long a user's report may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long all reports together may take.
const ALL_WITHIN: Duration = Duration::from_secs(30);
/// Longest report.
const BYTES_MAX: usize = 8 << 20;
/// Maximum number of a user's jobs.
const JOBS_MAX: usize = 10_000;
/// Maximum number of a user's reports of trouble that are passed on.
const TROUBLE_MAX: usize = 10;

/// Returns the jobs of all other users.
pub(crate) fn jobs() -> Found {
    jobs_of(&users())
}

/// Returns the jobs of these users.
pub(crate) fn jobs_of(users: &BTreeSet<u32>) -> Found {
    ask_all(users, Instant::now() + ALL_WITHIN, report)
}

/// Asks users, some at a time.
fn ask_all(
    users: &BTreeSet<u32>,
    deadline: Instant,
    report: impl Fn(u32) -> anyhow::Result<Found> + Sync,
) -> Found {
    let left = Mutex::new(users.iter().copied().take(USERS_MAX));
    let all = Mutex::new(Found::default());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(user) = next() {
            let answer = if Instant::now() < deadline {
                report(user)
            } else {
                Err(anyhow::anyhow!("not asked: the others took too long"))
            };
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(mut found) => {
                    all.jobs.append(&mut found.jobs);
                    all.trouble.append(&mut found.trouble);
                }
                Err(error) => all.trouble.push(format!("user {user}: {}", words(&error))),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..users.len().min(AT_ONCE) {
            scope.spawn(work);
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    if users.len() > USERS_MAX {
        all.trouble.push(format!("only {USERS_MAX} of {} users were asked", users.len()));
    }
    all.jobs.sort_by(|one, other| {
        (one.user, &one.name, &one.path).cmp(&(other.user, &other.name, &other.path))
    });
    all.trouble.sort();
    all
}

/// Returns a user's own report.
fn report(uid: u32) -> anyhow::Result<Found> {
    let user = User::of_uid(uid);
    let output = user.run_for(&["list".into(), "--for-root".into()], BYTES_MAX, WITHIN)?;
    if !output.status.success() {
        bail!("{}", plain(String::from_utf8_lossy(&output.stderr).trim()));
    }
    let found: Found = serde_json::from_slice(&output.stdout).context("it has no valid report")?;
    let mut trouble: Vec<_> =
        found.trouble.iter().map(|it| format!("user {uid}: {}", plain(it))).collect();
    trouble.truncate(TROUBLE_MAX);
    if found.jobs.len() > JOBS_MAX {
        trouble.push(format!("user {uid}: only {JOBS_MAX} of {} jobs", found.jobs.len()));
    }
    // Whatever the report says, these are jobs of that user.
    let own = found.jobs.into_iter().take(JOBS_MAX).map(|job| Job { user: uid, ..job });
    Ok(Found { jobs: own.collect(), trouble })
}

/// Returns the other users that may have jobs here.
pub(crate) fn users() -> BTreeSet<u32> {
    let kernels = mounts::devices_of_kernel();
    let mut users = BTreeSet::new();
    for uid in numbers_in(Path::new("/run/user"), "") {
        let home = format!("/run/user/{uid}");
        users.extend(may_have_base(Path::new(&home), uid, &kernels).then_some(uid));
    }
    for shared in ["/tmp", "/var/tmp"] {
        for uid in numbers_in(Path::new(shared), "tsumugi-") {
            let path = format!("{shared}/tsumugi-{uid}");
            users.extend(is_users(Path::new(&path), uid).then_some(uid));
        }
    }
    users.remove(&0);
    users
}

/// Returns the numbers in the names of a directory's entries that are the prefix and a number.
fn numbers_in(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number =
        |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
    entries.filter_map(number).collect()
}

/// Returns whether a directory itself belongs to a user, without asking a process that serves it.
fn is_users(path: &Path, uid: u32) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS).is_ok_and(|data| {
        let kind = rustix::fs::FileType::from_raw_mode(data.stx_mode.into());
        data.stx_uid == uid && kind == rustix::fs::FileType::Directory
    })
}

/// Returns whether a user's runtime directory may have a directory of jobs. It looks only if the
/// kernel serves the directory, which then stays open: a file system that the user mounts over it
/// in the meantime is not entered.
fn may_have_base(home: &Path, uid: u32, kernels: &BTreeSet<(u32, u32)>) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(home) = rustix::fs::open(home, flags, Mode::empty()) else { return false };
    let look = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(data) = rustix::fs::statx(&home, "", look, StatxFlags::BASIC_STATS) else {
        return false;
    };
    if !kernels.contains(&(data.stx_dev_major, data.stx_dev_minor)) {
        return true;
    }
    if data.stx_uid != uid {
        return false;
    }
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let opened = rustix::fs::openat2(&home, "tsumugi", flags, Mode::empty(), within);
    !matches!(opened, Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    /// Goal: a user who never answers delays root for a time only, and is named; the jobs of the
    /// others are shown. Users beyond the time are named, too.
    #[test]
    fn silent_users_are_named() {
        let users: BTreeSet<u32> = (1..=20).collect();
        let soon = Instant::now() + Duration::from_mins(1);
        let found = ask_all(&users, soon, |user| {
            if user % 2 == 0 {
                bail!("did not end within 10s")
            }
            Ok(Found { trouble: vec![format!("user {user}: asked")], ..Found::default() })
        });
        assert_eq!(found.trouble.iter().filter(|it| it.ends_with("asked")).count(), 10);
        assert!(found.trouble.contains(&"user 2: did not end within 10s".to_owned()));
        let late = ask_all(&users, Instant::now(), |_| panic!("asked too late"));
        assert!(late.jobs.is_empty() && late.trouble.len() == 20, "{late:?}");
    }

    /// Goal: root looks into a user's runtime directory only if no process of the user serves it,
    /// and follows nothing there.
    #[test]
    fn homes_are_looked_at_from_outside() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let home = base.path();
        chown(home, Some(4711), None).unwrap();
        let data = rustix::fs::statx(CWD, home, AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap();
        let known = BTreeSet::from([(data.stx_dev_major, data.stx_dev_minor)]);
        assert!(!may_have_base(home, 4711, &known), "there is none");
        assert!(may_have_base(home, 4711, &BTreeSet::new()), "it is not entered");
        std::os::unix::fs::symlink("/nonexistent", home.join("tsumugi")).unwrap();
        assert!(!may_have_base(home, 4711, &known), "a link");
        std::fs::remove_file(home.join("tsumugi")).unwrap();
        std::fs::create_dir(home.join("tsumugi")).unwrap();
        assert!(may_have_base(home, 4711, &known));
        assert!(!may_have_base(home, 4712, &known), "of another user");
        assert!(is_users(home, 4711) && !is_users(home, 4712));
    }
}
