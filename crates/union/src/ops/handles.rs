//! The handles of a mount: open files, and listings of open directories.

use std::cell::RefCell;
use std::rc::Rc;

use fuse::FileHandle;
use rustix::io::Errno;
use slab::Slab;

use crate::tree::{Listing, OpenFile};

/// A listing that one open directory reads.
type OpenListing = Rc<RefCell<Listing>>;

/// The handles that programs have open.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    files: RefCell<Slab<Rc<OpenFile>>>,
    listings: RefCell<Slab<OpenListing>>,
}

impl Handles {
    /// Returns an open file; `EBADF` if there is none.
    pub(super) fn file(&self, handle: FileHandle) -> Result<Rc<OpenFile>, Errno> {
        self.files.borrow().get(handle.0 as usize).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn add_file(&self, file: Rc<OpenFile>) -> FileHandle {
        FileHandle(self.files.borrow_mut().insert(file) as u64)
    }

    pub(super) fn remove_file(&self, handle: FileHandle) -> Result<Rc<OpenFile>, Errno> {
        self.files.borrow_mut().try_remove(handle.0 as usize).ok_or(Errno::BADF)
    }

    /// Returns how many files are open.
    pub(super) fn file_count(&self) -> usize {
        self.files.borrow().len()
    }

    /// Returns the listing of an open directory; `EBADF` if there is none.
    pub(super) fn listing(&self, handle: FileHandle) -> Result<OpenListing, Errno> {
        self.listings.borrow().get(handle.0 as usize).cloned().ok_or(Errno::BADF)
    }

    pub(super) fn add_listing(&self) -> FileHandle {
        FileHandle(self.listings.borrow_mut().insert(Rc::default()) as u64)
    }

    pub(super) fn remove_listing(&self, handle: FileHandle) -> Result<(), Errno> {
        self.listings.borrow_mut().try_remove(handle.0 as usize).ok_or(Errno::BADF).map(drop)
    }

    /// Continues with the handles of an earlier server, by their numbers.
    pub(crate) fn restore(&self, files: Vec<(usize, Rc<OpenFile>)>, directories: &[usize]) {
        *self.files.borrow_mut() = Slab::from_iter(files);
        let listings = directories.iter().map(|&handle| (handle, Rc::default()));
        *self.listings.borrow_mut() = Slab::from_iter(listings.collect::<Vec<_>>());
    }
}
