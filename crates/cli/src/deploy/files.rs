//! A job's files: claiming a backing file's name, and removing only files that the job created.

use super::mounts;
use super::place;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a lock of a killed process may outlive it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// The exclusive right to create a backing file, held until it is dropped: the lock on the name
/// under which the file is written.
#[derive(Debug)]
pub(crate) struct Claim {
    _locked: File,
}

impl Claim {
    /// Takes the right.
    ///
    /// # Errors
    /// If another job is creating the file.
    pub(crate) fn take(part: &Path) -> anyhow::Result<Claim> {
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let opened = rustix::fs::open(part, flags, Mode::from_raw_mode(0o600))
                .with_context(|| format!("cannot create {}", part.display()))?;
            let file = File::from(opened);
            place::require_own(&file, part)?;
            match file.try_lock() {
                Ok(()) if is_same(&file, part) => return Ok(Claim { _locked: file }),
                // The file was renamed or removed in the meantime.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another tsumugi is making {}: wait for it, or take another --job or \
                     --device-dir",
                    part.with_extension("").display()
                ),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", part.display()));
                }
            }
        }
    }
}

/// Returns whether a backing file exists already. Refuses one that other users can open.
pub(crate) fn find_own(path: &Path) -> anyhow::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from) {
        Ok(file) => File::from(file),
        Err(error) if place::is_absent(&error) => return Ok(false),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot use {}", path.display()));
        }
    };
    place::require_own(&file, path)?;
    let mode = file.metadata().with_context(|| format!("cannot use {}", path.display()))?.mode();
    if mode & 0o077 != 0 {
        bail!(
            "{} is open to other users (mode {:o}): `chmod 600` it",
            path.display(),
            mode & 0o777
        );
    }
    Ok(true)
}

/// Returns whether a path still names an open file.
pub(crate) fn is_same(file: &File, path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path).map(|data| (data.dev(), data.ino()));
    there.is_ok_and(|there| file.metadata().is_ok_and(|own| there == (own.dev(), own.ino())))
}

/// Removes an unfinished backing file, unless another job is writing it.
pub(crate) fn remove_part(path: &Path) -> anyhow::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(opened) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(()) };
    let file = File::from(opened);
    if file.try_lock().is_ok() && is_same(&file, path) { remove_file(path) } else { Ok(()) }
}

/// Removes a backing file that no process uses any more.
///
/// # Errors
/// If a process uses it or may use it, or the file cannot be removed.
pub(crate) fn remove_unused(path: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let unknown = || format!("cannot find out whether {} is in use", path.display());
    while is_used(path).with_context(unknown)? {
        if Instant::now() >= deadline {
            bail!("{} is in use by another process: end that process first", path.display());
        }
        std::thread::sleep(PAUSE);
    }
    remove_file(path)
}

/// Returns whether a process holds the lock of a device's owner.
fn is_used(path: &Path) -> Result<bool, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        // Nobody uses a link or a socket as a device.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Removes a file. A missing file is no error, nor is a parent that is not a directory.
pub(crate) fn remove_file(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if !place::is_absent(&error) => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory with its content, but nothing on another file system: a leftover mount in it
/// may belong to others.
pub(crate) fn remove_tree(path: &Path) -> anyhow::Result<()> {
    if let Some(mount) = mounts::below(path)?.first() {
        bail!(
            "{} is still a mount: nothing in {} was deleted",
            mount.path.display(),
            path.display()
        );
    }
    let device = std::fs::symlink_metadata(path)
        .with_context(|| format!("cannot examine {}", path.display()))?
        .dev();
    remove_below(path, device).with_context(|| format!("cannot remove {}", path.display()))
}

/// The depth has a bound: that of the job's own directories.
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// Goal: a file that a stranger could have put in the place of a device is not used.
    #[test]
    fn strangers_files_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let (path, other) = (base.path().join("j@n.device"), base.path().join("other"));
        assert!(!find_own(&path).unwrap());
        std::fs::write(&other, "x").unwrap();
        std::fs::hard_link(&other, &path).unwrap();
        assert!(find_own(&path).is_err(), "a second name");
        std::fs::remove_file(&other).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o606)).unwrap();
        assert!(find_own(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(find_own(&path).unwrap());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            assert!(find_own(&path).is_err() && Claim::take(&path).is_err());
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(base.path(), &path).unwrap();
        assert!(find_own(&path).is_err(), "a link");
    }

    /// Goal: one job at a time creates a file; another does not remove its unfinished file.
    #[test]
    fn a_name_is_claimed_once() {
        let base = tempfile::tempdir().unwrap();
        let part = base.path().join("job@node1.device.part");
        let claim = Claim::take(&part).unwrap();
        let refused = Claim::take(&part).unwrap_err().to_string();
        assert!(refused.contains("job@node1.device"), "{refused}");
        remove_part(&part).unwrap();
        assert!(part.exists(), "it belongs to another job");
        drop(claim);
        remove_part(&part).unwrap();
        assert!(!part.exists());
        remove_part(&part).unwrap();
        remove_unused(&part.join("below/a/file")).unwrap();
    }
}
