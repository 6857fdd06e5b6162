//! Reading: dirty data from memory, committed data from the devices, holes as zeros.
//!
//! A read takes hold of its extents (`extents`), then plans without waiting which bytes come from
//! where (`plan`). Ranges that lie near each other on a device become one command (`command`). All
//! commands go out together (`fetch`), and their bytes are compared with their checksums (`check`).
//! The result is a list of chunks that refer to what was read, not a copy of it.
//!
//! A caller may offer memory for the result (a FUSE request's payload). What lies on a device in
//! the same order as in the file is then read straight to its place there, which saves a copy.

mod ahead;
mod check;
mod command;
pub(crate) mod committed;
pub(crate) mod extents;
mod fetch;
mod plan;
pub(crate) mod scrub;
mod small;

use crate::ahead::blocks;
use crate::client::Client;
use crate::inode::Inode;
use crate::read::check::Unread;
use protocol::{Errno, FILE_SIZE_MAX_BYTES, InodeId, Rights};
use reactor::{Chunk, RegionSlice};
use std::ops::Range;
use std::rc::Rc;

/// How bytes are read.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// These bytes, into memory of the caller where possible.
    Once(Option<&'a RegionSlice>),
    /// With the rest of their blocks, which are kept.
    Kept,
}

impl Way<'_> {
    /// Returns the range to read from devices for a wanted one.
    fn needed(self, wanted: &Range<u64>) -> Range<u64> {
        match self {
            Self::Once(_) => wanted.clone(),
            Self::Kept => blocks::whole(wanted),
        }
    }
}

impl Client {
    /// Reads up to `length` bytes at an offset; fewer only at the end of the file.
    ///
    /// Some bytes may be read into `room`, each at its offset from the start of the read. The other
    /// bytes of `room` are arbitrary afterwards; the returned chunks show which lie there.
    ///
    /// # Errors
    /// EIO, also where the bytes do not have their checksum; ETIMEDOUT, ESTALE, those of a call.
    pub async fn read(
        self: &Rc<Self>,
        id: InodeId,
        offset: u64,
        length: usize,
        room: Option<&RegionSlice>,
    ) -> Result<Vec<Chunk>, Errno> {
        self.read_by(id, offset..offset.saturating_add(length as u64), Way::Once(room)).await
    }

    /// Reads a range as `way` says.
    async fn read_by(
        self: &Rc<Self>,
        id: InodeId,
        wanted: Range<u64>,
        mut way: Way<'_>,
    ) -> Result<Vec<Chunk>, Errno> {
        let offset = wanted.start;
        let inode = self.inode(id);
        self.compaction.note_use();
        if offset >= FILE_SIZE_MAX_BYTES {
            return Ok(Vec::new());
        }
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            self.session.life.alive().await?;
            inode.pages.note_read();
            let validity = self.validity();
            let last_commit = inode.last_commit.get();
            let needed = way.needed(&wanted);
            let held = self.hold_extents(&inode, needed.start, needed.end - needed.start).await?;
            if inode.last_commit.get() != last_commit && !reactor::mutant!("own-commit-unseen") {
                // A commit may have ended since the extents came: dirty data then is in neither.
                continue;
            }
            let size = held.size.max(inode.dirty.borrow().end());
            let end = wanted.end.min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let chunks = if let Some(chunks) = self.take_ahead(&inode, &(offset..end)).await {
                Ok(chunks)
            } else if let Way::Once(room) = way {
                let planned = self.plan(&inode, offset..end, &held)?;
                self.carry_out(&planned.parts, &planned.checks, room).await
            } else {
                let needed = needed.start..needed.end.min(size);
                let range = offset..end;
                let read = self.read_blocks(&inode, &range, needed, &held, &validity);
                match Box::pin(read).await {
                    Ok(chunks) => Ok(chunks),
                    Err(_) if reactor::mutant!("blocks-planned-again") => {
                        let planned = self.plan(&inode, range, &held)?;
                        self.carry_out(&planned.parts, &planned.checks, None).await
                    }
                    Err(_) => {
                        // What lies beside the wanted bytes may be lost or damaged. A commit may
                        // have overtaken the extents meanwhile.
                        way = Way::Once(None);
                        continue;
                    }
                }
            };
            if matches!(chunks, Err(Unread::Failed(_))) {
                let places = held.runs.iter().map(|run| &run.place);
                self.name_unreadable(id, places.map(|place| place.allocation.device));
            }
            drop(held);
            self.expire_unheld(&inode);
            let is_same = validity.losses == self.devices.losses();
            let still_holds = self.still_holds(&validity);
            match chunks {
                Ok(chunks) if still_holds => return Ok(chunks),
                Err(Unread::Failed(errno)) if still_holds || is_same => return Err(errno),
                Err(Unread::Wrong(wrong))
                    if still_holds
                        || reactor::mutant!("wrong-without-session")
                        || !is_same && reactor::mutant!("wrong-of-reborn-device") =>
                {
                    inode.state.borrow_mut().ahead.clear();
                    self.note_wrong(id, wrong);
                    return Err(Errno::EIO);
                }
                // What the read was planned by holds no more.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Makes the kernel drop bytes that it is about to get without the right to keep them: no recall
    /// will say when they become old.
    fn expire_unheld(self: &Rc<Self>, inode: &Rc<Inode>) {
        if inode.state.borrow().rights.contains(Rights::READ) {
            return;
        }
        inode.pages.fill();
        inode.pages.expire();
        if inode.pages.have_writers() {
            self.send_pages_invalidation(inode);
        }
    }
}
