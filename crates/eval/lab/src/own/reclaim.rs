//! Cleaning up after an experiment that died.
//!
//! The order: what makes load ends, conditions are left, mounts and loop devices go, then the
//! processes that served them, at last the directory. A marker of an earlier boot has nothing but
//! its directory.

use super::processes::{end, owned_by};
use super::{Line, MARKER, Owner, PREFIX, boot, is_only_ours, remove};
use crate::guard::unescaped;
use base::Error;
use loads::process;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an ending process may take.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Longest marker that is read.
const MARKER_BYTES_MAX: u64 = 1 << 20;

/// What is mounted at or below a directory, innermost first.
pub fn mounts_below(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(table).map_err(Error::io("cannot read", table))?;
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(unescaped(field)))
        .filter(|mount| mount.starts_with(path))
        .collect();
    mounts.reverse();
    Ok(mounts)
}

/// Reclaims what dead experiments left below `parent`. Gives the directories, each with what went
/// wrong if something did. Those whose makers live, and what is not ours, are left alone.
pub fn reclaim_below(parent: &Path) -> Vec<(PathBuf, Result<(), Error>)> {
    let (Ok(parent), mut found) = (parent.canonicalize(), Vec::new()) else { return Vec::new() };
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let lock = FlockOperation::NonBlockingLockExclusive;
        if let Some(marker) = lock_marker(&path, lock) {
            let done = reclaim(&path, marker);
            found.push((path, done));
        }
    }
    found
}

/// Waits until the maker of a directory of ours has ended, and reclaims the directory if it is there
/// still. Whether it was.
pub fn wait_and_reclaim(path: &Path) -> Result<bool, Error> {
    match lock_marker(path, FlockOperation::LockExclusive) {
        Some(marker) => reclaim(path, marker).map(|()| true),
        None => Ok(false),
    }
}

/// The marker of a directory, locked; `None` if there is none that proves it ours, or its maker
/// lives.
fn lock_marker(path: &Path, how: FlockOperation) -> Option<File> {
    // What is opened is examined, not what has the name at another moment: a user who may rename in
    // the directory above could put another marker there, and its commands would run.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let marker = rustix::fs::openat(&directory, MARKER, flags, Mode::empty()).ok()?;
    let (above, own) = (fstat(&directory).ok()?, fstat(&marker).ok()?);
    if !is_only_ours(&above) || !is_only_ours(&own) {
        return None;
    }
    flock(&marker, how).ok()?;
    // The last owner of the lock may have removed it.
    (fstat(&marker).ok()?.st_nlink > 0 && path.join(MARKER).exists()).then(|| marker.into())
}

fn reclaim(path: &Path, marker: File) -> Result<(), Error> {
    let mut text = String::new();
    let read = marker.take(MARKER_BYTES_MAX).read_to_string(&mut text);
    read.map_err(Error::io("cannot read", &path.join(MARKER)))?;
    // The last line may be cut off; nothing was done yet for it then.
    let lines: Vec<Line> = text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    let Some(Line::Made { owner, boot: made_in }) = lines.first() else {
        return Err(Error::Refused(format!("{}: its marker cannot be read", path.display())));
    };
    if *made_in == boot() {
        undo(path, owner, &lines)?;
    }
    remove(path)?;
    for line in &lines {
        if let Line::Further(further) = line
            && let Some(marker) = lock_marker(further, FlockOperation::NonBlockingLockExclusive)
        {
            reclaim(further, marker)?;
        }
    }
    Ok(())
}

/// Ends and unmounts what one experiment started.
fn undo(path: &Path, owner: &Owner, lines: &[Line]) -> Result<(), Error> {
    let (services, loads): (Vec<_>, Vec<_>) =
        owned_by(owner).into_iter().partition(|process| process.is_service);
    let left = end(&loads, END_PATIENCE);
    if left > 0 {
        let what = format!("{left} processes of {} do not end", path.display());
        return Err(Error::Refused(what));
    }
    for line in lines.iter().rev() {
        match line {
            Line::Leave(command) => {
                // Its mount may be gone already; what is mounted still is found below.
                let _ = process::output("sh", &["-c", command]);
            }
            Line::Runtime(program) => remove_containers(program, owner),
            Line::Made { .. } | Line::Further(_) => {}
        }
    }
    unmount_below(path, UnmountFlags::empty())?;
    detach_loops(path);
    unmount_below(path, UnmountFlags::empty())?;
    let left = end(&services, END_PATIENCE);
    unmount_below(path, UnmountFlags::DETACH)?;
    detach_loops(path);
    if left > 0 {
        let what = format!("{left} processes of {} do not end", path.display());
        return Err(Error::Refused(what));
    }
    Ok(())
}

fn unmount_below(path: &Path, flags: UnmountFlags) -> Result<(), Error> {
    for mount in mounts_below(path)? {
        // What is in use is unmounted later, or named when the directory cannot be removed.
        let is_done = unmount(&mount, flags).is_ok();
        if !is_done && !rustix::process::geteuid().is_root() {
            let _ = process::output("fusermount3", &["-u", &mount.display().to_string()]);
        }
    }
    Ok(())
}

/// Detaches the loop devices whose files lie below a directory.
fn detach_loops(path: &Path) {
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(backing.trim_end()).starts_with(path) {
            let device = Path::new("/dev").join(entry.file_name());
            // In use, it goes with its last user.
            let _ = process::output("losetup", &["--detach", &device.display().to_string()]);
        }
    }
}

/// Removes the containers with an experiment's label, and its image.
fn remove_containers(program: &Path, owner: &Owner) {
    owner.remove_containers(program);
    let program = program.display().to_string();
    // There is one only where the runtime keeps images of its own.
    let _ = process::output(&program, &["image", "rm", "-f", &owner.image()]);
}
