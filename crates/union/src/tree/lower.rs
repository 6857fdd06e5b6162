//! The lower files of partial copies, which are open while they are in use, and for some time
//! afterwards.
//!
//! A path may lead to another file by the time it is opened again, and an open file may have been
//! changed. So each read compares the file with the record of the journal: bytes of two versions
//! never mix. The file handle is compared only after a file was opened, because an open file keeps
//! its inode.

use std::rc::Rc;

use rustix::io::Errno;

use super::{Node, Tree, path_of};
use crate::backing::Backing;
use crate::store::{Lower, Partial};

/// The lower file of a partial copy, as reads of it need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowerFile<'a> {
    tree: &'a Tree,
    node: &'a Rc<Node>,
    partial: &'a Rc<Partial>,
}

impl Lower for LowerFile<'_> {
    fn file(&self) -> Result<Rc<Backing>, Errno> {
        self.tree.lower_of(self.node, self.partial)
    }

    fn damaged(&self, offset: u64) -> Errno {
        self.tree.rotten(self.node, self.partial, offset)
    }
}

impl Tree {
    /// Notes that the lower file of a partial copy is open.
    pub(super) fn note_lower(&self, partial: &Rc<Partial>) {
        self.kept.note_lower(partial);
    }

    /// Returns the lower file of a partial copy, to be opened when bytes of it are needed.
    pub(crate) fn lower_file<'a>(
        &'a self,
        node: &'a Rc<Node>,
        partial: &'a Rc<Partial>,
    ) -> LowerFile<'a> {
        LowerFile { tree: self, node, partial }
    }

    /// Returns the lower file of a partial copy, for reading.
    ///
    /// # Errors
    /// `EIO` if it is not the one that was copied up, or not as it was.
    pub(crate) fn lower_of(
        &self,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<Rc<Backing>, Errno> {
        self.source_of(node, partial)?.map_err(|reason| self.changed(node, reason))
    }

    /// Returns why the bytes that a partial copy lacks cannot be read; `None` if they can.
    pub(crate) fn lower_trouble(
        &self,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<Option<&'static str>, Errno> {
        Ok(self.source_of(node, partial)?.err())
    }

    /// Returns the lower file of a partial copy, or why there is none.
    fn source_of(
        &self,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<Result<Rc<Backing>, &'static str>, Errno> {
        let lower = match partial.open_lower() {
            Some(lower) => lower,
            None => match self.open_lower(node) {
                Ok(fd) => {
                    partial.forget_identity();
                    Backing::new(fd, false)
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                    return Ok(Err("it is gone"));
                }
                Err(errno) => return Err(errno),
            },
        };
        if let Some(difference) = partial.difference(&lower)? {
            let path = path_of(node);
            if !self.accepted.borrow().contains(&path) || !partial.accept(&lower)? {
                return Ok(Err(difference));
            }
            let path = String::from_utf8_lossy(&path);
            tracing::warn!(%path, difference, "as asked for, what was not copied is taken from the lower \
                file as it is now");
        }
        if partial.keep_lower(&lower) {
            self.note_lower(partial);
        }
        Ok(Ok(lower))
    }

    /// Logs that a lower file cannot be read any more.
    fn changed(&self, node: &Rc<Node>, reason: &str) -> Errno {
        let path = path_of(node);
        let path = String::from_utf8_lossy(&path);
        tracing::error!(%path, reason, "the lower file was changed below a partial copy; what was not \
            copied yet cannot be read");
        self.last_error
            .note(&format!("reading {path}: the lower file was changed: {reason}"), Errno::IO);
        Errno::IO
    }
}
