//! The devices of the pool: their registration, and what is known of them.

use super::core::Core;
use crate::records::{Device, Key};
use crate::space::{DeviceSpace, DeviceUse, is_sound};
use crate::store::Error;
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Errno};
use std::collections::BTreeSet;
use uuid::Uuid;

impl Core {
    /// Returns the reason why devices cannot be registered like this, for the administrator of
    /// their node; `None` if they can.
    pub fn registration_fault(&self, infos: &[DeviceInfo]) -> Option<String> {
        let fault = |info: &DeviceInfo| {
            let fault = self.fault_of(info)?;
            Some(format!("device {}: {fault}", info.uuid))
        };
        infos.iter().find_map(fault)
    }

    fn fault_of(&self, info: &DeviceInfo) -> Option<String> {
        if !is_sound(info) {
            return Some("its geometry makes no sense".into());
        }
        let known = &self.known_device(info.uuid)?.info;
        if known.node != info.node {
            return Some(format!(
                "it is a device of node {}; give the device of {} another UUID, or the node its \
                 earlier name",
                known.node, info.node
            ));
        }
        if known.is_volatile != info.is_volatile {
            let [was, is] = [known, info].map(|i| if i.is_volatile { "memory" } else { "storage" });
            return Some(format!("it was {was} and is {is} now; give it another UUID"));
        }
        if (known.blocks, known.block_size) != (info.blocks, info.block_size) {
            return Some(format!(
                "it had {} blocks of {} bytes and has {} of {} now",
                known.blocks, known.block_size, info.blocks, info.block_size
            ));
        }
        None
    }

    fn known_device(&self, uuid: Uuid) -> Option<&DeviceSpace> {
        self.base.space.devices.values().find(|device| device.info.uuid == uuid)
    }

    /// Registers a device, or stores the new address and incarnation of a known one (identified by
    /// its UUID). EINVAL if [`Core::registration_fault`] finds a fault.
    pub fn register_device(&mut self, info: &DeviceInfo) -> Result<DeviceId, Error> {
        if self.registration_fault(std::slice::from_ref(info)).is_some() {
            return Err(Errno::EINVAL.into());
        }
        let known = self.known_device(info.uuid);
        let durability = self.durability_of_registration(known, info);
        let known = known.map(|known| known.info.device);
        let (info, durability) = self.transact(|transaction| {
            let device = known.unwrap_or(DeviceId(transaction.counters.next_device));
            transaction.counters.next_device =
                transaction.counters.next_device.max(device.0.saturating_add(1));
            // Later commits are not lost with the earlier ones.
            transaction.counters.flush_epoch +=
                u64::from(known.is_some() && !reactor::mutant!("loss-catches-later"));
            let info = DeviceInfo { device, ..info.clone() };
            let record = Device { info: info.clone(), durability: durability.clone() };
            transaction.put(&Key::Device(device), &record)?;
            Ok((info, durability))
        })?;
        let device = info.device;
        self.base.space.add_device(info, durability);
        Ok(device)
    }

    /// Records whether a device's target is in contact; space is leased only on devices in contact.
    pub fn set_online(&mut self, device: DeviceId, online: bool) {
        if let Some(device) = self.base.space.devices.get_mut(&device) {
            device.info.online = online;
        }
    }

    /// Returns the pool's devices.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.base.space.devices.values().map(|device| device.info.clone()).collect()
    }

    /// Returns the named devices of the pool.
    pub fn devices_of(&self, ids: &BTreeSet<DeviceId>) -> Vec<DeviceInfo> {
        let devices = ids.iter().filter_map(|id| self.base.space.devices.get(id));
        devices.map(|device| device.info.clone()).collect()
    }

    /// Returns the number of a device's blocks in each state.
    pub fn device_use(&self, device: DeviceId) -> Option<DeviceUse> {
        self.base.space.usage(device)
    }
}
