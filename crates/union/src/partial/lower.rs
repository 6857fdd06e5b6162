//! The lower files of partial copies, which are open only as long as they are in use, or among the last
//! that were.
//!
//! A file that is reopened by its path may be another one by then, and an open one may have been changed. So
//! each read compares it with the journal's record: bytes of two versions never mix. The handle is checked only
//! after reopening, since an open file stays the same.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use reactor::file::FileHandle;
use rustix::io::Errno;

use super::{Partial, digest, time};
use crate::backing::Backing;
use crate::journal::LowerIdentity;
use crate::node::Node;
use crate::sys::{self, Stat};
use crate::tree::Union;

/// Partial copies whose lower files are open: the first in line are closed, but for those that were used
/// since they came into the line.
#[derive(Debug, Default)]
pub(crate) struct OpenLowers(RefCell<VecDeque<Weak<Partial>>>);

impl OpenLowers {
    /// Closes all; a running read keeps its file open until it is done.
    pub(crate) fn close(&self) {
        for partial in self.0.take() {
            if let Some(partial) = partial.upgrade() {
                partial.lower.take();
            }
        }
    }

    /// Notes one that has just been opened, and closes others.
    fn note(&self, partial: &Rc<Partial>, most: usize) {
        let mut line = self.0.borrow_mut();
        line.push_back(Rc::downgrade(partial));
        while line.len() > most {
            let Some(first) = line.pop_front() else { return };
            let Some(first_partial) = first.upgrade() else { continue };
            if first_partial.is_lower_used.replace(false) {
                line.push_back(first);
            } else {
                // Whoever is just reading it has it open until he is done.
                first_partial.lower.take();
            }
        }
    }
}

/// What a lower file is known by.
pub(super) fn identity(fd: BorrowedFd<'_>, stat: &Stat) -> LowerIdentity {
    let handle = FileHandle::of(fd).map(|handle| handle.bytes).unwrap_or_default();
    LowerIdentity { handle, ..identity_without_handle(stat) }
}

fn identity_without_handle(stat: &Stat) -> LowerIdentity {
    LowerIdentity {
        inode: stat.inode,
        size_bytes: stat.size,
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        ..LowerIdentity::default()
    }
}

impl Partial {
    /// Describes the difference between an open file and the one that was copied up; `None` if there is none.
    fn difference(&self, lower: &Backing) -> Result<Option<&'static str>, Errno> {
        let is_known = self.is_lower_known.get();
        let found = lower.with(|fd| {
            let stat = sys::stat_at(fd, b"")?;
            Ok(if is_known { identity_without_handle(&stat) } else { identity(fd, &stat) })
        })?;
        let journal = self.store.journal();
        let file = journal.file(self.file).ok_or(Errno::STALE)?;
        let known = file.lower().ok_or(Errno::IO)?;
        let Some(difference) = known.difference(&found) else { return Ok(None) };
        if self.same.borrow().as_ref() == Some(&found) {
            return Ok(None);
        }
        if lower.with(|fd| digest::is_same(known, (fd, &found)))? {
            *self.same.borrow_mut() = Some(found);
            return Ok(None);
        }
        let is_rewritten = !known.digest.is_empty() && known.is_same_but_ctime(&found);
        Ok(Some(if is_rewritten {
            "its data is other data, and its mtime was set back"
        } else {
            difference
        }))
    }

    /// Takes the lower file as it is for the one that was copied up, if it is as long at least.
    fn accept(&self, lower: &Backing) -> Result<bool, Errno> {
        let found = lower.with(|fd| Ok(identity_without_handle(&sys::stat_at(fd, b"")?)))?;
        let journal = self.store.journal();
        let known = journal.file(self.file).and_then(|file| file.lower().map(|it| it.size_bytes));
        let is_long_enough = known.is_some_and(|size| found.size_bytes >= size);
        if is_long_enough {
            self.is_lower_known.set(true);
            *self.same.borrow_mut() = Some(found);
        }
        Ok(is_long_enough)
    }
}

impl Union {
    /// Notes that the lower file of a partial copy is open.
    pub(super) fn note_lower(&self, partial: &Rc<Partial>) {
        self.shared.open_lowers.note(partial, self.shared.lowers_max());
    }

    /// The lower file of a partial copy, for reading.
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

    /// Why what a partial copy lacks cannot be read; `None` if it can.
    pub(crate) fn lower_trouble(
        &self,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<Option<&'static str>, Errno> {
        Ok(self.source_of(node, partial)?.err())
    }

    /// The lower file of a partial copy, or why there is none.
    fn source_of(
        &self,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<Result<Rc<Backing>, &'static str>, Errno> {
        let open = partial.lower.borrow().clone();
        let lower = match open {
            Some(lower) => {
                partial.is_lower_used.set(true);
                lower
            }
            None => match self.open_lower(node) {
                Ok(fd) => {
                    partial.is_lower_known.set(false);
                    Backing::new(fd, false)
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                    return Ok(Err("it is gone"));
                }
                Err(errno) => return Err(errno),
            },
        };
        if let Some(difference) = partial.difference(&lower)? {
            let path = crate::tree::path_of(node);
            if !self.accepted.borrow().contains(&path) || !partial.accept(&lower)? {
                return Ok(Err(difference));
            }
            let path = String::from_utf8_lossy(&path);
            tracing::warn!(%path, difference, "as asked for, what was not copied is taken from the lower \
                file as it is now");
        }
        let is_new = partial.lower.borrow_mut().replace(Rc::clone(&lower)).is_none();
        partial.is_lower_known.set(true);
        if is_new {
            self.note_lower(partial);
        }
        Ok(Ok(lower))
    }

    /// Logs that a lower file cannot be read any more.
    fn changed(&self, node: &Rc<Node>, reason: &str) -> Errno {
        let path = crate::tree::path_of(node);
        let path = String::from_utf8_lossy(&path);
        tracing::error!(%path, reason, "the lower file was changed below a partial copy; what was not \
            copied yet cannot be read");
        self.last_error
            .note(&format!("reading {path}: the lower file was changed: {reason}"), Errno::IO);
        Errno::IO
    }
}
