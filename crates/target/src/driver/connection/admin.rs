//! A connection before it is an I/O queue pair: Connect and admin commands.
//!
//! A Connect that replaces controllers of the same host is held until nothing of those is in flight
//! (see [`crate::Target::take_over`]). Meanwhile the target serves the connection as any other: its
//! handshake deadline runs, and it ends when the host closes it.

use super::door::{Door, Proving};
use super::{Connection, Role};
use crate::controller::{Reply, check_in_capsule, transfer_bytes};
use crate::queue_pair::{Event, QueuePair, QueuePairState, Tag};
use crate::target::{Connected, Ended, Link};
use nvme::auth::is_authentication;
use nvme::command::Abort;
use nvme::opcode::{AdminOpcode, DataDirection, FabricsType};
use nvme::{Status, SubmissionQueueEntry};
use reactor::{Chunk, Sparse};
use std::pin::Pin;
use std::task::Context;

/// Limits log lines that strangers can cause.
static REFUSED: Sparse = Sparse::new();

/// A held Connect.
pub(super) struct Connecting {
    tag: Tag,
    sqe: SubmissionQueueEntry,
    ended: Ended,
}

impl Connection {
    pub(super) fn handle_admin(&mut self, event: Event) -> Result<(), &'static str> {
        let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
        let sqe = *self.pair.command(tag);
        if self.is_for_door(&sqe) && !is_authentication(&sqe) {
            self.pair.complete(tag, Status::AUTHENTICATION_REQUIRED.do_not_retry(), 0);
            return Ok(());
        }
        if matches!(event, Event::Command(_)) {
            match wanted_data(&sqe, self.pair.data(tag).len()) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.pair.request_data(tag, bytes);
                    return Ok(());
                }
                Err(status) => {
                    self.pair.complete(tag, status.do_not_retry(), 0);
                    return Ok(());
                }
            }
        }
        if self.pair.is_damaged(tag) {
            self.pair.complete(tag, Status::TRANSIENT_TRANSPORT_ERROR, 0);
            return Ok(());
        }
        if self.is_for_door(&sqe) {
            self.at_door(tag, &sqe);
            return Ok(());
        }
        match &mut self.role {
            Role::Admin(controller, lane) => {
                if !lane.is_open(self.target.admissions().now()) {
                    self.target.admissions().note_refused();
                    return Err("its host is no longer admitted");
                }
                if !sqe.is_fabrics() && sqe.admin_opcode() == AdminOpcode::ABORT {
                    let abort = Abort::decode(&sqe);
                    let meant =
                        if abort.sqid.is_admin() { self.pair.find(abort.cid) } else { None };
                    let (reply, aborted) = controller.abort(&sqe, meant);
                    if let Some(aborted) = aborted {
                        self.pair.complete(aborted.tag, aborted.status, aborted.result);
                    }
                    answer(&mut self.pair, tag, reply);
                    return Ok(());
                }
                let reply = controller.execute(tag, &sqe, self.pair.data(tag), self.now);
                answer(&mut self.pair, tag, reply);
            }
            _ => self.connect(tag, &sqe),
        }
        Ok(())
    }

    fn connect(&mut self, tag: Tag, sqe: &SubmissionQueueEntry) {
        if !sqe.is_fabrics() || sqe.fabrics_type() != FabricsType::CONNECT {
            self.pair.complete(tag, Status::COMMAND_SEQUENCE_ERROR.do_not_retry(), 0);
            return;
        }
        // Garbage may have followed it, or may have arrived while it was held. The target then
        // answers neither.
        if self.connecting.is_some() || self.pair.state() != QueuePairState::AwaitingConnect {
            self.pair.complete(tag, Status::COMMAND_SEQUENCE_ERROR.do_not_retry(), 0);
            return;
        }
        let ended = self.target.take_over(sqe, self.pair.data(tag), self.wire.identity());
        if ended.is_empty() {
            self.finish_connect(tag, sqe);
        } else {
            self.connecting = Some(Connecting { tag, sqe: *sqe, ended });
        }
    }

    /// Checks whether a Connect still has to wait. Returns true if it has been answered.
    pub(super) fn poll_connecting(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(connecting) = &mut self.connecting else { return false };
        if Pin::new(&mut connecting.ended).poll(cx).is_pending() {
            return false;
        }
        let Some(Connecting { tag, sqe, .. }) = self.connecting.take() else { return false };
        // New controllers may have appeared meanwhile.
        self.connect(tag, &sqe);
        true
    }

    fn finish_connect(&mut self, tag: Tag, sqe: &SubmissionQueueEntry) {
        let link = Link {
            signal: &self.registration.signal,
            local_address: self.wire.local_addr(),
            peer_address: self.wire.peer_addr(),
            tls_identity: self.wire.identity(),
            transport: self.wire.transport(),
        };
        let Connected { attached, lane, connect, result, proof } =
            match self.target.connect(sqe, self.pair.data(tag), &link, self.now) {
                Ok(connected) => connected,
                Err(failure) => {
                    if let Some(suppressed) = REFUSED.pass() {
                        tracing::info!(peer = %self.wire.peer_addr(), suppressed,
                            status = failure.status.connect_name().unwrap_or("?"),
                            "a connection is refused");
                    }
                    self.pair.complete(tag, failure.status, u64::from(failure.dword0));
                    return;
                }
            };
        let has_flow_control = !connect.is_flow_control_disabled();
        let entries = connect.sq_entries as u16;
        self.pair.set_connected(entries, has_flow_control, connect.qid.is_admin());
        if let Some(proof) = proof {
            let deadline = self.now + self.limits.handshake;
            self.door = Some(Box::new(Door::new(proof, deadline)));
            self.role = Role::Proving(Box::new(Proving { attached, lane }));
        } else {
            self.become_queue_pair(attached, lane);
        }
        self.pair.complete(tag, Status::SUCCESS, u64::from(result.to_dword()));
    }
}

/// Returns the number of data bytes that an admin command still needs from the host.
fn wanted_data(sqe: &SubmissionQueueEntry, here_bytes: usize) -> Result<u32, Status> {
    check_in_capsule(sqe, here_bytes)?;
    if sqe.data_direction() != DataDirection::HostToController || here_bytes > 0 {
        return Ok(0);
    }
    let bytes = transfer_bytes(sqe)?;
    // No command on an admin queue takes more data than fits into a capsule.
    if bytes > nvme::tcp::ADMIN_IN_CAPSULE_DATA_BYTES {
        return Err(Status::INVALID_FIELD);
    }
    Ok(bytes)
}

fn answer(pair: &mut QueuePair, tag: Tag, reply: Reply) {
    match reply {
        Reply::Held => {}
        Reply::Done(status, _, Some(data)) if status.is_success() => {
            pair.complete_read(tag, Chunk::from(data), 0);
        }
        Reply::Done(status, result, _) => pair.complete(tag, status, result),
    }
}
