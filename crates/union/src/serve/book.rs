//! The kernel's knowledge of a mount, kept where it survives the server: in memory files that the
//! keeper holds too.
//!
//! The numbers of nodes and handles have a meaning in the server's memory only. So each name of a
//! node that the kernel knows has a slot in one memory file, and each open handle has one in
//! another. They are written before the kernel gets the answer. A slot is 288 bytes with the node's
//! number at its end, so that one that was written in part is an empty one; a new name is noted
//! before it is made. The next server looks every name up again ([`Book::restore`]). Of several
//! names of one node, existing ones count, and first the one with the right inode number. The
//! keeper gets descriptors of inodes that have lost their last name while they are open.
//!
//! Nothing here needs to survive a loss of power: the mount does not either.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::keeper::{Gone, Keeper};
use crate::ops::Union;
use crate::sys;
use crate::tree::{HandleMode, Node, Observer, OpenFile, Passed, Place};

/// Bytes of a name's slot: parent, inode, length and bytes of the name, node.
const SLOT_BYTES: usize = 288;
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 18;
const NODE_AT: usize = SLOT_BYTES - 8;
/// Bytes of a handle's slot; those of files and directories alternate.
const HANDLE_BYTES: usize = 8;
/// In a handle's slot: the kernel reads the file itself.
const PASSED: u64 = 1 << 63;
/// Assumed references of a restored node: the kernel's number is unknown, and it returns all of
/// them at once.
const LOOKUPS_RESTORED: u64 = 1 << 40;
/// Node numbers that an earlier server may have given beyond the highest one noted.
const NODES_SKIPPED: u64 = 1 << 16;

/// The kind of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleKind {
    File { for_writing: bool, is_passed: bool },
    Directory,
}

/// The memory files of a mount.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) names: OwnedFd,
    pub(super) handles: OwnedFd,
}

impl Pages {
    pub(super) fn new() -> Result<Self, Errno> {
        let make = |name: &str| rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC);
        Ok(Self { names: make("union-names")?, handles: make("union-handles")? })
    }

    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { names: self.names.try_clone()?, handles: self.handles.try_clone()? })
    }
}

/// The book of one mount.
#[derive(Debug)]
pub(crate) struct Book {
    /// The mount's number towards the keeper.
    mount: u64,
    pages: Pages,
    keeper: Keeper,
    slots: RefCell<Slots>,
    /// Nodes whose descriptors the keeper has.
    gone: RefCell<HashSet<u64>>,
    has_failed: Cell<bool>,
}

/// The slots of each node.
#[derive(Debug, Default)]
struct Slots {
    of: HashMap<u64, SmallVec<[u32; 1]>>,
    free: Vec<u32>,
    count: u32,
}

/// A name as it was noted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Noted {
    slot: u32,
    node: u64,
    parent: u64,
    inode: u64,
    name: Box<[u8]>,
}

impl Book {
    pub(super) fn new(mount: u64, pages: Pages, keeper: Keeper) -> Self {
        Self {
            mount,
            pages,
            keeper,
            slots: RefCell::default(),
            gone: RefCell::default(),
            has_failed: Cell::new(false),
        }
    }

    /// Notes a further name of a node.
    pub(crate) fn add_name(&self, node: &Node, parent: u64, name: &[u8]) {
        for id in ids_of(node) {
            self.add_name_of(id, node, parent, name);
        }
    }

    fn add_name_of(&self, id: u64, node: &Node, parent: u64, name: &[u8]) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.count += 1;
            slots.count - 1
        });
        slots.of.entry(id).or_default().push(slot);
        drop(slots);
        let bytes = encode(id, parent, node.inode.get(), name);
        self.write(self.pages.names.as_fd(), &bytes, u64::from(slot) * SLOT_BYTES as u64);
    }

    /// Notes a handle.
    pub(crate) fn open(&self, handle: u64, kind: HandleKind, node: u64) {
        let flags = match kind {
            HandleKind::File { for_writing: true, .. } => 0b11,
            HandleKind::File { is_passed: true, .. } => PASSED | 0b01,
            _ => 0b01,
        };
        self.set_handle(handle, kind, (node << 2) | flags);
    }

    /// Forgets a handle.
    pub(crate) fn close(&self, handle: u64, kind: HandleKind) {
        self.set_handle(handle, kind, 0);
    }

    fn set_handle(&self, handle: u64, kind: HandleKind, value: u64) {
        let index = handle * 2 + u64::from(kind == HandleKind::Directory);
        let at = index * HANDLE_BYTES as u64;
        self.write(self.pages.handles.as_fd(), &value.to_le_bytes(), at);
    }

    /// Gives the keeper the descriptor of a file without a name, because a program may have it
    /// open.
    pub(crate) fn note_gone(&self, node: &Node) {
        let place = node.place.borrow();
        let Place::Gone { fd, is_own } = &*place else { return };
        for id in ids_of(node).into_iter().filter(|_| node.file().is_some()) {
            if self.gone.borrow_mut().insert(id) {
                self.keeper.keep_gone(self.mount, id, *is_own, fd.as_fd());
            }
        }
    }

    fn clear(&self, slot: u32) {
        let at = u64::from(slot) * SLOT_BYTES as u64 + NODE_AT as u64;
        self.write(self.pages.names.as_fd(), &[0; 8], at);
        self.slots.borrow_mut().free.push(slot);
    }

    /// Writes, or logs once that the mount will not survive its server.
    fn write(&self, file: BorrowedFd<'_>, bytes: &[u8], at: u64) {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, at));
        if written != Ok(bytes.len()) && !self.has_failed.replace(true) {
            tracing::error!(?written, "open files of this mount will not survive its server");
        }
    }

    /// Gives a union the nodes and handles that an earlier server has noted.
    ///
    /// # Errors
    /// Errors of reading the memory files; lost parts of a tree are logged.
    pub(super) fn restore(&self, union: &Union, gone: Vec<Gone>) -> Result<(), Errno> {
        let names = read_all(self.pages.names.as_fd())?;
        let noted = decode_all(&names);
        self.slots.borrow_mut().count = (names.len() / SLOT_BYTES) as u32;
        let mut highest = fuse::NodeId::ROOT.0;
        let mut of: HashMap<u64, Vec<Noted>> = HashMap::new();
        for noted in noted {
            highest = highest.max(noted.node);
            of.entry(noted.node).or_default().push(noted);
        }
        for Gone { node, is_own, descriptor } in gone {
            highest = highest.max(node);
            self.gone.borrow_mut().insert(node);
            restore_gone(union, node, is_own, descriptor)?;
        }
        let handles = read_all(self.pages.handles.as_fd())?;
        let passed: HashSet<u64> = passed_nodes(&handles);
        let mut left: Vec<u64> = of.keys().copied().collect();
        // A number by which a file is passed may be a former one: the other comes first.
        left.sort_unstable_by_key(|id| (passed.contains(id), *id));
        loop {
            let before = left.len();
            left.retain(|node| !of.get(node).is_some_and(|noted| restore_one(union, *node, noted)));
            if left.len() == before {
                break;
            }
        }
        if !left.is_empty() {
            tracing::warn!(
                count = left.len(),
                "names that the kernel knows are not there any more"
            );
        }
        union.tree().set_next_node(highest + NODES_SKIPPED);
        self.take_slots(union, names.len() / SLOT_BYTES);
        restore_handles(union, &handles, &passed);
        Ok(())
    }

    /// Begins with empty slots, and notes the nodes that were restored.
    fn take_slots(&self, union: &Union, count: usize) {
        for slot in 0..count as u32 {
            // They are cleared after their nodes have new slots, so that no node is without one at
            // any time.
            self.slots.borrow_mut().of.entry(0).or_default().push(slot);
        }
        let nodes: Vec<Rc<Node>> = union.tree().nodes();
        for node in nodes {
            self.note_names(&node);
        }
        let old = self.slots.borrow_mut().of.remove(&0).unwrap_or_default();
        for slot in old {
            self.clear(slot);
        }
    }
}

impl Observer for Book {
    fn note_names(&self, node: &Node) {
        for id in ids_of(node) {
            let old = self.slots.borrow_mut().of.remove(&id).unwrap_or_default();
            for link in node.links.borrow().iter() {
                self.add_name_of(id, node, link.parent.id.get(), &link.name);
            }
            for slot in old {
                self.clear(slot);
            }
        }
    }

    fn forget(&self, id: u64) {
        let old = self.slots.borrow_mut().of.remove(&id);
        for slot in old.into_iter().flatten() {
            self.clear(slot);
        }
        if self.gone.borrow_mut().remove(&id) {
            self.keeper.drop_gone(self.mount, id);
        }
    }
}

/// Opens the handles that an earlier server has noted.
fn restore_handles(union: &Union, bytes: &[u8], passed: &HashSet<u64>) {
    let mut files = Vec::new();
    let mut listings = Vec::new();
    let passed: HashMap<u64, Rc<Passed>> = passed
        .iter()
        .filter_map(|id| Some((*id, union.tree().restore_passed(fuse::NodeId(*id))?)))
        .collect();
    for (index, value) in bytes.as_chunks::<HANDLE_BYTES>().0.iter().enumerate() {
        let value = u64::from_le_bytes(*value);
        if value & 1 == 0 {
            continue;
        }
        let (handle, for_writing) = (index / 2, value & 2 != 0);
        if index % 2 == 1 {
            listings.push(handle);
            continue;
        }
        let id = (value & !PASSED) >> 2;
        let opened = union
            .tree()
            .node(fuse::NodeId(id))
            .and_then(|node| Ok((union.tree().backing_to_open(&node, for_writing)?, node)));
        match opened {
            Ok((backing, node)) => {
                let known = passed.get(&id).filter(|_| value & PASSED != 0);
                let mode = match known {
                    Some(passed) => HandleMode::Passed(Rc::clone(passed)),
                    None => union.tree().handle_mode(&node, backing.as_deref(), true),
                };
                if for_writing {
                    union.note_restored_writer(&node);
                }
                files.push((handle, Rc::new(OpenFile::new(&node, backing, for_writing, mode))));
            }
            Err(errno) => tracing::error!(%errno, handle, "an open file is lost"),
        }
    }
    union.handles().restore(files, &listings);
}

/// Returns all numbers by which the kernel knows a node.
fn ids_of(node: &Node) -> SmallVec<[u64; 2]> {
    let former = node.file().map(|state| state.former_ids.borrow().clone());
    let own = (node.lookups.get() > 0).then(|| node.id.get());
    own.into_iter().chain(former.into_iter().flatten()).collect()
}

/// Returns the nodes of handles that are passed.
fn passed_nodes(handles: &[u8]) -> HashSet<u64> {
    let values = handles.as_chunks::<HANDLE_BYTES>().0.iter().map(|it| u64::from_le_bytes(*it));
    let passed = values.filter(|value| value & (PASSED | 1) == PASSED | 1);
    passed.map(|value| (value & !PASSED) >> 2).collect()
}

/// Makes a node of a descriptor.
fn restore_gone(union: &Union, node: u64, is_own: bool, fd: OwnedFd) -> Result<(), Errno> {
    let stat = sys::stat_at(fd.as_fd(), b"")?;
    union.tree().set_next_node(node);
    let place = Place::Gone { fd: Rc::new(fd), is_own };
    let made =
        Rc::new(union.tree().make_node(stat.kind(), union.tree().shown_inode_of(&stat), place));
    made.lookups.set(LOOKUPS_RESTORED);
    union.tree().restore_node(node, made);
    Ok(())
}

/// Looks a node's names up; whether one is found.
fn restore_one(union: &Union, id: u64, noted: &[Noted]) -> bool {
    let mut other: Option<Rc<Node>> = None;
    for (is_exact, noted) in
        [true, false].iter().flat_map(|is| noted.iter().map(move |it| (is, it)))
    {
        let Ok(parent) = union.tree().node(fuse::NodeId(noted.parent)) else { continue };
        union.tree().set_next_node(id);
        let found = match union.tree().lookup(&parent, &noted.name) {
            Ok(Some((node, _))) if node.id.get() == id => node,
            // The node has another number already: a file that was passed has several.
            Ok(Some((node, _))) if *is_exact && node.inode.get() == noted.inode => {
                return union.tree().restore_former(&node, id, LOOKUPS_RESTORED);
            }
            _ => continue,
        };
        // A further name of the node that was found first is noted by the lookup itself.
        let is_right = !is_exact || found.inode.get() == noted.inode;
        if is_right && other.is_none() {
            other = Some(found);
        }
        if !is_exact && other.is_some() {
            break;
        }
    }
    let Some(node) = other else { return false };
    node.lookups.set(LOOKUPS_RESTORED);
    union.tree().restore_node(id, node);
    true
}

fn encode(node: u64, parent: u64, inode: u64, name: &[u8]) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    // Names are 255 bytes at most, which is checked where they come from.
    let length = name.len().min(NODE_AT - NAME_AT);
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..LENGTH_AT].copy_from_slice(&inode.to_le_bytes());
    bytes[LENGTH_AT..NAME_AT].copy_from_slice(&(length as u16).to_le_bytes());
    bytes[NAME_AT..NAME_AT + length].copy_from_slice(&name[..length]);
    bytes[NODE_AT..].copy_from_slice(&node.to_le_bytes());
    bytes
}

/// Returns all slots that hold a name.
fn decode_all(bytes: &[u8]) -> Vec<Noted> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let (slots, _) = bytes.as_chunks::<SLOT_BYTES>();
    let decode = |(index, slot): (usize, &[u8; SLOT_BYTES])| {
        let node = number(&slot[NODE_AT..]);
        let length = usize::from(u16::from_le_bytes([slot[LENGTH_AT], slot[LENGTH_AT + 1]]));
        let name = slot[NAME_AT..NODE_AT].get(..length)?;
        (node > fuse::NodeId::ROOT.0 && !name.is_empty()).then(|| Noted {
            slot: index as u32,
            node,
            parent: number(&slot[..8]),
            inode: number(&slot[8..LENGTH_AT]),
            name: name.into(),
        })
    };
    slots.iter().enumerate().filter_map(decode).collect()
}

fn read_all(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let mut bytes = vec![0; size];
    let mut at = 0;
    while at < size {
        match rustix::io::pread(file, &mut bytes[at..], at as u64)? {
            0 => break,
            count => at += count,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: names come back; a slot that was written in part counts as empty.
        #[test]
        fn slots_come_back_whole_or_not_at_all(
            node in 2_u64..u64::MAX,
            parent: u64,
            inode: u64,
            name in proptest::collection::vec(1_u8.., 1..=255),
            cut in 0..SLOT_BYTES,
        ) {
            let bytes = encode(node, parent, inode, &name);
            let expected = Noted { slot: 1, node, parent, inode, name: name.into() };
            let all = [&[0; SLOT_BYTES][..], &bytes].concat();
            prop_assert_eq!(decode_all(&all), vec![expected]);
            let mut torn = [0; SLOT_BYTES];
            torn[..cut.min(NODE_AT)].copy_from_slice(&bytes[..cut.min(NODE_AT)]);
            prop_assert!(decode_all(&torn).is_empty());
        }

        /// Goal: garbage is no panic.
        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            decode_all(&bytes);
        }
    }
}
