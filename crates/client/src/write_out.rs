//! Writing out: a sealed fill gets its blocks and goes to its device.

use crate::client::Client;
use crate::dirty::fill::{Pieces, Sealed};
use crate::inode::Inode;
use crate::session::life::SessionStamp;
use protocol::Errno;
use smallvec::SmallVec;
use std::rc::Rc;

impl Client {
    /// Seals every gathering fill of an inode and starts to write it out.
    pub(crate) fn write_out_inode(self: &Rc<Self>, inode: &Rc<Inode>) {
        let gathering = inode.dirty.borrow().gathering_fills();
        for id in gathering {
            let sealed = inode.dirty.borrow_mut().seal(id);
            if let Some(sealed) = sealed {
                reactor::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
            }
        }
    }

    /// Starts to write out every gathering fill of all inodes, to free memory.
    pub(crate) fn write_out_everything(self: &Rc<Self>) {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        for inode in &dirty {
            self.write_out_inode(inode);
        }
    }

    /// Gives a sealed fill its blocks and writes it to them.
    pub(crate) async fn write_out(self: Rc<Self>, inode: Rc<Inode>, mut sealed: Sealed) {
        let session = self.session.life.stamp();
        let sums = self.make_sums(&sealed.bytes, sealed.block_size);
        let result = self.place_and_write(&mut sealed, session).await;
        let mut dirty = inode.dirty.borrow_mut();
        if dirty.fill(sealed.id).is_none() {
            // The loss of the session has dropped the fill and noted the failure.
            return;
        }
        let (pieces, number) = match result {
            Ok(written) => written,
            Err(errno) => {
                tracing::error!(inode = inode.id.0, device = sealed.device.0, %errno, "write-out failed");
                dirty.lose(sealed.id, errno);
                // The kernel may have the lost bytes in its pages.
                self.invalidate_kernel_pages(&inode);
                (SmallVec::new(), 0)
            }
        };
        dirty.written(sealed.id, pieces, sums.0, number);
        inode.written.notify();
    }

    /// Allocates blocks and writes a fill to them. Returns where it went, and the number of the
    /// last write to the device.
    async fn place_and_write(
        self: &Rc<Self>,
        sealed: &mut Sealed,
        session: SessionStamp,
    ) -> Result<(Pieces, u64), Errno> {
        let pieces = self.place_fill(sealed).await?;
        let number = self.write_pieces(sealed, &pieces, session).await?;
        Ok((pieces, number))
    }

    /// Turns a fill's reserved blocks into allocations.
    async fn place_fill(self: &Rc<Self>, sealed: &mut Sealed) -> Result<Pieces, Errno> {
        let block_size = sealed.block_size;
        let mut left = (sealed.bytes.len() / block_size as usize) as u32;
        let mut pieces = Pieces::new();
        let mut start = 0;
        while left > 0 {
            let reserved = &mut sealed.reservation.blocks;
            if !self.space.borrow().is_present(reserved) {
                // The blocks went with the session.
                return Err(Errno::EIO);
            }
            let allocated = self.space.borrow_mut().allocate(reserved, left, block_size);
            let Some(allocated) = allocated else {
                self.lease_space(sealed.device, u64::from(left) * u64::from(block_size)).await?;
                continue;
            };
            pieces.push((start, allocated));
            start += allocated.blocks * block_size;
            left -= allocated.blocks;
        }
        Ok(pieces)
    }

    /// Writes a fill to its allocations, all at once. Returns the number of the last write to the
    /// device. Blocks of a failed write stay out of use until the session returns its space at its
    /// end, because the device may still carry the write out.
    async fn write_pieces(
        self: &Rc<Self>,
        sealed: &Sealed,
        pieces: &Pieces,
        session: SessionStamp,
    ) -> Result<u64, Errno> {
        let block_size = sealed.block_size;
        let mut writes = Vec::with_capacity(pieces.len());
        for (start, allocated) in pieces {
            let start = *start as usize;
            let length = (allocated.blocks * block_size) as usize;
            let chunk = sealed.bytes.slice(start..start + length);
            let at = allocated.allocation.block * u64::from(block_size);
            let client = Rc::clone(self);
            let device = sealed.device;
            let write = async move { client.write_device(device, at, chunk, session).await };
            writes.push(reactor::spawn(write));
        }
        let mut result = Ok(0);
        for write in writes {
            let is_hasty = reactor::mutant!("commit-before-write");
            let number = if is_hasty { Ok(0) } else { write.await.unwrap_or(Err(Errno::EIO)) };
            result = result.and_then(|newest| number.map(|number| number.max(newest)));
        }
        if result.is_err() && reactor::mutant!("failed-write-blocks-reused") {
            let mut space = self.space.borrow_mut();
            pieces.iter().for_each(|(_, allocated)| space.give_back(allocated));
        }
        result
    }
}
