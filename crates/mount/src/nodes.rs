//! The numbers by which the kernel knows inodes.
//!
//! A file has its inode number. A directory has one number for each directory in which the kernel
//! knows it: its inode number first, others (with [`ALIAS_BIT`]) when another mount has moved it
//! while the kernel still knows its old place. One number would have the kernel move its old name
//! (`d_splice_alias`), for which it needs locks that it holds itself while it looks up what is to be
//! renamed, or that any other process may hold: it gives up with ESTALE then, and asking again does not
//! help as long as the locks are held. A directory moved by the kernel itself keeps its number, so
//! the kernel never sees a number in a second directory. Who has the old place open goes on under
//! the old number, which leads to the same directory.
//!
//! The user sees none of this: `st_ino` is the inode's own.

use fuse::NodeId;
use protocol::{FileKind, InodeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Marks numbers that are no inode numbers; those are counted from 1 and never get here.
const ALIAS_BIT: u64 = 1 << 63;

/// A directory as the kernel knows it.
#[derive(Debug)]
struct Place {
    inode: InodeId,
    /// The directory in which the kernel knows it under this number.
    parent: NodeId,
    /// Answers that gave the kernel the number, less those that it has forgotten.
    lookups: u64,
}

/// The numbers of directories that have others than their own. Cheap to clone; clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers(Arc<Mutex<HashMap<InodeId, Vec<NodeId>>>>);

impl Numbers {
    /// All numbers under which the kernel may know an inode.
    pub(crate) fn of(&self, inode: InodeId) -> Vec<NodeId> {
        let numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.get(&inode).cloned().unwrap_or_else(|| vec![NodeId(inode.0)])
    }

    fn add(&self, inode: InodeId, node: NodeId) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = numbers.get_mut(&inode) {
            known.push(node);
        } else if node.0 != inode.0 {
            // An alias is made only while the number of its own is in use.
            numbers.insert(inode, vec![NodeId(inode.0), node]);
        }
    }

    fn remove(&self, inode: InodeId, node: NodeId) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = numbers.get_mut(&inode) else { return };
        known.retain(|number| *number != node);
        if known.iter().all(|number| number.0 == inode.0) {
            numbers.remove(&inode);
        }
    }
}

/// The directories that the kernel knows. Bounded by what the kernel remembers.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    places: HashMap<NodeId, Place>,
    /// The number last given for a directory in a directory.
    current: HashMap<(NodeId, InodeId), NodeId>,
    aliases_made: u64,
    numbers: Numbers,
}

impl Nodes {
    /// Notes numbers in `numbers`, too.
    pub(crate) fn new(numbers: Numbers) -> Nodes {
        Nodes { numbers, ..Nodes::default() }
    }

    /// The inode that the kernel means. (An alias that it has forgotten is no inode's number.)
    pub(crate) fn inode(&self, node: NodeId) -> InodeId {
        if node.0 & ALIAS_BIT == 0 {
            return InodeId(node.0);
        }
        self.places.get(&node).map_or(InodeId(node.0), |place| place.inode)
    }

    /// The number under which the kernel is told that `inode` is an entry of `parent`, counted as
    /// told once.
    pub(crate) fn tell(&mut self, parent: NodeId, inode: InodeId, kind: FileKind) -> NodeId {
        let own = NodeId(inode.0);
        if kind != FileKind::Directory {
            return own;
        }
        let known = self.current.get(&(parent, inode)).copied();
        let node = known.unwrap_or_else(|| {
            let is_used =
                self.places.contains_key(&own) && !reactor::mutant!("one-number-a-directory");
            let node = if is_used { self.new_alias() } else { own };
            self.current.insert((parent, inode), node);
            node
        });
        let place = self.places.entry(node).or_insert_with(|| {
            self.numbers.add(inode, node);
            Place { inode, parent, lookups: 0 }
        });
        place.lookups += 1;
        node
    }

    fn new_alias(&mut self) -> NodeId {
        self.aliases_made += 1;
        NodeId(ALIAS_BIT | self.aliases_made)
    }

    /// The kernel takes back `count` times that it was told a number; answers whose it was.
    pub(crate) fn forget(&mut self, node: NodeId, count: u64) -> InodeId {
        let inode = self.inode(node);
        if let Some(place) = self.places.get_mut(&node) {
            place.lookups = place.lookups.saturating_sub(count);
            if place.lookups == 0 {
                self.leave(node);
                self.places.remove(&node);
                self.numbers.remove(inode, node);
            }
        }
        inode
    }

    /// The kernel itself moves `inode` from one directory to another, and its number with it.
    pub(crate) fn moved(&mut self, from: NodeId, to: NodeId, inode: InodeId) {
        if reactor::mutant!("move-forgets-number") {
            return;
        }
        let Some(&node) = self.current.get(&(from, inode)) else { return };
        self.leave(node);
        if let Some(place) = self.places.get_mut(&node) {
            place.parent = to;
            self.current.insert((to, inode), node);
        }
    }

    /// Returns how many directories the kernel knows, each as often as it has numbers.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    fn leave(&mut self, node: NodeId) {
        let Some(place) = self.places.get(&node) else { return };
        let key = (place.parent, place.inode);
        if self.current.get(&key) == Some(&node) {
            self.current.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(2);
    const B: NodeId = NodeId(3);
    const C: NodeId = NodeId(4);
    const MOVED: InodeId = InodeId(10);

    fn tell(nodes: &mut Nodes, parent: NodeId) -> NodeId {
        nodes.tell(parent, MOVED, FileKind::Directory)
    }

    /// Goal: while the kernel knows a directory in its old place, it gets another number in the new
    /// one; both lead to the directory. Once it has forgotten all, it begins with the inode's own.
    #[test]
    fn a_directory_moved_by_others_has_a_number_for_each_place() {
        let mut nodes = Nodes::default();
        let old = tell(&mut nodes, A);
        assert_eq!(old, NodeId(MOVED.0));
        assert_eq!(tell(&mut nodes, A), old);
        let new = tell(&mut nodes, B);
        assert_ne!(new, old);
        assert_eq!((nodes.inode(new), nodes.inode(old)), (MOVED, MOVED));
        assert_eq!(tell(&mut nodes, A), old, "moved back");
        assert_eq!(nodes.forget(old, 2), MOVED);
        assert_eq!(tell(&mut nodes, A), old);
        nodes.forget(old, 2);
        nodes.forget(new, 1);
        assert!(nodes.places.is_empty() && nodes.current.is_empty());
        assert_eq!(tell(&mut nodes, B), old);
    }

    /// Goal: a directory that the kernel moves keeps its number in the new place, even where another
    /// number was left from an earlier stay; each is forgotten for itself.
    #[test]
    fn a_directory_moved_here_keeps_its_number() {
        let mut nodes = Nodes::default();
        let first = tell(&mut nodes, A);
        let second = tell(&mut nodes, B);
        nodes.moved(B, C, MOVED);
        assert_eq!(tell(&mut nodes, C), second);
        nodes.moved(C, A, MOVED);
        assert_eq!(tell(&mut nodes, A), second);
        assert_eq!(nodes.forget(first, 1), MOVED);
        assert_eq!(tell(&mut nodes, A), second);
        assert_eq!(nodes.forget(second, 4), MOVED);
        assert!(nodes.places.is_empty() && nodes.current.is_empty());
        nodes.moved(A, B, MOVED);
        assert!(nodes.current.is_empty(), "nobody knows it there");
    }

    /// Goal: who has to tell the kernel of a directory finds each number under which it is known, and no
    /// other.
    #[test]
    fn all_numbers_of_a_directory_are_known() {
        let numbers = Numbers::default();
        let mut nodes = Nodes::new(numbers.clone());
        assert_eq!(numbers.of(MOVED), [NodeId(MOVED.0)]);
        let old = tell(&mut nodes, A);
        let new = tell(&mut nodes, B);
        assert_eq!(numbers.of(MOVED), [old, new]);
        nodes.forget(old, 1);
        assert_eq!(numbers.of(MOVED), [new]);
        let again = tell(&mut nodes, C);
        assert_eq!((again, numbers.of(MOVED)), (old, vec![new, old]));
        nodes.forget(new, 1);
        assert_eq!(numbers.of(MOVED), [old]);
        assert!(numbers.0.lock().unwrap().is_empty());
    }

    /// Goal: files, which may have many names, have one number.
    #[test]
    fn a_file_has_its_inode_number_everywhere() {
        let mut nodes = Nodes::default();
        for parent in [A, B] {
            assert_eq!(nodes.tell(parent, MOVED, FileKind::File), NodeId(MOVED.0));
        }
        assert_eq!(nodes.forget(NodeId(MOVED.0), 2), MOVED);
        assert!(nodes.places.is_empty());
    }
}
