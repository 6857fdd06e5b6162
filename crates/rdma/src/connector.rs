//! Connecting through the connection manager.

use crate::Error;
use crate::abi::{PS_TCP, RdmaCmId, RdmaConnParam, event};
use crate::address::{from_storage, to_storage};
use crate::device::Use;
use crate::endpoint::{Endpoint, Room};
use crate::events::{Events, Id};
use crate::library::Library;
use crate::queue::Sizes;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Retries while the peer has no receive posted: without limit.
const RNR_RETRIES: u8 = 7;
/// Retries while the peer's adapter does not answer: the most.
const RETRIES: u8 = 7;

/// Makes connections. Those of one connector share the registration of memory, so that a thread
/// has one connector for all of them.
pub struct Connector {
    events: Rc<Events>,
}

impl Connector {
    /// Opens the connection manager.
    ///
    /// # Errors
    /// [`Error::ConnectionManager`].
    pub fn new(library: &Arc<Library>) -> Result<Self, Error> {
        Ok(Self { events: Events::open(library, Use::Lent)? })
    }

    /// Connects to a peer, with `private_data` in the request. `sizes` returns the sizes of the
    /// queues for the limits of the device, in work requests and completions. Needs a running
    /// reactor. Returns the endpoint and the private data of the peer's answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::NoWindows`], [`Error::Resource`].
    pub async fn connect(
        &self,
        address: SocketAddr,
        timeout: Duration,
        sizes: impl FnOnce(u32, u32) -> Sizes,
        room: Room,
        private_data: &[u8],
    ) -> Result<(Endpoint, Vec<u8>), Error> {
        let library = &self.events.library;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open.
        let made = unsafe {
            (library.create_id)(self.events.channel, &raw mut raw, ptr::null_mut(), PS_TCP)
        };
        if made != 0 {
            return Err(Error::ConnectionManager(io::Error::last_os_error()));
        }
        let id = Id::new(&self.events, raw);
        self.events.start();
        let failed = |step, source| Error::Unreachable { address, step, source };
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut storage = to_storage(address);
        let place = (&raw mut storage).cast::<libc::sockaddr>();
        // SAFETY: the identifier is alive, and the address has its family's size.
        if unsafe { (library.resolve_addr)(raw, ptr::null_mut(), place, timeout_ms) } != 0 {
            return Err(failed("finding a device", io::Error::last_os_error()));
        }
        reached(&id, event::ADDR_RESOLVED, address).await?;
        // SAFETY: the identifier is alive.
        if unsafe { (library.resolve_route)(raw, timeout_ms) } != 0 {
            return Err(failed("finding a route", io::Error::last_os_error()));
        }
        reached(&id, event::ROUTE_RESOLVED, address).await?;
        let mut endpoint = self.endpoint(id, sizes, room)?;
        let device = Arc::clone(endpoint.device());
        let mut parameters = RdmaConnParam {
            private_data: private_data.as_ptr().cast(),
            private_data_len: private_data.len().min(56) as u8,
            responder_resources: device.reads_served_max(),
            initiator_depth: 0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RNR_RETRIES,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the identifier is alive; private data is copied.
        if unsafe { (library.connect)(raw, &raw mut parameters) } != 0 {
            return Err(failed("requesting the connection", io::Error::last_os_error()));
        }
        reached(endpoint.id(), event::ESTABLISHED, address).await?;
        let answer = endpoint.id().link.take_answer();
        endpoint.learn_addresses(address_pair(raw));
        Ok((endpoint, answer))
    }

    /// Makes the resources of a connection, and posts all its receives.
    fn endpoint(
        &self,
        id: Id,
        sizes: impl FnOnce(u32, u32) -> Sizes,
        room: Room,
    ) -> Result<Endpoint, Error> {
        let raw = id.raw;
        let device = self.events.device(raw)?;
        let sizes = sizes(device.work_requests_max(), device.completions_max());
        let addresses = address_pair(raw);
        // SAFETY: the identifier is the device's, and the endpoint drops it after the queue.
        let mut endpoint = unsafe { Endpoint::new(&device, id, raw, sizes, room, addresses) }?;
        endpoint.open();
        endpoint.begin().map_err(|error| device.failed("post receives", error))?;
        Ok(endpoint)
    }
}

/// Returns the local and the peer's address of an identifier.
fn address_pair(raw: *mut RdmaCmId) -> (SocketAddr, SocketAddr) {
    // SAFETY: the callers' identifier is alive.
    unsafe { (from_storage(&(*raw).addr.src), from_storage(&(*raw).addr.dst)) }
}

/// Waits until the attempt to connect has come to an event, or has failed.
async fn reached(id: &Id, event: libc::c_int, address: SocketAddr) -> Result<(), Error> {
    poll_fn(|cx| {
        if id.link.has_reached(event) {
            return Poll::Ready(Ok(()));
        }
        if let Some((failed, status)) = id.link.failed() {
            return Poll::Ready(Err(failure(id, failed, status, address)));
        }
        if let Some(reason) = id.link.over() {
            let (step, source) = ("the connection manager", io::Error::other(reason));
            return Poll::Ready(Err(Error::Unreachable { address, step, source }));
        }
        id.link.register(cx.waker());
        Poll::Pending
    })
    .await
}

/// Returns the error for the event that ended an attempt.
fn failure(id: &Id, event: libc::c_int, status: libc::c_int, address: SocketAddr) -> Error {
    let step = match event {
        event::REJECTED => {
            let private_data = id.link.take_answer();
            return Error::Refused { address, reason: status, private_data };
        }
        event::ADDR_ERROR => "finding a device",
        event::ROUTE_ERROR => "finding a route",
        _ => "waiting for its answer",
    };
    Error::Unreachable { address, step, source: io::Error::from_raw_os_error(status.abs()) }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
