//! Making names durable: of directories, of those above them that are new too, and of the index.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Durability;
use crate::copier::{Goal, SyncMethod, ToSync};
use crate::sys;
use crate::tree::Node;

/// Directories with names that are being made durable. The caller that does so reports the outcome
/// by [`Durability::end_new_names`]; until then they count as not durable for all other callers.
#[derive(Debug, Default)]
pub(super) struct NewNames {
    directories: Vec<Rc<Node>>,
    has_index: bool,
    /// Partial files that had lost their names by then.
    losses: u64,
    /// The files to sync, the index first.
    pub(super) files: Vec<ToSync>,
}

impl NewNames {
    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.directories.len() + usize::from(self.has_index)
    }
}

impl Durability {
    /// Makes the names of directories durable, and of those above them that are new too.
    pub(crate) async fn sync_directories(&self, directories: Vec<Rc<Node>>) -> Result<(), Errno> {
        let mut names = self.take_new_names(directories)?;
        let files = std::mem::take(&mut names.files);
        if files.is_empty() {
            return Ok(());
        }
        let sync_method = self.tree.upper()?.sync_method.clone();
        let results = self.committer.copier.sync(files, sync_method, Goal::Durable).await;
        self.end_new_names(&names, &results)
    }

    /// Takes the names of directories that are not durable.
    pub(super) fn take_new_names(&self, directories: Vec<Rc<Node>>) -> Result<NewNames, Errno> {
        let losses = self.losses.count();
        let mut names = NewNames { losses, ..NewNames::default() };
        if let Some(index) = self.tree.index() {
            names.has_index = index.begin_sync();
        }
        for mut directory in directories {
            loop {
                let state = directory.directory().ok_or(Errno::NOTDIR)?;
                let is_known = names.directories.iter().any(|known| Rc::ptr_eq(known, &directory));
                // Names that other callers are syncing are not durable yet.
                let is_due = state.has_new_names.replace(false) || state.names_syncing.get() > 0;
                if is_due && !is_known {
                    state.names_syncing.set(state.names_syncing.get() + 1);
                    names.directories.push(Rc::clone(&directory));
                }
                let Some(link) = directory.link() else { break };
                directory = link.parent;
            }
        }
        match self.files_of(&names) {
            Ok(files) => Ok(NewNames { files, ..names }),
            Err(errno) => {
                self.end_new_names(&names, &vec![Err(errno); names.count()]).map(|()| names)
            }
        }
    }

    fn files_of(&self, names: &NewNames) -> Result<Vec<ToSync>, Errno> {
        let file = |directory: BorrowedFd<'_>| {
            if let SyncMethod::Commit { mark, .. } = &self.tree.upper()?.sync_method {
                return Ok(ToSync::Names(mark.clone()));
            }
            let open = sys::open_below(directory, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(ToSync::Names(reactor::File::from_handle(reactor::Handle::from_fd(open))))
        };
        let mut files = Vec::with_capacity(names.directories.len() + 1);
        if let Some(index) = self.tree.index().filter(|_| names.has_index) {
            files.push(file(index.directory().as_fd())?);
        }
        for directory in &names.directories {
            files.push(file(self.tree.upper_part(directory)?.as_fd())?);
        }
        Ok(files)
    }

    /// Records the outcome of syncing. Names that are still not durable remain so for the next
    /// caller.
    pub(super) fn end_new_names(
        &self,
        names: &NewNames,
        results: &[Result<(), Errno>],
    ) -> Result<(), Errno> {
        let mut results = results.iter();
        let mut outcome = Ok(());
        if let Some(index) = self.tree.index().filter(|_| names.has_index) {
            let result = *results.next().unwrap_or(&Err(Errno::IO));
            index.end_sync(result.is_ok());
            outcome = result;
        }
        let mut durable = Vec::with_capacity(names.directories.len());
        for directory in &names.directories {
            let result = *results.next().unwrap_or(&Err(Errno::IO));
            if let Some(state) = directory.directory() {
                state.names_syncing.set(state.names_syncing.get() - 1);
            }
            match result {
                Ok(()) => durable.push(directory),
                Err(_) => self.note_new_name(directory),
            }
            outcome = outcome.and(result);
        }
        self.record_losses(&durable, names.losses);
        outcome
    }
}
