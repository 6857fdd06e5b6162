//! One device of the pool: what is known of it, the connection to it, and which of its writes are
//! durable.

use crate::devices::contact::Contact;
use crate::devices::remote::Remote;
use block::Device;
use protocol::space::DeviceInfo;
use reactor::local::Semaphore;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// `EACCES`: the errno of a refused command.
const ACCESS_DENIED: i32 = 13;

/// A connection to a device: in this process, or over NVMe/TCP.
pub(crate) enum Connection {
    Local(Rc<dyn Device>),
    Remote(Remote),
}

impl Connection {
    /// Returns the device to send commands to.
    pub(crate) fn device(&self) -> Rc<dyn Device> {
        match self {
            Connection::Local(device) => Rc::clone(device),
            Connection::Remote(remote) => remote.device(),
        }
    }
}

/// A device of the pool.
pub(crate) struct PoolDevice {
    pub(crate) info: RefCell<DeviceInfo>,
    pub(crate) connection: RefCell<Option<Connection>>,
    pub(crate) is_local: Cell<bool>,
    pub(crate) contact: Contact,
    /// Held while a connection is made.
    pub(crate) connecting: Semaphore,
    /// Held during a flush.
    pub(crate) flushing: Semaphore,
    /// Number of writes that the device has acknowledged; below, the number up to which it has
    /// flushed.
    pub(crate) writes: Cell<u64>,
    pub(crate) flushed: Cell<u64>,
    /// Writes after the first and up to the second of these numbers may be lost: a flush of them
    /// failed.
    pub(crate) lost: Cell<(u64, u64)>,
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
}

impl PoolDevice {
    pub(super) fn new(info: DeviceInfo) -> PoolDevice {
        PoolDevice {
            info: RefCell::new(info),
            connection: RefCell::default(),
            is_local: Cell::new(false),
            contact: Contact::default(),
            connecting: Semaphore::new(1),
            flushing: Semaphore::new(1),
            writes: Cell::new(0),
            flushed: Cell::new(0),
            lost: Cell::new((0, 0)),
            read_bytes: Cell::new(0),
            written_bytes: Cell::new(0),
        }
    }

    /// Returns whether both the service and this client are in contact with it.
    pub(super) fn is_usable(&self) -> bool {
        self.info.borrow().online && !self.contact.is_lost()
    }

    /// Returns whether a flush of this write has failed, or may have covered a later incarnation.
    pub(crate) fn is_lost(&self, number: u64) -> bool {
        let (after, to) = self.lost.get();
        after < number && number <= to
    }

    /// Applies the service's report of the device. Returns whether its incarnation has changed.
    /// Then what was not flushed is lost, and no later flush makes it durable.
    pub(super) fn update(&self, info: DeviceInfo) -> bool {
        let old = self.info.replace(info);
        let info = self.info.borrow();
        let is_reborn = old.incarnation != info.incarnation;
        let has_moved = is_reborn || old.address != info.address;
        if has_moved {
            self.connection.take();
        }
        if has_moved || info.online && !old.online {
            self.contact.begin_anew();
        }
        if is_reborn {
            let (after, to) = self.lost.get();
            let first = if after < to { after } else { self.flushed.get() };
            self.lost.set((first.min(self.flushed.get()), self.writes.get()));
            self.flushed.set(self.writes.get());
        }
        is_reborn
    }

    pub(crate) fn device(&self) -> Option<Rc<dyn Device>> {
        self.connection.borrow().as_ref().map(Connection::device)
    }

    /// Returns whether a command that failed on `device` is worth another try over a new
    /// connection. It is if the target has refused it, as when admissions lapsed while the metadata
    /// service was away, or if the connection was given up meanwhile.
    pub(crate) fn is_worth_retrying(&self, device: &Rc<dyn Device>, error: &block::Error) -> bool {
        let is_same = self.device().is_some_and(|present| Rc::ptr_eq(&present, device));
        let is_refused = error.to_errno() == ACCESS_DENIED
            || matches!(error, block::Error::Io { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied);
        if is_same && is_refused {
            self.connection.take();
        }
        is_refused || !is_same
    }

    /// Notes that the device has answered.
    pub(crate) fn regain_contact(&self) {
        if self.contact.is_lost.replace(false) {
            self.contact.named.borrow_mut().clear();
            let info = self.info.borrow();
            tracing::warn!(device = %info.device, node = info.node, "the device answers again");
        }
    }

    /// Drops the connection to `device`, which finds no contact, unless there is another one by
    /// now.
    pub(crate) fn drop_connection(&self, device: &Rc<dyn Device>) {
        if self.device().is_some_and(|present| Rc::ptr_eq(&present, device)) {
            self.connection.take();
        }
    }
}
