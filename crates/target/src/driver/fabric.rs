//! Listeners over RDMA: the exchange of the connection manager, with private data.
//!
//! A connection request names its queue's identifier and size. So the receives of a connection are
//! posted before the host gets the answer.

use super::connection::Connection;
use super::{Connections, Server};
use crate::error::Error;
use crate::queue_pair::QueuePair;
use crate::target::{Target, Transport};
use nvme::QueueId;
use nvme::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectStatus};
use rdma::{Library, Listener, Request, Room, Sizes};
use reactor::Sparse;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Work requests for each entry of a queue: one for a read of the host's memory, or two for a write
/// and a response. The same number again serves commands that have ended for the host before we
/// know that their responses were sent.
const SENDS_FOR_ENTRY: u32 = 4;
/// Entries of an admin queue that every host may request.
const ADMIN_ENTRIES: u16 = 32;
/// Pause between attempts to listen at an address whose device was removed.
const RELISTEN_PAUSE: Duration = Duration::from_secs(2);

/// Limits log lines that strangers can cause.
static REFUSED: Sparse = Sparse::new();

/// The address and the task of a listener.
#[derive(Debug)]
pub(super) struct RdmaListener {
    pub(super) address: SocketAddr,
    pub(super) task: reactor::JoinHandle<()>,
}

impl Server {
    /// Listens at an address over RDMA, and adds it to discovery. Port 0 takes a free port. Returns
    /// the address.
    ///
    /// # Errors
    /// [`Error::Rdma`]; [`Error::RdmaCores`] if the target serves on several cores.
    pub fn listen_rdma(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        if self.threads.is_some() {
            return Err(Error::RdmaCores);
        }
        let library = Library::load()?;
        let listener = Listener::bind(&library, address)?;
        let address = listener.local_addr();
        let acceptor = Acceptor {
            target: Arc::clone(&self.target),
            connections: Arc::clone(&self.connections),
            library,
        };
        let memory_bytes_max = self.target.limits().rdma_memory().bytes;
        tracing::info!(%address, memory_bytes_max, "the target listens over RDMA");
        self.target.add_listener(address, Transport::Rdma);
        let task = reactor::spawn(acceptor.run(listener));
        self.rdma.push(RdmaListener { address, task });
        Ok(address)
    }

    /// Returns the addresses at which the target listens over RDMA.
    pub fn rdma_addresses(&self) -> Vec<SocketAddr> {
        self.rdma.iter().map(|listener| listener.address).collect()
    }

    /// Ends the listeners over RDMA.
    pub(super) async fn unlisten_rdma(&mut self) {
        for listener in self.rdma.drain(..) {
            self.target.remove_listener(listener.address, Transport::Rdma);
            listener.task.abort();
            let _ = listener.task.await;
        }
    }
}

/// Accepts the connections of one listener.
struct Acceptor {
    target: Arc<Target>,
    connections: Arc<Connections>,
    library: Arc<Library>,
}

impl Acceptor {
    async fn run(self, mut listener: Listener) {
        let address = listener.local_addr();
        loop {
            while let Some(request) = listener.next().await {
                let peer = request.peer_addr();
                if let Err(reason) = self.answer(request)
                    && let Some(suppressed) = REFUSED.pass()
                {
                    tracing::warn!(%peer, reason, suppressed, "a connection over RDMA is refused");
                }
                // Each accept or refusal takes system calls.
                reactor::yield_now().await;
            }
            tracing::error!(%address, "the RDMA device of a listener was removed; retrying");
            drop(listener);
            listener = loop {
                reactor::time::sleep(RELISTEN_PAUSE).await;
                if let Ok(listener) = Listener::bind(&self.library, address) {
                    break listener;
                }
            };
            tracing::info!(%address, "the target listens over RDMA again");
        }
    }

    /// Accepts or refuses a request.
    fn answer(&self, request: Request) -> Result<(), String> {
        let refuse = |request: Request, status: RejectStatus, reason: String| {
            request.reject(ConnectReject::new(status).bytes());
            Err(reason)
        };
        let limits = self.target.limits();
        let most = |queue: QueueId| {
            if queue.is_admin() {
                limits.admin_queue_entries_max.max(ADMIN_ENTRIES)
            } else {
                limits.queue_entries_max
            }
        };
        let wanted = ConnectRequest::check(request.private_data(), most);
        let (queue, entries) = match wanted {
            Ok((wanted, entries)) => (QueueId(wanted.qid.get()), entries),
            Err(status) => {
                return refuse(request, status, format!("its private data: {status:?}"));
            }
        };
        if request.reads_allowed() == 0 {
            let status = RejectStatus::InvalidInboundReads;
            return refuse(request, status, "its host serves no RDMA READ".to_owned());
        }
        let registration = match self.connections.try_open(request.peer_addr()) {
            Some(Ok(registration)) => registration,
            Some(Err(reason)) => {
                return refuse(request, RejectStatus::NoResources, reason.to_owned());
            }
            None => {
                let reason = "others have to end first".to_owned();
                return refuse(request, RejectStatus::NoResources, reason);
            }
        };
        let device = match request.device() {
            Ok(device) => device,
            Err(error) => {
                return refuse(request, RejectStatus::NoResources, error.to_string());
            }
        };
        let sizes = sizes_for(entries, device.work_requests_max(), device.completions_max());
        let Some(sizes) = sizes else {
            let reason = "the device's queues are too small".to_owned();
            return refuse(request, RejectStatus::NoResources, reason);
        };
        // Capsules of admin queues have no data over RDMA.
        let data = if queue.is_admin() { 0 } else { limits.in_capsule_data_bytes as usize };
        let room = Room { head: nvme::SubmissionQueueEntry::BYTES, data };
        let accept = ConnectAccept::new(entries);
        let endpoint = request.accept(&device, sizes, room, accept.bytes());
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let pair = QueuePair::over_rdma(limits, self.target.budget());
        let connection = Connection::over_rdma(&self.target, endpoint, registration, pair);
        reactor::spawn(connection.run());
        Ok(())
    }
}

/// Returns the sizes of the queues for `entries` commands, or [`None`] if the device's limits do
/// not suffice. The limits are the work requests of a queue, and the completions of a completion
/// queue, which serves both queues.
fn sizes_for(entries: u16, requests_max: u32, completions_max: u32) -> Option<Sizes> {
    let receives = u32::from(entries);
    let sends = receives * SENDS_FOR_ENTRY;
    let sends = sends.min(requests_max).min(completions_max.saturating_sub(receives));
    (sends >= 2 && receives <= requests_max).then_some(Sizes { receives, sends })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all completions of both queues fit into the completion queue, or the connection is
    /// refused.
    #[test]
    fn queues_fit_into_their_completion_queue() {
        let sends = |entries, requests, completions| {
            sizes_for(entries, requests, completions).map(|sizes| {
                assert_eq!(sizes.receives, u32::from(entries));
                assert!(sizes.receives + sizes.sends <= completions, "{sizes:?}");
                sizes.sends
            })
        };
        assert_eq!(sends(128, 1 << 14, 1 << 16), Some(512));
        assert_eq!(sends(128, 200, 1 << 16), Some(200), "work requests are short");
        assert_eq!(sends(128, 1 << 14, 256), Some(128), "completions are short");
        assert_eq!(sends(128, 1 << 14, 130), Some(2));
        assert_eq!(sends(128, 1 << 14, 129), None);
        assert_eq!(sends(128, 1 << 14, 100), None);
        assert_eq!(sends(128, 100, 1 << 16), None, "the receives do not fit");
    }
}
