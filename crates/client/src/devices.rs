//! The pool's devices: what the service reports of them, their connections, and their counts.

pub(crate) mod contact;
pub(crate) mod pool_device;
pub(crate) mod remote;

use crate::devices::pool_device::{PoolDevice, Way};
use block::Device;
use metrics::{Family, Point};
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Epoch, Errno, HostId, Incarnation, InodeId};
use reactor::local::Notify;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Gives access to a device of this very process, if it is one: past the socket, but with the same
/// admission check and counts as over it.
pub type LocalDevices = Box<dyn Fn(&DeviceInfo, HostId, Epoch) -> Option<Rc<dyn Device>>>;

/// What a client has done on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceId,
    /// The node it is part of.
    pub node: String,
    /// Whether it is reached past the socket.
    pub is_local: bool,
    /// Bytes read, in whole blocks.
    pub read_bytes: u64,
    /// Bytes written, in whole blocks.
    pub written_bytes: u64,
    /// Whether it does not answer this client.
    pub is_out_of_contact: bool,
}

/// All devices.
pub(crate) struct Devices {
    pub(crate) local: LocalDevices,
    /// See [`crate::ClientConfig::plain_data`].
    pub(crate) plain_data: bool,
    /// The devices of this client's own node come first in `preferred`.
    node: RefCell<String>,
    known: RefCell<BTreeMap<DeviceId, Rc<PoolDevice>>>,
    losses: Cell<u64>,
    /// Told when the service has said something new of the pool.
    pub(crate) changed: Notify,
}

impl Devices {
    pub(crate) fn new(local: LocalDevices, plain_data: bool, node: String) -> Devices {
        let (node, known) = (RefCell::new(node), RefCell::default());
        Devices { local, plain_data, node, known, losses: Cell::new(0), changed: Notify::new() }
    }

    /// Whether any target is in contact with the service.
    pub(crate) fn is_any_online(&self) -> bool {
        self.known.borrow().values().any(|device| device.info.borrow().online)
    }

    /// Takes in what the service says of the pool. Answers the devices that have another incarnation
    /// than before.
    pub(crate) fn update(&self, infos: Vec<DeviceInfo>) -> Vec<(DeviceId, Incarnation)> {
        let mut devices = self.known.borrow_mut();
        let mut reborn = Vec::new();
        for info in infos {
            let (id, incarnation) = (info.device, info.incarnation);
            match devices.get(&id) {
                Some(device) if device.update(info.clone()) => reborn.push((id, incarnation)),
                Some(_) => {}
                None => {
                    devices.insert(id, Rc::new(PoolDevice::new(info)));
                }
            }
        }
        self.losses.set(self.losses.get() + reborn.len() as u64);
        self.changed.notify();
        reborn
    }

    /// How often a device has come back with another incarnation: extents that were known before
    /// may name data that is lost.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// What is known of a device.
    pub(crate) fn info(&self, device: DeviceId) -> Option<DeviceInfo> {
        self.known.borrow().get(&device).map(|device| device.info.borrow().clone())
    }

    /// The block size of a device, in bytes.
    pub(crate) fn block_size(&self, device: DeviceId) -> Option<u32> {
        self.known.borrow().get(&device).map(|device| device.info.borrow().block_size)
    }

    /// What is known of a device that takes new data: the service and this client are in contact with it.
    pub(crate) fn usable(&self, device: DeviceId) -> Option<DeviceInfo> {
        let known = self.known.borrow();
        known.get(&device).filter(|device| device.is_usable()).map(|it| it.info.borrow().clone())
    }

    /// Devices to try for new data: the wanted one, else those of this node, then the others,
    /// beginning at a place that differs from node to node.
    pub(crate) fn preferred(&self, wanted: Option<DeviceId>) -> Vec<DeviceId> {
        let node = self.node.borrow();
        let devices = self.known.borrow();
        let online = devices.values().filter(|device| device.is_usable());
        let (near, far): (Vec<_>, Vec<_>) =
            online.partition(|device| device.info.borrow().node == *node);
        let id = |device: &&Rc<PoolDevice>| device.info.borrow().device;
        let mut order: Vec<DeviceId> = wanted.into_iter().collect();
        order.extend(near.iter().map(id));
        let far: Vec<DeviceId> = far.iter().map(id).collect();
        if let Some(first) = near.first() {
            let split = far.partition_point(|device| *device < id(first));
            order.extend(far[split..].iter().chain(&far[..split]));
        } else {
            order.extend(far);
        }
        order
    }

    /// The device of a file's stripe: `count` devices (−1 = all), beginning at one that differs from
    /// file to file.
    pub(crate) fn of_stripe(&self, stripe: u64, count: i32, inode: InodeId) -> Option<DeviceId> {
        let devices = self.known.borrow();
        let online: Vec<DeviceId> = devices
            .values()
            .filter(|device| device.is_usable())
            .map(|device| device.info.borrow().device)
            .collect();
        if online.is_empty() {
            return None;
        }
        let all = online.len() as u64;
        let count = u64::try_from(count).map_or(all, |count| count.clamp(1, all));
        let index = (inode.0 + stripe % count) % all;
        Some(online[index as usize])
    }

    /// Ends all connections in order.
    pub(crate) async fn close(&self) {
        let devices: Vec<Rc<PoolDevice>> = self.known.borrow().values().cloned().collect();
        for device in devices {
            let way = device.way.take();
            if let Some(Way::Remote(remote)) = way {
                remote.close().await;
            }
        }
    }

    /// Drops all ways, and what was found of contact: they were of a session that is lost.
    pub(crate) fn forget_connections(&self) {
        for device in self.known.borrow().values() {
            device.way.take();
            device.contact.begin_anew();
        }
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Vec<DeviceUse> {
        let devices = self.known.borrow();
        let counts = devices.values().map(|device| {
            let info = device.info.borrow();
            DeviceUse {
                device: info.device,
                node: info.node.clone(),
                is_local: device.is_local.get(),
                read_bytes: device.read_bytes.get(),
                written_bytes: device.written_bytes.get(),
                is_out_of_contact: device.contact.is_lost(),
            }
        });
        counts.collect()
    }

    /// Counts a command on a device from now on.
    pub(crate) fn count(&self, id: DeviceId, what: &str) -> metrics::Operation {
        let device = self.known.borrow().get(&id).cloned();
        let is_local = device.is_some_and(|device| device.is_local.get());
        let (index, name) = match (what, is_local) {
            ("a read", true) => (0, "read_local"),
            ("a read", false) => (1, "read_remote"),
            ("a write", true) => (2, "write_local"),
            ("a write", false) => (3, "write_remote"),
            (_, true) => (4, "flush_local"),
            (_, false) => (5, "flush_remote"),
        };
        metrics::start(Point::new(Family::Client, index, name), u64::from(id.0))
    }

    pub(crate) fn get(&self, device: DeviceId) -> Result<Rc<PoolDevice>, Errno> {
        self.known.borrow().get(&device).cloned().ok_or(Errno::EIO)
    }
}
