//! The numbers by which the kernel knows inodes.
//!
//! A file has its inode number. A directory has one number for each directory in which the kernel
//! knows it: its inode number first, and another one (with [`ALIAS_BIT`]) when another mount has
//! moved it while the kernel still knows its old name. With a single number the kernel would have
//! to move the old name (`d_splice_alias`). For that it needs locks that it holds itself while it
//! looks up the directory for a rename, or that any other process may hold. It gives up with ESTALE
//! then, and asking again does not help as long as the locks are held. A directory that the kernel
//! itself moves keeps its number, so the kernel never sees a number in a second directory. A
//! program that has the old directory entry open continues under the old number, which leads to the
//! same directory.
//!
//! The user sees none of this: `st_ino` is the inode's own number.

use fuse::NodeId;
use protocol::{FileKind, InodeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Marks numbers that are not inode numbers. Inode numbers count from 1 and never get this far.
const ALIAS_BIT: u64 = 1 << 63;

/// A number by which the kernel knows a directory.
#[derive(Debug)]
struct DirectoryNode {
    inode: InodeId,
    /// The directory in which the kernel knows it under this number.
    parent: NodeId,
    /// The answers that gave the number to the kernel, less those that the kernel has forgotten.
    lookups: u64,
}

/// The numbers of directories that have others than their own. Clones share one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers(Arc<Mutex<HashMap<InodeId, Vec<NodeId>>>>);

impl Numbers {
    /// Returns all numbers under which the kernel may know an inode.
    pub(crate) fn of(&self, inode: InodeId) -> Vec<NodeId> {
        let numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.get(&inode).cloned().unwrap_or_else(|| vec![NodeId(inode.0)])
    }

    fn add(&self, inode: InodeId, node: NodeId) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = numbers.get_mut(&inode) {
            known.push(node);
        } else if node.0 != inode.0 {
            // An alias is made only while the inode's own number is in use.
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

/// The directories that the kernel knows. What the kernel remembers bounds their number.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    directories: HashMap<NodeId, DirectoryNode>,
    /// The number that was given last for a directory in a parent directory.
    current: HashMap<(NodeId, InodeId), NodeId>,
    aliases_made: u64,
    numbers: Numbers,
}

impl Nodes {
    /// Makes an empty table that also records its numbers in `numbers`.
    pub(crate) fn new(numbers: Numbers) -> Nodes {
        Nodes { numbers, ..Nodes::default() }
    }

    /// Returns the inode that the kernel means. (A forgotten alias is no inode's number.)
    pub(crate) fn inode(&self, node: NodeId) -> InodeId {
        if node.0 & ALIAS_BIT == 0 {
            return InodeId(node.0);
        }
        self.directories.get(&node).map_or(InodeId(node.0), |directory| directory.inode)
    }

    /// Returns the directory in which the kernel knows a directory; for the root, the root itself.
    pub(crate) fn parent(&self, node: NodeId) -> NodeId {
        self.directories.get(&node).map_or(node, |directory| directory.parent)
    }

    /// Returns the number that an answer gives to the kernel for the entry `inode` of `parent`, and
    /// counts that it was given once.
    pub(crate) fn give_number(&mut self, parent: NodeId, inode: InodeId, kind: FileKind) -> NodeId {
        let own = NodeId(inode.0);
        if kind != FileKind::Directory {
            return own;
        }
        let known = self.current.get(&(parent, inode)).copied();
        let node = known.unwrap_or_else(|| {
            let is_used =
                self.directories.contains_key(&own) && !reactor::mutant!("one-number-a-directory");
            let node = if is_used { self.new_alias() } else { own };
            self.current.insert((parent, inode), node);
            node
        });
        let directory = self.directories.entry(node).or_insert_with(|| {
            self.numbers.add(inode, node);
            DirectoryNode { inode, parent, lookups: 0 }
        });
        directory.lookups += 1;
        node
    }

    fn new_alias(&mut self) -> NodeId {
        self.aliases_made += 1;
        NodeId(ALIAS_BIT | self.aliases_made)
    }

    /// Takes back `count` answers that gave a number to the kernel. Returns the inode of the
    /// number.
    pub(crate) fn forget(&mut self, node: NodeId, count: u64) -> InodeId {
        let inode = self.inode(node);
        if let Some(directory) = self.directories.get_mut(&node) {
            directory.lookups = directory.lookups.saturating_sub(count);
            if directory.lookups == 0 {
                self.leave(node);
                self.directories.remove(&node);
                self.numbers.remove(inode, node);
            }
        }
        inode
    }

    /// Moves the number of `inode` from one directory to another, because the kernel itself has
    /// moved it.
    pub(crate) fn moved(&mut self, from: NodeId, to: NodeId, inode: InodeId) {
        if reactor::mutant!("move-forgets-number") {
            return;
        }
        let Some(&node) = self.current.get(&(from, inode)) else { return };
        self.leave(node);
        if let Some(directory) = self.directories.get_mut(&node) {
            directory.parent = to;
            self.current.insert((to, inode), node);
        }
    }

    /// Returns how many numbers of directories the kernel knows.
    pub(crate) fn len(&self) -> usize {
        self.directories.len()
    }

    fn leave(&mut self, node: NodeId) {
        let Some(directory) = self.directories.get(&node) else { return };
        let key = (directory.parent, directory.inode);
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

    fn give_number(nodes: &mut Nodes, parent: NodeId) -> NodeId {
        nodes.give_number(parent, MOVED, FileKind::Directory)
    }

    /// Goal: while the kernel knows a directory under its old parent, it gets another number under
    /// the new one; both lead to the directory. Once it has forgotten all, it begins with the
    /// inode's own.
    #[test]
    fn a_directory_moved_by_others_has_a_number_for_each_place() {
        let mut nodes = Nodes::default();
        let old = give_number(&mut nodes, A);
        assert_eq!(old, NodeId(MOVED.0));
        assert_eq!(give_number(&mut nodes, A), old);
        let new = give_number(&mut nodes, B);
        assert_ne!(new, old);
        assert_eq!((nodes.inode(new), nodes.inode(old)), (MOVED, MOVED));
        assert_eq!(give_number(&mut nodes, A), old, "moved back");
        assert_eq!(nodes.forget(old, 2), MOVED);
        assert_eq!(give_number(&mut nodes, A), old);
        nodes.forget(old, 2);
        nodes.forget(new, 1);
        assert!(nodes.directories.is_empty() && nodes.current.is_empty());
        assert_eq!(give_number(&mut nodes, B), old);
    }

    /// Goal: a directory that the kernel moves keeps its number under the new parent, even if
    /// another number was left there from an earlier stay; each number is forgotten separately.
    #[test]
    fn a_directory_moved_here_keeps_its_number() {
        let mut nodes = Nodes::default();
        let first = give_number(&mut nodes, A);
        let second = give_number(&mut nodes, B);
        nodes.moved(B, C, MOVED);
        assert_eq!(give_number(&mut nodes, C), second);
        nodes.moved(C, A, MOVED);
        assert_eq!(give_number(&mut nodes, A), second);
        assert_eq!(nodes.forget(first, 1), MOVED);
        assert_eq!(give_number(&mut nodes, A), second);
        assert_eq!(nodes.forget(second, 4), MOVED);
        assert!(nodes.directories.is_empty() && nodes.current.is_empty());
        nodes.moved(A, B, MOVED);
        assert!(nodes.current.is_empty(), "no number is left");
    }

    /// Goal: a notification of a directory finds each number under which the kernel knows it, and
    /// no other.
    #[test]
    fn all_numbers_of_a_directory_are_known() {
        let numbers = Numbers::default();
        let mut nodes = Nodes::new(numbers.clone());
        assert_eq!(numbers.of(MOVED), [NodeId(MOVED.0)]);
        let old = give_number(&mut nodes, A);
        let new = give_number(&mut nodes, B);
        assert_eq!(numbers.of(MOVED), [old, new]);
        nodes.forget(old, 1);
        assert_eq!(numbers.of(MOVED), [new]);
        let again = give_number(&mut nodes, C);
        assert_eq!((again, numbers.of(MOVED)), (old, vec![new, old]));
        nodes.forget(new, 1);
        assert_eq!(numbers.of(MOVED), [old]);
        assert!(numbers.0.lock().unwrap().is_empty());
    }

    /// Goal: a file, which may have many names, has one number.
    #[test]
    fn a_file_has_its_inode_number_everywhere() {
        let mut nodes = Nodes::default();
        for parent in [A, B] {
            assert_eq!(nodes.give_number(parent, MOVED, FileKind::File), NodeId(MOVED.0));
        }
        assert_eq!(nodes.forget(NodeId(MOVED.0), 2), MOVED);
        assert!(nodes.directories.is_empty());
    }
}
