//! Reaching a device: admission, connecting, and probing one that does not answer.
//!
//! A client connects to a device at its first use: it asks the service to admit this session there,
//! then tries the local way, then the remote one. So a job of many nodes makes only the connections
//! that its data needs.
//!
//! A command to a node that has died waits for its deadline, because a connection may break and
//! come back. But only the first one waits: from then on the device is *out of contact*, and
//! commands to it fail at once. A probe in the background connects to it and reads a block, at most
//! once in [`PROBE_PAUSE`]. It ends when that succeeds, when the service reports the device as
//! back, or when this client gets another session: a process that was stopped itself finds its own
//! deadlines passed, which says nothing of others. The log names the node once, and each file that
//! could not be read.

use crate::client::Client;
use crate::devices::contact::is_of_contact;
use crate::devices::pool_device::{Connection, PoolDevice};
use crate::devices::remote::{Remote, RemoteAccess};
use block::Device;
use protocol::client::{Answer, Call, SessionCall};
use protocol::space::{DeviceInfo, Transport};
use protocol::{DeviceId, Errno, InodeId};
use reactor::time::sleep;
use std::fmt::Display;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pauses between attempts to connect, if connections break while they are made.
const CONNECT_PAUSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// Why this client does not connect to a target without TLS.
const IN_THE_CLEAR: &str =
    "its node has `plain_data` and takes data in the clear, this one does not";

/// Pause between two probes of a device.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Most files that the log names while a device is out of contact.
const NAMED_MAX: usize = 64;

impl Client {
    /// Returns the device, after connecting to it if necessary. Fails with EIO at once if the
    /// device is out of contact, unless a probe asks.
    pub(crate) async fn reach(
        self: &Rc<Self>,
        id: DeviceId,
        is_probe: bool,
    ) -> Result<Rc<dyn Device>, Errno> {
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
        // The service returns ENODEV for a node out of contact; a reader gets an I/O error.
        let admitted = self.session.call(Call::Session(SessionCall::Admit(id))).await;
        if admitted == Err(Errno::ENODEV) {
            let error = "the metadata service has no contact with it";
            return Err(self.failed(&pool_device, "asking for admission", &error, true));
        }
        let Answer::Admitted { incarnation, key } = admitted? else { return Err(Errno::EPROTO) };
        let info = pool_device.info.borrow().clone();
        // The connection leads to this incarnation. No command planned for an earlier one may use
        // it.
        self.update_devices(vec![DeviceInfo { incarnation, ..info }]);
        let info = pool_device.info.borrow().clone();
        let identity = self.session.identity();
        let local = (self.devices.local)(&info, identity.host, identity.epoch);
        let connection = if let Some(device) = local {
            Connection::Local(device)
        } else {
            let times = self.session.times();
            // A probe that fails is repeated.
            let patience = if is_probe { times.heartbeat } else { times.target_deadline };
            // RDMA has no encryption.
            let is_clear = key.is_none() || info.address.transport == Transport::Rdma;
            if is_clear && !self.devices.plain_data {
                return Err(self.failed(&pool_device, "connecting", &IN_THE_CLEAR, false));
            }
            Connection::Remote(
                self.connect(
                    &pool_device,
                    &info,
                    &RemoteAccess { host: identity.host, key, patience },
                )
                .await?,
            )
        };
        self.session.life.check(session)?;
        pool_device.is_local.set(matches!(connection, Connection::Local(_)));
        let device = connection.device();
        *pool_device.connection.borrow_mut() = Some(connection);
        Ok(device)
    }

    /// Connects to a device over the network. A connection that breaks while it is made is no worse
    /// than one that breaks later, so this tries again.
    async fn connect(
        self: &Rc<Self>,
        pool_device: &Rc<PoolDevice>,
        info: &DeviceInfo,
        access: &RemoteAccess,
    ) -> Result<Remote, Errno> {
        let mut pauses = CONNECT_PAUSES.into_iter();
        loop {
            let error = match Remote::connect(info, access, &self.session).await {
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

    /// Records a failure, which is one of contact (`is_silent`) or the device's own. Returns EIO.
    pub(crate) fn failed(
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

    /// Takes a device out of use until it answers, after a command or a connection found no
    /// contact.
    pub(super) fn lose_contact(self: &Rc<Self>, pool_device: &Rc<PoolDevice>, error: &dyn Display) {
        if pool_device.contact.is_lost.replace(true) {
            return;
        }
        // A connection that waits to resend a lost packet is slower than a new one.
        pool_device.connection.take();
        let info = pool_device.info.borrow().clone();
        tracing::error!(
            device = %info.device, node = info.node, traddr = info.address.traddr, %error,
            "the node does not answer: what lies on its device gives EIO until it is back"
        );
        if !pool_device.contact.is_probed.replace(true) {
            reactor::spawn(Rc::clone(self).probe(Rc::clone(pool_device)));
        }
    }

    /// Probes a device that is out of contact until it returns a block.
    async fn probe(self: Rc<Self>, pool_device: Rc<PoolDevice>) {
        while pool_device.contact.is_lost() && !self.session.is_closed() {
            if self.session.life.is_alive() {
                let renewed = pin!(pool_device.contact.renewed.notified());
                let answered = pin!(self.answers(&pool_device));
                match reactor::race(answered, renewed).await {
                    reactor::Either::First(true) => pool_device.regain_contact(),
                    reactor::Either::First(false) => sleep(PROBE_PAUSE).await,
                    // The device may be lost again by now; the loop looks at its present state.
                    reactor::Either::Second(()) => {}
                }
                continue;
            }
            sleep(PROBE_PAUSE).await;
        }
        pool_device.contact.is_probed.set(false);
    }

    /// Returns whether a device answers. An error of the device itself is an answer.
    async fn answers(self: &Rc<Self>, pool_device: &Rc<PoolDevice>) -> bool {
        let (id, block_bytes) = {
            let info = pool_device.info.borrow();
            (info.device, info.block_size as usize)
        };
        let Ok(device) = self.reach(id, true).await else { return false };
        match device.read(0, block_bytes).await {
            Err(error) if is_of_contact(&error) => {
                pool_device.drop_connection(&device);
                false
            }
            Ok(_) | Err(_) => true,
        }
    }

    /// Names a file in the log that cannot be read because of devices out of contact: once for as
    /// long as they are.
    pub(crate) fn name_unreadable(
        &self,
        inode: InodeId,
        devices: impl IntoIterator<Item = DeviceId>,
    ) {
        for id in devices {
            let Ok(pool_device) = self.devices.get(id) else { continue };
            if !pool_device.contact.is_lost() {
                continue;
            }
            let mut named = pool_device.contact.named.borrow_mut();
            if named.len() < NAMED_MAX && named.insert(inode) {
                let node = &pool_device.info.borrow().node;
                tracing::error!(%inode, device = %id, node, "the file has data on a node that does not answer");
            }
        }
    }
}
