//! Handles of open files.

use crate::dirty::failures::Told;
use crate::inode::Inode;
use crate::session::life::SessionStamp;
use protocol::InodeId;
use std::rc::Rc;

/// What a file is opened for.
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
    /// Session in which it was opened for writing: what was written before a loss is lost.
    pub(crate) session: SessionStamp,
    /// What failed and need not be told any more.
    pub(crate) told: Told,
}

impl Handle {
    /// The inode.
    pub fn inode(&self) -> InodeId {
        self.inode.id
    }
}
