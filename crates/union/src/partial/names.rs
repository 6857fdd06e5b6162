//! Names of partial files: found by directory and name, lost by unlink and by being replaced.
//!
//! What the upper directory has under a name is newer than what the journal says of it, always: a
//! whiteout is made first, and recorded afterwards.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::complete::directories_below;
use super::{Partial, failed, has_name, key_of, open_parent};
use crate::journal::{Directory, FileId, Journal, JournalError, NameChange};
use crate::layers::Upper;
use crate::node::Node;
use crate::sys::{self, Stat};
use crate::tree::{Found, Union};

impl Union {
    /// The partial file of a name that only the lower layers have.
    pub(crate) fn find_partial(
        &self,
        parent: &Rc<Node>,
        name: &[u8],
        found: &Found,
    ) -> Result<Option<FileId>, Errno> {
        let Some(store) = &self.store else { return Ok(None) };
        if found.is_upper || !found.stat.is_regular() || store.is_empty() {
            return Ok(None);
        }
        let Some(directory) = self.part(parent, 0)? else { return Ok(None) };
        // Without handles there has never been a partial file.
        let Ok(key) = key_of(directory.as_fd()) else { return Ok(None) };
        Ok(store.journal().lookup(&key, name))
    }

    /// Makes the node of a name the partial file that it is.
    pub(crate) fn adopt_partial(&self, node: &Rc<Node>, file: FileId) -> Result<Stat, Errno> {
        self.attach(node, file)?;
        self.stat(node)
    }

    /// Takes its name from a partial file, in the journal; who has it open goes on.
    pub(crate) fn lose_partial_name(&self, partial: &Partial, parent: &Rc<Node>, name: &[u8]) {
        partial.is_nameless.set(true);
        let recorded = (|| {
            let key = key_of(self.upper_part(parent)?.as_fd())?;
            let change = NameChange::Remove(partial.file, key, name.into());
            let changed = partial.store.journal_mut().change_names(vec![change]);
            changed.map_err(|error| failed(&error))
        })();
        if let Err(errno) = recorded {
            // The whiteout, or what replaced the file, hides it from the next mount.
            tracing::warn!(%errno, "the end of a partial copy's name could not be recorded");
        }
    }
}

/// Forgets files whose directory is gone, or whose name the upper directory has meanwhile. Who may
/// not open by handle finds the directories by going through all of them.
pub(super) fn forget_stale(
    journal: &mut Journal<Directory>,
    upper: &Upper,
) -> Result<(), JournalError> {
    let mut directories = None;
    let mut stale = Vec::new();
    for (file, copy_up) in journal.files() {
        let Some(name) = copy_up.names().first() else { continue };
        let parent = match open_parent(upper, &name.parent) {
            Err(Errno::PERM | Errno::OPNOTSUPP) => {
                let root = upper.root.as_fd();
                let found = directories.get_or_insert_with(|| directories_below(root));
                match found {
                    Ok(found) => open_found(root, found.get(&name.parent).map(|path| &**path)),
                    Err(errno) => Err(*errno),
                }
            }
            other => other,
        };
        let is_stale = match parent {
            Ok(parent) => has_name(parent.as_fd(), &name.name)?,
            Err(Errno::STALE) => true,
            // Nobody can tell: it stays, and never shows.
            Err(_) => false,
        };
        if is_stale {
            stale.push(file);
        }
    }
    for file in stale {
        journal.drop_file(file)?;
    }
    Ok(())
}

/// Opens a directory of the upper one; `ESTALE` if there is none.
fn open_found(root: BorrowedFd<'_>, path: Option<&[u8]>) -> Result<OwnedFd, Errno> {
    let path = path.ok_or(Errno::STALE)?;
    sys::open_below(root, path, OFlags::PATH | OFlags::DIRECTORY)
}
