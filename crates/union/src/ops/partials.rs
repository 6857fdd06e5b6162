//! Operations on partial files.

use std::rc::Rc;

use fuse::SetAttributes;
use reactor::Chunk;
use rustix::io::Errno;

use super::Union;
use super::inodes;
use crate::tree::Node;

impl Union {
    /// Writes to a partial file. `None` if it is none, or none any more.
    pub(super) async fn write_partial(
        self: &Rc<Self>,
        node: &Rc<Node>,
        offset: u64,
        data: &Chunk,
    ) -> Result<Option<usize>, Errno> {
        while let Some(partial) = node.partial() {
            partial.settled().await;
            if node.partial().is_none() {
                break;
            }
            if let Some(count) =
                partial.write(&self.tree.lower_file(node, &partial), offset, &data.to_bytes())?
            {
                self.durability.note_partial_change();
                return Ok(Some(count));
            }
            self.partials.complete(node).await?;
        }
        Ok(None)
    }

    /// Sets the size of a partial file. `false` if it is none.
    pub(super) async fn truncate_partial(
        &self,
        node: &Rc<Node>,
        size_bytes: u64,
    ) -> Result<bool, Errno> {
        let Some(partial) = node.partial() else { return Ok(false) };
        partial.settled().await;
        if node.partial().is_none() {
            return Ok(false);
        }
        partial.truncate(size_bytes)?;
        self.durability.note_partial_change();
        Ok(true)
    }

    /// Makes zeros in a partial file. `false` if it is none, or none any more.
    pub(super) async fn fallocate_partial(
        self: &Rc<Self>,
        node: &Rc<Node>,
        mode: i32,
        offset: u64,
        length: u64,
    ) -> Result<bool, Errno> {
        while let Some(partial) = node.partial() {
            partial.settled().await;
            if node.partial().is_none() {
                break;
            }
            if partial.fallocate(mode, offset, length)? {
                self.durability.note_partial_change();
                return Ok(true);
            }
            self.partials.complete(node).await?;
        }
        Ok(false)
    }

    /// Sets size and times of a partial file. Other changes complete it first. `false`
    /// if it is none any more: then nothing was set.
    pub(super) async fn set_partial(
        self: &Rc<Self>,
        node: &Rc<Node>,
        set: &SetAttributes,
        is_inode_changed: bool,
    ) -> Result<bool, Errno> {
        if is_inode_changed {
            self.partials.complete(node).await?;
        }
        let Some(partial) = node.partial() else { return Ok(false) };
        partial.settled().await;
        if node.partial().is_none() {
            return Ok(false);
        }
        if let Some(size) = set.size {
            partial.truncate(size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            partial.set_times(set.atime.map(inodes::time), set.mtime.map(inodes::time))?;
        }
        self.durability.note_partial_change();
        Ok(true)
    }

    /// Waits until the file of a name, if it is a partial one, is not being completed: its name is
    /// about to be taken from it.
    pub(super) async fn settle_partial(&self, parent: &Rc<Node>, name: &[u8]) -> Result<(), Errno> {
        loop {
            let found = self.tree.lookup(parent, name)?;
            match found.and_then(|(node, _)| node.partial()) {
                Some(partial) if partial.is_completing() => partial.settled().await,
                _ => return Ok(()),
            }
        }
    }
}
