//! The pool's devices: what the service reports of them, their connections, and their counts.

pub(crate) mod contact;
pub(crate) mod pool_device;
pub(crate) mod remote;

use crate::devices::pool_device::{Connection, PoolDevice};
use block::Device;
use metrics::{Family, Point};
use protocol::space::DeviceInfo;
use protocol::{DeviceId, Epoch, Errno, HostId, Incarnation, InodeId};
use reactor::local::Notify;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Returns a device of this same process, if it is one: without a socket, but with the same
/// admission check and counts as over it.
pub type LocalDevices = Box<dyn Fn(&DeviceInfo, HostId, Epoch) -> Option<Rc<dyn Device>>>;

/// Use of one device by a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceUse {
    /// The device.
    pub device: DeviceId,
    /// Its node.
    pub node: String,
    /// Whether the client reaches it without a socket.
    pub is_local: bool,
    /// Bytes read, in whole blocks.
    pub read_bytes: u64,
    /// Bytes written, in whole blocks.
    pub written_bytes: u64,
    /// Whether it has stopped answering this client.
    pub is_out_of_contact: bool,
}

/// A kind of command to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Makes acknowledged writes durable.
    Flush,
}

impl CommandKind {
    /// Returns the name of the command for the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CommandKind::Read => "a read",
            CommandKind::Write => "a write",
            CommandKind::Flush => "a flush",
        }
    }
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
    /// Notified when the service has reported news of the pool.
    pub(crate) changed: Notify,
}

impl Devices {
    pub(crate) fn new(local: LocalDevices, plain_data: bool, node: String) -> Devices {
        let (node, known) = (RefCell::new(node), RefCell::default());
        Devices { local, plain_data, node, known, losses: Cell::new(0), changed: Notify::new() }
    }

    /// Returns whether any target is in contact with the service.
    pub(crate) fn is_any_online(&self) -> bool {
        self.known.borrow().values().any(|device| device.info.borrow().online)
    }

    /// Applies the service's report of the pool. Returns the devices whose incarnation has changed.
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

    /// Returns how often a device has come back with another incarnation. Extents that were known
    /// before may name lost data.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// Returns what is known of a device.
    pub(crate) fn info(&self, device: DeviceId) -> Option<DeviceInfo> {
        self.known.borrow().get(&device).map(|device| device.info.borrow().clone())
    }

    /// Returns the block size of a device, in bytes.
    pub(crate) fn block_size(&self, device: DeviceId) -> Option<u32> {
        self.known.borrow().get(&device).map(|device| device.info.borrow().block_size)
    }

    /// Returns what is known of a device that takes new data: both the service and this client are
    /// in contact with it.
    pub(crate) fn usable(&self, device: DeviceId) -> Option<DeviceInfo> {
        let known = self.known.borrow();
        known.get(&device).filter(|device| device.is_usable()).map(|it| it.info.borrow().clone())
    }

    /// Returns the devices to try for new data: the wanted one, then those of this node, then the
    /// others, which start at a place that differs from node to node.
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

    /// Returns the device of a file's stripe. The file uses `count` devices (−1 = all), starting at
    /// one that differs from file to file.
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
            let connection = device.connection.take();
            if let Some(Connection::Remote(remote)) = connection {
                remote.close().await;
            }
        }
    }

    /// Drops all connections, and what was found of contact: they belonged to a session that is
    /// lost.
    pub(crate) fn forget_connections(&self) {
        for device in self.known.borrow().values() {
            device.connection.take();
            device.contact.begin_anew();
        }
    }

    /// Returns what was counted so far.
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

    /// Starts to count and time a command on a device.
    pub(crate) fn count(&self, id: DeviceId, kind: CommandKind) -> metrics::Operation {
        let device = self.known.borrow().get(&id).cloned();
        let is_local = device.is_some_and(|device| device.is_local.get());
        let (index, name) = match (kind, is_local) {
            (CommandKind::Read, true) => (0, "read_local"),
            (CommandKind::Read, false) => (1, "read_remote"),
            (CommandKind::Write, true) => (2, "write_local"),
            (CommandKind::Write, false) => (3, "write_remote"),
            (CommandKind::Flush, true) => (4, "flush_local"),
            (CommandKind::Flush, false) => (5, "flush_remote"),
        };
        metrics::start(Point::new(Family::Client, index, name), u64::from(id.0))
    }

    /// Returns a device, or EIO if it is not known.
    pub(crate) fn get(&self, device: DeviceId) -> Result<Rc<PoolDevice>, Errno> {
        self.known.borrow().get(&device).cloned().ok_or(Errno::EIO)
    }
}
