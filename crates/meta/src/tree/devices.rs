//! The devices of the pool: their registration, and what is known of them.

use super::core::Core;
use crate::records::{Device, Key};
use crate::space::{DeviceSpace, DeviceUse, is_sound};
use crate::store::Error;
use protocol::frame::BODY_MAX_BYTES;
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Errno, Incarnation};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Most devices of one node.
const DEVICES_PER_NODE_MAX: usize = 1024;

/// Longest address of a target, in bytes.
const ADDRESS_MAX_BYTES: usize = 256;

/// Longest NVMe qualified name, in bytes (NVM Express Base Specification, 4.7).
const NQN_MAX_BYTES: usize = 223;

/// Most bytes of all devices in a message; the rest of its frame is for what comes with them.
const LIST_MAX_BYTES: usize = BODY_MAX_BYTES - 4096;

/// Most encoded bytes of a device, without its node, address and NQN.
const ENTRY_MAX_BYTES: usize = 80;

/// Returns the most bytes that a device takes in a message.
fn encoded_max(info: &DeviceInfo) -> usize {
    let address = &info.address;
    ENTRY_MAX_BYTES + info.node.len() + address.traddr.len() + address.subnqn.len()
}

impl Core {
    /// Returns the reason why devices cannot be registered like this, for the administrator of
    /// their node; `None` if they can.
    pub fn registration_fault(&self, infos: &[DeviceInfo]) -> Option<String> {
        let fault = |info: &DeviceInfo| {
            let fault = self.fault_of(info)?;
            Some(format!("device {}: {fault}", info.uuid))
        };
        infos.iter().find_map(fault).or_else(|| self.excess_of(infos))
    }

    /// Returns why there would be too many devices. Clients get all devices in one message.
    fn excess_of(&self, infos: &[DeviceInfo]) -> Option<String> {
        let mut uuids: BTreeSet<Uuid> = BTreeSet::new();
        let others = self.base.space.devices.values().map(|device| &device.info);
        let all: Vec<&DeviceInfo> =
            infos.iter().chain(others).filter(|info| uuids.insert(info.uuid)).collect();
        let node = &infos.first()?.node;
        if all.iter().filter(|info| info.node == *node).count() > DEVICES_PER_NODE_MAX {
            return Some(format!(
                "too many devices: node {node} may have {DEVICES_PER_NODE_MAX}, with those that it \
                 had earlier"
            ));
        }
        let bytes: usize = all.iter().map(|info| encoded_max(info)).sum();
        let known = self.base.space.devices.values();
        let bytes_before: usize = known.map(|device| encoded_max(&device.info)).sum();
        // Known devices come back even if there are very many: the estimate is a high one.
        (bytes > LIST_MAX_BYTES.max(bytes_before)).then(|| {
            format!(
                "too many devices: the list of all {} would take {bytes} bytes, more than \
                 {LIST_MAX_BYTES}",
                all.len()
            )
        })
    }

    fn fault_of(&self, info: &DeviceInfo) -> Option<String> {
        if !is_sound(info) {
            return Some("its geometry makes no sense".into());
        }
        if info.address.traddr.len() > ADDRESS_MAX_BYTES {
            return Some(format!("its address is longer than {ADDRESS_MAX_BYTES} bytes"));
        }
        if info.address.subnqn.len() > NQN_MAX_BYTES {
            return Some(format!("its NQN is longer than {NQN_MAX_BYTES} bytes"));
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

    /// Records that a flush of a device has failed under an incarnation: no space is leased there
    /// until it registers with another one. Returns whether this is news.
    pub fn exclude_device(&mut self, device: DeviceId, incarnation: Incarnation) -> bool {
        let known = self.base.space.devices.get_mut(&device);
        known.is_some_and(|known| {
            let is_present = known.info.incarnation == incarnation;
            is_present && !std::mem::replace(&mut known.has_failed, true)
        })
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

#[cfg(test)]
mod tests {
    use super::{ENTRY_MAX_BYTES, encoded_max};
    use protocol::frame::{HEADER_BYTES, Kind, encode};
    use protocol::space::{DeviceAddress, DeviceInfo, Transport};
    use protocol::{DeviceId, Incarnation};
    use uuid::Uuid;

    /// Goal: no device takes more bytes in a message than is counted for it, whatever its numbers.
    #[test]
    fn a_device_takes_no_more_than_is_counted() {
        let info = DeviceInfo {
            device: DeviceId(u32::MAX),
            uuid: Uuid::max(),
            node: "n".repeat(255),
            address: DeviceAddress {
                traddr: "a".repeat(256),
                subnqn: "q".repeat(223),
                nsid: u32::MAX,
                transport: Transport::Tcp,
            },
            block_size: u32::MAX,
            blocks: u64::MAX,
            incarnation: Incarnation(u128::MAX),
            is_volatile: true,
            online: true,
        };
        let mut frame = Vec::new();
        encode(Kind::Call, 0, &info, &mut frame).unwrap();
        let bytes = frame.len() - HEADER_BYTES;
        assert!((encoded_max(&info) - ENTRY_MAX_BYTES..=encoded_max(&info)).contains(&bytes));
    }
}
