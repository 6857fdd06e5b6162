//! Devices that do not answer.
//!
//! A command to a node that has died waits for its deadline, as a connection may break and come back. But
//! only the first one waits: from then on the device is *out of contact*, and what is asked of it fails at
//! once. A probe in the background connects to it and reads a block, at most once in [`PROBE_PAUSE`], until
//! that succeeds, the service says that the device is back, or this client has another session: a process
//! that was stopped itself finds its own deadlines passed, which says nothing of others. The log names the node once, and each file of which something could not be read.

use super::PoolDevice;
use crate::client::Client;
use block::Device;
use protocol::{DeviceId, Errno, InodeId};
use reactor::local::Notify;
use reactor::time::sleep;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Pause between two probes of a device.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Most files that are named while a device is out of contact.
const NAMED_MAX: usize = 64;

/// Whether a device answers.
#[derive(Debug, Default)]
pub(super) struct Contact {
    is_lost: Cell<bool>,
    /// A probe is at work.
    is_probed: Cell<bool>,
    /// The files that were named since it was lost.
    named: RefCell<BTreeSet<InodeId>>,
    /// Notified when contact begins anew: a probe that waits is for nothing.
    renewed: Notify,
}

impl Contact {
    /// Returns whether the device is out of contact.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Forgets what was found: the device is back, has moved, or this client begins another session. The next
    /// command waits for its own deadline.
    pub(super) fn begin_anew(&self) {
        self.is_lost.set(false);
        self.named.borrow_mut().clear();
        self.renewed.notify();
    }

    /// Fails if the device is out of contact.
    pub(super) fn check(&self) -> Result<(), Errno> {
        if self.is_lost() { Err(Errno::EIO) } else { Ok(()) }
    }
}

impl PoolDevice {
    /// Notes that the device has answered.
    pub(super) fn regain_contact(&self) {
        if self.contact.is_lost.replace(false) {
            self.contact.named.borrow_mut().clear();
            let info = self.info.borrow();
            tracing::warn!(device = %info.device, node = info.node, "the device answers again");
        }
    }
}

impl Client {
    /// Takes a device out of use until it answers: a command or a connection has failed because there was
    /// no contact.
    pub(super) fn lose_contact(self: &Rc<Self>, pool_device: &Rc<PoolDevice>, error: &dyn Display) {
        if pool_device.contact.is_lost.replace(true) {
            return;
        }
        // A connection that waits for a lost packet to be sent again is slower than a new one.
        pool_device.way.take();
        let info = pool_device.info.borrow().clone();
        tracing::error!(
            device = %info.device, node = info.node, traddr = info.address.traddr, %error,
            "the node does not answer: what lies on its device gives EIO until it is back"
        );
        if !pool_device.contact.is_probed.replace(true) {
            reactor::spawn(Rc::clone(self).probe(Rc::clone(pool_device)));
        }
    }

    /// Reads a block of a device that is out of contact until one comes.
    async fn probe(self: Rc<Self>, pool_device: Rc<PoolDevice>) {
        while pool_device.contact.is_lost() && !self.session.is_closed() {
            if self.session.life.is_alive() {
                let renewed = pin!(pool_device.contact.renewed.notified());
                let answered = pin!(self.answers(&pool_device));
                match reactor::race(answered, renewed).await {
                    reactor::Either::First(true) => pool_device.regain_contact(),
                    reactor::Either::First(false) => sleep(PROBE_PAUSE).await,
                    // If it is lost again by now, that is what to look at.
                    reactor::Either::Second(()) => {}
                }
                continue;
            }
            sleep(PROBE_PAUSE).await;
        }
        pool_device.contact.is_probed.set(false);
    }

    /// Returns whether a device answers; an error counts if it is the device's own.
    async fn answers(self: &Rc<Self>, pool_device: &Rc<PoolDevice>) -> bool {
        let (id, block_bytes) = {
            let info = pool_device.info.borrow();
            (info.device, info.block_size as usize)
        };
        let Ok(device) = self.reach(id, true).await else { return false };
        match device.read(0, block_bytes).await {
            Err(error) if is_of_contact(&error) => {
                pool_device.drop_way(&device);
                false
            }
            Ok(_) | Err(_) => true,
        }
    }

    /// Names a file in the log that cannot be read because of devices that are out of contact: once, as
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

impl PoolDevice {
    /// Lets a way go whose commands find no contact, unless there is another one by now.
    fn drop_way(&self, device: &Rc<dyn Device>) {
        if self.device().is_some_and(|present| Rc::ptr_eq(&present, device)) {
            self.way.take();
        }
    }
}

/// Whether a command failed for lack of contact, and not by an answer.
pub(super) fn is_of_contact(error: &block::Error) -> bool {
    let block::Error::Io { source, .. } = error else { return false };
    let cause = source.get_ref().and_then(|cause| cause.downcast_ref::<host::Error>());
    cause.is_some_and(is_silence)
}

/// Whether an error of the host says that the target was not reached.
pub(super) fn is_silence(error: &host::Error) -> bool {
    error.is_connection_error()
        || matches!(error, host::Error::DeadlineExceeded(_) | host::Error::ControllerLost(_))
}
