//! Applying news of the pool's devices.

use crate::client::Client;
use protocol::space::DeviceInfo;

impl Client {
    /// Applies the service's report of the pool. If a device has lost data, cached extents may name
    /// it, so this drops them; readers ask for them again.
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

    /// Drops all cached extents, because some may be lost.
    pub(crate) fn forget_extents(&self) {
        for inode in self.inodes.borrow().values() {
            inode.state.borrow_mut().forget_extents();
            self.invalidate_kernel_pages(inode);
        }
    }
}
