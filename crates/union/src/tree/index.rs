//! The index of hard links (`index=on`), in the kernel's format.
//!
//! A lower inode with several names is copied up once, into `WORKDIR/index`, under a name made of
//! its file handle. Its names in the upper directory are links to that; its names that only lower
//! layers have are looked up there, and so show the copy too. How many names the union shows is
//! kept beside ([`crate::format::index`]); with the last of them the entry goes.
//!
//! FUSE does not report the name through which a file was opened. So all its known names become
//! links when it is copied up: a union without the index then shows the copy under them.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, OFlags, XattrFlags};
use rustix::io::Errno;

use super::{Found, Node, Original, Tree};
use crate::format::index::{LinksOf, links, links_value, name_of};
use crate::format::suffix;
use crate::sys::{self, Fd, Stat};

/// The index of a union.
#[derive(Debug)]
pub(crate) struct Index {
    directory: Fd,
    /// Whether entries were made that are not known to be durable.
    has_new_names: Cell<bool>,
    /// How many are just making such entries durable.
    names_syncing: Cell<u32>,
}

impl Index {
    pub(crate) fn new(directory: std::os::fd::OwnedFd) -> Self {
        let directory = Rc::new(directory);
        Self { directory, has_new_names: Cell::new(false), names_syncing: Cell::new(0) }
    }

    pub(crate) fn directory(&self) -> &Fd {
        &self.directory
    }

    /// Notes that entries are not known to be durable.
    pub(crate) fn note_new_names(&self) {
        self.has_new_names.set(true);
    }

    /// Takes the entries that are not durable, including those that other callers are syncing.
    /// Returns whether there are any; then the caller calls [`Index::end_sync`].
    pub(crate) fn begin_sync(&self) -> bool {
        let is_due = self.has_new_names.replace(false) || self.names_syncing.get() > 0;
        if is_due {
            self.names_syncing.set(self.names_syncing.get() + 1);
        }
        is_due
    }

    /// Records the outcome of syncing.
    pub(crate) fn end_sync(&self, is_durable: bool) {
        self.names_syncing.set(self.names_syncing.get() - 1);
        self.has_new_names.set(self.has_new_names.get() || !is_durable);
    }
}

/// The index entry of a node.
#[derive(Debug)]
pub(crate) struct Indexed {
    /// The entry's name.
    pub(crate) name: Box<[u8]>,
    /// Links that the union shows.
    pub(crate) nlink: Cell<u32>,
}

impl Indexed {
    /// Counts a new name.
    pub(crate) fn gain_link(&self) {
        self.nlink.set(self.nlink.get() + 1);
    }
}

/// An entry's name and attributes.
type Entry = (Box<[u8]>, Stat);

impl Tree {
    /// Returns the entry of an origin, if there is an index with one.
    fn entry_of(&self, origin: &[u8]) -> Result<Option<Entry>, Errno> {
        let Some(index) = self.index.as_ref().filter(|_| !origin.is_empty()) else {
            return Ok(None);
        };
        let name = name_of(origin);
        let stat = sys::find_at(index.directory.as_fd(), &name)?;
        Ok(stat.map(|stat| (name, stat)))
    }

    /// Returns the index entry of an upper inode that was copied from `origin`. If the entry is
    /// another inode, the upper inode was copied up without the index.
    pub(crate) fn entry_of_upper(
        &self,
        origin: &[u8],
        stat: &Stat,
    ) -> Result<Option<Box<[u8]>>, Errno> {
        let found = self.entry_of(origin)?;
        let is_same = |entry: &Stat| (entry.device, entry.inode) == (stat.device, stat.inode);
        Ok(found.filter(|(_, entry)| is_same(entry)).map(|(name, _)| name))
    }

    /// Returns the object that was found in lower layers only, or its copy in the index.
    pub(crate) fn through_index(&self, found: Found) -> Result<Found, Errno> {
        let part = found.lower.first().filter(|_| self.index.is_some());
        let Some(part) = part.filter(|_| !found.stat.is_directory()) else { return Ok(found) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let lower = sys::open_below(self.lower_root(part), &part.path, flags)?;
        let origin = self.origin_on(part.layer, lower.as_fd());
        let Some((name, stat)) = self.entry_of(&origin)? else { return Ok(found) };
        if stat.kind() != found.stat.kind() || stat.is_whiteout_device() {
            tracing::error!(
                entry = %String::from_utf8_lossy(&name),
                "an entry of the index is not a copy of what it is named by"
            );
            return Err(Errno::IO);
        }
        let index = self.index.as_ref().ok_or(Errno::IO)?;
        let entry = sys::open_below(index.directory.as_fd(), &name, flags)?;
        let metacopy = self.layers.prefix.name(suffix::METACOPY);
        let lacks_data = stat.is_regular() && sys::xattr(entry.as_fd(), &metacopy)?.is_some();
        let stat = self.upper_stat(entry.as_fd())?;
        Ok(Found { stat, is_upper: true, lacks_data, index: Some(name), ..found })
    }

    /// Gives a node its entry.
    pub(crate) fn adopt_entry(
        &self,
        node: &Node,
        name: Box<[u8]>,
        upper: &Stat,
        lower: Option<Stat>,
    ) {
        let nlink = self.links_in_union(&name, upper, lower).unwrap_or(upper.nlink);
        let _ = node.indexed.set(Indexed { name, nlink: Cell::new(nlink) });
    }

    fn links_in_union(&self, name: &[u8], upper: &Stat, lower: Option<Stat>) -> Option<u32> {
        let (index, lower) = (self.index.as_ref()?, lower.filter(|lower| lower.nlink > 1)?);
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let object = sys::open_below(index.directory.as_fd(), name, flags).ok()?;
        let value = sys::xattr(object.as_fd(), &self.layers.prefix.name(suffix::NLINK)).ok()??;
        links(&value, upper.nlink, lower.nlink).filter(|&links| links > 0)
    }

    /// Returns whether copying a lower inode up makes an entry of the index.
    pub(crate) fn is_indexed_on_copy_up(&self, stat: &Stat) -> bool {
        self.index.is_some() && stat.nlink > 1 && !stat.is_directory()
    }

    /// Prepares a copy, which has its origin mark already, to become an entry. Returns the entry's
    /// name; `None` if it shall be none.
    pub(crate) fn prepare_entry(
        &self,
        node: &Node,
        original: Original<'_>,
        copy: BorrowedFd<'_>,
    ) -> Result<Option<Box<[u8]>>, Errno> {
        let Original { object: lower, stat } = original;
        if !self.is_indexed_on_copy_up(stat) {
            return Ok(None);
        }
        let origin = self.origin_value(node, lower);
        if origin.is_empty() {
            return Ok(None);
        }
        let value = links_value(LinksOf::Upper, stat.nlink, 1);
        let attribute = self.layers.prefix.name(suffix::NLINK);
        sys::set_xattr(copy, &attribute, &value, XattrFlags::empty())?;
        Ok(Some(name_of(&origin)))
    }

    /// Gives a node that is copied up its entry, and counts its links from now on.
    pub(crate) fn count_links(node: &Node, name: &[u8]) {
        let nlink = Cell::new(node.lower_nlink.get());
        // Once it knows, it stays so.
        let _ = node.indexed.set(Indexed { name: name.into(), nlink });
    }

    /// Records how many links the union shows of an entry.
    pub(crate) fn note_links(&self, node: &Node, of: LinksOf) -> Result<(), Errno> {
        let (Some(index), Some(indexed)) = (&self.index, node.indexed.get()) else { return Ok(()) };
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let object = sys::open_below(index.directory.as_fd(), &indexed.name, flags)?;
        let there = match of {
            LinksOf::Lower => node.lower_nlink.get(),
            LinksOf::Upper => sys::stat_at(object.as_fd(), b"")?.nlink,
        };
        let value = links_value(of, indexed.nlink.get(), there);
        let attribute = self.layers.prefix.name(suffix::NLINK);
        sys::set_xattr(object.as_fd(), &attribute, &value, XattrFlags::empty())
    }

    /// Counts a lost name, and removes the entry with the last one. Returns whether the index knows
    /// other names.
    pub(crate) fn lose_link(&self, node: &Node) -> bool {
        let (Some(index), Some(indexed)) = (&self.index, node.indexed.get()) else { return false };
        let left = indexed.nlink.get().saturating_sub(1);
        indexed.nlink.set(left);
        if left > 0 {
            return true;
        }
        let others = sys::stat_at(index.directory.as_fd(), &indexed.name).map(|stat| stat.nlink);
        if others == Ok(1) {
            // What stays after an error is removed by the next mount.
            let _ = rustix::fs::unlinkat(&index.directory, &*indexed.name, AtFlags::empty());
        }
        false
    }

    /// Runs a call on the directory and name that lead to the upper part of a non-directory.
    pub(crate) fn at_upper<T>(
        &self,
        node: &Rc<Node>,
        call: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if let (Some(index), Some(indexed)) = (&self.index, node.indexed.get()) {
            return call(index.directory.as_fd(), &indexed.name);
        }
        let link = node.link().ok_or(Errno::NOENT)?;
        call(self.upper_part(&link.parent)?.as_fd(), &link.name)
    }
}
