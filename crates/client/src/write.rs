//! Writing: a write returns when its bytes are gathered and blocks are reserved for them.
//!
//! The steps of a write, in their order; each module uses only those below it:
//!
//! | step | module | what happens |
//! | --- | --- | --- |
//! | enter | `write` | check the handle, acquire WRITE, cut the bytes by stripe |
//! | reserve | `write::reserve` | reserve memory and blocks, which may lease space |
//! | gather | `write::gather` | put the bytes into fills of the inode's dirty data |
//! | place | `write_out` | give a full fill its blocks, write it to its device |
//! | device | `device_io` | reach the device, run the command |
//! | record | `dirty` | record where each dirty byte lies, and which blocks it has |
//!
//! Full fills go out at once, several at a time. Large buffers go out as they are, without a copy.
//! Later, at fsync, close, a recall or the write-back, `commit` writes out the rest, has devices
//! flush if the data must survive power loss, and makes the data part of the file.

mod gather;
mod reserve;

use crate::client::Client;
use crate::handle::Handle;
use crate::inode::Inode;
use crate::session::life::SessionStamp;
use protocol::{Errno, FILE_SIZE_MAX_BYTES, Rights};
use reactor::Chunk;
use std::rc::Rc;

impl Client {
    /// Writes bytes at an offset (ignored if the handle appends). `kill_privileges` says that the
    /// write clears suid and sgid. Returns the offset of the first written byte.
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EIO, ESTALE, those of a call.
    pub async fn write(
        self: &Rc<Self>,
        handle: &Handle,
        offset: u64,
        bytes: Chunk,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        self.compaction.note_use();
        if !handle.mode.append {
            self.write_at(handle, offset, bytes, kill_privileges).await?;
            return Ok(offset);
        }
        let session = self.check_handle(handle).await?;
        let offset = self.append(&handle.inode, bytes, session, kill_privileges).await?;
        self.sync_if_asked(handle).await?;
        Ok(offset)
    }

    /// Writes bytes at an offset, also through a handle that appends (as stores through a mapping
    /// do).
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn write_at(
        self: &Rc<Self>,
        handle: &Handle,
        offset: u64,
        bytes: Chunk,
        kill_privileges: bool,
    ) -> Result<(), Errno> {
        let session = self.check_handle(handle).await?;
        self.acquire(&handle.inode, Rights::WRITE).await?;
        self.write_striped(&handle.inode, offset, bytes, session, kill_privileges).await?;
        self.sync_if_asked(handle).await
    }

    /// Returns the session that a write through the handle belongs to from here on. Fails for a
    /// handle whose data was lost with a session: such handles stay broken.
    async fn check_handle(&self, handle: &Handle) -> Result<SessionStamp, Errno> {
        self.session.life.alive().await?;
        let lost_in = handle.inode.state.borrow().lost_in;
        if handle.session < lost_in && !reactor::mutant!("lost-handle-writes") {
            Err(Errno::EIO)
        } else {
            Ok(self.session.life.stamp())
        }
    }

    /// Fails if the session in which a write began is no longer the present one. The caller gets an
    /// error then, so the bytes must not appear in the next session, over what others wrote
    /// meanwhile.
    fn may_place(&self, session: SessionStamp) -> Result<(), Errno> {
        if self.session.life.is_present(session) || reactor::mutant!("old-write-placed") {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }

    /// Makes the write durable, if the handle was opened for that.
    async fn sync_if_asked(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        if !handle.mode.sync {
            return Ok(());
        }
        let result = Box::pin(self.commit(&handle.inode, true)).await;
        handle.inode.report_failures(&handle.reported).and(result)
    }

    /// Appends to the file. Meanwhile no other session can append.
    async fn append(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        bytes: Chunk,
        session: SessionStamp,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        let _lock = inode.append_lock.acquire(1).await;
        let reserved = self.reserve(bytes.len(), None).await?;
        let size =
            if reactor::mutant!("append-without-size") { Rights::NONE } else { Rights::SIZE };
        let rights = Rights::WRITE | size;
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            self.wait_until_writable(inode, rights).await?;
            let attr = self.inode_attr(inode).await?;
            self.may_place(session)?;
            let may_extend = inode.state.borrow().rights.contains(rights);
            if may_extend && inode.changes.count() == 0 {
                let offset = attr.size;
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
                    return Err(Errno::EFBIG);
                }
                // No await from here on: the size holds.
                self.gather(inode, offset, bytes, reserved, kill_privileges);
                return Ok(offset);
            }
        }
    }

    /// Waits until rights over an inode are held and bytes may be added to it.
    async fn wait_until_writable(
        self: &Rc<Self>,
        inode: &Inode,
        rights: Rights,
    ) -> Result<(), Errno> {
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            inode.changes.wait_zero().await;
            self.acquire(inode, rights).await?;
            if inode.changes.count() == 0 {
                return Ok(());
            }
        }
    }

    /// Reserves and gathers the bytes, a stripe at a time if the file is striped.
    async fn write_striped(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        bytes: Chunk,
        session: SessionStamp,
        kill_privileges: bool,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
            return Err(Errno::EFBIG);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let layout = self.layout(inode).await?;
        if layout.stripe_count == 0 || bytes.len() <= 1 {
            let reserved = self.reserve(bytes.len(), None).await?;
            // WRITE may have been recalled while space was reserved.
            self.wait_until_writable(inode, Rights::WRITE).await?;
            self.may_place(session)?;
            self.gather(inode, offset, bytes, reserved, kill_privileges);
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let stripe = u64::from(layout.stripe_size_bytes);
            let left = (stripe - at % stripe) as usize;
            let part = done..(done + left).min(bytes.len());
            let device = self.devices.of_stripe(at / stripe, layout.stripe_count, inode.id);
            let reserved = self.reserve(part.len(), device).await?;
            self.wait_until_writable(inode, Rights::WRITE).await?;
            self.may_place(session)?;
            done = part.end;
            let piece = Chunk::from(bytes.copy_part(part));
            self.gather(inode, at, piece, reserved, kill_privileges);
        }
        Ok(())
    }
}
