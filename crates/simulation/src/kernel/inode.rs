//! Inodes and names as the kernel knows them.

use super::pages::Page;
use fuse::{Attributes, NodeId};
use reactor::local::{Notify, Permit, Semaphore};
use reactor::time::{Instant, now};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Largest number of shared holders of an inode's lock.
const SHARED_MAX: usize = 1 << 20;

/// Lookup counts that the kernel still has to return with FORGET.
#[derive(Debug, Default)]
pub(super) struct Forgets(RefCell<Vec<(NodeId, u64)>>);

impl Forgets {
    pub(super) fn push(&self, node: u64, count: u64) {
        if count > 0 {
            self.0.borrow_mut().push((NodeId(node), count));
        }
    }

    /// Returns the number of lookups that are still to be returned.
    pub(super) fn count(&self) -> u64 {
        self.0.borrow().iter().map(|(_, count)| count).sum()
    }

    pub(super) fn take(&self) -> Vec<(NodeId, u64)> {
        self.0.take()
    }
}

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Dentry {
    /// `None`: a negative entry.
    pub(super) inode: Option<Rc<Inode>>,
    /// Until then the name is used without a LOOKUP.
    pub(super) valid_until: Instant,
    /// The epoch in which the name was looked up.
    pub(super) epoch: u64,
    /// A name keeps its directory alive.
    pub(super) parent: Rc<Inode>,
}

/// The known attributes of an inode.
#[derive(Clone, Copy, Debug)]
struct Known {
    attributes: Attributes,
    valid_until: Instant,
    version: u64,
}

/// An inode that the kernel knows. Dropping it returns its lookups.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(super) node: u64,
    known: Cell<Known>,
    lookups: Cell<u64>,
    /// `i_rwsem`.
    lock: Semaphore,
    pub(super) pages: RefCell<BTreeMap<u64, Page>>,
    /// A write that extends the file is under way: no answer changes the size.
    pub(super) is_size_unstable: Cell<bool>,
    /// Number of open files that use pages. While there are any, no writes bypass the pages
    /// concurrently.
    pub(super) cached_opens: Cell<u32>,
    /// Notified when pages have been read.
    pub(super) filled: Notify,
    /// READs and WRITEs of pages that are under way, and when the last of them ended.
    filling: Cell<u32>,
    filled_at: Cell<Instant>,
    /// For a directory: the parent and name under which it is cached.
    pub(super) place: RefCell<Option<(u64, Box<[u8]>)>>,
    /// An entry of the directory was looked up, so the next listing requests attributes too.
    pub(super) wants_plus: Cell<bool>,
    forgets: Rc<Forgets>,
}

impl Inode {
    pub(super) fn new(node: u64, attributes: Attributes, forgets: Rc<Forgets>) -> Inode {
        Inode {
            node,
            known: Cell::new(Known { attributes, valid_until: now(), version: 0 }),
            lookups: Cell::new(0),
            lock: Semaphore::new(SHARED_MAX),
            pages: RefCell::default(),
            is_size_unstable: Cell::default(),
            cached_opens: Cell::default(),
            filled: Notify::new(),
            filling: Cell::default(),
            filled_at: Cell::new(now()),
            place: RefCell::default(),
            wants_plus: Cell::new(false),
            forgets,
        }
    }

    pub(super) fn root(forgets: Rc<Forgets>) -> Inode {
        let attributes = Attributes { inode: 1, mode: libc::S_IFDIR, ..Attributes::default() };
        Inode::new(NodeId::ROOT.0, attributes, forgets)
    }

    pub(super) async fn lock(&self) -> Permit {
        self.lock.acquire(SHARED_MAX).await
    }

    pub(super) async fn lock_shared(&self) -> Permit {
        self.lock.acquire(1).await
    }

    pub(super) fn try_lock_shared(&self) -> Option<Permit> {
        self.lock.try_acquire(1)
    }

    pub(super) fn attributes(&self) -> Attributes {
        self.known.get().attributes
    }

    /// Returns the inode's number in stat(2).
    pub(crate) fn number(&self) -> protocol::InodeId {
        protocol::InodeId(self.attributes().inode)
    }

    pub(super) fn kind(&self) -> u32 {
        self.attributes().mode & libc::S_IFMT
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    pub(super) fn size(&self) -> u64 {
        self.attributes().size
    }

    pub(super) fn set_size(&self, size: u64) {
        let mut known = self.known.get();
        known.attributes.size = size;
        self.known.set(known);
    }

    /// Returns how often the mount has returned this inode without a FORGET since.
    pub(super) fn lookups(&self) -> u64 {
        self.lookups.get()
    }

    pub(super) fn looked_up(&self) {
        self.lookups.set(self.lookups.get() + 1);
    }

    /// Begins to fill pages.
    pub(super) fn begin_filling(&self) {
        self.filling.set(self.filling.get() + 1);
    }

    /// Ends to fill pages.
    pub(super) fn end_filling(&self) {
        self.filling.set(self.filling.get() - 1);
        self.filled_at.set(now());
    }

    /// Returns since when (ns) no page is filled; `None` if one is. The kernel drops a page that
    /// is not locked before a change by others returns.
    pub(crate) fn filled(&self) -> Option<u64> {
        let since = self.filled_at.get() - Instant::from_ns(0);
        (self.filling.get() == 0).then_some(since.as_nanos() as u64)
    }

    pub(super) fn version(&self) -> u64 {
        self.known.get().version
    }

    pub(super) fn change_version(&self, version: u64) {
        self.known.set(Known { version, ..self.known.get() });
    }

    pub(super) fn is_valid(&self) -> bool {
        self.known.get().valid_until > now()
    }

    pub(super) fn expire_attributes(&self) {
        self.known.set(Known { valid_until: now(), ..self.known.get() });
    }

    /// Sets the attributes. Returns the size before.
    pub(super) fn set(&self, attributes: Attributes, valid: Duration, version: u64) -> u64 {
        let size = self.size();
        self.known.set(Known { attributes, valid_until: now() + valid, version });
        size
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.forgets.push(self.node, self.lookups.get());
    }
}
