//! Listening through the connection manager: requests for connections, and later events of
//! connections.
//!
//! All identifiers of a listener share its event channel. A task reads the events, holds requests
//! until they are taken, and marks connections that are over. It ends when the listener and all its
//! connections have been dropped.

use crate::Error;
use crate::abi::{PS_TCP, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, event};
use crate::address::{from_storage, to_storage};
use crate::device::Device;
use crate::endpoint::{Endpoint, Room};
use crate::library::Library;
use crate::queue::{Sizes, none_left, watched};
use reactor::Handle;
use reactor::local::Notify;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Number of requests that wait here; further ones are refused.
const REQUESTS_MAX: usize = 256;
/// Number of requests that the kernel queues.
const BACKLOG: libc::c_int = 128;
/// Number of events that are handled before other tasks run.
const EVENTS_AT_ONCE: usize = 32;
/// Retries while the peer has no receive posted: without limit.
const RNR_RETRIES: u8 = 7;

/// The state of a connection, from the connection manager's events.
#[derive(Debug, Default)]
pub(crate) struct Link {
    over: Cell<Option<&'static str>>,
    waker: RefCell<Option<Waker>>,
}

impl Link {
    /// Returns why the connection is over, if it is.
    pub(crate) fn over(&self) -> Option<&'static str> {
        self.over.get()
    }

    /// Wakes this task when the connection is over.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    fn end(&self, reason: &'static str) {
        if self.over.get().is_none() {
            self.over.set(Some(reason));
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// An event channel with its identifiers.
struct Events {
    library: Arc<Library>,
    channel: *mut RdmaEventChannel,
    handle: Handle,
    links: RefCell<BTreeMap<usize, Rc<Link>>>,
    /// The listener's own identifier; null when it has been destroyed.
    listening: Cell<*mut RdmaCmId>,
    requests: RefCell<VecDeque<Request>>,
    /// Notified when a request is there, or the listener's device was removed.
    arrived: Notify,
    /// Notified when a user of the channel was dropped, so that the task may have to end.
    gone: Notify,
    has_lost_device: Cell<bool>,
    devices: RefCell<Vec<Weak<Device>>>,
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: every identifier holds this, so none is left.
        unsafe { (self.library.destroy_event_channel)(self.channel) };
    }
}

impl Events {
    fn open(library: &Arc<Library>) -> Result<Rc<Self>, Error> {
        // SAFETY: the function has no preconditions.
        let channel = unsafe { (library.create_event_channel)() };
        if channel.is_null() {
            return Err(Error::ConnectionManager(io::Error::last_os_error()));
        }
        // SAFETY: the channel was just made.
        let handle = match watched(unsafe { (*channel).fd }) {
            Ok(handle) => handle,
            Err(error) => {
                // SAFETY: no other code has it.
                unsafe { (library.destroy_event_channel)(channel) };
                return Err(Error::ConnectionManager(error));
            }
        };
        Ok(Rc::new(Self {
            library: Arc::clone(library),
            channel,
            handle,
            links: RefCell::default(),
            listening: Cell::new(ptr::null_mut()),
            requests: RefCell::default(),
            arrived: Notify::new(),
            gone: Notify::new(),
            has_lost_device: Cell::new(false),
            devices: RefCell::default(),
        }))
    }

    /// Reads events while something can use them.
    async fn read(self: Rc<Self>) {
        loop {
            let drained = self.drain();
            if self.listening.get().is_null() && self.links.borrow().is_empty() {
                return;
            }
            match drained {
                Ok(true) => {}
                Ok(false) => {
                    reactor::yield_now().await;
                    continue;
                }
                Err(error) => return self.fail(&error),
            }
            let readable = pin!(self.handle.poll_readable());
            if let reactor::Either::First(Err(error)) =
                reactor::race(readable, pin!(self.gone.notified())).await
            {
                return self.fail(&error);
            }
        }
    }

    /// Handles the end of events: the listener must be recreated, and its connections end.
    fn fail(&self, error: &io::Error) {
        tracing::error!(%error, "the RDMA connection manager cannot be read");
        self.has_lost_device.set(true);
        self.arrived.notify();
        for link in self.links.borrow().values() {
            link.end("the connection manager failed");
        }
    }

    /// Handles pending events; false if there may be more.
    fn drain(self: &Rc<Self>) -> io::Result<bool> {
        for _ in 0..EVENTS_AT_ONCE {
            let mut event: *mut RdmaCmEvent = ptr::null_mut();
            // SAFETY: the channel is open, and its descriptor does not block.
            if unsafe { (self.library.get_cm_event)(self.channel, &raw mut event) } != 0 {
                return none_left(io::Error::last_os_error()).map(|()| true);
            }
            // SAFETY: the library returns an event, which is valid until it is acknowledged.
            let request = unsafe { self.look_at(&*event) };
            // An identifier cannot be destroyed before its events are acknowledged.
            // SAFETY: the event is not used afterwards.
            unsafe { (self.library.ack_cm_event)(event) };
            if let Some(request) = request {
                let mut requests = self.requests.borrow_mut();
                if requests.len() < REQUESTS_MAX {
                    requests.push_back(request);
                    self.arrived.notify();
                } else {
                    drop(requests);
                    drop(request);
                }
            }
        }
        Ok(false)
    }

    /// Handles an event. Returns the request, if it is one for a connection.
    ///
    /// # Safety
    /// The event must be one that the library returned.
    unsafe fn look_at(self: &Rc<Self>, it: &RdmaCmEvent) -> Option<Request> {
        if it.event == event::CONNECT_REQUEST {
            // SAFETY: guaranteed by the caller, and this is the event that delivers the identifier.
            return Some(unsafe { Request::new(self, it) });
        }
        if it.id == self.listening.get() {
            let name = self.library.event_text(it.event);
            tracing::warn!(event = name, "an event of an RDMA listener");
            if it.event == event::DEVICE_REMOVAL {
                self.has_lost_device.set(true);
                self.arrived.notify();
            }
            return None;
        }
        let link = self.links.borrow().get(&it.id.addr()).cloned()?;
        match it.event {
            event::ESTABLISHED | event::ADDR_CHANGE | event::TIMEWAIT_EXIT => {}
            event::DEVICE_REMOVAL => link.end("its RDMA device was removed"),
            other => {
                let name = self.library.event_text(other);
                tracing::debug!(event = name, status = it.status, "an RDMA connection is over");
                link.end("the peer disconnected it");
            }
        }
        None
    }

    /// Returns the device of a context.
    fn device(&self, id: *mut RdmaCmId) -> Result<Arc<Device>, Error> {
        // SAFETY: the identifier is alive, and a connection's identifier has a context.
        let context = unsafe { (*id).verbs };
        if context.is_null() {
            let source = io::Error::other("the connection manager names none");
            return Err(Error::Resource {
                action: "use a request",
                device: "?".to_owned(),
                source,
            });
        }
        let mut devices = self.devices.borrow_mut();
        devices.retain(|device| device.strong_count() > 0);
        let known = devices.iter().filter_map(Weak::upgrade).find(|it| it.context == context);
        if let Some(device) = known {
            return Ok(device);
        }
        // SAFETY: librdmacm has opened it.
        let device = unsafe { Device::open(&self.library, context) }?;
        devices.push(Arc::downgrade(&device));
        Ok(device)
    }
}

/// An identifier of a connection, destroyed when this is dropped.
pub(crate) struct Id {
    events: Rc<Events>,
    raw: *mut RdmaCmId,
    pub(crate) link: Rc<Link>,
}

impl Id {
    /// Returns an identifier with a channel of its own, whose events are not read.
    #[cfg(test)]
    pub(crate) fn alone(library: &Arc<Library>, raw: *mut RdmaCmId) -> Self {
        Self { events: Events::open(library).unwrap(), raw, link: Rc::default() }
    }

    /// Ends the connection; the queue pair stops working.
    pub(crate) fn disconnect(&self) {
        // SAFETY: the identifier is alive.
        unsafe { (self.events.library.disconnect)(self.raw) };
    }

    /// Returns the text for the status of a work request.
    pub(crate) fn status_text(&self, status: libc::c_int) -> String {
        self.events.library.status_text(status)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: its queue pair has been destroyed, and events are acknowledged as soon as they
        // are read.
        unsafe { (self.events.library.destroy_id)(self.raw) };
        self.events.links.borrow_mut().remove(&self.raw.addr());
        self.events.gone.notify();
    }
}

/// A peer's request for a connection. Dropping it refuses the connection.
pub struct Request {
    id: Id,
    private_data: Vec<u8>,
    reads_allowed: u8,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Request {
    /// # Safety
    /// The event must be a request for a connection from the library.
    unsafe fn new(events: &Rc<Events>, it: &RdmaCmEvent) -> Self {
        let (link, bytes) = (Rc::<Link>::default(), usize::from(it.conn.private_data_len));
        let private_data = if it.conn.private_data.is_null() {
            Vec::new()
        } else {
            // SAFETY: the library guarantees this number of bytes.
            unsafe { std::slice::from_raw_parts(it.conn.private_data.cast::<u8>(), bytes) }.to_vec()
        };
        // SAFETY: the identifier is alive, and belongs to us from now on.
        let (local, peer) =
            unsafe { (from_storage(&(*it.id).addr.src), from_storage(&(*it.id).addr.dst)) };
        events.links.borrow_mut().insert(it.id.addr(), Rc::clone(&link));
        let id = Id { events: Rc::clone(events), raw: it.id, link };
        let reads_allowed = it.conn.initiator_depth;
        Self { id, private_data, reads_allowed, local, peer }
    }

    /// Returns the peer's private data; the transport may append zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns the number of RDMA READ requests that the peer serves at a time.
    pub fn reads_allowed(&self) -> u8 {
        self.reads_allowed
    }

    /// Returns the local address of the connection.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the device on which the request came.
    ///
    /// # Errors
    /// [`Error::Resource`].
    pub fn device(&self) -> Result<Arc<Device>, Error> {
        self.id.events.device(self.id.raw)
    }

    /// Refuses the connection; the peer gets `private_data`, at most 148 bytes.
    pub fn reject(self, private_data: &[u8]) {
        let (data, bytes) = (private_data.as_ptr().cast(), private_data.len().min(148) as u8);
        // SAFETY: the identifier is alive, and the bytes are copied.
        unsafe { (self.id.events.library.reject)(self.id.raw, data, bytes) };
    }

    /// Accepts the connection. Messages of up to `room` bytes can be received immediately; the peer
    /// gets `private_data`.
    ///
    /// # Errors
    /// [`Error::Resource`].
    pub fn accept(
        self,
        device: &Arc<Device>,
        sizes: Sizes,
        room: Room,
        private_data: &[u8],
    ) -> Result<Endpoint, Error> {
        let Self { id, reads_allowed, local, peer, .. } = self;
        let raw = id.raw;
        // SAFETY: the identifier is the device's, and the endpoint drops it after the queue.
        let mut endpoint = unsafe { Endpoint::new(device, id, raw, sizes, room, (local, peer)) }?;
        endpoint.begin().map_err(|error| device.failed("post receives", error))?;
        let mut parameters = RdmaConnParam {
            private_data: private_data.as_ptr().cast(),
            private_data_len: private_data.len().min(196) as u8,
            responder_resources: 0,
            initiator_depth: reads_allowed.min(device.reads_max()),
            flow_control: 1,
            retry_count: 0,
            rnr_retry_count: RNR_RETRIES,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the identifier is alive; private data is copied.
        if unsafe { (device.library.accept)(raw, &raw mut parameters) } != 0 {
            return Err(device.failed("accept a connection", io::Error::last_os_error()));
        }
        Ok(endpoint)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A listener.
pub struct Listener {
    events: Rc<Events>,
    address: SocketAddr,
}

impl Listener {
    /// Listens. Needs a running reactor. Port 0 chooses a free port.
    ///
    /// # Errors
    /// [`Error::ConnectionManager`], [`Error::Listen`].
    pub fn bind(library: &Arc<Library>, address: SocketAddr) -> Result<Self, Error> {
        let events = Events::open(library)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open.
        let made =
            unsafe { (library.create_id)(events.channel, &raw mut raw, ptr::null_mut(), PS_TCP) };
        if made != 0 {
            return Err(Error::ConnectionManager(io::Error::last_os_error()));
        }
        events.listening.set(raw);
        // From here on the identifier is destroyed with the listener.
        let mut listener = Self { events, address };
        let mut storage = to_storage(address);
        let place = (&raw mut storage).cast::<libc::sockaddr>();
        // SAFETY: the identifier is alive, and the address has its family's size.
        let is_listening =
            unsafe { (library.bind_addr)(raw, place) == 0 && (library.listen)(raw, BACKLOG) == 0 };
        if !is_listening {
            return Err(Error::Listen { address, source: io::Error::last_os_error() });
        }
        // SAFETY: the identifier is alive.
        listener.address = from_storage(unsafe { &(*raw).addr.src });
        drop(reactor::spawn(Rc::clone(&listener.events).read()));
        Ok(listener)
    }

    /// Returns the address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next request; [`None`] when the listener's device was removed.
    pub async fn next(&self) -> Option<Request> {
        loop {
            if let Some(request) = self.events.requests.borrow_mut().pop_front() {
                return Some(request);
            }
            if self.events.has_lost_device.get() {
                return None;
            }
            self.events.arrived.notified().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let raw = self.events.listening.replace(ptr::null_mut());
        // SAFETY: the identifier is alive, and no other code has it.
        unsafe { (self.events.library.destroy_id)(raw) };
        // Requests hold their events: without this they would keep each other alive.
        let requests = std::mem::take(&mut *self.events.requests.borrow_mut());
        drop(requests);
        self.events.gone.notify();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, events};
    use reactor::{Config, Runtime};

    fn with_listener(test: impl AsyncFnOnce(Fake, Listener)) {
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let fake = Fake::new();
            let address = SocketAddr::from(([127, 0, 0, 1], 4420));
            let listener = Listener::bind(&fake.library, address).unwrap();
            test(fake, listener).await;
        });
    }

    /// Goal: many events are handled in parts, and all of them without a further wake-up.
    #[test]
    fn many_events_are_handled_in_parts() {
        with_listener(async |_, listener| {
            events(2 * EVENTS_AT_ONCE + 1, libc::EAGAIN);
            for is_all in [false, false, true, true] {
                assert_eq!(listener.events.drain().unwrap(), is_all);
            }
            events(3 * EVENTS_AT_ONCE, libc::EIO);
            assert!(listener.next().await.is_none());
        });
    }

    /// Goal: a failed connection manager ends connections, and the listener must be recreated.
    #[test]
    fn a_connection_manager_that_fails_ends_everything() {
        with_listener(async |_, listener| {
            let link = Rc::<Link>::default();
            listener.events.links.borrow_mut().insert(1, Rc::clone(&link));
            events(0, libc::EIO);
            assert!(listener.next().await.is_none());
            assert_eq!(link.over(), Some("the connection manager failed"));
        });
    }

    /// Goal: a request without a device is refused.
    #[test]
    fn a_request_without_a_device_has_none() {
        with_listener(async |fake, listener| {
            let raw = fake.identifier();
            assert_eq!(listener.events.device(raw).unwrap().name(), "fake");
            // SAFETY: the identifier is never freed.
            unsafe { (*raw).verbs = ptr::null_mut() };
            assert!(listener.events.device(raw).is_err());
        });
    }
}
