//! The merged tree: nodes, where their parts are, and how names are found.
//!
//! [`Union`] is one mount's state. It belongs to one thread; every method that does not wait runs
//! to its end before another operation is looked at, and that is all the locking there is. What
//! waits (copying data, making it durable) must look at the tree anew afterwards.

mod listing;
mod lookup;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use rustix::fs::OFlags;
use rustix::io::Errno;
use slab::Slab;

use crate::commit::{Committer, Inherited};
use crate::copier::Copier;
use crate::descriptors::Descriptors;
use crate::files::OpenFile;
use crate::free_run::FreeRun;
use crate::index::Index;
use crate::layers::{Layers, Upper};
use crate::node::{LowerPart, Node, Place};
use crate::options::Options;
use crate::partial::{OpenLowers, Store};
use crate::passthrough::Passthrough;
use crate::privileges::is_kept_on_disk;
use crate::sys::errno_of;
use crate::sys::{self, Fd, Stat};

pub(crate) use listing::Listing;
pub(crate) use lookup::Found;

/// The file system's number is put above so many bits of an inode number.
const INODE_BITS: u32 = 56;

/// Directories with open parts, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct OpenDirectories(RefCell<VecDeque<Weak<Node>>>);

impl OpenDirectories {
    /// Closes all.
    fn close(&self) {
        for node in self.0.take() {
            if let Some(node) = node.upgrade()
                && let Some(directory) = node.directory()
            {
                directory.parts.borrow_mut().clear();
            }
        }
    }

    /// Notes a directory that has just been given an open part, and closes the oldest ones.
    fn note(&self, node: &Rc<Node>, most: usize) {
        let mut queue = self.0.borrow_mut();
        queue.push_back(Rc::downgrade(node));
        while queue.len() > most {
            let oldest = queue.pop_front().and_then(|node| node.upgrade());
            if let Some(oldest) = oldest.filter(|oldest| !Rc::ptr_eq(oldest, node))
                && let Some(directory) = oldest.directory()
            {
                directory.parts.borrow_mut().clear();
            }
        }
    }
}

/// What the unions of one thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) descriptors: Descriptors,
    pub(crate) open_directories: OpenDirectories,
    pub(crate) open_lowers: OpenLowers,
    pub(crate) committer: Rc<Committer>,
    pub(crate) free_run: FreeRun,
    /// Whether this process's writes leave set-user-ID and set-group-ID on disk.
    pub(crate) keeps_privileges: bool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            descriptors: Descriptors::default(),
            open_directories: OpenDirectories::default(),
            open_lowers: OpenLowers::default(),
            committer: Rc::default(),
            free_run: FreeRun::default(),
            keeps_privileges: is_kept_on_disk(),
        }
    }
}

impl Shared {
    /// Of unions whose files a thread copies.
    pub(crate) fn with_copier(copier: Copier) -> Self {
        let committer = Rc::new(Committer::with_copier(copier));
        Self { committer, ..Self::default() }
    }

    /// Closes what is open only to be fast.
    pub(crate) fn close_kept(&self) {
        self.open_directories.close();
        self.open_lowers.close();
    }

    /// Most directories that are kept open.
    fn directories_max(self: &Rc<Self>) -> usize {
        // Each union has a reference, and whoever makes them.
        self.descriptors.directories_max(Rc::strong_count(self))
    }

    /// Most lower files of partial copies that are kept open.
    pub(crate) fn lowers_max(self: &Rc<Self>) -> usize {
        self.descriptors.lowers_max(Rc::strong_count(self))
    }
}

/// One mounted union.
#[derive(Debug)]
pub(crate) struct Union {
    /// Dropped before the layers, which hold the locks.
    pub(crate) inherited: Inherited,
    pub(crate) options: Options,
    pub(crate) layers: Layers,
    /// The index of hard links; none without `index=on`.
    pub(crate) index: Option<Index>,
    pub(crate) passthrough: Passthrough,
    pub(crate) shared: Rc<Shared>,
    pub(crate) root: Rc<Node>,
    pub(crate) nodes: RefCell<HashMap<u64, Rc<Node>>>,
    /// Nodes with several names, by device and inode of their upper part.
    pub(crate) linked: RefCell<HashMap<(u64, u64), Weak<Node>>>,
    pub(crate) files: RefCell<Slab<Rc<OpenFile>>>,
    pub(crate) listings: RefCell<Slab<Rc<RefCell<Listing>>>>,
    /// Copies that wait for their names.
    pub(crate) waiting: crate::commit::WaitingCopies,
    /// What was changed and is not known to be durable, by node.
    pub(crate) dirty: RefCell<HashMap<u64, Rc<Node>>>,
    pub(crate) is_flushing: Cell<bool>,
    /// Paths of partial files whose lower files are taken as they are.
    pub(crate) accepted: RefCell<HashSet<Vec<u8>>>,
    /// Whether the kernel's requests say which opens take privileges (Linux 5.11).
    pub(crate) is_told_of_privileges: Cell<bool>,
    /// Whether the kernel enforces labels of `SELinux`.
    pub(crate) has_labels: bool,
    /// What takes the mount away, once it is served.
    pub(crate) unmounter: std::cell::OnceCell<fuse::Unmounter>,
    /// Partial copies; none without an upper layer.
    pub(crate) store: Option<Rc<Store>>,
    /// The state that survives the server, if there is a keeper.
    pub(crate) book: std::cell::OnceCell<crate::serve::Book>,
    /// Errors that no caller waited for.
    pub(crate) last_error: crate::status::LastError,
    next_node: Cell<u64>,
    next_work_name: Cell<u64>,
}

impl Union {
    pub(crate) fn new(
        options: Options,
        (mut layers, top): (Layers, &Stat),
        (store, inherited): (Option<Rc<Store>>, Inherited),
        shared: Rc<Shared>,
    ) -> Self {
        let place = if layers.upper.is_some() { Place::Upper } else { Place::Lower };
        let root = Node::new(fuse::NodeId::ROOT.0, libc::S_IFDIR, top.inode, place);
        for (index, layer) in layers.lower[..layers.merged_count].iter().enumerate() {
            root.lower.borrow_mut().push(LowerPart {
                layer: index as u16,
                path: Rc::from([]),
                holds_whiteouts: layer.holds_whiteouts,
            });
        }
        root.lookups.set(1);
        let root = Rc::new(root);
        let nodes = HashMap::from([(root.id.get(), Rc::clone(&root))]);
        Self {
            inherited,
            options,
            index: layers.index.take().map(Index::new),
            passthrough: Passthrough::default(),
            layers,
            shared,
            root,
            nodes: RefCell::new(nodes),
            linked: RefCell::default(),
            files: RefCell::default(),
            listings: RefCell::default(),
            waiting: crate::commit::WaitingCopies::default(),
            dirty: RefCell::default(),
            is_flushing: Cell::new(false),
            accepted: RefCell::default(),
            is_told_of_privileges: Cell::new(true),
            store,
            book: std::cell::OnceCell::new(),
            has_labels: crate::ops::has_labels(),
            unmounter: std::cell::OnceCell::new(),
            last_error: crate::status::LastError::default(),
            next_node: Cell::new(fuse::NodeId::ROOT.0 + 1),
            next_work_name: Cell::new(0),
        }
    }

    /// The upper layer; `EROFS` without one.
    pub(crate) fn upper(&self) -> Result<&Upper, Errno> {
        self.layers.upper.as_ref().ok_or(Errno::ROFS)
    }

    /// A node that the kernel knows.
    pub(crate) fn node(&self, id: fuse::NodeId) -> Result<Rc<Node>, Errno> {
        let known = self.nodes.borrow().get(&id.0).cloned();
        known.or_else(|| self.passthrough.former(id)).ok_or(Errno::STALE)
    }

    /// Creates a node; it is dropped unless the caller keeps it.
    pub(crate) fn make_node(&self, kind: u32, inode: u64, place: Place) -> Node {
        Node::new(self.new_number(), kind, inode, place)
    }

    /// A number that no node had.
    pub(crate) fn new_number(&self) -> u64 {
        let id = self.next_node.get();
        self.next_node.set(id + 1);
        id
    }

    /// The number that the next node gets.
    pub(crate) fn set_next_node(&self, id: u64) {
        self.next_node.set(id);
    }

    /// Counts a reference of the kernel.
    pub(crate) fn refer(&self, node: &Rc<Node>) {
        let lookups = node.lookups.get();
        node.lookups.set(lookups + 1);
        if lookups == 0 {
            self.nodes.borrow_mut().insert(node.id.get(), Rc::clone(node));
            if let Some(book) = self.book.get() {
                book.note_names(node);
            }
        }
    }

    /// Takes references of the kernel back.
    pub(crate) fn forget(&self, id: fuse::NodeId, count: u64) {
        let mut nodes = self.nodes.borrow_mut();
        let Some(node) = nodes.get(&id.0) else {
            drop(nodes);
            return self.forget_former(id, count);
        };
        let left = node.lookups.get().saturating_sub(count);
        node.lookups.set(left);
        if left == 0 && id.0 != fuse::NodeId::ROOT.0 {
            let node = nodes.remove(&id.0);
            drop(nodes);
            if let Some(book) = self.book.get() {
                book.forget(id.0);
            }
            drop(node);
            self.tidy();
        }
    }

    /// Drops what points to nodes that are gone, now and then.
    fn tidy(&self) {
        let mut linked = self.linked.borrow_mut();
        if linked.len() >= 64 && linked.len().is_power_of_two() {
            linked.retain(|_, node| node.strong_count() > 0);
        }
        let mut nodes = self.nodes.borrow_mut();
        if nodes.capacity() > 64 && nodes.len() * 8 < nodes.capacity() {
            nodes.shrink_to_fit();
        }
    }

    /// The inode number that is shown for one of a layer's file system.
    pub(crate) fn shown_inode(&self, file_system: u8, inode: u64) -> u64 {
        if file_system == 0 || !self.options.xino {
            return inode;
        }
        inode ^ (u64::from(file_system) << INODE_BITS)
    }

    /// As [`Union::shown_inode`], of a file just looked at.
    pub(crate) fn shown_inode_of(&self, stat: &Stat) -> u64 {
        self.shown_inode(self.layers.file_system_of(stat.device), stat.inode)
    }

    /// A name that nothing in the work directory has.
    pub(crate) fn work_name(&self) -> Vec<u8> {
        let number = self.next_work_name.get();
        self.next_work_name.set(number + 1);
        format!("#{number:x}").into_bytes()
    }

    /// The upper part of a directory, open.
    pub(crate) fn upper_part(&self, node: &Rc<Node>) -> Result<Fd, Errno> {
        self.part(node, 0)?.ok_or(Errno::IO)
    }

    /// A part of a directory, open: 0 for the upper one (`None` if there is none yet), then the
    /// lower ones in order.
    pub(crate) fn part(&self, node: &Rc<Node>, index: usize) -> Result<Option<Fd>, Errno> {
        let directory = node.directory().ok_or(Errno::NOTDIR)?;
        if index == 0 {
            match &*node.place.borrow() {
                Place::Gone { fd, .. } => return Ok(Some(Rc::clone(fd))),
                Place::Upper => {}
                _ => return Ok(None),
            }
        }
        if let Some(Some(fd)) = directory.parts.borrow().get(index) {
            return Ok(Some(Rc::clone(fd)));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let fd = if index == 0 {
            sys::open_below(self.upper()?.root.as_fd(), &path_of(node), flags)?
        } else {
            let lower = node.lower.borrow();
            let part = lower.get(index - 1).ok_or(Errno::IO)?;
            sys::open_below(self.lower_root(part), &part.path, flags)?
        };
        let fd = Rc::new(fd);
        let mut parts = directory.parts.borrow_mut();
        if parts.len() <= index {
            parts.resize(index + 1, None);
        }
        parts[index] = Some(Rc::clone(&fd));
        drop(parts);
        self.shared.open_directories.note(node, self.shared.directories_max());
        Ok(Some(fd))
    }

    /// The root of the layer that a part lies in.
    pub(crate) fn lower_root(&self, part: &LowerPart) -> std::os::fd::BorrowedFd<'_> {
        self.layers.lower[usize::from(part.layer)].root.as_fd()
    }

    /// A descriptor (`O_PATH`, or of an open file) of the inode that now carries a node's
    /// attributes.
    pub(crate) fn object(&self, node: &Rc<Node>) -> Result<Fd, Errno> {
        let place = node.place.borrow().clone();
        match place {
            Place::Gone { fd, .. } => Ok(fd),
            Place::Pending(pending) => Ok(Rc::clone(&pending.file)),
            // The lower file has the extended attributes.
            Place::Partial(partial) => {
                let lower = self.lower_of(node, &partial)?;
                lower.with(|fd| fd.try_clone_to_owned().map(Rc::new).map_err(errno_of))
            }
            Place::Upper if node.is_directory() => self.upper_part(node),
            Place::Upper => self.at_upper(node, |directory, name| {
                sys::open_below(directory, name, OFlags::PATH | OFlags::NOFOLLOW).map(Rc::new)
            }),
            Place::Lower if node.is_directory() => self.part(node, 1)?.ok_or(Errno::IO),
            Place::Lower => {
                let lower = node.lower.borrow();
                let part = lower.first().ok_or(Errno::IO)?;
                let flags = OFlags::PATH | OFlags::NOFOLLOW;
                sys::open_below(self.lower_root(part), &part.path, flags).map(Rc::new)
            }
        }
    }

    /// Attributes of the inode that [`Union::object`] would open, without opening it where that is
    /// possible.
    pub(crate) fn stat(&self, node: &Rc<Node>) -> Result<Stat, Errno> {
        let mut stat = self.stat_itself(node)?;
        if let Some(indexed) = node.indexed.get() {
            stat.nlink = indexed.nlink.get();
        }
        Ok(if node.has_data_apart() { self.with_blocks_of_data(node, stat) } else { stat })
    }

    /// What a file takes is what its data takes, wherever that is. In layers that hold data only it
    /// is not looked for, as in the kernel.
    pub(crate) fn with_blocks_of_data(&self, node: &Node, stat: Stat) -> Stat {
        let lower = node.lower.borrow();
        let data = lower.last().filter(|part| usize::from(part.layer) < self.layers.merged_count);
        let found = data.and_then(|part| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let object = sys::open_below(self.lower_root(part), &part.path, flags).ok()?;
            sys::stat_at(object.as_fd(), b"").ok()
        });
        let rounded = stat.size.next_multiple_of(u64::from(stat.block_size).max(1)) / 512;
        Stat { blocks: found.map_or(rounded, |found| found.blocks), ..stat }
    }

    fn stat_itself(&self, node: &Rc<Node>) -> Result<Stat, Errno> {
        if node.is_in_upper() && !node.is_directory() && self.layers.owners().is_none() {
            return self.at_upper(node, sys::stat_at);
        }
        if let Some(partial) = node.partial() {
            return partial.stat();
        }
        let object = self.object(node)?;
        let stat = sys::stat_at(object.as_fd(), b"")?;
        self.shown_stat(node, object.as_fd(), stat)
    }
}

/// A node's path from the root, without a leading slash.
pub(crate) fn path_of(node: &Rc<Node>) -> Vec<u8> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let mut link = node.link();
    while let Some(current) = link {
        names.push(current.name);
        link = current.parent.link();
    }
    names.reverse();
    names.join(&b'/')
}
