//! The merged tree: nodes, where their parts are, and how names are found.
//!
//! [`Tree`] belongs to one thread; every method that does not wait runs to its end before another
//! operation is looked at, and that is all the locking there is. An operation that waits (for
//! copied data, for durability) must look at the tree again afterwards.

mod copies;
mod files;
mod index;
mod kept;
mod last_error;
mod listing;
mod lookup;
mod lower;
mod node;
mod owners;
mod partial;
mod passthrough;
mod pending;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::journal::ParentKey;
use crate::layers::{Layers, Upper};
use crate::options::Options;
use crate::store::{Store, directories_below};
use crate::sys::{self, Fd, Stat, errno_of};

pub(crate) use copies::{CAPABILITY, Original, is_protective};
pub(crate) use files::OpenFile;
pub(crate) use index::Index;
pub(crate) use kept::KeptOpen;
pub(crate) use listing::{Listing, is_of_entry};
pub(crate) use lookup::Found;
pub(crate) use node::{FileState, Link, LowerPart, Node, Place};
pub(crate) use passthrough::{HandleMode, Passed};
pub(crate) use pending::Pending;

use last_error::LastError;
use passthrough::Passthrough;

/// The number of the file system goes above this many bits of an inode number.
const INODE_BITS: u32 = 56;

/// Records what the kernel knows of the tree, where it survives this process.
pub(crate) trait Observer: std::fmt::Debug {
    /// Notes the names of a node as they are now, instead of earlier ones.
    fn note_names(&self, node: &Node);

    /// The kernel has given its last reference to a number back.
    fn forget(&self, id: u64);
}

/// The merged tree of one union.
#[derive(Debug)]
pub(crate) struct Tree {
    options: Options,
    layers: Layers,
    /// The index of hard links; none without `index=on`.
    index: Option<Index>,
    passthrough: Passthrough,
    kept: Rc<KeptOpen>,
    root: Rc<Node>,
    nodes: RefCell<HashMap<u64, Rc<Node>>>,
    /// Nodes with several names, by device and inode of their upper part.
    linked: RefCell<HashMap<(u64, u64), Weak<Node>>>,
    /// Paths of partial files whose lower files are accepted although they were changed.
    accepted: RefCell<HashSet<Vec<u8>>>,
    /// Partial copies; none without an upper layer.
    store: Option<Rc<Store>>,
    observer: OnceCell<Rc<dyn Observer>>,
    /// Errors that no caller waited for.
    last_error: LastError,
    next_node: Cell<u64>,
    next_work_name: Cell<u64>,
}

impl Tree {
    /// Makes the tree of these layers; `top` has the attributes of the top layer's root.
    pub(crate) fn new(
        options: Options,
        mut layers: Layers,
        top: &Stat,
        store: Option<Rc<Store>>,
        kept: Rc<KeptOpen>,
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
            options,
            index: layers.index.take().map(Index::new),
            passthrough: Passthrough::default(),
            layers,
            kept,
            root,
            nodes: RefCell::new(nodes),
            linked: RefCell::default(),
            accepted: RefCell::default(),
            store,
            observer: OnceCell::new(),
            last_error: LastError::default(),
            next_node: Cell::new(fuse::NodeId::ROOT.0 + 1),
            next_work_name: Cell::new(0),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Returns the index of hard links; none without `index=on`.
    pub(crate) fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// Partial copies; none without an upper layer.
    pub(crate) fn store(&self) -> Option<&Rc<Store>> {
        self.store.as_ref()
    }

    pub(crate) fn root(&self) -> &Rc<Node> {
        &self.root
    }

    /// Returns the files that the thread keeps open, and its bounds.
    pub(crate) fn kept(&self) -> &Rc<KeptOpen> {
        &self.kept
    }

    /// Returns the state of passthrough.
    pub(crate) fn passthrough(&self) -> &Passthrough {
        &self.passthrough
    }

    /// Sets the observer. A union is served once.
    pub(crate) fn observe_by(&self, observer: Rc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some()
    }

    /// Accepts the lower file of the partial file at this path, although it was changed.
    pub(crate) fn accept(&self, path: Vec<u8>) {
        self.accepted.borrow_mut().insert(path);
    }

    /// Notes an error that no caller waited for.
    pub(crate) fn note_error(&self, what: &str, errno: Errno) {
        self.last_error.note(what, errno);
    }

    /// Returns the last error that no caller waited for.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.text()
    }

    /// Returns how many nodes the kernel knows.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.borrow().len()
    }

    /// Returns the nodes that the kernel knows.
    pub(crate) fn nodes(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().values().cloned().collect()
    }

    /// Adds a node under the number that an earlier server gave it.
    pub(crate) fn restore_node(&self, id: u64, node: Rc<Node>) {
        self.nodes.borrow_mut().insert(id, node);
    }

    /// Notes a node that may be found under other names too.
    pub(crate) fn note_linked(&self, stat: &Stat, node: &Rc<Node>) {
        self.linked.borrow_mut().insert((stat.device, stat.inode), Rc::downgrade(node));
    }

    /// Returns the upper layer; `EROFS` without one.
    pub(crate) fn upper(&self) -> Result<&Upper, Errno> {
        self.layers.upper.as_ref().ok_or(Errno::ROFS)
    }

    /// Returns a node that the kernel knows.
    pub(crate) fn node(&self, id: fuse::NodeId) -> Result<Rc<Node>, Errno> {
        let known = self.nodes.borrow().get(&id.0).cloned();
        known.or_else(|| self.passthrough.former(id)).ok_or(Errno::STALE)
    }

    /// Creates a node; it is dropped unless the caller keeps it.
    pub(crate) fn make_node(&self, kind: u32, inode: u64, place: Place) -> Node {
        Node::new(self.new_number(), kind, inode, place)
    }

    /// Returns a number that no node had.
    pub(crate) fn new_number(&self) -> u64 {
        let id = self.next_node.get();
        self.next_node.set(id + 1);
        id
    }

    /// Sets the number of the next node.
    pub(crate) fn set_next_node(&self, id: u64) {
        self.next_node.set(id);
    }

    /// Counts a reference of the kernel.
    pub(crate) fn refer(&self, node: &Rc<Node>) {
        let lookups = node.lookups.get();
        node.lookups.set(lookups + 1);
        if lookups == 0 {
            self.nodes.borrow_mut().insert(node.id.get(), Rc::clone(node));
            if let Some(observer) = self.observer.get() {
                observer.note_names(node);
            }
        }
    }

    /// Removes references that the kernel has given back.
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
            if let Some(observer) = self.observer.get() {
                observer.forget(id.0);
            }
            drop(node);
            self.tidy();
        }
    }

    /// Removes references to dropped nodes, once in a while.
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

    /// Returns the inode number that is shown for one of a layer's file system.
    pub(crate) fn shown_inode(&self, file_system: u8, inode: u64) -> u64 {
        if file_system == 0 || !self.options.xino {
            return inode;
        }
        inode ^ (u64::from(file_system) << INODE_BITS)
    }

    /// As [`Tree::shown_inode`], of a file just looked at.
    pub(crate) fn shown_inode_of(&self, stat: &Stat) -> u64 {
        self.shown_inode(self.layers.file_system_of(stat.device), stat.inode)
    }

    /// Returns a name that nothing in the work directory has.
    pub(crate) fn work_name(&self) -> Vec<u8> {
        let number = self.next_work_name.get();
        self.next_work_name.set(number + 1);
        format!("#{number:x}").into_bytes()
    }

    /// Returns the upper part of a directory, open.
    pub(crate) fn upper_part(&self, node: &Rc<Node>) -> Result<Fd, Errno> {
        self.part(node, 0)?.ok_or(Errno::IO)
    }

    /// Returns a part of a directory, open: 0 for the upper one (`None` if there is none yet), then
    /// the lower ones in order.
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
        self.kept.note_directory(node);
        Ok(Some(fd))
    }

    /// Returns the root of the layer that a part lies in.
    pub(crate) fn lower_root(&self, part: &LowerPart) -> std::os::fd::BorrowedFd<'_> {
        self.layers.lower[usize::from(part.layer)].root.as_fd()
    }

    /// Returns a descriptor (`O_PATH`, or of an open file) of the inode that now carries a node's
    /// attributes.
    pub(crate) fn object(&self, node: &Rc<Node>) -> Result<Fd, Errno> {
        let place = node.place.borrow().clone();
        match place {
            Place::Gone { fd, .. } => Ok(fd),
            Place::Pending(pending) => Ok(Rc::clone(pending.file())),
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

    /// Returns the attributes of the inode that [`Tree::object`] would open, without opening it
    /// where that is possible.
    pub(crate) fn stat(&self, node: &Rc<Node>) -> Result<Stat, Errno> {
        let mut stat = self.stat_itself(node)?;
        if let Some(indexed) = node.indexed.get() {
            stat.nlink = indexed.nlink.get();
        }
        Ok(if node.has_data_apart() { self.with_blocks_of_data(node, stat) } else { stat })
    }

    /// Returns attributes with the blocks of the data, in any merged layer. As in the kernel,
    /// layers that hold data only are not searched for it.
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

    /// Returns the upper directories by their keys, as paths from the root.
    pub(crate) fn directories_by_key(&self) -> Result<HashMap<ParentKey, Box<[u8]>>, Errno> {
        directories_below(self.upper()?.root.as_fd())
    }

    pub(crate) fn node_at(&self, path: &[u8]) -> Result<Rc<Node>, Errno> {
        let mut node = Rc::clone(&self.root);
        for name in path.split(|&byte| byte == b'/') {
            node = self.lookup(&node, name)?.ok_or(Errno::NOENT)?.0;
        }
        Ok(node)
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

/// Returns a node's path from the root, without a leading slash.
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
