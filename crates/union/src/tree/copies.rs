//! The attributes that a copy gets from its original, and the marks by which the overlay recognizes
//! a copy.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use reactor::file::FileHandle;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{Node, Tree};
use crate::format::{Origin, suffix};
use crate::layers::LayerIndex;
use crate::sys::{self, Stat};

/// The attribute with a file's capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// A lower inode that is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Original<'a> {
    pub(crate) object: BorrowedFd<'a>,
    pub(crate) stat: &'a Stat,
}

impl Tree {
    /// Gives a copy owner, mode, attributes and times of the original, in the order in which none
    /// undoes another.
    pub(crate) fn copy_attributes(
        &self,
        node: &Node,
        original: Original<'_>,
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let Original { object: from, stat } = original;
        self.set_owner_and_mode(to, stat)?;
        let (names, upper_names) = (self.xattr_names_of(node), self.upper_xattr_names());
        for name in sys::xattr_names(from)? {
            let Some(stored) = names.carried(&upper_names, &name) else { continue };
            let Some(value) = sys::xattr(from, &name)? else { continue };
            match sys::set_xattr(to, &stored, &value, XattrFlags::empty()) {
                // Attributes that protect the file must be copied; others are copied where
                // possible.
                Err(Errno::OPNOTSUPP | Errno::PERM) if !is_protective(&name) => {}
                other => other?,
            }
        }
        sys::set_times(to, Some(stat.atime), Some(stat.mtime))
    }

    /// Returns the origin mark: identifies the lower inode that a file was copied from. It stays
    /// valid when that inode no longer has a name.
    pub(crate) fn origin_value(&self, node: &Node, lower: BorrowedFd<'_>) -> Vec<u8> {
        let layer = node.lower.borrow().first().map(|part| part.layer);
        layer.map_or_else(Vec::new, |layer| self.origin_on(layer, lower))
    }

    /// As [`Tree::origin_value`], of an inode of this layer.
    pub(crate) fn origin_on(&self, layer: LayerIndex, lower: BorrowedFd<'_>) -> Vec<u8> {
        let uuid = self.layers.lower[usize::from(layer)].uuid;
        uuid.zip(FileHandle::of(lower).ok())
            .and_then(|(uuid, handle)| Origin { uuid, handle }.value())
            .unwrap_or_default()
    }

    /// Marks an inode as a copy of a lower one. A copy of one of several links that the index does
    /// not keep is an inode of its own, with its own number.
    pub(crate) fn mark_origin(
        &self,
        node: &Node,
        original: Original<'_>,
        copy: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let Original { object: lower, stat } = original;
        if stat.nlink > 1 && !self.is_indexed_on_copy_up(stat) {
            node.inode.set(self.shown_inode_of(&sys::stat_at(copy, b"")?));
            return Ok(());
        }
        let name = self.layers.prefix.name(suffix::ORIGIN);
        let value = self.origin_value(node, lower);
        match sys::set_xattr(copy, &name, &value, XattrFlags::empty()) {
            // Links and devices cannot have `user.` attributes.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            other => other,
        }
    }

    /// Marks a directory that holds copies: the inode numbers that they show are not those on disk.
    pub(crate) fn set_impure(&self, directory: &Rc<Node>) -> Result<(), Errno> {
        let state = directory.directory().ok_or(Errno::NOTDIR)?;
        if state.is_impure.get() {
            return Ok(());
        }
        let part = self.upper_part(directory)?;
        let name = self.layers.prefix.name(suffix::IMPURE);
        match sys::set_xattr(part.as_fd(), &name, b"y", XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {
                state.is_impure.set(true);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Attributes without which a copy would allow more, or less, than the original.
pub(crate) fn is_protective(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_") || name == CAPABILITY
}
