//! Truncation, allocation, copies of ranges, and the search for data and holes.

use crate::client::Client;
use crate::handle::Handle;
use crate::inode::Inode;
use crate::read::extents::ExtentsAnswer;
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, FallocateMode};
use protocol::{Attr, Errno, FILE_SIZE_MAX_BYTES, InodeId};
use std::rc::Rc;

/// Most bytes that a copy reads and writes here. Beyond that, a call to the service is cheaper,
/// although it takes rights from all writers.
pub const COPIED_HERE_BYTES: u64 = 64 << 10;

/// The target of `lseek(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

impl Client {
    /// Changes the size together with other attributes.
    ///
    /// # Errors
    /// EFBIG, EINVAL, EISDIR, those of a call and of a commit.
    pub async fn truncate(
        self: &Rc<Self>,
        id: InodeId,
        changes: AttrChanges,
    ) -> Result<Attr, Errno> {
        let size = changes.size.ok_or(Errno::EINVAL)?;
        if size > FILE_SIZE_MAX_BYTES {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(id);
        self.call_alone(&inode, Call::Change(ChangeCall::SetAttr { inode: id, changes })).await?;
        inode.dirty.borrow_mut().truncate(size);
        self.attr(id).await
    }

    /// Allocates or deallocates a range (`fallocate(2)`).
    ///
    /// # Errors
    /// ENOSPC, EFBIG, those of a call and of a commit.
    pub async fn fallocate(
        self: &Rc<Self>,
        id: InodeId,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Result<(), Errno> {
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        if offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(id);
        self.call_alone(
            &inode,
            Call::Change(ChangeCall::Fallocate { inode: id, offset, length, mode }),
        )
        .await
        .map(drop)
    }

    /// Makes a call that must see all of this client's writes and none that come after: commits,
    /// and keeps writers out until the answer is there. The commit lock is not held meanwhile,
    /// because the call may wait for another session whose commit waits for a right that this one
    /// has to return.
    async fn call_alone(self: &Rc<Self>, inode: &Rc<Inode>, call: Call) -> Result<Answer, Errno> {
        let _change = (!reactor::mutant!("change-not-alone")).then(|| inode.changes.enter());
        self.commit(inode, false).await?;
        // The service takes these rights from all sessions; they come back with the next write.
        self.session.call(call).await
    }

    /// Copies a range of one file to another, as far as the source reaches. Returns the number of
    /// bytes. A short range is read and written here and goes with the next commit. For a longer
    /// one the service shares the blocks.
    ///
    /// # Errors
    /// As [`Client::copy_range`], and those of reading and writing.
    pub async fn copy(
        self: &Rc<Self>,
        source: (InodeId, u64),
        destination: (&Handle, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let (to, at) = destination;
        let available = self.attr(source.0).await?.size.saturating_sub(source.1);
        let is_small = length.min(available) <= COPIED_HERE_BYTES;
        if !is_small || source.0 == to.inode() {
            match self.copy_range(source, (to.inode(), at), length).await {
                // The service has the first bytes of the source inline, and cannot share them.
                Err(Errno::EXDEV) => {}
                copied => return copied,
            }
        }
        let length = length.min(available).min(COPIED_HERE_BYTES) as usize;
        let mut copied = 0;
        for chunk in self.read(source.0, source.1, length, None).await? {
            let bytes = chunk.len() as u64;
            self.write_at(to, at + copied, chunk, false).await?;
            copied += bytes;
        }
        Ok(copied)
    }

    /// Shares a range of one file with another, as far as the source reaches. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// EINVAL for ranges of one file that overlap, ENOSPC, those of a call and of a commit.
    pub async fn copy_range(
        self: &Rc<Self>,
        source: (InodeId, u64),
        destination: (InodeId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let from = self.inode(source.0);
        let to = self.inode(destination.0);
        if source.0 != destination.0 {
            self.commit(&from, false).await?;
        }
        let call = Call::Change(ChangeCall::CopyRange {
            source: source.0,
            source_offset: source.1,
            destination: destination.0,
            destination_offset: destination.1,
            length,
        });
        match self.call_alone(&to, call).await {
            Ok(Answer::Copied { length, .. }) => Ok(length),
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the offset that `lseek(2)` finds with `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// ENXIO past the end, or if no data follows; those of a call.
    pub async fn seek(self: &Rc<Self>, id: InodeId, offset: u64, to: SeekTo) -> Result<u64, Errno> {
        let inode = self.inode(id);
        self.commit(&inode, false).await?;
        let mut at = offset;
        if at >= FILE_SIZE_MAX_BYTES {
            return Err(Errno::ENXIO);
        }
        loop {
            let length = FILE_SIZE_MAX_BYTES - at;
            let ExtentsAnswer { extents, covered_to, inline, attr, .. } =
                self.ask_extents(&inode, at, length).await?;
            if at >= attr.size {
                return Err(Errno::ENXIO);
            }
            let inline_end = inline.len() as u64;
            let mut data: Vec<_> = extents.iter().map(|e| (e.offset, e.end())).collect();
            if at < inline_end {
                data.insert(0, (0, inline_end));
            }
            for (start, end) in data {
                match to {
                    SeekTo::Data => return Ok(start.max(offset)),
                    SeekTo::Hole if start > at => return Ok(at),
                    SeekTo::Hole => at = at.max(end),
                }
            }
            if to == SeekTo::Hole && at < covered_to.min(attr.size) {
                return Ok(at);
            }
            if to == SeekTo::Hole && at >= attr.size {
                return Ok(attr.size);
            }
            at = at.max(covered_to);
            if at >= attr.size {
                return Err(Errno::ENXIO);
            }
        }
    }
}
