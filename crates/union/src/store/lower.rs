//! The identity of a lower file, recorded at its copy-up.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use reactor::file::FileHandle;
use rustix::io::Errno;

use super::{Partial, digest, time};
use crate::backing::Backing;
use crate::journal::LowerIdentity;
use crate::sys::{self, Stat};

/// Returns the identity of a lower file.
pub(crate) fn identity(fd: BorrowedFd<'_>, stat: &Stat) -> LowerIdentity {
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
    /// Describes the difference between an open file and the one that was copied up; `None` if
    /// there is none.
    pub(crate) fn difference(&self, lower: &Backing) -> Result<Option<&'static str>, Errno> {
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
        if lower.with(|fd| digest::is_same(known, fd, &found))? {
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

    /// Accepts the lower file as the one that was copied up, if it is at least as long.
    pub(crate) fn accept(&self, lower: &Backing) -> Result<bool, Errno> {
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

    /// Returns the lower file, if it is open; notes that it is used.
    pub(crate) fn open_lower(&self) -> Option<Rc<Backing>> {
        let lower = self.lower.borrow().clone()?;
        self.is_lower_used.set(true);
        Some(lower)
    }

    /// Notes that the lower file was opened again: it may be another one.
    pub(crate) fn forget_identity(&self) {
        self.is_lower_known.set(false);
    }

    /// Keeps the lower file open, which was found to be the right one. Returns whether none was
    /// open.
    pub(crate) fn keep_lower(&self, lower: &Rc<Backing>) -> bool {
        let is_new = self.lower.borrow_mut().replace(Rc::clone(lower)).is_none();
        self.is_lower_known.set(true);
        is_new
    }

    /// Closes the lower file; a running read keeps it open until it is done.
    pub(crate) fn close_lower(&self) {
        self.lower.take();
    }

    /// Returns whether the lower file was used since the last call.
    pub(crate) fn take_lower_use(&self) -> bool {
        self.is_lower_used.replace(false)
    }
}
