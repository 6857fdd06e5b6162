//! Open files and what they read and write.
//!
//! All handles of a node share one backing file for reading and one for writing, so an open file
//! takes two descriptors at most. When the data of a node has moved (by a copy-up), a handle looks
//! its backing file up again. So the page cache, which is one per node, never mixes two files.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{HandleMode, Node, Place, Tree};
use crate::backing::Backing;
use crate::sys;

/// An open file as the kernel holds it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: Rc<Node>,
    pub(crate) for_writing: bool,
    /// None of a partial file.
    backing: RefCell<Option<Rc<Backing>>>,
    version: Cell<u32>,
    _mode: HandleMode,
}

impl OpenFile {
    pub(crate) fn new(
        node: &Rc<Node>,
        backing: Option<Rc<Backing>>,
        for_writing: bool,
        mode: HandleMode,
    ) -> Self {
        let version = node.file().map_or(0, |state| state.version.get());
        if let Some(state) = node.file().filter(|_| for_writing) {
            state.writers.set(state.writers.get() + 1);
        }
        Self {
            node: Rc::clone(node),
            for_writing,
            backing: RefCell::new(backing),
            version: Cell::new(version),
            _mode: mode,
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(state) = self.node.file().filter(|_| self.for_writing) {
            state.writers.set(state.writers.get() - 1);
        }
    }
}

impl Tree {
    /// Returns the backing file of an open one, as the node is now.
    pub(crate) fn backing_of(&self, open: &OpenFile) -> Result<Rc<Backing>, Errno> {
        let state = open.node.file().ok_or(Errno::INVAL)?;
        if open.version.get() == state.version.get()
            && let Some(backing) = &*open.backing.borrow()
        {
            return Ok(Rc::clone(backing));
        }
        let backing = self.backing(&open.node, open.for_writing)?;
        *open.backing.borrow_mut() = Some(Rc::clone(&backing));
        open.version.set(state.version.get());
        Ok(backing)
    }

    /// Returns the backing file of a new handle. A partial file has none: it is read and written
    /// through the journal, and its lower file is open only when it is needed.
    pub(crate) fn backing_to_open(
        &self,
        node: &Rc<Node>,
        for_writing: bool,
    ) -> Result<Option<Rc<Backing>>, Errno> {
        if node.partial().is_some() {
            return Ok(None);
        }
        self.backing(node, for_writing).map(Some)
    }

    /// Returns a backing file of a node. For writing, the node must have been copied up.
    pub(crate) fn backing(&self, node: &Rc<Node>, for_writing: bool) -> Result<Rc<Backing>, Errno> {
        let state = node.file().ok_or(Errno::INVAL)?;
        // A file open for both serves readers too.
        if let Some(backing) = state.writable.borrow().upgrade() {
            return Ok(backing);
        }
        if !for_writing && let Some(backing) = state.readable.borrow().upgrade() {
            return Ok(backing);
        }
        let backing = self.open_backing(node, for_writing)?;
        let slot = if for_writing { &state.writable } else { &state.readable };
        *slot.borrow_mut() = Rc::downgrade(&backing);
        Ok(backing)
    }

    /// Returns a backing file by which a node's file can be synced; `None` if it has none, because
    /// it is no regular file, its upper part has attributes only, or an ordinary user's file may be
    /// neither read nor written. A sync of the file system makes such a file durable.
    pub(crate) fn backing_to_sync(&self, node: &Rc<Node>) -> Result<Option<Rc<Backing>>, Errno> {
        if node.file().is_none() || node.has_data_apart() {
            return Ok(None);
        }
        match self.backing(node, false) {
            // Write-only, perhaps.
            Err(Errno::ACCESS) => match self.backing(node, true) {
                Err(Errno::ACCESS) => Ok(None),
                other => other.map(Some),
            },
            other => other.map(Some),
        }
    }

    fn open_backing(&self, node: &Rc<Node>, for_writing: bool) -> Result<Rc<Backing>, Errno> {
        if let Some(partial) = node.partial() {
            // For writing there is the journal.
            return self.lower_of(node, &partial);
        }
        if let Some(pending) = node.pending() {
            return Ok(Rc::clone(pending.backing()));
        }
        if for_writing && !node.is_changeable() {
            return Err(Errno::IO);
        }
        let flags = if for_writing { OFlags::RDWR } else { OFlags::RDONLY } | OFlags::NOFOLLOW;
        if node.has_data_apart() {
            return self.open_lower(node).map(|fd| Backing::new(fd, false));
        }
        let place = node.place.borrow().clone();
        let fd = match place {
            Place::Upper => {
                self.at_upper(node, |directory, name| sys::open_below(directory, name, flags))?
            }
            Place::Gone { fd, .. } => sys::reopen(fd.as_fd(), flags.difference(OFlags::NOFOLLOW))?,
            Place::Lower | Place::Pending(_) | Place::Partial(_) => self.open_lower(node)?,
        };
        Ok(Backing::new(fd, for_writing))
    }

    /// Returns the lower file of a node, for reading; its access time stays where that is allowed.
    pub(crate) fn open_lower(&self, node: &Rc<Node>) -> Result<OwnedFd, Errno> {
        let lower = node.lower.borrow();
        let part = lower.last().ok_or(Errno::IO)?;
        let layer = usize::from(part.layer);
        if layer < self.layers.merged_count {
            let root = self.lower_root(part);
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
            return match sys::open_below(root, &part.path, flags | OFlags::NOATIME) {
                Err(Errno::PERM) => sys::open_below(root, &part.path, flags),
                other => other,
            };
        }
        // In the first of the layers that hold data only that has it.
        for layer in &self.layers.lower[layer..] {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            match sys::open_below(layer.root.as_fd(), &part.path, flags) {
                Ok(object) => return open_data(&object),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOENT)
    }
}

/// Opens an object for reading, if it is a file; else there is no data, as in the kernel.
fn open_data(object: &OwnedFd) -> Result<OwnedFd, Errno> {
    if !sys::stat_at(object.as_fd(), b"")?.is_regular() {
        return Err(Errno::NOENT);
    }
    match sys::reopen(object.as_fd(), OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => sys::reopen(object.as_fd(), OFlags::RDONLY),
        other => other,
    }
}
