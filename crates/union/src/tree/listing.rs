//! Listing a directory: the names of all its parts, each once, without what whiteouts hide.
//!
//! A listing is made when an open directory is read from its start, and kept until it is closed or
//! read from its start again, so that offsets stay valid while names are created and removed.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::io::Errno;

use super::{Node, Tree};
use crate::format::NAMED_WHITEOUT;
use crate::sys;

/// One name that shows.
#[derive(Debug)]
pub(crate) struct ListedName {
    pub(crate) name: Box<[u8]>,
    pub(crate) inode: u64,
    pub(crate) kind: u32,
}

/// The names of an open directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<ListedName>,
    pub(crate) is_made: bool,
}

impl Tree {
    /// Lists a directory.
    pub(crate) fn list(&self, node: &Rc<Node>) -> Result<Vec<ListedName>, Errno> {
        let mut names = Vec::new();
        // All names of the parts above, with whiteouts.
        let mut seen: HashSet<Box<[u8]>> = HashSet::new();
        let parts = node.lower.borrow().len();
        let has_upper = self.part(node, 0)?.is_some();
        for index in 0..=parts {
            let Some(directory) = self.part(node, index)? else { continue };
            let directory = directory.as_fd();
            let may_hold_whiteouts = index == 0
                || node.lower.borrow().get(index - 1).is_some_and(|part| part.holds_whiteouts);
            let device = sys::stat_at(directory, b"")?.device;
            let file_system = self.layers.file_system_of(device);
            let is_last = index == parts;
            let mut hidden = Vec::new();
            for entry in sys::list(directory)? {
                if let Some(name) = entry.name.strip_prefix(NAMED_WHITEOUT) {
                    hidden.push(name.into());
                    continue;
                }
                let name = entry.name.into_boxed_slice();
                if seen.contains(&name) {
                    continue;
                }
                let needs_look = entry.kind == 0
                    || entry.kind == libc::S_IFCHR
                    || (may_hold_whiteouts && entry.kind == libc::S_IFREG && index > 0);
                let mut kind = entry.kind;
                let mut is_hidden = false;
                if needs_look {
                    let Some(stat) = sys::find_at(directory, &name)? else { continue };
                    kind = stat.kind();
                    is_hidden = self.is_whiteout(directory, &name, &stat, may_hold_whiteouts)?;
                }
                if !is_last {
                    seen.insert(name.clone());
                }
                if !is_hidden {
                    let mut inode = self.shown_inode(file_system, entry.inode);
                    // Copied-up inodes show the number of their origin.
                    if index == 0 && has_upper && parts > 0 || node.child(&name).is_some() {
                        inode = self.number_of(node, &name)?.unwrap_or(inode);
                    }
                    names.push(ListedName { name, inode, kind });
                }
            }
            if hidden.is_empty() {
                node.note_plain(index);
            }
            // They hide names of the parts below, not of the same part.
            seen.extend(hidden);
        }
        Ok(names)
    }

    /// Returns the inode number that a lookup of this name would show; `None` if there is none,
    /// or if the entry itself cannot be looked up.
    fn number_of(&self, parent: &Rc<Node>, name: &[u8]) -> Result<Option<u64>, Errno> {
        if let Some(node) = parent.child(name) {
            return Ok(Some(node.inode.get()));
        }
        match self.find(parent, name) {
            Err(errno) if is_of_entry(errno) => Ok(None),
            found => Ok(found?.map(|found| self.inode_of(&found))),
        }
    }
}

/// Returns whether an error of a lookup during a listing belongs to the entry alone. Such an entry
/// is listed without its attributes, as in the kernel's overlayfs, so that it hides no other; the
/// program that uses it gets the error. A lack of resources is an error of the listing.
pub(crate) fn is_of_entry(errno: Errno) -> bool {
    !matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}
