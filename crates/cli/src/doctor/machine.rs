//! The machine: kernel, engine, FUSE, limits, the site's file, leftovers of earlier jobs.

use super::{Finding, Level};
use crate::deploy::data_fabric;
use crate::deploy::jobs::{self, Condition};
use crate::deploy::others;
use crate::deploy::site::{self, Site};
use crate::deploy::users::User;
use crate::output::plain;
use crate::print::words;
use rustix::process::{Resource, getrlimit};
use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Descriptors that a service with a few hundred connections needs.
const DESCRIPTORS_MIN: u64 = 4096;
/// The setuid helper of libfuse, which mounts for ordinary users.
const FUSERMOUNT: &str = "fusermount3";
const SETUID: u32 = 0o4000;

/// Runs all checks of the machine.
pub(super) fn look() -> Vec<Finding> {
    let mut all = vec![kernel(), engine(), fuse()];
    if !rustix::process::geteuid().is_root() {
        all.push(mount_helper());
    }
    all.extend([descriptors(), rdma(), site_file(), leftovers()]);
    all
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= (5, 10) {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    let fix = "use Linux 5.10 or later";
    Finding::bad("kernel", Level::Missing, format!("Linux {release} is too old"), fix)
}

fn engine() -> Finding {
    match reactor::engine::choice() {
        Ok(choice) if choice.kind == reactor::engine::Kind::Uring => {
            Finding::ok("engine", choice.to_string())
        }
        Ok(choice) => {
            let fix = "allow io_uring: `sysctl kernel.io_uring_disabled=0`, and in a container's seccomp \
                       profile io_uring_setup, io_uring_enter and io_uring_register";
            Finding::bad("engine", Level::Slow, choice.to_string(), fix)
        }
        Err(error) => {
            let fix = "leave --engine and TSUMUGI_ENGINE out";
            Finding::bad("engine", Level::Missing, error.to_string(), fix)
        }
    }
}

/// Tells whether data could go over RDMA. No job needs that.
fn rdma() -> Finding {
    // An unusable site file is a separate finding.
    let data = Site::read().ok().and_then(|site| site.data_address());
    match data_fabric::device_here(data) {
        Ok((address, device)) => Finding::ok("rdma", format!("{device} at {address}")),
        Err(why) => {
            Finding::ok("rdma", format!("{why} (only `tsumugi up --fabric rdma` needs it)"))
        }
    }
}

fn fuse() -> Finding {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::ok("fuse", "/dev/fuse can be opened"),
        Err(error) => {
            let fix = "load the module fuse; give a container /dev/fuse; `chmod 666 /dev/fuse`";
            Finding::bad("fuse", Level::Missing, format!("/dev/fuse: {error}"), fix)
        }
    }
}

/// Checks the program with which ordinary users mount.
fn mount_helper() -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|part| part.join(FUSERMOUNT)).find(|path| path.exists());
    match found {
        Some(path) if is_setuid(&path) => Finding::ok("mount helper", path.display().to_string()),
        Some(path) => {
            let found = format!("{} is not setuid root", path.display());
            let fix = "reinstall fuse3, or `chmod u+s` it";
            Finding::bad("mount helper", Level::Missing, found, fix)
        }
        None => {
            let found = format!("{FUSERMOUNT} is missing; users mount with it");
            Finding::bad("mount helper", Level::Missing, found, "install fuse3, or be root")
        }
    }
}

fn is_setuid(path: &PathBuf) -> bool {
    std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & SETUID != 0)
}

fn descriptors() -> Finding {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if most >= DESCRIPTORS_MIN {
        return Finding::ok("descriptors", "enough open files are allowed");
    }
    let found = format!("at most {most} open files are allowed");
    let fix =
        "raise the hard limit of open files to 65536: limits.conf(5), LimitNOFILE=, ulimit -n";
    Finding::bad("descriptors", Level::Missing, found, fix)
}

fn site_file() -> Finding {
    let (what, path) = ("site", site::path());
    match (Site::read(), path) {
        (Ok(_), None) => Finding::ok(what, "this site has no file of its own"),
        (Ok(site), Some(path)) => match site.check_owner(&User::current()) {
            Ok(()) => Finding::ok(what, path.display().to_string()),
            Err(error) => Finding::bad(
                what,
                Level::Missing,
                words(&error),
                "ask the site's administrators to list you as an owner",
            ),
        },
        (Err(error), _) => {
            let fix = "correct the file: docs/deployment.md describes its format";
            Finding::bad(what, Level::Missing, words(&error), fix)
        }
    }
}

/// Checks for jobs without processes.
fn leftovers() -> Finding {
    let (mut jobs, _) = jobs::own(None);
    if rustix::process::geteuid().is_root() {
        jobs.extend(others::jobs().jobs);
    }
    let dead: Vec<_> = jobs
        .iter()
        .filter(|job| job.condition == Condition::Dead)
        .map(|job| plain(&job.name))
        .collect();
    if dead.is_empty() {
        return Finding::ok("jobs", "dead jobs have left nothing");
    }
    let found = format!("dead jobs have left files and take space: {}", dead.join(", "));
    Finding::bad("jobs", Level::Unsafe, found, "`tsumugi gc` removes them")
}

/// Returns the reason if users other than this one and root may replace the directory.
pub(super) fn is_exchangeable(path: &Path) -> Option<String> {
    let trust = crate::deploy::place::Trust::Chosen;
    crate::deploy::place::check(path, trust).err().map(|error| words(&error))
}
