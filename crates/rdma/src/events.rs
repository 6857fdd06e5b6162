//! The connection manager's events: requests for connections, and the progress and end of
//! connections.
//!
//! All identifiers of a listener, or of a connector, share an event channel. A task reads the
//! events, holds requests until they are taken, and marks connections that are over. It ends when
//! the listener and all its connections have been dropped.

use crate::abi::{RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, event};
use crate::device::{Device, Use};
use crate::library::Library;
use crate::listener::Request;
use crate::queue::{none_left, watched};
use crate::{DISCONNECTED, Error};
use reactor::Handle;
use reactor::local::Notify;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::pin;
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Waker;

/// Number of requests that wait here; further ones are refused.
const REQUESTS_MAX: usize = 256;
/// Number of events that are handled before other tasks run.
const EVENTS_AT_ONCE: usize = 32;

/// The state of a connection, from the connection manager's events.
#[derive(Debug, Default)]
pub(crate) struct Link {
    over: Cell<Option<&'static str>>,
    waker: RefCell<Option<Waker>>,
    /// The latest event of a connection that this side requested, and that succeeded so far.
    reached: Cell<Option<libc::c_int>>,
    /// The event that ended the attempt to connect, with its status.
    failed: Cell<Option<(libc::c_int, libc::c_int)>>,
    /// The private data of the peer's answer.
    answer: RefCell<Vec<u8>>,
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

    /// Returns whether the attempt to connect has come to `event`.
    pub(crate) fn has_reached(&self, event: libc::c_int) -> bool {
        self.reached.get() == Some(event)
    }

    /// Returns the event that ended the attempt to connect, with its status.
    pub(crate) fn failed(&self) -> Option<(libc::c_int, libc::c_int)> {
        self.failed.get()
    }

    /// Takes the private data of the peer's answer.
    pub(crate) fn take_answer(&self) -> Vec<u8> {
        self.answer.take()
    }

    /// Records a step of the attempt to connect, with the private data of the event.
    fn advance(&self, event: libc::c_int, answer: Vec<u8>) {
        self.reached.set(Some(event));
        *self.answer.borrow_mut() = answer;
        self.wake();
    }

    /// Records the failure of the attempt to connect.
    fn fail(&self, event: libc::c_int, status: libc::c_int, answer: Vec<u8>) {
        self.failed.set(Some((event, status)));
        *self.answer.borrow_mut() = answer;
        self.end("it was not established");
    }

    fn end(&self, reason: &'static str) {
        if self.over.get().is_none() {
            self.over.set(Some(reason));
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// An event channel with its identifiers.
pub(crate) struct Events {
    pub(crate) library: Arc<Library>,
    pub(crate) channel: *mut RdmaEventChannel,
    handle: Handle,
    links: RefCell<BTreeMap<usize, Rc<Link>>>,
    /// The listener's own identifier; null when it has been destroyed, and for a connector.
    pub(crate) listening: Cell<*mut RdmaCmId>,
    pub(crate) requests: RefCell<VecDeque<Request>>,
    /// Notified when a request is there, or the listener's device was removed.
    pub(crate) arrived: Notify,
    /// Notified when a user of the channel was dropped, so that the task may have to end.
    pub(crate) gone: Notify,
    pub(crate) has_lost_device: Cell<bool>,
    /// Whether the task runs.
    is_reading: Cell<bool>,
    /// The use of the devices' memory.
    access: Use,
    devices: RefCell<Vec<Weak<Device>>>,
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: every identifier holds this, so none is left.
        unsafe { (self.library.destroy_event_channel)(self.channel) };
    }
}

impl Events {
    /// Opens a channel, for connections that use memory in this way.
    pub(crate) fn open(library: &Arc<Library>, access: Use) -> Result<Rc<Self>, Error> {
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
            is_reading: Cell::new(false),
            access,
            devices: RefCell::default(),
        }))
    }

    /// Starts the task that reads events, unless it runs.
    pub(crate) fn start(self: &Rc<Self>) {
        if !self.is_reading.replace(true) {
            drop(reactor::spawn(Rc::clone(self).read()));
        }
    }

    /// Reads events while something can use them.
    async fn read(self: Rc<Self>) {
        loop {
            let drained = self.drain();
            if self.listening.get().is_null() && self.links.borrow().is_empty() {
                self.is_reading.set(false);
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
            event::ADDR_CHANGE | event::TIMEWAIT_EXIT => {}
            event::ADDR_RESOLVED | event::ROUTE_RESOLVED | event::ESTABLISHED => {
                // SAFETY: guaranteed by the caller.
                link.advance(it.event, unsafe { answer_of(it) });
            }
            event::ADDR_ERROR
            | event::ROUTE_ERROR
            | event::CONNECT_ERROR
            | event::UNREACHABLE
            | event::REJECTED => {
                // SAFETY: guaranteed by the caller.
                link.fail(it.event, it.status, unsafe { answer_of(it) });
            }
            event::DEVICE_REMOVAL => link.end("its RDMA device was removed"),
            other => {
                let name = self.library.event_text(other);
                tracing::debug!(event = name, status = it.status, "an RDMA connection is over");
                link.end(DISCONNECTED);
            }
        }
        None
    }

    /// Returns the device of an identifier.
    pub(crate) fn device(&self, id: *mut RdmaCmId) -> Result<Arc<Device>, Error> {
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
        let device = unsafe { Device::open(&self.library, context, self.access) }?;
        devices.push(Arc::downgrade(&device));
        Ok(device)
    }
}

/// An identifier of a connection, destroyed when this is dropped.
pub(crate) struct Id {
    pub(crate) events: Rc<Events>,
    pub(crate) raw: *mut RdmaCmId,
    pub(crate) link: Rc<Link>,
}

impl Id {
    /// Takes an identifier of the channel.
    pub(crate) fn new(events: &Rc<Events>, raw: *mut RdmaCmId) -> Self {
        let link = Rc::<Link>::default();
        events.links.borrow_mut().insert(raw.addr(), Rc::clone(&link));
        Self { events: Rc::clone(events), raw, link }
    }

    /// Returns an identifier with a channel of its own, whose events are not read.
    #[cfg(test)]
    pub(crate) fn alone(library: &Arc<Library>, raw: *mut RdmaCmId) -> Self {
        Self { events: Events::open(library, Use::Lent).unwrap(), raw, link: Rc::default() }
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

/// Returns the private data of a request or answer.
///
/// # Safety
/// The parameters must be those of an event that the library returned.
pub(crate) unsafe fn private_data_of(parameters: &RdmaConnParam) -> Vec<u8> {
    if parameters.private_data.is_null() {
        return Vec::new();
    }
    let bytes = usize::from(parameters.private_data_len);
    // SAFETY: the library guarantees this number of bytes.
    unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), bytes) }.to_vec()
}

/// Returns the private data of the peer's answer. Only answers have parameters.
///
/// # Safety
/// The event must be one that the library returned.
unsafe fn answer_of(it: &RdmaCmEvent) -> Vec<u8> {
    match it.event {
        // SAFETY: guaranteed by the caller.
        event::ESTABLISHED | event::REJECTED => unsafe { private_data_of(&it.conn) },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, events};
    use crate::listener::Listener;
    use reactor::{Config, Runtime};
    use std::net::SocketAddr;

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
