//! Listing directories.

use crate::convert::file_type;
use crate::server::{OpenDirectory, Server};
use client::Listing;
use fuse::{DirectoryBuffer, DirectoryEntry, NodeId, OpenFlags, Opened, ReadDirectory, Response};
use protocol::client::Entry;
use protocol::{Errno, FileKind, InodeId};
use std::rc::Rc;

/// The entries that the metadata service does not list, with their cookies; the service's begin at
/// 3.
const OWN_ENTRIES: [(u64, &[u8]); 2] = [(1, b"."), (2, b"..")];

impl Server {
    /// Opens a directory.
    pub(crate) async fn open_directory(self: &Rc<Self>, id: InodeId) -> Result<Response, Errno> {
        let handle = self.keep_directory(self.client.open_directory(id).await?);
        let (may_keep, is_kept) = self.client.lend_listing(id);
        let mut flags = OpenFlags::default();
        if may_keep {
            flags |= OpenFlags::CACHE_DIR;
        }
        if is_kept {
            flags |= OpenFlags::KEEP_CACHE;
        }
        Ok(Response::Opened(Opened { handle, flags, backing: None }))
    }

    /// Fills a buffer with the entries after `read.offset`.
    pub(crate) async fn list(
        self: &Rc<Self>,
        node: NodeId,
        read: ReadDirectory,
        plus: bool,
    ) -> Result<Response, Errno> {
        let id = self.inode(node);
        let directory = self.directory(read.handle)?;
        let mut buffer = DirectoryBuffer::new(read.size);
        let mut after = read.offset;
        for (cookie, name) in OWN_ENTRIES {
            if after >= cookie {
                continue;
            }
            let inode = self.own_entry(node, name);
            let kind = file_type(FileKind::Directory);
            let listed = DirectoryEntry { inode: inode.0, offset: cookie, kind, name };
            // The kernel takes no reference for these two.
            if !(if plus { buffer.push_plus(None, &listed) } else { buffer.push(&listed) }) {
                return Ok(Response::Directory(buffer));
            }
            after = cookie;
        }
        loop {
            let known = fetched(&directory.borrow(), after);
            let listing = if let Some(listing) = known {
                listing
            } else {
                let listing = Rc::new(Box::pin(self.client.list(id, after)).await?);
                let mut directory = directory.borrow_mut();
                (directory.listing, directory.after) = (Some(Rc::clone(&listing)), after);
                listing
            };
            let first = listing.entries.partition_point(|entry| entry.cookie <= after);
            for item in &listing.entries[first..] {
                if !self.push(node, &mut buffer, item, plus) {
                    return Ok(Response::Directory(buffer));
                }
                after = item.cookie;
            }
            if listing.end {
                return Ok(Response::Directory(buffer));
            }
        }
    }

    /// Returns the inode that `.` or `..` of a directory names. `..` is where the kernel knows the
    /// directory, as in a path.
    fn own_entry(&self, node: NodeId, name: &[u8]) -> InodeId {
        let nodes = self.nodes.borrow();
        let named = if name == b".." { nodes.parent(node) } else { node };
        nodes.inode(named)
    }

    fn push(&self, parent: NodeId, buffer: &mut DirectoryBuffer, item: &Entry, plus: bool) -> bool {
        let listed = DirectoryEntry {
            inode: item.attr.inode.0,
            offset: item.cookie,
            kind: file_type(item.attr.kind),
            name: &item.name,
        };
        if !plus {
            return buffer.push(&listed);
        }
        let entry = self.entry(parent, &item.name, &item.attr);
        let fits = buffer.push_plus(Some(&entry), &listed);
        if fits && !reactor::mutant!("listed-not-referred") {
            self.client.refer(item.attr.inode);
        } else if !fits {
            self.nodes.borrow_mut().forget(entry.node, 1);
        }
        fits
    }
}

/// Returns the listing that was fetched last, if it contains the entries after a cookie. A listing
/// from the start is always fetched anew, as rewinddir(3) promises.
fn fetched(directory: &OpenDirectory, after: u64) -> Option<Rc<Listing>> {
    let listing = directory.listing.as_ref()?;
    let last = listing.entries.last()?.cookie;
    let covers = after > directory.after && (after < last || (after == last && listing.end));
    covers.then(|| Rc::clone(listing))
}
