//! Owner and mode of inodes: their own, or those of an attribute (`xattr_permissions`).
//!
//! With the attribute, the inode keeps the owner that created it and a mode that allows its owner
//! everything. The union shows, and the kernel checks, the owner and mode of the attribute.
//! Symbolic links and special files cannot have it and show their own.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{Node, Place, Tree};
use crate::format::{Prefix, StatOverride};
use crate::options::OwnerXattr;
use crate::sys::{self, Stat};

/// The least mode of an inode whose attribute has the mode that counts.
const MODE_BELOW: u32 = 0o755;

/// How names of extended attributes are kept in one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XattrNames {
    prefix: Prefix,
    owners: Option<OwnerXattr>,
}

impl XattrNames {
    /// Returns how a name given through the mount is stored; `None` if it is the layer's own.
    pub(crate) fn stored<'a>(&self, name: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Some(form) = self.owners else { return self.prefix.stored(name) };
        match form.escaped(name) {
            Some(escaped) => Some(Cow::Owned(escaped)),
            None if form.hides(name) || form.unescaped(name).is_some() => None,
            None => self.prefix.stored(name),
        }
    }

    /// Returns how a stored name shows through the mount; `None` if it does not.
    pub(crate) fn shown<'a>(&self, name: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Some(form) = self.owners else { return self.prefix.shown(name) };
        match form.unescaped(name) {
            Some(plain) => Some(Cow::Borrowed(plain)),
            None if form.hides(name) => None,
            None => self.prefix.shown(name),
        }
    }

    /// Returns under which name a copy in another layer keeps an attribute; `None` if it does not
    /// get it.
    pub(crate) fn carried(&self, to: &Self, name: &[u8]) -> Option<Vec<u8>> {
        let shown = self.shown(name)?;
        to.stored(&shown).map(Cow::into_owned)
    }
}

/// Returns an object's attributes as its layer means them.
pub(crate) fn shown_stat(
    form: Option<OwnerXattr>,
    object: BorrowedFd<'_>,
    stat: Stat,
) -> Result<Stat, Errno> {
    let Some(form) = form.filter(|_| stat.is_directory() || stat.is_regular()) else {
        return Ok(stat);
    };
    match sys::xattr(object, form.attribute())? {
        Some(value) => {
            let read = StatOverride::parse(&value).and_then(|owner| owner.apply(stat));
            read.ok_or(Errno::INVAL)
        }
        None => Ok(stat),
    }
}

impl Tree {
    /// Returns the form in which the layer of a node's attributes keeps owners.
    fn owners_of(&self, node: &Node) -> Option<OwnerXattr> {
        let is_lower = match *node.place.borrow() {
            Place::Lower => true,
            Place::Gone { is_own, .. } => !is_own && !node.lacks_data(),
            Place::Upper | Place::Pending(_) | Place::Partial(_) => false,
        };
        let lower = node.lower.borrow();
        match lower.first().filter(|_| is_lower) {
            Some(part) => self.layers.lower[usize::from(part.layer)].owners,
            None => self.layers.owners(),
        }
    }

    /// Returns a node's attributes, from those of its inode.
    pub(crate) fn shown_stat(
        &self,
        node: &Rc<Node>,
        object: BorrowedFd<'_>,
        stat: Stat,
    ) -> Result<Stat, Errno> {
        shown_stat(self.owners_of(node), object, stat)
    }

    /// Returns the attributes of an upper object.
    pub(crate) fn upper_stat(&self, object: BorrowedFd<'_>) -> Result<Stat, Errno> {
        shown_stat(self.layers.owners(), object, sys::stat_at(object, b"")?)
    }

    /// Returns how names of a node's extended attributes are kept.
    pub(crate) fn xattr_names_of(&self, node: &Node) -> XattrNames {
        XattrNames { prefix: self.layers.prefix, owners: self.owners_of(node) }
    }

    /// Returns the same in the upper layer.
    pub(crate) fn upper_xattr_names(&self) -> XattrNames {
        XattrNames { prefix: self.layers.prefix, owners: self.layers.owners() }
    }

    /// Gives an upper object an owner and a mode at a time, suid bits included.
    pub(crate) fn set_owner_and_mode(
        &self,
        object: BorrowedFd<'_>,
        stat: &Stat,
    ) -> Result<(), Errno> {
        let kind = stat.kind();
        if let Some(form) = self.layers.owners() {
            return if matches!(kind, libc::S_IFDIR | libc::S_IFREG) {
                sys::chmod(object, MODE_BELOW | (stat.mode & 0o777))?;
                let value = StatOverride::of(stat).value();
                sys::set_xattr(object, form.attribute(), &value, XattrFlags::empty())
            } else {
                Ok(())
            };
        }
        // Values that are right already are not set, because each change of metadata may wait for
        // the file system.
        let now = sys::stat_at(object, b"")?;
        let is_owned = (now.uid, now.gid) == (stat.uid, stat.gid);
        if !is_owned {
            self.give_owner(object, Some(stat.uid), Some(stat.gid))?;
        }
        let is_like = is_owned && now.mode & 0o7777 == stat.mode & 0o7777;
        if kind == libc::S_IFLNK || is_like { Ok(()) } else { sys::chmod(object, stat.mode) }
    }

    /// Sets an upper inode's own owner. Where all owners are shown as one, a failure is no error: a
    /// user namespace with one id has no other owners.
    pub(crate) fn give_owner(
        &self,
        object: BorrowedFd<'_>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        let is_squashed = self.options.squash_uid.is_some() || self.options.squash_gid.is_some();
        match sys::chown(object, uid, gid) {
            Err(Errno::INVAL | Errno::PERM) if is_squashed => Ok(()),
            other => other,
        }
    }

    /// Changes an upper object's owner. As chown(2) does, it takes suid from a file, and sgid where
    /// it is one.
    pub(crate) fn set_owner(
        &self,
        object: BorrowedFd<'_>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        if self.layers.owners().is_none() {
            return self.give_owner(object, uid, gid);
        }
        let now = self.upper_stat(object)?;
        let mode = if now.is_directory() { now.mode } else { without_privileges(now.mode) };
        let (uid, gid) = (uid.unwrap_or(now.uid), gid.unwrap_or(now.gid));
        self.set_owner_and_mode(object, &Stat { mode, uid, gid, ..now })
    }

    /// Changes an upper object's permission bits.
    pub(crate) fn set_mode(&self, object: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
        if self.layers.owners().is_none() {
            return sys::chmod(object, mode);
        }
        let now = self.upper_stat(object)?;
        let mode = now.kind() | (mode & 0o7777);
        self.set_owner_and_mode(object, &Stat { mode, ..now })
    }

    /// Drops sgid when a caller outside the group has set an access control list.
    pub(crate) fn drop_group_privilege(&self, object: BorrowedFd<'_>) -> Result<(), Errno> {
        let mode = self.upper_stat(object)?.mode;
        let kept = mode & !libc::S_ISGID;
        if kept == mode { Ok(()) } else { self.set_mode(object, kept) }
    }
}

/// Returns a mode without suid, and without sgid where it is one.
fn without_privileges(mode: u32) -> u32 {
    let is_group_privilege = mode & libc::S_IXGRP != 0;
    mode & !(libc::S_ISUID | if is_group_privilege { libc::S_ISGID } else { 0 })
}
