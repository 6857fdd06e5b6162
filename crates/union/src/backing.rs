//! An open file of a layer, shared by all handles that read or write it.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use reactor::{File, Handle};
use rustix::io::Errno;

use crate::sys;

/// An open file below a node.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: File,
    is_writable: bool,
}

impl Backing {
    pub(crate) fn new(fd: OwnedFd, is_writable: bool) -> Rc<Self> {
        Self::of(File::from_handle(Handle::from_fd(fd)), is_writable)
    }

    /// Returns the backing of a file that is open.
    pub(crate) fn of(file: File, is_writable: bool) -> Rc<Self> {
        Rc::new(Self { file, is_writable })
    }

    /// Returns whether it may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Runs a system call on the descriptor.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        call(self.file.handle().as_fd().map_err(sys::errno_of)?)
    }
}
