//! Reserving: memory and blocks for the bytes of a write.

use crate::client::Client;
use crate::space::reservation::{Blocks, Memory, Reservation};
use protocol::{DeviceId, Errno};
use reactor::time::{now, timeout_at};
use smallvec::SmallVec;
use std::rc::Rc;

impl Client {
    /// Reserves memory and blocks for `length` bytes, on the wanted device or the nearest with
    /// room.
    pub(crate) async fn reserve(
        self: &Rc<Self>,
        length: usize,
        wanted: Option<DeviceId>,
    ) -> Result<SizedReservation, Errno> {
        let permit = if let Some(permit) = self.dirty_budget.try_acquire(length) {
            permit
        } else {
            self.write_out_everything();
            self.dirty_budget.acquire(length).await
        };
        let memory = Memory::acquired(&self.dirty_budget, permit, length);
        let deadline = now() + self.session.times().request_deadline;
        loop {
            let changed = self.devices.changed.notified();
            let mut last = Errno::EIO;
            for device in self.devices.preferred(wanted) {
                match self.reserve_on(length, device).await {
                    Ok((block_size, blocks)) => {
                        return Ok(SizedReservation {
                            block_size,
                            reservation: Reservation::new(memory, blocks),
                        });
                    }
                    Err(_) if last == Errno::ENOSPC => {}
                    Err(errno) => last = errno,
                }
            }
            // If no device is online, as right after a restart of the metadata service, wait for
            // one.
            if self.devices.is_any_online() || timeout_at(deadline, changed).await.is_err() {
                return Err(last);
            }
        }
    }

    /// Reserves as many blocks of a device as `length` more bytes may need, or blocks of the device
    /// that the service grants space on instead. Returns them with their size. Grants that are too
    /// small stay reserved meanwhile: the service has unused space returned before it reports that
    /// there is no more, and would grant the same blocks for ever.
    async fn reserve_on(
        self: &Rc<Self>,
        length: usize,
        mut device: DeviceId,
    ) -> Result<(u32, Blocks), Errno> {
        // Reserved while more space is leased.
        let mut hoard: SmallVec<[Blocks; 2]> = SmallVec::new();
        loop {
            let info = self.devices.usable(device).ok_or(Errno::EIO)?;
            let block_size = info.block_size;
            // All blocks, although bytes that join a fill use up the rest of its last block first:
            // another write may have used that by then. A fill that lacks a block would have to
            // lease it while it is written out, and tasks that free blocks may wait for that.
            let blocks = if reactor::mutant!("last-block-uncounted") {
                length / block_size as usize
            } else {
                length.div_ceil(block_size as usize)
            } as u64;
            hoard.retain(|held| held.device() != device);
            if let Some(reserved) = self.space.borrow().reserve(device, blocks) {
                return Ok((block_size, reserved));
            }
            hoard.push(self.space.borrow().reserve_up_to(device, blocks));
            device = self.lease_space(device, blocks * u64::from(block_size)).await?;
        }
    }
}

/// Reserved memory and blocks, and the size of the device's blocks.
pub(crate) struct SizedReservation {
    pub(crate) block_size: u32,
    pub(crate) reservation: Reservation,
}
