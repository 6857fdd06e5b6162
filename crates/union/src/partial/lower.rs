//! The lower files of partial copies, which are open only as long as they are in use, or among the last
//! that were.
//!
//! A file that is opened anew by its path may be another one by then. So whoever reads compares it with
//! what the journal recorded, each time: bytes of two versions never mix.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

use ring::file::FileHandle;
use rustix::io::Errno;

use super::{Partial, time};
use crate::files::Backing;
use crate::journal::LowerIdentity;
use crate::node::Node;
use crate::sys::{self, Stat};
use crate::tree::Union;

/// Partial copies whose lower files are open: the first in line are closed, but for those that were used
/// since they came into the line.
#[derive(Debug, Default)]
pub(crate) struct OpenLowers(RefCell<VecDeque<Weak<Partial>>>);

impl OpenLowers {
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
    LowerIdentity {
        handle,
        inode: stat.inode,
        size_bytes: stat.size,
        mtime: time(stat.mtime),
        ctime: time(stat.ctime),
        ..LowerIdentity::default()
    }
}

impl Partial {
    /// Whether an open file is the one that was copied up, as it was.
    fn is_of(&self, lower: &Backing) -> Result<bool, Errno> {
        let found = lower.with(|fd| Ok(identity(fd, &sys::stat_at(fd, b"")?)))?;
        let journal = self.store.journal();
        let file = journal.file(self.file).ok_or(Errno::STALE)?;
        Ok(file.lower().is_some_and(|known| known.is_unchanged(&found)))
    }
}

impl Union {
    /// Notes that the lower file of a partial copy is open.
    pub(super) fn note_lower(&self, partial: &Rc<Partial>) {
        self.shared.open_lowers.note(partial, self.shared.descriptors.lowers_max);
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
        let open = partial.lower.borrow().clone();
        let lower = match open {
            Some(lower) => {
                partial.is_lower_used.set(true);
                lower
            }
            None => match self.open_lower(node) {
                Ok(fd) => Backing::new(fd, false),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {
                    return Err(changed(node));
                }
                Err(errno) => return Err(errno),
            },
        };
        if !partial.is_of(&lower)? {
            return Err(changed(node));
        }
        let is_new = partial.lower.borrow_mut().replace(Rc::clone(&lower)).is_none();
        if is_new {
            self.note_lower(partial);
        }
        Ok(lower)
    }
}

/// Tells that a lower file cannot be read any more.
fn changed(node: &Rc<Node>) -> Errno {
    let path = crate::tree::path_of(node);
    let path = String::from_utf8_lossy(&path);
    tracing::error!(%path, "the lower file was changed below a partial copy; what was not \
        copied yet cannot be read");
    Errno::IO
}
