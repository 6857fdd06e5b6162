//! Fetching small files before they are read.
//!
//! A program that reads the files of a directory one after the other would wait for the metadata
//! service once for each, which takes longer than everything else. A listing shows which small
//! files lie beside each other. From the second of them that has to be fetched, the same call
//! brings others along, more each time.

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

/// Most files that a call brings along, by the number of files of the same listing that were
/// fetched before.
const BROUGHT: [usize; 3] = [0, 15, READ_FILES_MAX - 1];

/// Most bytes that a call brings, as far as their sizes are known.
const BYTES_MAX: u64 = 256 << 10;

/// Returns whether the metadata service may have all bytes of a file.
fn may_be_inline(attr: &Attr) -> bool {
    let is_small = (1..=INLINE_MAX_BYTES).contains(&attr.size) && attr.allocated_bytes <= attr.size;
    attr.kind == FileKind::File && is_small
}

impl Client {
    /// Notes small files that an answer has listed or created together: those that are cached
    /// become siblings.
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

    /// Fetches a small file with nothing cached, together with some of its siblings, if it is time
    /// for that. The answer is cached.
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

    /// Returns the file itself and the siblings that are worth fetching with it.
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
