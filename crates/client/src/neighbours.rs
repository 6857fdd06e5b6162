//! Small files that are read before somebody asks for them.
//!
//! Who reads the files of a directory one after the other would wait for the metadata service once for each,
//! which takes longer than all else. A listing shows which small files lie beside each other; from the second of
//! them on that has to be asked for, the same call brings others along, more each time.

use crate::client::Client;
use crate::inode::Inode;
use crate::inode::siblings::Siblings;
use protocol::client::{Call, ReadCall};
use protocol::files::READ_FILES_MAX;
use protocol::inline::INLINE_MAX_BYTES;
use protocol::{Attr, Errno, FileKind, InodeId};
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

/// Files that a call brings along at most, by how many of the same listing were asked for before.
const BROUGHT: [usize; 3] = [0, 15, READ_FILES_MAX - 1];

/// Bytes that a call brings at most, as far as known before.
const BYTES_MAX: u64 = 256 << 10;

/// Whether the metadata service may have all bytes of a file.
fn may_be_inline(attr: &Attr) -> bool {
    let is_small = (1..=INLINE_MAX_BYTES).contains(&attr.size) && attr.allocated_bytes <= attr.size;
    attr.kind == FileKind::File && is_small
}

impl Client {
    /// Notes which small files an answer has listed, or has made together: those that are cached get to know each
    /// other.
    pub(crate) fn note_siblings<'a>(
        &self,
        files: impl Iterator<Item = &'a Attr>,
        fresh: &HashSet<InodeId>,
    ) {
        let is_one = |attr: &&Attr| may_be_inline(attr) && fresh.contains(&attr.inode);
        let files: Vec<InodeId> = files.filter(is_one).map(|attr| attr.inode).collect();
        if files.len() < 2 {
            return;
        }
        let siblings = Rc::new(Siblings { files, asked: Cell::new(0) });
        for (place, id) in siblings.files.iter().enumerate() {
            if let Some(inode) = self.known_inode(*id) {
                inode.state.borrow_mut().siblings = Some((Rc::clone(&siblings), place));
            }
        }
    }

    /// Reads a small file, of which nothing is cached, together with some that lie beside it, if it is time for
    /// that. What comes is cached.
    ///
    /// # Errors
    /// Those of a call.
    pub(crate) async fn fetch_neighbours(self: &Rc<Self>, inode: &Inode) -> Result<(), Errno> {
        match self.neighbours(inode) {
            Some(files) => {
                self.session.call(Call::Read(ReadCall::ReadFiles(files))).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// The file itself, and those that are worth asking for with it.
    fn neighbours(&self, inode: &Inode) -> Option<Vec<InodeId>> {
        let (siblings, place) = inode.state.borrow().siblings.clone()?;
        let attr = inode.committed_attr().filter(may_be_inline)?;
        let asked = siblings.asked.get();
        siblings.asked.set(asked + 1);
        let most = BROUGHT[asked.min(BROUGHT.len() - 1)];
        let mut bytes = attr.size;
        let mut files = vec![inode.id];
        let (before, after) = siblings.files.split_at(place);
        for id in after.iter().skip(1).chain(before) {
            if files.len() > most || bytes >= BYTES_MAX {
                break;
            }
            if let Some(size) = self.known_inode(*id).and_then(|file| file.is_worth_reading()) {
                files.push(*id);
                bytes += size;
            }
        }
        (files.len() > 1).then_some(files)
    }
}

impl Inode {
    /// Returns the size of a small file whose attributes are cached, and whose bytes are not.
    fn is_worth_reading(&self) -> Option<u64> {
        let state = self.state.borrow();
        let (attr, _) = state.extents(0, 0)?;
        let is_known = state.extents(0, attr.size).is_some();
        let is_worth = may_be_inline(&attr) && !is_known && self.dirty.borrow().is_clean();
        is_worth.then_some(attr.size)
    }
}
