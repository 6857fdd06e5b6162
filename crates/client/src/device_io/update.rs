//! News of the pool's devices.

use crate::client::Client;
use protocol::space::DeviceInfo;

impl Client {
    /// Takes in what the service says of the pool. Where a device has lost data, what is cached of
    /// extents may name it; they are asked for again.
    pub(crate) fn update_devices(&self, infos: Vec<DeviceInfo>) {
        let reborn = self.devices.update(infos);
        for (device, incarnation) in &reborn {
            tracing::warn!(%device, "the device has another incarnation: data that it had not flushed is lost");
            self.space.borrow_mut().renew(*device, *incarnation);
        }
        if !reborn.is_empty() && !reactor::mutant!("reborn-keeps-extents") {
            self.forget_extents();
        }
    }

    /// Drops all cached extents: some may be lost.
    pub(crate) fn forget_extents(&self) {
        for inode in self.inodes.borrow().values() {
            inode.state.borrow_mut().forget_extents();
            self.invalidate_kernel_pages(inode);
        }
    }
}
