//! The pool's devices and how this client reaches them: in its own process, or over NVMe/TCP.
//!
//! A device is connected to when it is first used: the service is asked to admit this session there,
//! then the local way is tried, then the remote one. So a job of many nodes makes only the
//! connections that its data needs.

mod contact;
mod pool_device;
mod remote;

use crate::client::Client;
use crate::session::life::SessionStamp;
use block::{Device, IoFuture};
use contact::is_of_contact;
use metrics::{Family, Point};
use pool_device::{PoolDevice, Way};
use protocol::client::{Answer, Call, SessionCall};
use protocol::space::DeviceInfo;
use protocol::{DataKey, DeviceId, Epoch, Errno, HostId, Incarnation, InodeId};
use reactor::local::Notify;
use reactor::{Chunk, RegionSlice, Segment, Segments, Shared};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Tries of a command that is refused, or whose way is given up.
const TRIES_MAX: u32 = 3;

/// Pauses between attempts to connect that break while they are made.
const CONNECT_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// Why a target is not connected to that takes no TLS.
const IN_THE_CLEAR: &str =
    "its node has `plain_data` and takes data in the clear, this one does not";

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
    local: LocalDevices,
    /// See [`crate::ClientConfig::plain_data`].
    plain_data: bool,
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
    fn update(&self, infos: Vec<DeviceInfo>) -> Vec<(DeviceId, Incarnation)> {
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
    fn count(&self, id: DeviceId, what: &str) -> metrics::Operation {
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

    fn get(&self, device: DeviceId) -> Result<Rc<PoolDevice>, Errno> {
        self.known.borrow().get(&device).cloned().ok_or(Errno::EIO)
    }
}

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
            self.tell_kernel(inode);
        }
    }

    /// The device, connected to if it was not yet. EIO at once if it is out of contact, unless a probe asks.
    async fn reach(self: &Rc<Self>, id: DeviceId, is_probe: bool) -> Result<Rc<dyn Device>, Errno> {
        let pool_device = self.devices.get(id)?;
        let check = || if is_probe { Ok(()) } else { pool_device.contact.check() };
        check()?;
        if let Some(device) = pool_device.device() {
            return Ok(device);
        }
        let _lock = pool_device.connecting.acquire(1).await;
        check()?;
        if let Some(device) = pool_device.device() {
            return Ok(device);
        }
        let session = self.session.life.stamp();
        // ENODEV is that of a node which is out of contact: to its readers, an error of I/O.
        let admitted = self.session.call(Call::Session(SessionCall::Admit(id))).await;
        if admitted == Err(Errno::ENODEV) {
            let error = "the metadata service has no contact with it";
            return Err(self.failed(&pool_device, "asking for admission", &error, true));
        }
        let Answer::Admitted { incarnation, key } = admitted? else { return Err(Errno::EPROTO) };
        let info = pool_device.info.borrow().clone();
        // The way leads to this incarnation: nothing that is known of an earlier one may go over it.
        self.update_devices(vec![DeviceInfo { incarnation, ..info }]);
        let info = pool_device.info.borrow().clone();
        let identity = self.session.identity();
        let local = (self.devices.local)(&info, identity.host, identity.epoch);
        let way = if let Some(device) = local {
            Way::Local(device)
        } else {
            let times = self.session.times();
            // A probe that fails is made again.
            let patience = if is_probe { times.heartbeat } else { times.target_deadline };
            if key.is_none() && !self.devices.plain_data {
                return Err(self.failed(&pool_device, "connecting", &IN_THE_CLEAR, false));
            }
            Way::Remote(self.connect(&pool_device, &info, (identity.host, key, patience)).await?)
        };
        self.session.life.check(session)?;
        pool_device.is_local.set(matches!(way, Way::Local(_)));
        let device = way.device();
        *pool_device.way.borrow_mut() = Some(way);
        Ok(device)
    }

    /// Connects to a device over the network. A connection that breaks while it is made is no worse than
    /// one that breaks later: it is made again.
    async fn connect(
        self: &Rc<Self>,
        pool_device: &Rc<PoolDevice>,
        info: &DeviceInfo,
        (host, key, patience): (HostId, Option<DataKey>, Duration),
    ) -> Result<remote::Remote, Errno> {
        let mut pauses = CONNECT_PAUSES.into_iter();
        loop {
            let (key, session) = (key.clone(), &self.session);
            let error = match remote::Remote::connect(info, host, key, patience, session).await {
                Ok(remote) => return Ok(remote),
                Err(error) => error,
            };
            let Some(pause) = pauses.next().filter(|_| error.is_break()) else {
                let is_silent = error.is_silence();
                return Err(self.failed(pool_device, "connecting", &error, is_silent));
            };
            tracing::info!(device = %info.device, %error, "connecting is tried again");
            reactor::time::sleep(pause).await;
        }
    }

    /// Takes note of a failure, which is one of contact or the device's own. Answers EIO.
    fn failed(
        self: &Rc<Self>,
        pool_device: &Rc<PoolDevice>,
        what: &str,
        error: &dyn std::fmt::Display,
        is_silent: bool,
    ) -> Errno {
        let is_known = pool_device.contact.is_lost();
        if is_silent {
            self.lose_contact(pool_device, error);
        }
        if !is_known {
            let info = pool_device.info.borrow();
            let (device, node, traddr) = (info.device, &info.node, &info.address.traddr);
            tracing::error!(%device, node, traddr, %error, "{what} failed");
        }
        Errno::EIO
    }

    /// Reads whole blocks.
    pub(crate) async fn read_device(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        length: usize,
    ) -> Result<Shared, Errno> {
        let session = self.session.life.stamp();
        let read = |device: &dyn Device| device.read(offset, length);
        let chunk = self.command(id, session, ("a read", length as u64), read).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.read_bytes.set(pool_device.read_bytes.get() + length as u64);
        Ok(freeze(chunk))
    }

    /// Reads whole blocks to where they are wanted.
    pub(crate) async fn read_device_into(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        room: &RegionSlice,
    ) -> Result<(), Errno> {
        let session = self.session.life.stamp();
        let segments = || Segments::from_iter([Segment::Region(room.clone())]);
        let read = |device: &dyn Device| device.read_into(offset, segments());
        self.command(id, session, ("a read", room.len() as u64), read).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.read_bytes.set(pool_device.read_bytes.get() + room.len() as u64);
        Ok(())
    }

    /// Runs a command on a device on behalf of a session; a refused one is tried again once the
    /// session is admitted anew.
    async fn command<T: 'static>(
        self: &Rc<Self>,
        id: DeviceId,
        session: SessionStamp,
        (what, bytes): (&str, u64),
        command: impl Fn(&dyn Device) -> IoFuture<T>,
    ) -> Result<T, Errno> {
        let mut tries = 0;
        loop {
            let device = self.reach(id, false).await?;
            self.session.life.check(session)?;
            let mut counted = self.devices.count(id, what);
            let error = match counted.during(command(&*device)).await {
                Ok(done) => {
                    counted.carried(bytes);
                    counted.end(0);
                    self.devices.get(id)?.regain_contact();
                    return Ok(done);
                }
                Err(error) => error,
            };
            counted.end(error.to_errno());
            let pool_device = self.devices.get(id)?;
            tries += 1;
            if tries == TRIES_MAX || !pool_device.is_worth_retrying(&device, &error) {
                return Err(self.failed(&pool_device, what, &error, is_of_contact(&error)));
            }
            tracing::info!(device = %id, %error, "{what} is tried again");
        }
    }

    /// Writes whole blocks that `session` has leased. Answers the write's
    /// number, for [`Client::flush_device`].
    pub(crate) async fn write_device(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        bytes: Shared,
        session: SessionStamp,
    ) -> Result<u64, Errno> {
        let length = bytes.len() as u64;
        let write = |device: &dyn Device| device.write(offset, Chunk::Shared(bytes.clone()));
        self.command(id, session, ("a write", length), write).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.written_bytes.set(pool_device.written_bytes.get() + length);
        let number = pool_device.writes.get() + 1;
        pool_device.writes.set(number);
        Ok(number)
    }

    /// Makes a device's acknowledged writes up to this number durable. Calls that wait together share
    /// a flush; what a flush failed for stays failed.
    pub(crate) async fn flush_device(
        self: &Rc<Self>,
        id: DeviceId,
        through: u64,
    ) -> Result<(), Errno> {
        let pool_device = self.devices.get(id)?;
        let _lock = pool_device.flushing.acquire(1).await;
        if pool_device.is_lost(through) {
            return Err(Errno::EIO);
        }
        let (after, to) = pool_device.lost.get();
        let flushed = pool_device.flushed.get();
        let writes = pool_device.writes.get();
        assert!(
            through <= writes && flushed <= writes && after <= to && to <= writes,
            "{id} has made {writes} writes, flushed {flushed}, lost those after {after} to {to}, and \
             is to flush {through}"
        );
        if flushed >= through {
            return Ok(());
        }
        let covered = pool_device.writes.get();
        let device = self.reach(id, false).await;
        let result = match device {
            Ok(device) => {
                let failed =
                    |error| self.failed(&pool_device, "a flush", &error, is_of_contact(&error));
                let counted = self.devices.count(id, "a flush");
                let flushed = counted.during(device.flush()).await;
                counted.end(flushed.as_ref().map_or_else(block::Error::to_errno, |()| 0));
                flushed.map_err(failed)
            }
            Err(errno) => Err(errno),
        };
        pool_device.flushed.set(covered);
        if result.is_err() && !reactor::mutant!("failed-flush-retried") {
            let after = if after < to { after.min(flushed) } else { flushed };
            pool_device.lost.set((after, covered));
        }
        result
    }

    /// Whether a device's write of this number is known to be durable.
    pub(crate) fn is_flushed(&self, id: DeviceId, number: u64) -> bool {
        self.devices
            .get(id)
            .is_ok_and(|device| device.flushed.get() >= number && !device.is_lost(number))
    }
}

/// Memory of a device in this process may change under a chunk that refers to it: copied.
fn freeze(chunk: Chunk) -> Shared {
    chunk.into_lasting().into_shared()
}
