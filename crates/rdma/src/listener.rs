//! Listening through the connection manager: requests for connections.

use crate::Error;
use crate::abi::{PS_TCP, RdmaCmEvent, RdmaConnParam};
use crate::address::{from_storage, to_storage};
use crate::device::{Device, Use};
use crate::endpoint::{Endpoint, Room};
use crate::events::{Events, Id, private_data_of};
use crate::library::Library;
use crate::queue::Sizes;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

/// Number of requests that the kernel queues.
const BACKLOG: libc::c_int = 128;
/// Retries while the peer has no receive posted: without limit.
const RNR_RETRIES: u8 = 7;

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
    pub(crate) unsafe fn new(events: &Rc<Events>, it: &RdmaCmEvent) -> Self {
        // SAFETY: guaranteed by the caller.
        let private_data = unsafe { private_data_of(&it.conn) };
        // SAFETY: the identifier is alive, and belongs to us from now on.
        let (local, peer) =
            unsafe { (from_storage(&(*it.id).addr.src), from_storage(&(*it.id).addr.dst)) };
        let id = Id::new(events, it.id);
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
    pub(crate) events: Rc<Events>,
    address: SocketAddr,
}

impl Listener {
    /// Listens. Needs a running reactor. Port 0 chooses a free port.
    ///
    /// # Errors
    /// [`Error::ConnectionManager`], [`Error::Listen`].
    pub fn bind(library: &Arc<Library>, address: SocketAddr) -> Result<Self, Error> {
        let events = Events::open(library, Use::Local)?;
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
        listener.events.start();
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
