//! Reading ahead of a reader that goes through a file.
//!
//! The kernel reads ahead for its page cache, but only 128 KiB unless that is raised, not for
//! records with gaps between them, and not for `O_DIRECT`. The device would rest while an answer is
//! copied and its reader comes back. So the client reads what follows into memory meanwhile
//! ([`crate::ahead`]).

use crate::ahead::{Content, Piece, lasting};
use crate::client::Client;
use crate::inode::Inode;
use protocol::{FILE_SIZE_MAX_BYTES, InodeId};
use reactor::local::Notify;
use reactor::{Chunk, RegionSlice};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Most bytes that one client keeps for all its readers.
const KEPT_BYTES_MAX: u64 = 64 << 20;

impl Client {
    /// Notes that a reader is about to read a range. If it goes through the file in order, this
    /// starts to read what follows into memory, for [`Client::read`] to find.
    pub fn look_ahead(self: &Rc<Self>, id: InodeId, offset: u64, length: usize) {
        let inode = self.inode(id);
        let read = offset..offset.saturating_add(length as u64).min(FILE_SIZE_MAX_BYTES);
        if read.is_empty() || !inode.dirty.borrow().is_clean() {
            return;
        }
        let wanted = inode.state.borrow_mut().ahead.note(&read);
        for range in wanted {
            self.read_ahead(&inode, range);
        }
    }

    /// Starts to read a piece, if its extents are known and there is room for it.
    fn read_ahead(self: &Rc<Self>, inode: &Rc<Inode>, range: Range<u64>) {
        let Some(held) = self.hold_cached(inode, range.start, range.end) else { return };
        let range = range.start..range.end.min(held.size);
        let length = range.end.saturating_sub(range.start);
        let kept = self.read_ahead.kept.get() + length;
        if length == 0 || kept > KEPT_BYTES_MAX {
            return;
        }
        let Ok(planned) = self.plan(inode, range.clone(), &held) else { return };
        self.read_ahead.kept.set(kept);
        self.read_ahead.read.set(self.read_ahead.read.get() + length);
        let room = self.read_ahead.room(length);
        let place: Option<RegionSlice> = room.as_ref().map(|room| room.range(0, room.len()));
        let piece = Rc::new(Piece {
            range,
            last_commit: inode.last_commit.get(),
            content: RefCell::new(Content::Coming),
            done: Notify::new(),
            room,
            memory: Rc::clone(&self.read_ahead),
        });
        inode.state.borrow_mut().ahead.pieces.push_back(Rc::clone(&piece));
        let (client, validity) = (Rc::clone(self), self.validity());
        reactor::spawn(async move {
            // The reader itself finds, and reports, what is wrong here.
            let chunks = client.carry_out(&planned.parts, &planned.checks, place.as_ref()).await;
            drop(held);
            let is_good = client.still_holds(&validity);
            let content = match chunks {
                Ok(chunks) if is_good => Content::Here(chunks.into_iter().map(lasting).collect()),
                _ => Content::Failed,
            };
            piece.content.replace(content);
            piece.done.notify();
        });
    }

    /// Returns what was read ahead of a range, if all of it was. The caller holds the range's
    /// extents.
    pub(super) async fn take_ahead(&self, inode: &Inode, range: &Range<u64>) -> Option<Vec<Chunk>> {
        if !inode.dirty.borrow().is_clean() && !reactor::mutant!("ahead-over-dirty") {
            inode.state.borrow_mut().ahead.pieces.clear();
            return None;
        }
        let pieces = inode.state.borrow_mut().ahead.take(range, inode.last_commit.get())?;
        let mut chunks = Vec::with_capacity(pieces.len());
        for piece in pieces {
            chunks.extend(piece.part(range).await?);
        }
        let used = &self.read_ahead.used;
        used.set(used.get() + (range.end - range.start));
        Some(chunks)
    }
}
