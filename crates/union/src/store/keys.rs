//! Keys of directories, by which the journal knows where a partial file has its name.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reactor::file::FileHandle;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use crate::journal::{JournalError, ParentKey};
use crate::layers::Upper;
use crate::sys::{self, errno_of, join};

/// Returns the key of an open directory.
pub(crate) fn key_of(directory: BorrowedFd<'_>) -> Result<ParentKey, Errno> {
    let handle = FileHandle::of(directory).map_err(errno_of)?;
    let bytes = [&handle.kind.to_le_bytes()[..], &handle.bytes].concat();
    ParentKey::new(&bytes).map_err(|error| error.errno())
}

/// Returns the file handle that a key was made of.
fn handle_of(key: &ParentKey) -> Option<FileHandle> {
    let (kind, bytes) = key.as_bytes().split_first_chunk()?;
    Some(FileHandle { kind: i32::from_le_bytes(*kind), bytes: bytes.into() })
}

/// Returns whether a name is there.
pub(super) fn has_name(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, JournalError> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(JournalError::io("looking for a work file", errno.into())),
    }
}

/// Opens the directory that a key names, where this user may open by handle.
pub(super) fn open_parent(upper: &Upper, key: &ParentKey) -> Result<OwnedFd, Errno> {
    let handle = handle_of(key).ok_or(Errno::STALE)?;
    handle.open(upper.root.as_fd()).map_err(errno_of)
}

/// Returns the directories below one, and itself, by their keys, as paths from there.
pub(crate) fn directories_below(
    root: BorrowedFd<'_>,
) -> Result<HashMap<ParentKey, Box<[u8]>>, Errno> {
    let mut found = HashMap::new();
    let mut left: Vec<Box<[u8]>> = vec![Box::from([])];
    while let Some(path) = left.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let directory = sys::open_below(root, &path, flags)?;
        for entry in sys::list(directory.as_fd())? {
            let is_directory = match entry.kind {
                0 => sys::find_at(directory.as_fd(), &entry.name)?
                    .is_some_and(|stat| stat.is_directory()),
                kind => kind == libc::S_IFDIR,
            };
            if is_directory {
                left.push((&*join(&path, &entry.name)).into());
            }
        }
        found.insert(key_of(directory.as_fd())?, path);
    }
    Ok(found)
}
