//! Partial files as nodes: found by their names, with the lower files that they need.

use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::io::Errno;

use super::{Found, Node, Place, Tree};
use crate::journal::{FileId, JournalError};
use crate::store::Partial;
use crate::sys::{self, Stat};

impl Tree {
    /// Returns the partial file of a name that only the lower layers have.
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
        Ok(store.lookup(&*directory, name))
    }

    /// Attaches the partial file to the node of its name.
    pub(crate) fn adopt_partial(&self, node: &Rc<Node>, file: FileId) -> Result<Stat, Errno> {
        self.attach(node, file)?;
        self.stat(node)
    }

    /// Makes a node a partial file whose lower one is open.
    pub(crate) fn make_partial(&self, node: &Node, partial: Rc<Partial>) {
        self.note_lower(&partial);
        node.set_place(Place::Partial(partial));
    }

    /// Makes a node the partial file that the journal has.
    fn attach(&self, node: &Rc<Node>, file: FileId) -> Result<(), Errno> {
        let store = self.store.as_ref().ok_or(Errno::IO)?;
        let lower = self.open_lower(node)?;
        let stat = sys::stat_at(lower.as_fd(), b"")?;
        self.make_partial(node, Rc::new(Partial::new(store, file, lower, stat)));
        Ok(())
    }

    /// Logs that stored bytes of a partial copy cannot be read.
    pub(super) fn rotten(&self, node: &Rc<Node>, partial: &Partial, offset: u64) -> Errno {
        let path = super::path_of(node);
        let path = String::from_utf8_lossy(&path);
        let error = JournalError::Damaged { file: partial.file(), offset };
        tracing::error!(%path, %error, "stored bytes of a partial copy are not what was written; \
            `tsumugi union check` says what else is concerned");
        self.note_error(&format!("reading {path}: {error}"), Errno::IO);
        Errno::IO
    }
}
