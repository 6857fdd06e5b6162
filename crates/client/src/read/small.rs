//! Small reads past the kernel's pages, of blocks that are kept for the next ones.

use crate::client::Client;
use crate::inode::Inode;
use crate::read::Way;
use crate::read::check::Unread;
use crate::read::extents::{HeldExtents, Validity};
use protocol::{Errno, InodeId};
use reactor::{Buffer, Chunk, Shared};
use std::ops::Range;
use std::rc::Rc;

impl Client {
    /// Reads as [`Client::read`] does, and keeps the blocks of 4 KiB that the range touches for
    /// later calls. For small reads that no other cache serves.
    ///
    /// # Errors
    /// Those of [`Client::read`].
    pub async fn read_small(
        self: &Rc<Self>,
        id: InodeId,
        offset: u64,
        length: usize,
    ) -> Result<Vec<Chunk>, Errno> {
        self.read_by(id, offset..offset.saturating_add(length as u64), Way::Kept).await
    }

    /// Returns the bytes of a range from kept blocks, or reads and keeps those that it touches.
    pub(super) async fn read_blocks(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        range: &Range<u64>,
        blocks: Range<u64>,
        held: &HeldExtents,
        validity: &Validity,
    ) -> Result<Vec<Chunk>, Unread> {
        let is_clean = || inode.dirty.borrow().is_clean();
        let may_keep = held.is_leased() && is_clean();
        if may_keep || reactor::mutant!("blocks-over-dirty") {
            let found = inode.state.borrow().ahead.blocks.get(range);
            if let Some(chunks) = found {
                self.blocks.note_used(range.end - range.start);
                return Ok(chunks);
            }
        }
        let changes = || inode.state.borrow().ahead.blocks.changes();
        let before = changes();
        let planned = self.plan(inode, blocks.clone(), held)?;
        let bytes = joined(self.carry_out(&planned.parts, &planned.checks, None).await?);
        if may_keep
            && (changes() == before && is_clean() || reactor::mutant!("late-blocks-kept"))
            && inode.state.borrow().may_cache()
            && self.still_holds(validity)
        {
            self.blocks.keep(inode, blocks.start, &bytes);
        }
        let start = (range.start - blocks.start) as usize;
        let end = (range.end - blocks.start) as usize;
        Ok(vec![Chunk::Shared(bytes.slice(start..end))])
    }
}

/// Returns the bytes of chunks in one piece.
fn joined(chunks: Vec<Chunk>) -> Shared {
    let length = chunks.iter().map(Chunk::len).sum();
    let mut bytes = Buffer::with_capacity(length);
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.to_bytes());
    }
    bytes.freeze()
}
