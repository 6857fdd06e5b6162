//! Extended attributes, without those that are the overlay's own.

use std::cell::LazyCell;
use std::os::fd::AsFd;
use std::rc::Rc;

use fuse::{NodeId, Response};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Answer;
use super::Union;
use super::privileges::Caller;
use crate::copyup::Keep;
use crate::sys;
use crate::tree::CAPABILITY;
use crate::tree::{Node, Place};

/// Attributes of privileged programs.
const TRUSTED: &[u8] = b"trusted.";

/// Access control lists.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// A label of `SELinux`, and what is there where the kernel enforces labels.
const SELINUX: (&[u8], &str) = (b"security.selinux", "/sys/fs/selinux/enforce");

/// Returns whether the kernel enforces labels of `SELinux`.
pub(super) fn has_labels() -> bool {
    std::path::Path::new(SELINUX.1).exists()
}

impl Union {
    pub(super) fn xattr(&self, node: &Rc<Node>, name: &[u8], size: u32) -> Answer {
        self.check_acl(name)?;
        let names = self.tree.xattr_names_of(node);
        let stored = names.stored(name).ok_or(Errno::NODATA)?;
        match self.stored_xattr(node, &stored)? {
            Some(value) => Ok(Response::xattr(&value, size)),
            // `ls -l` stops asking for the labels of other files after this answer.
            None if name == SELINUX.0 && !self.mount.has_labels => Err(Errno::OPNOTSUPP),
            None => Err(Errno::NODATA),
        }
    }

    /// Returns an extended attribute by the name that it has on disk. The kernel asks for
    /// capabilities at the first write and at the first change of the owner of each file, so an
    /// upper file is not opened for it.
    fn stored_xattr(&self, node: &Rc<Node>, stored: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        if matches!(*node.place.borrow(), Place::Upper) && !node.is_directory() {
            return self
                .tree
                .at_upper(node, |directory, name| sys::xattr_at(directory, name, stored));
        }
        sys::xattr(self.tree.object(node)?.as_fd(), stored)
    }

    /// Lists names. Those of `trusted.*` only to privileged callers, as the kernel's overlayfs does:
    /// others could not read these attributes, and programs that copy all would fail.
    pub(super) fn xattrs(&self, node: &Rc<Node>, size: u32, caller: Caller) -> Answer {
        let object = self.tree.object(node)?;
        let names = self.tree.xattr_names_of(node);
        let is_privileged = LazyCell::new(|| caller.administrates());
        let mut list = Vec::new();
        for name in sys::xattr_names(object.as_fd())? {
            let shown = names.shown(&name);
            if let Some(shown) = shown.filter(|it| !it.starts_with(TRUSTED) || *is_privileged) {
                list.extend_from_slice(&shown);
                list.push(0);
            }
        }
        Ok(Response::xattr(&list, size))
    }

    pub(super) async fn set_xattr(
        self: &Rc<Self>,
        id: NodeId,
        node: &Rc<Node>,
        name: &[u8],
        value: &[u8],
        flags: u32,
        acl_kill_sgid: bool,
    ) -> Answer {
        self.check_acl(name)?;
        let flags = XattrFlags::from_bits_retain(flags);
        let names = self.tree.upper_xattr_names();
        let stored = names.stored(name).ok_or(Errno::PERM)?;
        self.copy_up.make_changeable(node, Keep::All).await?;
        self.durability.note_dirty(node);
        let object = self.tree.object(node)?;
        sys::set_xattr(object.as_fd(), &stored, value, flags)?;
        if acl_kill_sgid {
            self.tree.drop_group_privilege(object.as_fd())?;
        }
        self.tree.invalidate_present_number(id, node);
        Ok(Response::Done)
    }

    pub(super) async fn remove_xattr(
        self: &Rc<Self>,
        id: NodeId,
        node: &Rc<Node>,
        name: &[u8],
        caller: Caller,
    ) -> Answer {
        self.check_acl(name)?;
        let names = self.tree.xattr_names_of(node);
        let stored = names.stored(name).ok_or(Errno::NODATA)?;
        let object = self.tree.object(node)?;
        if sys::xattr(object.as_fd(), &stored)?.is_none() {
            return Err(Errno::NODATA);
        }
        if name == CAPABILITY {
            self.check_taking_capabilities(node, caller)?;
        }
        let names = self.tree.upper_xattr_names();
        let stored = names.stored(name).ok_or(Errno::PERM)?;
        self.copy_up.make_changeable(node, Keep::All).await?;
        self.durability.note_dirty(node);
        sys::remove_xattr(self.tree.object(node)?.as_fd(), &stored)?;
        self.tree.invalidate_present_number(id, node);
        Ok(Response::Done)
    }

    fn check_acl(&self, name: &[u8]) -> Result<(), Errno> {
        let is_refused = self.tree.options().no_acl && name.starts_with(ACL_PREFIX);
        if is_refused { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}
