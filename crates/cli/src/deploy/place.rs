//! The paths that can be trusted on a machine with other users.
//!
//! Some machines have the kernel's `protected_symlinks` off, so this module checks: below a
//! directory that others may write, it follows and uses nothing of another user. It checks
//! components from the root downwards. Only root and this user can rename a component that has
//! passed, so after later checks the path still names the same file.

use anyhow::{Context, bail};
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links in a path.
const LINKS_MAX: usize = 40;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;

/// The requirements on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The user chose it: below directories that all users may write, everything belongs to root or
    /// the user.
    Chosen,
    /// The program chose it, or root acts on it: all of it belongs to root or the user.
    Own,
}

/// Checks the existing part of `path`, as this process's user. A missing part is no error.
///
/// # Errors
/// The component that another user controls, and the fix.
pub(crate) fn check(path: &Path, trust: Trust) -> anyhow::Result<()> {
    check_as(path, trust, rustix::process::geteuid().as_raw())
}

/// As [`check`], for another user.
pub(crate) fn check_as(path: &Path, trust: Trust, user: u32) -> anyhow::Result<()> {
    let mut rest: Vec<PathBuf> = components(path);
    let mut here = PathBuf::from("/");
    let mut above = metadata(&here)?.context("there is no root directory")?;
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            here.pop();
            above = metadata(&here)?.context("a directory is gone")?;
            continue;
        }
        let next = here.join(&part);
        let Some(data) = metadata(&next)? else { return Ok(()) };
        refuse_stranger(&next, &data, &above, trust, user)?;
        if data.is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                bail!("{} has too many symbolic links", path.display());
            }
            let target = std::fs::read_link(&next)
                .with_context(|| format!("cannot read the link {}", next.display()))?;
            if target.is_absolute() {
                here = "/".into();
                above = metadata(&here)?.context("there is no root directory")?;
            }
            rest.extend(components(&target));
        } else {
            here = next;
            above = data;
        }
    }
    Ok(())
}

/// Returns the components of a path, the last first.
fn components(path: &Path) -> Vec<PathBuf> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut all: Vec<_> = named.collect();
    all.reverse();
    all
}

fn metadata(path: &Path) -> anyhow::Result<Option<Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(data) => Ok(Some(data)),
        Err(error) if is_absent(&error) => Ok(None),
        // A dead FUSE mount: it exists, with nothing below it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot examine {}", path.display())),
    }
}

/// Returns whether the error means that nothing is there, or that a component above is not a
/// directory.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns whether this user namespace does not know a user. The machine's root is such a user
/// there, and cannot be distinguished from strangers.
fn is_unmapped(uid: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if read("/proc/sys/kernel/overflowuid").trim() != uid.to_string() {
        return false;
    }
    // First user inside, first user outside, number of users: user_namespaces(7).
    let map = read("/proc/self/uid_map");
    map.split_ascii_whitespace().ne(["0", "0", "4294967295"])
}

fn refuse_stranger(
    path: &Path,
    data: &Metadata,
    above: &Metadata,
    trust: Trust,
    user: u32,
) -> anyhow::Result<()> {
    let is_shared = above.mode() & WRITABLE_BY_OTHERS != 0;
    let is_trusted = data.uid() == 0 || data.uid() == user || is_unmapped(data.uid());
    if !is_trusted && (is_shared || trust == Trust::Own) {
        let what = if data.is_symlink() { "is a symbolic link that" } else { "" };
        bail!(
            "{} {what} belongs to another user (uid {}), and is not used: remove it, or choose \
             another directory (see --dir, --device-dir and --mount-base)",
            path.display(),
            data.uid()
        );
    }
    if trust == Trust::Own
        && data.is_dir()
        && data.mode() & writable_by_strangers(data, user) != 0
        && data.mode() & STICKY == 0
    {
        bail!(
            "other users may write to {} (mode {:o}) and could replace its content: remove that \
             permission, or choose another directory (see --dir and --mount-base)",
            path.display(),
            data.mode() & 0o7777
        );
    }
    Ok(())
}

/// Returns the permissions with which users other than root and `user` can replace the content of a
/// directory. Root acts with all rights wherever the path leads, so it trusts no group but its own.
/// A user may trust the groups of a site's directories.
fn writable_by_strangers(data: &Metadata, user: u32) -> u32 {
    let is_groups = if user == 0 { data.gid() != 0 } else { data.uid() == user };
    if is_groups { WRITABLE_BY_OTHERS | WRITABLE_BY_GROUP } else { WRITABLE_BY_OTHERS }
}

/// Refuses an open file that another user created, or that has another name: in a directory that
/// others may write, a stranger may have put it there.
pub(crate) fn require_own(file: &File, path: &Path) -> anyhow::Result<()> {
    let data = file.metadata().with_context(|| format!("cannot examine {}", path.display()))?;
    let is_own = data.uid() == rustix::process::geteuid().as_raw();
    if !is_own || !data.is_file() || data.nlink() > 1 {
        bail!(
            "{} belongs to another user, is not a regular file, or has other names: remove it, or \
             choose another directory",
            path.display()
        );
    }
    Ok(())
}

/// Creates a directory and missing ones above it, with this mode, and checks all of them.
///
/// # Errors
/// If a part is not a directory, cannot be created, or cannot be trusted.
pub(crate) fn make_directories(path: &Path, mode: u32, trust: Trust) -> anyhow::Result<()> {
    check(path, trust)?;
    let mut missing: Vec<_> =
        path.ancestors().take_while(|path| std::fs::symlink_metadata(path).is_err()).collect();
    missing.reverse();
    for path in missing {
        match DirBuilder::new().mode(mode).create(path) {
            // Regardless of the umask.
            Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {}", path.display()))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    // Finds what another user created in the meantime.
    check(path, trust)?;
    require_directory(path)
}

/// Refuses an existing file that is not a directory.
pub(crate) fn require_directory(path: &Path) -> anyhow::Result<()> {
    let mut there = path.ancestors().filter_map(|path| match std::fs::metadata(path) {
        Ok(data) => Some(Ok((path, data))),
        Err(error) if is_absent(&error) => None,
        Err(error) => Some(Err((path, error))),
    });
    match there.next() {
        Some(Ok((path, data))) if !data.is_dir() => bail!(
            "{} is no directory: name one that is there, or one that can be made",
            path.display()
        ),
        Some(Err((path, error))) => {
            Err(error).with_context(|| format!("cannot use {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Goal: below a directory that all users may write, another user's link or directory is
    /// refused, and the user's own is used; a missing path is no error.
    #[test]
    fn strangers_links_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let shared = base.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        std::fs::create_dir(base.path().join("real")).unwrap();
        symlink(base.path().join("real"), shared.join("link")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        for path in ["link", "link/below", "missing/below"] {
            check_as(&shared.join(path), Trust::Chosen, own).unwrap();
        }
        if own != 0 {
            return;
        }
        let stranger = Some(rustix::fs::Uid::from_raw(4711));
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(rustix::fs::CWD, shared.join("link"), stranger, None, flags).unwrap();
        let refused = check_as(&shared.join("link/below"), Trust::Chosen, own).unwrap_err();
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        assert!(make_directories(&shared.join("link/below"), 0o700, Trust::Chosen).is_err());
        assert!(!base.path().join("real/below").exists(), "nothing was made behind the link");
        std::fs::create_dir(shared.join("taken")).unwrap();
        std::os::unix::fs::chown(shared.join("taken"), Some(4711), None).unwrap();
        assert!(check_as(&shared.join("taken"), Trust::Chosen, own).is_err());
        check_as(&shared.join("taken"), Trust::Chosen, 4711).unwrap();
    }

    /// Goal: a path that the program chose must belong to root or the user, with all its parts.
    #[test]
    fn own_places_are_own() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(check(&open, Trust::Own).is_err());
        assert!(check(&open.join("below"), Trust::Own).is_err());
        check(&open, Trust::Chosen).unwrap();
        make_directories(&base.path().join("a/b"), 0o700, Trust::Own).unwrap();
    }

    /// Goal: where a group may replace a directory, root does not act: a member could let the path
    /// lead anywhere. Root's own group and the sticky bit are no danger.
    #[test]
    fn root_trusts_no_group() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let scratch = base.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        for (group, mode, is_safe) in [
            (4711, 0o775, false),
            (4711, 0o2775, false),
            (4711, 0o1775, true),
            (4711, 0o755, true),
            (0, 0o775, true),
        ] {
            std::os::unix::fs::chown(&scratch, None, Some(group)).unwrap();
            std::fs::set_permissions(&scratch, Permissions::from_mode(mode)).unwrap();
            for path in [scratch.clone(), scratch.join("job/node1")] {
                let result = check_as(&path, Trust::Own, 0);
                assert_eq!(result.is_ok(), is_safe, "group {group}, mode {mode:o}: {result:?}");
            }
        }
        std::fs::set_permissions(&scratch, Permissions::from_mode(0o775)).unwrap();
        std::os::unix::fs::chown(&scratch, None, Some(4711)).unwrap();
        check_as(&scratch, Trust::Own, 4712).unwrap();
    }

    /// Goal: an error names a file that should be a directory, and nothing is created.
    #[test]
    fn files_are_no_directories() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.clone(), file.join("below")] {
            let refused = make_directories(&path, 0o700, Trust::Chosen).unwrap_err();
            assert!(format!("{refused:#}").contains("file"), "{refused:#}");
            assert!(require_directory(&path).unwrap_err().to_string().contains("no directory"));
        }
    }
}
