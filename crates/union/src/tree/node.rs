//! A node: one inode of the merged tree as the kernel knows it, and where its parts lie.
//!
//! The upper part of a directory always lies at the path of the node itself, so the node keeps only
//! a flag of it. It keeps the paths of lower parts, because the lower parts of a renamed directory
//! stay where they were. Nodes are made by lookups and dropped by forgets: an idle union costs
//! nothing per file.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use reactor::local::Notify;
use smallvec::SmallVec;

use super::index::Indexed;
use super::{Passed, Pending};
use crate::layers::LayerIndex;
use crate::store::Partial;
use crate::sys::Fd;

/// A part of a node in a lower layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LowerPart {
    pub(crate) layer: LayerIndex,
    /// From the layer's root, without a leading slash; empty for the root.
    pub(crate) path: Rc<[u8]>,
    /// Whether whiteouts may be attributes, if it is a directory.
    pub(crate) holds_whiteouts: bool,
}

/// Where a node's changeable part is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In lower layers only.
    Lower,
    /// In the upper directory, under the node's name.
    Upper,
    /// Copied, in use, and waiting for its data to be durable before it gets its name.
    Pending(Rc<Pending>),
    /// Partly stored in the journal, the rest in the lower file.
    Partial(Rc<Partial>),
    /// It has no name any more. Programs that have it open reach it by this descriptor.
    Gone {
        /// The inode, by `O_PATH` or open.
        fd: Fd,
        /// Whether it is an inode of the upper layer, which may be changed.
        is_own: bool,
    },
}

/// A name of a node.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) parent: Rc<Node>,
    pub(crate) name: Box<[u8]>,
}

/// The state that only directories have.
#[derive(Debug, Default)]
pub(crate) struct DirectoryState {
    /// Known names in it.
    pub(crate) children: RefCell<HashMap<Box<[u8]>, Weak<Node>>>,
    /// Open parts: the upper one, then the lower ones in order.
    pub(crate) parts: RefCell<SmallVec<[Option<Fd>; 2]>>,
    /// Whether names in it were made by us and not yet made durable.
    pub(crate) has_new_names: Cell<bool>,
    /// How many callers are making such names durable now.
    pub(crate) names_syncing: Cell<u32>,
    /// Parts, counted as above, that are known to hold no whiteouts by name, because they were
    /// listed. The union makes no such whiteouts, and no other program changes its layers.
    pub(crate) plain: RefCell<SmallVec<[u16; 2]>>,
    /// Whether the upper part is known to bear the mark that origins of other inodes lie in it.
    pub(crate) is_impure: Cell<bool>,
}

/// The state that only regular files have.
#[derive(Debug, Default)]
pub(crate) struct FileState {
    /// Whether a copy-up is going on.
    pub(crate) is_copying: Cell<bool>,
    /// Wakes the tasks that wait for it.
    pub(crate) copied: Notify,
    /// Whether its upper part has attributes only: the data is that of the last lower part.
    pub(crate) lacks_data: Cell<bool>,
    /// Counts changes of the place that its data is at.
    pub(crate) version: Cell<u32>,
    /// The backing files that are open, shared by all handles.
    pub(crate) readable: RefCell<Weak<crate::backing::Backing>>,
    pub(crate) writable: RefCell<Weak<crate::backing::Backing>>,
    /// The lower file that the kernel reads itself, while any handle is open so.
    pub(crate) passed: RefCell<Weak<Passed>>,
    /// Lives while any handle is open that is served.
    pub(crate) served: RefCell<Weak<()>>,
    /// Handles that are open for writing.
    pub(crate) writers: Cell<u32>,
    /// Whether any of them writes past the kernel's cache.
    pub(crate) is_written_directly: Cell<bool>,
    /// Bits of the mode that no answer shows until the file is closed or a write takes them
    /// (set-user-ID and set-group-ID).
    pub(crate) disarmed: Cell<u32>,
    /// Numbers that it had, and by which the kernel knows it still.
    pub(crate) former_ids: RefCell<Vec<u64>>,
}

impl FileState {
    /// Notes that the data of the node has moved: handles look it up again.
    pub(crate) fn note_move(&self) {
        self.version.set(self.version.get().wrapping_add(1));
        *self.readable.borrow_mut() = Weak::new();
        *self.writable.borrow_mut() = Weak::new();
    }
}

/// The state that depends on the type of a node.
#[derive(Debug)]
pub(crate) enum State {
    Directory(Box<DirectoryState>),
    File(Box<FileState>),
    /// Links, devices, sockets, fifos.
    Other,
}

/// One inode of the merged tree.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its number for the kernel, which is never used again. It gets another one when its data
    /// moves while the kernel reads it itself ([`super::passthrough`]).
    pub(crate) id: Cell<u64>,
    /// File type (`S_IFMT` bits).
    pub(crate) kind: u32,
    /// The inode number that stat(2) shows.
    pub(crate) inode: Cell<u64>,
    /// References that the kernel holds.
    pub(crate) lookups: Cell<u64>,
    /// Its known names; none for the root and for inodes without a name.
    pub(crate) links: RefCell<SmallVec<[Link; 1]>>,
    pub(crate) place: RefCell<Place>,
    /// A directory's lower parts from the top; of others at most the origin and, where that has
    /// attributes only, the part with the data.
    pub(crate) lower: RefCell<SmallVec<[LowerPart; 1]>>,
    pub(crate) state: State,
    /// Link count in the lower layer, for inodes that come from there.
    pub(crate) lower_nlink: Cell<u32>,
    /// Its entry in the index, if it has one. Its upper part is then reached through the entry, not
    /// through its names.
    pub(crate) indexed: OnceCell<Indexed>,
}

impl Node {
    pub(crate) fn new(id: u64, kind: u32, inode: u64, place: Place) -> Self {
        let state = match kind {
            libc::S_IFDIR => State::Directory(Box::default()),
            libc::S_IFREG => State::File(Box::default()),
            _ => State::Other,
        };
        Self {
            id: Cell::new(id),
            kind,
            inode: Cell::new(inode),
            lookups: Cell::new(0),
            links: RefCell::default(),
            place: RefCell::new(place),
            lower: RefCell::default(),
            state,
            lower_nlink: Cell::new(0),
            indexed: OnceCell::new(),
        }
    }

    /// Returns whether the kernel has references to it.
    pub(crate) fn is_known(&self) -> bool {
        let has_former = |state: &FileState| !state.former_ids.borrow().is_empty();
        self.lookups.get() > 0 || self.file().is_some_and(has_former)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Returns its state as a directory, if it is one.
    pub(crate) fn directory(&self) -> Option<&DirectoryState> {
        match &self.state {
            State::Directory(state) => Some(state),
            _ => None,
        }
    }

    /// Notes that a part of a directory holds no whiteouts by name.
    pub(crate) fn note_plain(&self, part: usize) {
        if let (Some(state), Ok(part)) = (self.directory(), u16::try_from(part))
            && !self.is_plain(usize::from(part))
        {
            state.plain.borrow_mut().push(part);
        }
    }

    /// Returns whether a part of a directory is known to hold no whiteouts by name.
    pub(crate) fn is_plain(&self, part: usize) -> bool {
        let is_it = |state: &DirectoryState| {
            state.plain.borrow().iter().any(|&plain| usize::from(plain) == part)
        };
        self.directory().is_some_and(is_it)
    }

    /// Returns its state as a regular file, if it is one.
    pub(crate) fn file(&self) -> Option<&FileState> {
        match &self.state {
            State::File(state) => Some(state),
            _ => None,
        }
    }

    /// Returns whether a change needs no copy-up any more.
    pub(crate) fn is_changeable(&self) -> bool {
        let is_own =
            !matches!(*self.place.borrow(), Place::Lower | Place::Gone { is_own: false, .. });
        is_own && !self.lacks_data()
    }

    /// Returns whether its upper part has attributes only.
    pub(crate) fn lacks_data(&self) -> bool {
        self.file().is_some_and(|state| state.lacks_data.get())
    }

    /// Returns whether its data is that of another inode than its attributes: of the last lower
    /// part.
    pub(crate) fn has_data_apart(&self) -> bool {
        let is_apart = || self.lacks_data() || self.lower.borrow().len() > 1;
        self.file().is_some() && !self.is_changeable() && is_apart()
    }

    /// Returns whether it lies in the upper directory under its name.
    pub(crate) fn is_in_upper(&self) -> bool {
        matches!(*self.place.borrow(), Place::Upper)
    }

    /// Returns whether it has a part in a lower layer, or was copied from one.
    pub(crate) fn has_lower(&self) -> bool {
        !self.lower.borrow().is_empty() || self.lower_nlink.get() > 0
    }

    /// Returns the copy that waits for its name.
    pub(crate) fn pending(&self) -> Option<Rc<Pending>> {
        match &*self.place.borrow() {
            Place::Pending(pending) => Some(Rc::clone(pending)),
            _ => None,
        }
    }

    /// Returns its partial file, if only a part of it is stored.
    pub(crate) fn partial(&self) -> Option<Rc<Partial>> {
        match &*self.place.borrow() {
            Place::Partial(partial) => Some(Rc::clone(partial)),
            _ => None,
        }
    }

    /// Returns one of its names.
    pub(crate) fn link(&self) -> Option<Link> {
        self.links.borrow().first().cloned()
    }

    /// Moves the node to another place; open backing files are opened again at their next use.
    pub(crate) fn set_place(&self, place: Place) {
        *self.place.borrow_mut() = place;
        if let Some(state) = self.directory() {
            state.parts.borrow_mut().clear();
            state.plain.borrow_mut().clear();
        }
    }

    /// Notes a name.
    pub(crate) fn add_link(self: &Rc<Self>, parent: &Rc<Node>, name: &[u8]) {
        let mut links = self.links.borrow_mut();
        let is_known =
            links.iter().any(|link| Rc::ptr_eq(&link.parent, parent) && *link.name == *name);
        if !is_known {
            links.push(Link { parent: Rc::clone(parent), name: name.into() });
        }
        if let Some(directory) = parent.directory() {
            directory.children.borrow_mut().insert(name.into(), Rc::downgrade(self));
        }
    }

    /// Forgets a name.
    pub(crate) fn remove_link(&self, parent: &Rc<Node>, name: &[u8]) {
        self.links
            .borrow_mut()
            .retain(|link| !(Rc::ptr_eq(&link.parent, parent) && *link.name == *name));
        if let Some(directory) = parent.directory() {
            directory.children.borrow_mut().remove(name);
        }
    }

    /// Returns the node known under a name of this directory.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Rc<Node>> {
        self.directory()?.children.borrow().get(name)?.upgrade()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Parents are dropped one after the other here, never by recursion through `Link`s: a deep
        // tree must not exhaust the stack.
        let mut links = std::mem::take(&mut *self.links.borrow_mut());
        while let Some(link) = links.pop() {
            if let Some(directory) = link.parent.directory() {
                let mut children = directory.children.borrow_mut();
                let is_dead = children.get(&*link.name).is_some_and(|it| it.strong_count() == 0);
                if is_dead {
                    children.remove(&*link.name);
                }
                if children.is_empty() {
                    children.shrink_to_fit();
                }
            }
            if let Some(parent) = Rc::into_inner(link.parent) {
                links.append(&mut parent.links.borrow_mut());
            }
        }
    }
}
