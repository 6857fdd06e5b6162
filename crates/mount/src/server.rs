//! The server of a mount's requests: its open files, its node numbers, and the dispatch of
//! operations.
//!
//! It needs no kernel: [`crate::Mount`] serves requests of `/dev/fuse`, the simulation those of a
//! model of the kernel.

use crate::closes::Closes;
use crate::convert::errno;
use crate::counts::RequestCounts;
use crate::lock_owners::LockOwners;
use crate::nodes::Nodes;
use crate::notices::Notices;
use crate::walks::Walks;
use crate::writers::{AllWriters, WriteCaching};
use client::{Client, Handle, Lending, Listing, Pin};
use fuse::{Errno, FileHandle, FileSystem, Negotiated, NodeId, Notifier, Request, Response};
use reactor::local::{InFlight, OneshotSender};
use slab::Slab;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Kernels without epochs are lent names for this fraction of the time.
const NAMES_PART: u32 = 5;

/// An open directory with the part of its listing that was fetched last.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) listing: Option<Rc<Listing>>,
    /// The cookie after which `listing` begins.
    pub(crate) after: u64,
    _pin: Pin,
}

/// An open file.
#[derive(Debug)]
struct OpenFile {
    handle: Rc<Handle>,
    /// The choice for a writer; none for a file that is open only for reading.
    caching: Option<WriteCaching>,
    /// Registers a writer that goes through the kernel's pages with the client.
    _through: Option<InFlight>,
}

/// The FUSE file system of one client.
pub struct Server {
    pub(crate) client: Rc<Client>,
    pub(crate) nodes: RefCell<Nodes>,
    files: RefCell<Slab<OpenFile>>,
    pub(crate) writers: AllWriters,
    directories: RefCell<Slab<Rc<RefCell<OpenDirectory>>>>,
    /// Receives once what was agreed with the kernel.
    agreed: RefCell<Option<OneshotSender<Negotiated>>>,
    /// Closes by other owners need no unlock.
    pub(crate) lock_owners: LockOwners,
    pub(crate) closes: Closes,
    /// Puts bytes into the kernel's pages.
    pages: Option<Notifier>,
    pub(crate) walks: Walks,
    pub(crate) requests: RequestCounts,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Server {
    /// Makes the server of a client's files. `agreed` receives what was agreed with the kernel;
    /// from then on there may be requests. `notices` receives the client's changes.
    pub fn new(
        client: Rc<Client>,
        agreed: OneshotSender<Negotiated>,
        notices: &Notices,
    ) -> Rc<Server> {
        Rc::new(Server {
            client,
            nodes: RefCell::new(Nodes::new(notices.numbers.clone())),
            files: RefCell::default(),
            writers: AllWriters::default(),
            directories: RefCell::default(),
            agreed: RefCell::new(Some(agreed)),
            lock_owners: LockOwners::default(),
            closes: Closes::default(),
            pages: notices.at_once.clone(),
            walks: Walks::default(),
            requests: RequestCounts::default(),
        })
    }
}

/// The things that a [`Server`] keeps because the kernel refers to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Lookups that the kernel has not taken back, and one of the root.
    pub references: u64,
    /// Numbers of directories.
    pub nodes: usize,
    /// Open files.
    pub files: usize,
    /// Files that are open for writing.
    pub written: usize,
    /// Open directories.
    pub directories: usize,
    /// Owners of locks.
    pub lock_owners: usize,
}

impl Server {
    /// Returns what this server keeps for the kernel. When the kernel has closed and forgotten
    /// everything, only the reference to the root is left.
    pub fn kept(&self) -> Kept {
        Kept {
            references: self.client.references(),
            nodes: self.nodes.borrow().len(),
            files: self.files.borrow().len(),
            written: self.writers.len(),
            directories: self.directories.borrow().len(),
            lock_owners: self.lock_owners.len(),
        }
    }
}

impl FileSystem for Server {
    fn init(&self, negotiated: &Negotiated) {
        tracing::info!(
            transport = ?negotiated.transport,
            reason = negotiated.transport_reason,
            max_write_bytes = negotiated.max_write_bytes,
            "mounted"
        );
        self.client.refer(protocol::InodeId::ROOT);
        self.begin_lending(negotiated);
        if let Some(agreed) = self.agreed.take() {
            let _ = agreed.send(negotiated.clone());
        }
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        self.requests.add(&request);
        let answer = Rc::clone(&self).answer_walk(request).await;
        self.client.own_changes_told().await;
        match answer {
            Ok(response) => response,
            Err(error) => Response::Error(errno(error)),
        }
    }

    fn forget(&self, forgets: &[(NodeId, u64)]) {
        for &(node, count) in forgets {
            let inode = self.nodes.borrow_mut().forget(node, count);
            let count = if reactor::mutant!("forget-counts-once") { 1 } else { count };
            self.client.forget(inode, count);
        }
    }
}

impl Server {
    /// Returns the inode that the kernel means.
    pub(crate) fn inode(&self, node: NodeId) -> protocol::InodeId {
        self.nodes.borrow().inode(node)
    }

    /// From now on the kernel may use lent names and attributes for some time without asking.
    fn begin_lending(&self, negotiated: &Negotiated) {
        let longest = self.client.lending_max();
        // Without epochs, names that cannot be dropped have to expire, and changes wait for that.
        let names = if negotiated.has_epochs() { longest } else { longest / NAMES_PART };
        tracing::info!(attributes = ?longest, ?names, "longest times of the kernel's caches");
        self.client.set_lending(Lending { attributes: longest, names });
    }

    /// Returns the answer about an entry of `parent` that the kernel has looked up. The kernel
    /// remembers the entry until it sends a FORGET.
    pub(crate) fn entry(&self, parent: NodeId, name: &[u8], attr: &protocol::Attr) -> fuse::Entry {
        let mut entry = self.new_entry(parent, name, attr);
        entry.attributes_valid = self.client.lend_attributes(attr);
        entry
    }

    /// Returns the answer about an entry that the request has made. Other than in [`Server::entry`]
    /// its attributes are never valid: the kernel would take them for newer than a notification
    /// that arrived before (`attr_version` of `fuse_iget` in `create_new_entry`, fs/fuse/dir.c).
    pub(crate) fn new_entry(
        &self,
        parent: NodeId,
        name: &[u8],
        attr: &protocol::Attr,
    ) -> fuse::Entry {
        let node = self.nodes.borrow_mut().give_number(parent, attr.inode, attr.kind);
        let entry_valid = self.client.lend_name(self.inode(parent), name, Some(attr));
        fuse::Entry { entry_valid, ..crate::convert::entry(node, attr) }
    }

    /// Returns the answer that a name does not exist, if the kernel may remember that.
    pub(crate) fn absent(&self, parent: NodeId, name: &[u8]) -> Option<fuse::Entry> {
        let entry_valid = self.client.lend_name(self.inode(parent), name, None);
        let nothing = fuse::Attributes::default();
        (!entry_valid.is_zero()).then_some(fuse::Entry {
            node: NodeId(0),
            generation: 0,
            entry_valid,
            attributes_valid: Duration::ZERO,
            attributes: nothing,
        })
    }

    /// Keeps an open file, with the caching of a writer. Returns its handle.
    pub(crate) fn keep_file(&self, handle: Handle, caching: Option<WriteCaching>) -> FileHandle {
        let through = (caching == Some(WriteCaching::Through))
            .then(|| self.client.writes_through_pages(handle.inode()));
        let file = OpenFile { handle: Rc::new(handle), caching, _through: through };
        FileHandle(self.files.borrow_mut().insert(file) as u64)
    }

    /// Puts a whole small file into the kernel's pages when it is opened for reading. That takes
    /// less time than the READ that would follow. It never waits, because the file is not open
    /// elsewhere.
    pub(crate) fn fill_pages(&self, attr: &protocol::Attr) -> bool {
        let Some(kernel) = &self.pages else { return false };
        let Some(bytes) = self.client.bytes_for_pages(attr) else { return false };
        kernel.store(NodeId(attr.inode.0), 0, &bytes).unwrap_or_else(|error| {
            tracing::debug!(inode = attr.inode.0, %error, "the kernel reads the file itself");
            false
        })
    }

    /// Returns an open file.
    pub(crate) fn file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let files = self.files.borrow();
        let file = files.get(handle.0 as usize).ok_or(protocol::Errno::EBADF)?;
        Ok(Rc::clone(&file.handle))
    }

    /// Returns an open file and the caching of its writer.
    pub(crate) fn file_and_caching(
        &self,
        handle: FileHandle,
    ) -> Result<(Rc<Handle>, Option<WriteCaching>), protocol::Errno> {
        let files = self.files.borrow();
        let file = files.get(handle.0 as usize).ok_or(protocol::Errno::EBADF)?;
        Ok((Rc::clone(&file.handle), file.caching))
    }

    /// Removes an open file and returns it.
    pub(crate) fn take_file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let file = self.files.borrow_mut().try_remove(handle.0 as usize);
        let file = file.ok_or(protocol::Errno::EBADF)?;
        if let Some(caching) = file.caching {
            self.writers.leave(file.handle.inode(), caching);
        }
        Ok(file.handle)
    }

    /// Keeps an open directory.
    pub(crate) fn keep_directory(&self, pin: Pin) -> FileHandle {
        let directory = OpenDirectory { listing: None, after: 0, _pin: pin };
        let directory = Rc::new(RefCell::new(directory));
        FileHandle(self.directories.borrow_mut().insert(directory) as u64)
    }

    /// Returns an open directory.
    pub(crate) fn directory(
        &self,
        handle: FileHandle,
    ) -> Result<Rc<RefCell<OpenDirectory>>, protocol::Errno> {
        let directories = self.directories.borrow();
        directories.get(handle.0 as usize).cloned().ok_or(protocol::Errno::EBADF)
    }

    /// Removes an open directory.
    pub(crate) fn drop_directory(&self, handle: FileHandle) -> Response {
        self.directories.borrow_mut().try_remove(handle.0 as usize);
        Response::Done
    }
}

/// Answer to FUSE operations that the client does not support.
pub(crate) const UNSUPPORTED: Errno = Errno::NOSYS;

#[cfg(test)]
mod tests {
    use super::*;

    /// Most bytes of a request's state between waits. The state is moved several times before the
    /// first.
    const REQUEST_STATE_MAX_BYTES: usize = 5 << 10;

    fn state_bytes<T: Future>(_: impl Fn(Rc<Server>, Request) -> T) -> usize {
        size_of::<T>()
    }

    /// Goal: the state of a request stays small; what few operations need is boxed. (With 13 KiB,
    /// copying it was the largest part of the process's own work for an open or a close.)
    #[test]
    fn requests_carry_little_state() {
        let bytes = state_bytes(<Server as FileSystem>::handle);
        assert!(bytes <= REQUEST_STATE_MAX_BYTES, "{bytes} bytes");
    }
}
