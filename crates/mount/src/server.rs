//! What serves a mount's requests: its open files, its node numbers, and the way to each operation.
//!
//! Nothing here needs a kernel: [`crate::Mount`] serves requests of `/dev/fuse`, the simulation those of
//! a model of the kernel.

use crate::closes::{Closes, PosixOwners};
use crate::convert::errno;
use crate::counts::RequestCounts;
use crate::nodes::Nodes;
use crate::notices::Notices;
use crate::walks::Walks;
use crate::writers::{AllWriters, Way};
use client::{Client, Handle, Lending, Listing, Pin};
use fuse::{Errno, FileHandle, FileSystem, Negotiated, NodeId, Notifier, Request, Response};
use reactor::local::{InFlight, OneshotSender};
use slab::Slab;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// On kernels without epochs names are lent for such a part of the time.
const NAMES_PART: u32 = 5;

/// An open directory: the part of its listing that was fetched last.
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
    /// Of a writer.
    way: Option<Way>,
    /// The client knows who writes through the kernel's pages.
    _through: Option<InFlight>,
}

/// The FUSE file system of one client.
pub struct Server {
    pub(crate) client: Rc<Client>,
    pub(crate) nodes: RefCell<Nodes>,
    files: RefCell<Slab<OpenFile>>,
    pub(crate) writers: AllWriters,
    directories: RefCell<Slab<Rc<RefCell<OpenDirectory>>>>,
    /// Gets what was agreed with the kernel, once.
    agreed: RefCell<Option<OneshotSender<Negotiated>>>,
    /// The owners of POSIX locks, with the open files through which they took them. Other closes need no
    /// unlock. The owner of an open file description's lock (`F_OFD_SETLK`) is that file, of whose end only
    /// its release tells.
    pub(crate) posix_owners: RefCell<PosixOwners>,
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
    /// Serves a client's files. `agreed` gets what was agreed with the kernel: from then on there may be
    /// requests. `notices` are those that the client's changes go to.
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
            posix_owners: RefCell::default(),
            closes: Closes::default(),
            pages: notices.at_once.clone(),
            walks: Walks::default(),
            requests: RequestCounts::default(),
        })
    }
}

/// What a [`Server`] keeps because the kernel refers to it.
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
    /// Owners of POSIX locks.
    pub lock_owners: usize,
}

impl Server {
    /// Returns what is kept for the kernel. When the kernel has closed and forgotten everything, only the
    /// reference to the root is left.
    pub fn kept(&self) -> Kept {
        Kept {
            references: self.client.references(),
            nodes: self.nodes.borrow().len(),
            files: self.files.borrow().len(),
            written: self.writers.len(),
            directories: self.directories.borrow().len(),
            lock_owners: self.posix_owners.borrow().len(),
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
    /// The inode that the kernel means.
    pub(crate) fn inode(&self, node: NodeId) -> protocol::InodeId {
        self.nodes.borrow().inode(node)
    }

    /// From now on the kernel may use what it is given for some time without asking.
    fn begin_lending(&self, negotiated: &Negotiated) {
        let longest = self.client.lending_max();
        // Without epochs, names that cannot be dropped have to expire, and changes wait for that.
        let names = if negotiated.has_epochs() { longest } else { longest / NAMES_PART };
        tracing::info!(attributes = ?longest, ?names, "what the kernel may cache, and how long at most");
        self.client.set_lending(Lending { attributes: longest, names });
    }

    /// Tells the kernel of an entry of `parent` that it has looked up; it remembers it until it says
    /// otherwise.
    pub(crate) fn entry(&self, parent: NodeId, name: &[u8], attr: &protocol::Attr) -> fuse::Entry {
        let mut entry = self.new_entry(parent, name, attr);
        entry.attributes_valid = self.client.lend_attributes(attr);
        entry
    }

    /// As [`Server::entry`], in answer to what makes the entry. Attributes in such an answer are never
    /// valid: the kernel takes them for newer than it was told to drop before (`attr_version` of
    /// `fuse_iget` in `create_new_entry`, fs/fuse/dir.c).
    pub(crate) fn new_entry(
        &self,
        parent: NodeId,
        name: &[u8],
        attr: &protocol::Attr,
    ) -> fuse::Entry {
        let node = self.nodes.borrow_mut().tell(parent, attr.inode, attr.kind);
        let entry_valid = self.client.lend_name(self.inode(parent), name, Some(attr));
        fuse::Entry { entry_valid, ..crate::convert::entry(node, attr) }
    }

    /// Tells the kernel that a name names nothing, if it may remember that.
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

    /// Keeps an open file, with the way of a writer; answers its handle.
    pub(crate) fn keep_file(&self, handle: Handle, way: Option<Way>) -> FileHandle {
        let through =
            (way == Some(Way::Through)).then(|| self.client.writes_through_pages(handle.inode()));
        let file = OpenFile { handle: Rc::new(handle), way, _through: through };
        FileHandle(self.files.borrow_mut().insert(file) as u64)
    }

    /// Puts all of a small file into the kernel's pages, as it is opened to be read: that takes less time than the
    /// READ that would follow. Waits for nothing, as nobody else has it open.
    pub(crate) fn fill_pages(&self, attr: &protocol::Attr) -> bool {
        let Some(kernel) = &self.pages else { return false };
        let Some(bytes) = self.client.bytes_for_pages(attr) else { return false };
        kernel.store(NodeId(attr.inode.0), 0, &bytes).unwrap_or_else(|error| {
            tracing::debug!(inode = attr.inode.0, %error, "the kernel reads the file itself");
            false
        })
    }

    /// An open file.
    pub(crate) fn file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let files = self.files.borrow();
        let file = files.get(handle.0 as usize).ok_or(protocol::Errno::EBADF)?;
        Ok(Rc::clone(&file.handle))
    }

    /// An open file, and the way that its writer goes.
    pub(crate) fn file_and_way(
        &self,
        handle: FileHandle,
    ) -> Result<(Rc<Handle>, Option<Way>), protocol::Errno> {
        let files = self.files.borrow();
        let file = files.get(handle.0 as usize).ok_or(protocol::Errno::EBADF)?;
        Ok((Rc::clone(&file.handle), file.way))
    }

    /// Takes an open file out.
    pub(crate) fn take_file(&self, handle: FileHandle) -> Result<Rc<Handle>, protocol::Errno> {
        let file = self.files.borrow_mut().try_remove(handle.0 as usize);
        let file = file.ok_or(protocol::Errno::EBADF)?;
        if let Some(way) = file.way {
            self.writers.leave(file.handle.inode(), way);
        }
        Ok(file.handle)
    }

    /// Keeps an open directory.
    pub(crate) fn keep_directory(&self, pin: Pin) -> FileHandle {
        let directory = OpenDirectory { listing: None, after: 0, _pin: pin };
        let directory = Rc::new(RefCell::new(directory));
        FileHandle(self.directories.borrow_mut().insert(directory) as u64)
    }

    /// An open directory.
    pub(crate) fn directory(
        &self,
        handle: FileHandle,
    ) -> Result<Rc<RefCell<OpenDirectory>>, protocol::Errno> {
        let directories = self.directories.borrow();
        directories.get(handle.0 as usize).cloned().ok_or(protocol::Errno::EBADF)
    }

    /// Takes an open directory out.
    pub(crate) fn drop_directory(&self, handle: FileHandle) -> Response {
        self.directories.borrow_mut().try_remove(handle.0 as usize);
        Response::Done
    }
}

/// Errors of FUSE operations that the client has no word for.
pub(crate) const UNSUPPORTED: Errno = Errno::NOSYS;

#[cfg(test)]
mod tests {
    use super::*;

    /// What one request may carry from one wait to the next. It is moved several times before its first.
    const REQUEST_STATE_MAX_BYTES: usize = 5 << 10;

    fn state_bytes<T: Future>(_: impl Fn(Rc<Server>, Request) -> T) -> usize {
        size_of::<T>()
    }

    /// Goal: the state of a request stays small; what few operations need is boxed. (With 13 KiB, copying it
    /// was the largest part of what the process itself does for an open or a close.)
    #[test]
    fn requests_carry_little_state() {
        let bytes = state_bytes(<Server as FileSystem>::handle);
        assert!(bytes <= REQUEST_STATE_MAX_BYTES, "{bytes} bytes");
    }
}
