//! A connection over RDMA: what its endpoint has done goes to the queue pair, and what that wants goes to the endpoint.
//!
//! All that one turn made is posted together.

use super::{Connection, Wire};
use crate::driver::Registration;
use crate::queue_pair::{QueuePair, Tag, Work};
use crate::target::Target;
use nvme::rdma::KeyedSgl;
use rdma::{Completion, Endpoint, Remote};
use reactor::time::Instant;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Why a connection ends whose memory the adapter cannot use.
const NO_MEMORY: &str = "memory cannot be registered for RDMA";
const NO_POST: &str = "its RDMA device takes no work requests";

impl Connection {
    /// A connection over RDMA that was accepted.
    pub(in crate::driver) fn over_rdma(
        target: &Arc<Target>,
        endpoint: Endpoint,
        registration: Registration,
        pair: QueuePair,
    ) -> Self {
        let connection = Self::new(target, Wire::Rdma(Box::new(endpoint)), registration);
        Self { pair, buffer: None, ..connection }
    }

    /// The host is known: it may send as many commands as its queue has entries.
    pub(super) fn open_wire(&mut self) {
        if let Wire::Rdma(endpoint) = &mut self.wire {
            endpoint.open();
        }
    }

    /// Since when the host does not take what is under way.
    pub(super) fn sending_since(&self) -> Option<Instant> {
        match &self.wire {
            Wire::Tcp(_) => self.sending.as_ref().map(|sending| sending.started),
            Wire::Rdma(endpoint) => endpoint.sending_since(),
        }
    }

    /// Takes what the endpoint has done; true if there was anything.
    pub(super) fn poll_verbs(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        let Wire::Rdma(endpoint) = &mut self.wire else { return Ok(false) };
        let mut is_any = false;
        while let Poll::Ready(completion) = endpoint.poll(cx) {
            is_any = true;
            match completion? {
                Completion::Received { head, data } => self.pair.receive_capsule(&head, data)?,
                Completion::Read { token, data } => self.pair.put_data(Tag(token as u16), data),
                Completion::Sent { token } => self.pair.release(token as usize),
            }
        }
        Ok(is_any)
    }

    /// Posts what the queue pair wants done; true if anything was.
    pub(super) fn post_work(&mut self) -> Result<bool, &'static str> {
        let Wire::Rdma(endpoint) = &mut self.wire else { return Ok(false) };
        while endpoint.can_send()
            && let Some(work) = self.pair.take_work()
        {
            match work {
                Work::Read { tag, remote, buffer } => endpoint
                    .read(remote_of(remote), buffer, u64::from(tag.0))
                    .map_err(|_| NO_MEMORY)?,
                Work::Write { remote, chunk } => {
                    endpoint.write(remote_of(remote), chunk).map_err(|_| NO_MEMORY)?;
                }
                Work::Respond { cqe, invalidate, reserved_bytes } => {
                    endpoint.send(cqe.bytes(), invalidate, reserved_bytes as u64);
                }
            }
        }
        if let super::Role::Io(executor) = &mut self.role {
            executor.flush_tallies();
            // When all is with the endpoint, bytes of a namespace's own memory were copied: their reads are over.
            if let Some(lent) = &mut self.lent
                && !self.pair.has_work()
            {
                executor.take_lent(lent);
                lent.give_back();
            }
        }
        endpoint.flush().map_err(|error| {
            tracing::warn!(peer = %endpoint.peer_addr(), %error, "work requests cannot be posted");
            NO_POST
        })
    }
}

/// Ends an endpoint, and notes what it has done.
pub(super) fn end(endpoint: &mut Endpoint) {
    endpoint.close();
    let counts = endpoint.counts();
    tracing::info!(
        peer = %endpoint.peer_addr(),
        commands = counts.received,
        responses = counts.sent,
        transfers = counts.transfers,
        send_doorbells = counts.send_doorbells,
        receive_doorbells = counts.receive_doorbells,
        wakeups = counts.wakeups,
        copies = counts.copies,
        "what a connection over RDMA has done"
    );
}

fn remote_of(keyed: KeyedSgl) -> Remote {
    Remote { address: keyed.address, length: keyed.length_bytes, key: keyed.key }
}
