//! Copies that become entries of the index, with their names.

use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::Durability;
use crate::format::index::LinksOf;
use crate::sys::{self, keeping_times};
use crate::tree::{Link, Node, Place, Tree};

impl Durability {
    /// Moves a copy into the index, and links the names to it by which it is known. Returns the
    /// directories that have new names.
    pub(crate) fn enter(
        &self,
        node: &Rc<Node>,
        name: &[u8],
        directory: impl AsFd,
        work_name: &[u8],
    ) -> Result<Vec<Rc<Node>>, Errno> {
        let index = self.tree.index().ok_or(Errno::IO)?;
        rustix::fs::renameat(directory, work_name, index.directory(), name)?;
        Tree::count_links(node, name);
        node.set_place(Place::Upper);
        index.note_new_names();
        self.note_partial_change();
        let stat = sys::stat_at(index.directory().as_fd(), name)?;
        self.tree.note_linked(&stat, node);
        let known = node.links.borrow().clone();
        let mut parents = Vec::new();
        for link in known.into_iter().filter(|link| link.parent.is_in_upper()) {
            match self.link_up(node, &link) {
                Ok(()) => parents.push(link.parent),
                // The name shows the copy all the same.
                Err(errno) => tracing::debug!(%errno, "a name is not linked to its copy"),
            }
        }
        Ok(parents)
    }

    /// Creates a name in the upper directory for an entry, unless it exists. Meanwhile the link
    /// count derives from the lower inode's, which does not change.
    pub(crate) fn link_up(&self, node: &Node, link: &Link) -> Result<(), Errno> {
        let (Some(index), Some(indexed)) = (self.tree.index(), node.indexed.get()) else {
            return Ok(());
        };
        let parent = self.tree.upper_part(&link.parent)?;
        if sys::find_at(parent.as_fd(), &link.name)?.is_some() {
            return Ok(());
        }
        self.tree.set_impure(&link.parent)?;
        self.tree.note_links(node, LinksOf::Lower)?;
        keeping_times(parent.as_fd(), || {
            let none = AtFlags::empty();
            rustix::fs::linkat(index.directory(), &*indexed.name, &parent, &*link.name, none)
        })?;
        self.tree.note_links(node, LinksOf::Upper)?;
        self.note_new_name(&link.parent);
        Ok(())
    }
}
