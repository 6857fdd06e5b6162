//! Readying one of several hard links for a change of its name.

use std::rc::Rc;

use rustix::io::Errno;

use super::{CopyUp, Keep};
use crate::format::index::LinksOf;
use crate::tree::{Link, Node, Place};

impl CopyUp {
    /// Prepares a name for being linked, moved or removed: where the index counts links, the name
    /// becomes one of the upper directory, so that a link there is added or removed with it.
    pub(crate) async fn prepare_link(&self, parent: &Rc<Node>, name: &[u8]) -> Result<(), Errno> {
        if self.tree.index().is_none() {
            return Ok(());
        }
        let Some((node, _)) = self.tree.lookup(parent, name)? else { return Ok(()) };
        let is_shared = node.lower_nlink.get() > 1 && matches!(*node.place.borrow(), Place::Lower);
        if node.is_directory() || !(is_shared || node.indexed.get().is_some()) {
            return Ok(());
        }
        self.make_changeable(&node, Keep::All).await?;
        if let Some(pending) = node.pending() {
            self.durability.finish(&pending).await?;
        }
        self.copy_up_directory(parent).await?;
        // It may have been moved or removed meanwhile: then that operation reports it.
        if node.is_in_upper() && parent.child(name).is_some_and(|now| Rc::ptr_eq(&now, &node)) {
            self.durability
                .link_up(&node, &Link { parent: Rc::clone(parent), name: name.into() })?;
            self.tree.note_links(&node, LinksOf::Upper)?;
        }
        Ok(())
    }
}
