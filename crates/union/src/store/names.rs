//! Names of partial files in the upper directory.
//!
//! An entry of the upper directory is always newer than the record of its name in the journal: a
//! whiteout is made first, and recorded afterwards.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::keys::{directories_below, has_name, open_parent};
use crate::format::{Opaque, Prefix, suffix};
use crate::journal::{Directory, FileId, Journal, JournalError, Name, ParentKey, Stage};
use crate::layers::Upper;
use crate::sys;

/// The paths of directories by their keys, or why they could not be found.
type Directories = Result<HashMap<ParentKey, Box<[u8]>>, Errno>;

/// The names of partial files in the upper directory.
pub(super) struct Shown<'a> {
    upper: &'a Upper,
    /// The prefix of the union's own attributes. Those of the other class are ordinary ones.
    prefix: Prefix,
    /// Directories by their keys, once they had to be searched for: users that may not open by
    /// handle go through all of them.
    found: Option<Directories>,
}

impl<'a> Shown<'a> {
    pub(super) fn of(upper: &'a Upper, prefix: Prefix) -> Self {
        Self { upper, prefix, found: None }
    }

    /// Returns whether the directory of a name is gone or made opaque, or has something under the
    /// name.
    pub(super) fn hides(&mut self, name: &Name) -> Result<bool, JournalError> {
        match self.open(&name.parent) {
            Ok(parent) => {
                Ok(has_name(parent.as_fd(), &name.name)? || is_opaque(parent.as_fd(), self.prefix)?)
            }
            Err(Errno::STALE) => Ok(true),
            // The directory cannot be reached: the file stays in the journal and never shows.
            Err(_) => Ok(false),
        }
    }

    fn open(&mut self, key: &ParentKey) -> Result<OwnedFd, Errno> {
        match open_parent(self.upper, key) {
            Err(Errno::PERM | Errno::OPNOTSUPP) => {
                let root = self.upper.root.as_fd();
                match self.found.get_or_insert_with(|| directories_below(root)) {
                    Ok(found) => open_found(root, found.get(key).map(|path| &**path)),
                    Err(errno) => Err(*errno),
                }
            }
            other => other,
        }
    }
}

/// Finds files whose directory is gone or made opaque, or whose name the upper directory has
/// meanwhile.
pub(super) fn find_stale(
    journal: &Journal<Directory>,
    shown: &mut Shown<'_>,
) -> Result<Vec<FileId>, JournalError> {
    let mut stale = Vec::new();
    for (file, copy_up) in journal.files() {
        let Some(name) = copy_up.names().first() else { continue };
        // Any other has its name, by [`super::recover`].
        if *copy_up.stage() == Stage::Open && shown.hides(name)? {
            stale.push(file);
        }
    }
    Ok(stale)
}

/// Returns whether nothing of lower layers shows in a directory. One with a partial file is made so
/// only after all in it was removed, when another directory is about to replace it.
fn is_opaque(directory: BorrowedFd<'_>, prefix: Prefix) -> Result<bool, JournalError> {
    match sys::xattr(directory, &prefix.name(suffix::OPAQUE)) {
        Ok(value) => Ok(value.is_some_and(|value| Opaque::parse(&value) == Opaque::Yes)),
        Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(false),
        Err(errno) => Err(JournalError::io("reading a directory's marks", errno.into())),
    }
}

/// Opens a directory of the upper one; `ESTALE` if there is none.
fn open_found(root: BorrowedFd<'_>, path: Option<&[u8]>) -> Result<OwnedFd, Errno> {
    let path = path.ok_or(Errno::STALE)?;
    sys::open_below(root, path, OFlags::PATH | OFlags::DIRECTORY)
}
