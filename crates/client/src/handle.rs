//! Handles of open files.

use crate::dirty::failures::ReportedFailures;
use crate::inode::Inode;
use crate::session::life::SessionStamp;
use protocol::InodeId;
use std::rc::Rc;

/// The purpose of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Data will be written.
    pub write: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub append: bool,
    /// Every write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
}

/// An open file.
#[derive(Debug)]
pub struct Handle {
    pub(crate) inode: Rc<Inode>,
    /// What it was opened for.
    pub mode: OpenMode,
    /// The session in which it was opened for writing. What was written before a loss of the
    /// session is lost.
    pub(crate) session: SessionStamp,
    /// Failures that this handle has reported, or need not report.
    pub(crate) reported: ReportedFailures,
}

impl Handle {
    /// Returns the inode.
    pub fn inode(&self) -> InodeId {
        self.inode.id
    }
}
