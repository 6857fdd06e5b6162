//! Files that a thread keeps open only for speed: parts of directories, and lower files of partial
//! copies.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use super::Node;
use crate::descriptors::Descriptors;
use crate::store::Partial;

/// Directories with open parts, the oldest first.
#[derive(Debug, Default)]
struct OpenDirectories(RefCell<VecDeque<Weak<Node>>>);

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

/// Partial copies whose lower files are open: the oldest are closed first, except for those that
/// were used since they came into the queue.
#[derive(Debug, Default)]
struct OpenLowers(RefCell<VecDeque<Weak<Partial>>>);

impl OpenLowers {
    /// Closes all; a running read keeps its file open until it is done.
    fn close(&self) {
        for partial in self.0.take() {
            if let Some(partial) = partial.upgrade() {
                partial.close_lower();
            }
        }
    }

    /// Notes one that has just been opened, and closes others.
    fn note(&self, partial: &Rc<Partial>, most: usize) {
        let mut line = self.0.borrow_mut();
        line.push_back(Rc::downgrade(partial));
        while line.len() > most {
            let Some(first) = line.pop_front() else { return };
            let Some(first_partial) = first.upgrade() else { continue };
            if first_partial.take_lower_use() {
                line.push_back(first);
            } else {
                // A read that is under way keeps it open until it ends.
                first_partial.close_lower();
            }
        }
    }
}

/// Files that the unions of a thread keep open, within the bounds of the thread.
#[derive(Debug, Default)]
pub(crate) struct KeptOpen {
    descriptors: Descriptors,
    directories: OpenDirectories,
    lowers: OpenLowers,
}

impl KeptOpen {
    /// Returns the bounds of the thread.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Closes all.
    pub(crate) fn close(&self) {
        self.directories.close();
        self.lowers.close();
    }

    /// Notes a directory that has just been given an open part, and closes others.
    pub(super) fn note_directory(self: &Rc<Self>, node: &Rc<Node>) {
        // Each union has a reference, and the thread that makes them.
        let most = self.descriptors.directories_max(Rc::strong_count(self));
        self.directories.note(node, most);
    }

    /// Notes a partial copy whose lower file has just been opened, and closes others.
    pub(super) fn note_lower(self: &Rc<Self>, partial: &Rc<Partial>) {
        let most = self.descriptors.lowers_max(Rc::strong_count(self));
        self.lowers.note(partial, most);
    }
}
