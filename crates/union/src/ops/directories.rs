//! Listing directories.

use std::rc::Rc;

use fuse::{
    DirectoryBuffer, DirectoryEntry, FileHandle, FileType, OpenFlags, Opened, ReadDirectory,
    Response,
};
use rustix::io::Errno;

use super::Answer;
use super::Union;
use crate::tree::{Node, is_of_entry};

/// `.` and `..` come before all others.
const DOTS: u64 = 2;

impl Union {
    pub(super) fn open_directory(&self) -> Response {
        let handle = self.handles.add_listing();
        // Names change through this mount only, so that a listing that is cached stays true.
        let flags = if self.tree.options().timeout.is_zero() {
            OpenFlags::default()
        } else {
            OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE
        };
        Response::Opened(Opened { handle, flags, backing: None })
    }

    pub(super) fn release_directory(&self, handle: FileHandle) -> Answer {
        self.handles.remove_listing(handle).map(|()| Response::Done)
    }

    pub(super) fn read_directory(
        &self,
        node: &Rc<Node>,
        read: &ReadDirectory,
        plus: bool,
    ) -> Answer {
        let listing = self.handles.listing(read.handle)?;
        let mut listing = listing.borrow_mut();
        if read.offset == 0 || !listing.is_made {
            listing.names = self.tree.list(node)?;
            listing.is_made = true;
        }
        let mut buffer = DirectoryBuffer::new(read.size);
        for offset in read.offset..DOTS + listing.names.len() as u64 {
            let is_in = if offset < DOTS {
                push_dot(&mut buffer, node, offset, plus)
            } else {
                let item = &listing.names[(offset - DOTS) as usize];
                let entry = DirectoryEntry {
                    inode: item.inode,
                    offset: offset + 1,
                    kind: FileType::from_mode(item.kind),
                    name: &item.name,
                };
                if plus { self.push_plus(&mut buffer, node, &entry)? } else { buffer.push(&entry) }
            };
            if !is_in {
                break;
            }
        }
        Ok(Response::Directory(buffer))
    }

    /// Lists a name with its inode; only the name if it is gone meanwhile or cannot be looked up.
    fn push_plus(
        &self,
        buffer: &mut DirectoryBuffer,
        parent: &Rc<Node>,
        listed: &DirectoryEntry<'_>,
    ) -> Result<bool, Errno> {
        let found = match self.tree.lookup(parent, listed.name) {
            Err(errno) if is_of_entry(errno) => None,
            found => found?,
        };
        let Some((node, stat)) = found else { return Ok(buffer.push_plus(None, listed)) };
        let entry = self.entry(&node, &stat);
        let is_in = buffer.push_plus(Some(&entry), listed);
        if !is_in {
            self.tree.forget(fuse::NodeId(node.id.get()), 1);
        }
        Ok(is_in)
    }
}

fn push_dot(buffer: &mut DirectoryBuffer, node: &Rc<Node>, offset: u64, plus: bool) -> bool {
    let (inode, name) = if offset == 0 {
        (node.inode.get(), &b"."[..])
    } else {
        let parent = node.link().map_or_else(|| Rc::clone(node), |link| link.parent);
        (parent.inode.get(), &b".."[..])
    };
    let entry = DirectoryEntry { inode, offset: offset + 1, kind: FileType::Directory, name };
    if plus { buffer.push_plus(None, &entry) } else { buffer.push(&entry) }
}
