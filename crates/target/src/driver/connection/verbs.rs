//! A connection over RDMA: completions of the endpoint go to the queue pair, and the queue pair's
//! work goes to the endpoint.
//!
//! The work of one turn is posted together.

use super::{Connection, Wire};
use crate::driver::Registration;
use crate::queue_pair::{QueuePair, Tag, Work};
use crate::target::Target;
use nvme::rdma::KeyedSgl;
use rdma::{Completion, Endpoint, Remote};
use reactor::time::Instant;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Reason for ending a connection whose memory the adapter cannot use.
const NO_MEMORY: &str = "memory cannot be registered for RDMA";
const NO_POST: &str = "its RDMA device takes no work requests";

impl Connection {
    /// Makes a connection of an accepted RDMA endpoint.
    pub(in crate::driver) fn over_rdma(
        target: &Arc<Target>,
        endpoint: Endpoint,
        registration: Registration,
        pair: QueuePair,
    ) -> Self {
        let connection = Self::new(target, Wire::Rdma(Box::new(endpoint)), registration);
        Self { pair, buffer: None, ..connection }
    }

    /// Lets the host send as many commands as its queue has entries, because the host is known now.
    pub(super) fn open_wire(&mut self) {
        if let Wire::Rdma(endpoint) = &mut self.wire {
            endpoint.open();
        }
    }

    /// Returns the time since which the host has not received what is being sent.
    pub(super) fn sending_since(&self) -> Option<Instant> {
        match &self.wire {
            Wire::Tcp(_) => self.sending.as_ref().map(|sending| sending.started),
            Wire::Rdma(endpoint) => endpoint.sending_since(),
        }
    }

    /// Takes the completions of the endpoint. Returns true if there were any.
    pub(super) fn poll_verbs(&mut self, cx: &mut Context<'_>) -> Result<bool, &'static str> {
        let Wire::Rdma(endpoint) = &mut self.wire else { return Ok(false) };
        let mut is_any = false;
        while let Poll::Ready(completion) = endpoint.poll(cx) {
            is_any = true;
            match completion? {
                Completion::Received { head, data, .. } => {
                    self.pair.receive_capsule(&head, data)?;
                }
                Completion::Read { token, data } => self.pair.put_data(Tag(token as u16), data),
                Completion::Sent { token } => self.pair.release(token as usize),
                Completion::Returned { .. } => return Err("memory came back that was never lent"),
            }
        }
        if endpoint.sending_since().is_none() {
            self.posted_bytes = 0;
        }
        Ok(is_any)
    }

    /// Posts the work of the queue pair. Returns true if there was any.
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
                    self.posted_bytes += chunk.len();
                    endpoint.write(remote_of(remote), chunk).map_err(|_| NO_MEMORY)?;
                }
                Work::Respond { cqe, invalidate, reserved_bytes } => {
                    endpoint.send(cqe.bytes(), invalidate, reserved_bytes as u64);
                }
            }
        }
        if let super::Role::Io(executor) = &mut self.role {
            executor.flush_tallies();
            // When the endpoint has all work, the bytes of a namespace's own memory were copied, so
            // their reads are over.
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

/// Closes an endpoint and logs its counts.
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
        "counts of a connection over RDMA"
    );
}

fn remote_of(keyed: KeyedSgl) -> Remote {
    Remote { address: keyed.address, length: keyed.length_bytes, key: keyed.key }
}
