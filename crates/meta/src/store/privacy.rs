//! Closing a store to other users: it contains the identifiers with which hosts are admitted at
//! targets.

use std::fs::{DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Creates a store's directory if it is missing, closed to other users, and closes everything in
/// it. Returns the number of files and directories that were open to others.
///
/// # Errors
/// If something in it belongs to another user, or cannot be closed.
pub(super) fn close(directory: &Path) -> io::Result<usize> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    let mut opened = 0;
    // The directory first: from then on no other user reaches its content.
    close_one(directory, &std::fs::metadata(directory)?, &mut opened)?;
    close_below(directory, &mut opened)?;
    Ok(opened)
}

fn close_below(directory: &Path, opened: &mut usize) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let data = match entry.metadata() {
            Ok(data) => data,
            // A file that disappears meanwhile needs no closing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if data.is_symlink() {
            let path = entry.path();
            return Err(io::Error::other(format!("{} is a symbolic link", path.display())));
        }
        close_one(&entry.path(), &data, opened)?;
        if data.is_dir() {
            close_below(&entry.path(), opened)?;
        }
    }
    Ok(())
}

fn close_one(path: &Path, data: &Metadata, opened: &mut usize) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if data.uid() != user {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} belongs to user {}, this process runs as user {user}: run it as that user, or \
                 `chown -R {user}` the store",
                path.display(),
                data.uid()
            ),
        ));
    }
    if data.is_dir() {
        // New files in the directory would get its rights regardless of their mode.
        let mut nothing: [u8; 0] = [];
        let list = rustix::fs::getxattr(path, DEFAULT_ACL, nothing.as_mut_slice());
        if list.is_ok_and(|bytes| bytes > 0) {
            rustix::fs::removexattr(path, DEFAULT_ACL)?;
            *opened += 1;
        }
    }
    let is_open = data.mode() & 0o077 != 0;
    if is_open {
        *opened += 1;
        let mode = if data.is_dir() { DIRECTORY_MODE } else { FILE_MODE };
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files that others could open are closed, at all depths, and closed ones stay as they
    /// are.
    #[test]
    fn everything_is_closed() {
        let base = tempfile::tempdir().unwrap();
        let store = base.path().join("above").join("store");
        assert_eq!(close(&store).unwrap(), 0);
        let below = store.join("below");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("file"), "secret").unwrap();
        for path in [&store, &below, &below.join("file")] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(close(&store).unwrap(), 3);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&store), mode(&below), mode(&below.join("file"))), (0o700, 0o700, 0o600));
        assert_eq!(close(&store).unwrap(), 0);
        std::os::unix::fs::symlink("/etc/passwd", below.join("link")).unwrap();
        assert!(close(&store).is_err());
    }
}
