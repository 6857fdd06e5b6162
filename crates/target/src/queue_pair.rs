//! One queue pair's connection as a state machine without I/O, over TCP (TCP 3) or RDMA
//! ([`capsules`]).
//!
//! [`QueuePair::receive`] takes the received bytes, and [`QueuePair::next_event`] returns commands,
//! at first without their data. The executor of a command checks it and then requests buffer memory
//! by [`QueuePair::reserve`] and data outside of the capsule by [`QueuePair::request_data`], so
//! that nothing is transferred for a command that fails anyway. [`QueuePair::complete`] or
//! [`QueuePair::complete_read`] ends a command, in any order. [`QueuePair::take_output`] takes all
//! gathered output at once.
//!
//! Memory is bounded: commands and in-capsule data by the queue's entries, other data by a budget
//! that all connections share and that serves waiting connections in order ([`Budget`]), and output
//! by the caller, which stops calling `receive` while [`QueuePair::output_bytes`] is large.

mod capsules;
mod command;
mod memory;
mod output;
mod receive;

pub(crate) use capsules::Work;
pub use command::{CommandState, Tag};

use capsules::Capsules;
use command::Commands;
use nvme::tcp::{Encoder, Parser, ParserConfig, PduError, Receiver};
use nvme::{CompletionQueueEntry, Status, SubmissionQueueEntry};
use output::Output;
use reactor::{Buffer, Chunk};
use receive::Payload;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::budget::{Budget, Share};
use crate::limits::Limits;

/// SQHD of a queue pair whose host has disabled flow control.
const NO_SQHD: u16 = 0xffff;

/// Data of at least this many bytes is received directly into its final buffer.
pub(crate) const LARGE_TRANSFER_BYTES: usize = 16 << 10;

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// The connection is open and has received nothing yet; the first PDU must be `ICReq`.
    AwaitingIcReq,
    /// PDU parameters are negotiated; the first command must be Connect.
    AwaitingConnect,
    /// Connect has succeeded; the connection carries commands.
    Connected,
    /// The peer has violated the transport. A terminate request follows, and no more input is
    /// accepted.
    Terminating,
    /// The peer has requested the end of the connection.
    Terminated,
}

/// The events that [`QueuePair::next_event`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command has arrived, with its in-capsule data if it has any.
    Command(Tag),
    /// The memory for which the command waited is reserved now.
    Reserved(Tag),
    /// All requested data has arrived.
    Data(Tag),
}

/// The state machine of a connection.
#[derive(Debug)]
pub struct QueuePair {
    state: QueuePairState,
    parser: Parser,
    encoder: Encoder,
    in_capsule_data_bytes: u32,
    h2c_data_bytes_max: u32,
    c2h_data_bytes_max: u32,
    allows_header_digest: bool,
    allows_data_digest: bool,
    commands: Commands,
    events: VecDeque<Event>,
    awaiting_memory: VecDeque<Tag>,
    reserved_bytes: usize,
    reserved_bytes_max: usize,
    /// This connection's share of the common budget.
    share: Share,
    /// Whether the first of the waiting commands waits for other connections' memory.
    awaits_budget: bool,
    /// Number of commands whose requested data has not arrived in full.
    awaiting_data: usize,
    payload: Option<Payload>,
    /// The state of a connection over RDMA.
    capsules: Option<Box<Capsules>>,
    /// Number of expected transfers of at least [`LARGE_TRANSFER_BYTES`].
    large_transfers: usize,
    output: Output,
    /// Entries of the submission queue and its head; without flow control there are no entries.
    sq_entries: u16,
    sq_head: u16,
    has_flow_control: bool,
    error: Option<PduError>,
}

impl QueuePair {
    /// Creates the state of a newly accepted connection, with a memory budget of its own.
    pub fn new(limits: &Limits) -> Self {
        Self::sharing(limits, &Arc::new(Budget::new(limits.data_bytes_total_max)))
    }

    /// Creates the state of a newly accepted connection that shares a budget with others.
    pub fn sharing(limits: &Limits, budget: &Arc<Budget>) -> Self {
        let config = ParserConfig {
            receiver: Receiver::Controller,
            has_header_digest: false,
            has_data_digest: false,
            data_alignment_bytes: 4,
            // The kind of the queue is not known before Connect.
            in_capsule_data_bytes_max: nvme::tcp::ADMIN_IN_CAPSULE_DATA_BYTES,
            data_bytes_max: limits.h2c_data_bytes_max,
        };
        Self {
            state: QueuePairState::AwaitingIcReq,
            parser: Parser::new(config),
            encoder: Encoder::INITIAL,
            in_capsule_data_bytes: limits.in_capsule_data_bytes,
            h2c_data_bytes_max: limits.h2c_data_bytes_max,
            c2h_data_bytes_max: limits.c2h_data_bytes_max,
            allows_header_digest: limits.allows_header_digest,
            allows_data_digest: limits.allows_data_digest,
            commands: Commands::new(2),
            events: VecDeque::new(),
            awaiting_memory: VecDeque::new(),
            reserved_bytes: 0,
            reserved_bytes_max: limits.data_bytes_in_flight_max,
            share: Share::new(budget),
            awaits_budget: false,
            awaiting_data: 0,
            payload: None,
            capsules: None,
            large_transfers: 0,
            output: Output::new(),
            sq_entries: 2,
            sq_head: 0,
            has_flow_control: true,
            error: None,
        }
    }

    /// Returns the progress of the connection.
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Returns the peer's violation of the transport, if there was one.
    pub fn error(&self) -> Option<PduError> {
        self.error
    }

    /// Records that Connect has succeeded. From now on the queue has `sq_entries` entries.
    pub fn set_connected(&mut self, sq_entries: u16, has_flow_control: bool, is_admin: bool) {
        assert_eq!(self.state, QueuePairState::AwaitingConnect);
        assert!(sq_entries >= 2, "Connect created a queue of {sq_entries} entries");
        self.state = QueuePairState::Connected;
        self.commands.grow(sq_entries);
        self.sq_entries = sq_entries;
        self.has_flow_control = has_flow_control;
        // Connect itself was the first entry.
        self.sq_head = 1 % sq_entries;
        let mut config = *self.parser.config();
        config.in_capsule_data_bytes_max = if is_admin {
            nvme::tcp::ADMIN_IN_CAPSULE_DATA_BYTES
        } else {
            self.in_capsule_data_bytes
        };
        self.parser.set_initialized(config);
    }

    /// Returns whether there is an event.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next command, if the next event is a command.
    pub fn next_command(&self) -> Option<&SubmissionQueueEntry> {
        match self.events.front() {
            Some(&Event::Command(tag)) => Some(self.command(tag)),
            _ => None,
        }
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether there is an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns an outstanding command.
    pub fn command(&self, tag: Tag) -> &SubmissionQueueEntry {
        &self.commands.get(tag).sqe
    }

    /// Returns the number of outstanding commands.
    pub fn commands_outstanding(&self) -> usize {
        self.commands.len()
    }

    /// Returns whether a command's data did not match its digest: it has to end with Transient
    /// Transport Error.
    pub fn is_damaged(&self, tag: Tag) -> bool {
        self.commands.get(tag).is_damaged
    }

    /// Returns whether a command was aborted while it waited: it has to end with that status.
    pub(crate) fn is_aborted(&self, tag: Tag) -> bool {
        self.commands.get(tag).is_aborted
    }

    /// Aborts the commands of a namespace that wait for memory or data.
    pub(crate) fn abort_waiting(&mut self, nsid: nvme::Nsid) {
        self.commands.abort_waiting(nsid);
    }

    /// Marks a command that waits for something else as aborted.
    pub(crate) fn abort(&mut self, tag: Tag) {
        self.commands.get_mut(tag).is_aborted = true;
    }

    /// Records the identity of a command's namespace at the command's first check. Returns whether
    /// it is the recorded one.
    pub(crate) fn is_for(&mut self, tag: Tag, namespace: u64) -> bool {
        *self.commands.get_mut(tag).namespace.get_or_insert(namespace) == namespace
    }

    /// Returns whether the command's data is complete.
    pub fn has_data(&self, tag: Tag) -> bool {
        self.commands.get(tag).data.is_some()
    }

    /// Returns the data of a command, from its capsule or requested.
    pub fn data(&self, tag: Tag) -> &[u8] {
        self.commands.get(tag).data.as_deref().unwrap_or_default()
    }

    /// Returns whether large data is expected, which is received directly into its final buffer.
    pub fn awaits_large_data(&self) -> bool {
        self.large_transfers > 0
    }

    /// Returns the outstanding command with this identifier.
    pub fn find(&self, cid: nvme::CommandId) -> Option<Tag> {
        self.commands.find(cid)
    }

    /// Takes the data of a command, from its capsule or requested.
    pub fn take_data(&mut self, tag: Tag) -> Option<Buffer> {
        self.commands.get_mut(tag).data.take()
    }

    /// Returns the number of commands whose requested data has not arrived in full.
    pub fn awaiting_data(&self) -> usize {
        self.awaiting_data
    }

    /// Requests a command's data from the host; [`Event::Data`] reports that it is complete.
    pub fn request_data(&mut self, tag: Tag, bytes: u32) {
        let command = self.commands.get_mut(tag);
        assert_eq!(command.state, CommandState::Executing, "{tag:?} asks for data");
        assert_eq!(command.received_bytes, 0, "{tag:?} asks for {bytes} bytes again");
        command.state = CommandState::AwaitingData;
        command.expected_bytes = bytes;
        self.awaiting_data += 1;
        self.large_transfers += usize::from(bytes as usize >= LARGE_TRANSFER_BYTES);
        command.data = Some(Buffer::with_capacity(bytes as usize));
        if self.read_remote(tag, bytes) {
            return;
        }
        let command = self.commands.get(tag);
        let (encoder, cid) = (self.encoder, command.sqe.command_id());
        self.emit(|out| encoder.r2t(out, cid, nvme::TransferTag(tag.0), 0, bytes));
    }

    /// Ends a command without data for the host.
    pub fn complete(&mut self, tag: Tag, status: Status, result: u64) {
        let command = self.commands.get_mut(tag);
        assert_eq!(command.state, CommandState::Executing, "{tag:?} ends with {status:?}");
        let reserved_bytes = std::mem::take(&mut command.reserved_bytes);
        if !self.is_over() && !self.respond_remote(tag, status, result, 0) {
            self.respond(tag, status, result);
        }
        self.commands.remove(tag);
        self.release(reserved_bytes);
    }

    /// Ends a command successfully with data for the host.
    pub fn complete_read(&mut self, tag: Tag, data: Chunk, result: u64) {
        let command = self.commands.get_mut(tag);
        assert_eq!(command.state, CommandState::Executing, "{tag:?} ends with data");
        let reserved_bytes = std::mem::take(&mut command.reserved_bytes);
        let cid = command.sqe.command_id();
        if self.is_over() {
            self.commands.remove(tag);
            return self.release(reserved_bytes);
        }
        let Some(data) = self.write_remote(tag, data, result, reserved_bytes) else { return };
        // With flow control the host needs the response's SQHD, and a result needs the response
        // too.
        let is_success = !self.has_flow_control && result == 0;
        self.send_data(cid, data, is_success, reserved_bytes);
        if !is_success {
            self.respond(tag, Status::SUCCESS, result);
        }
        self.commands.remove(tag);
    }

    /// Returns whether the connection sends nothing more, except a terminate request.
    fn is_over(&self) -> bool {
        matches!(self.state, QueuePairState::Terminating | QueuePairState::Terminated)
    }

    fn send_data(
        &mut self,
        cid: nvme::CommandId,
        data: Chunk,
        is_success: bool,
        reserved_bytes: usize,
    ) {
        let total = data.len();
        debug_assert_ne!(total, 0, "data for the host is not empty");
        let part_max = self.c2h_data_bytes_max as usize;
        if total <= part_max {
            return self.send_part(cid, data, 0, (true, is_success), reserved_bytes);
        }
        let shared = data.into_shared();
        for offset in (0..total).step_by(part_max) {
            let end = total.min(offset + part_max);
            let is_last = end == total;
            let part = Chunk::from(shared.slice(offset..end));
            let reserved_bytes = if is_last { reserved_bytes } else { 0 };
            self.send_part(cid, part, offset, (is_last, is_last && is_success), reserved_bytes);
        }
    }

    fn send_part(
        &mut self,
        cid: nvme::CommandId,
        part: Chunk,
        offset: usize,
        (is_last, is_success): (bool, bool),
        reserved_bytes: usize,
    ) {
        let (encoder, bytes) = (self.encoder, part.len() as u32);
        // A memory namespace's bytes may change while they are sent, so a digest needs its own
        // copy.
        let part = if encoder.has_data_digest { part.into_lasting() } else { part };
        let digest = encoder.has_data_digest.then(|| nvme::tcp::crc32c(&part.to_bytes()));
        self.emit(|out| encoder.c2h_data(out, cid, offset as u32, bytes, is_last, is_success));
        self.output.data(part, reserved_bytes);
        if let Some(digest) = digest {
            self.emit(|out| put(out, &digest.to_le_bytes()));
        }
    }

    fn response(&self, tag: Tag, status: Status, result: u64) -> CompletionQueueEntry {
        let cid = self.commands.get(tag).sqe.command_id();
        let sqhd = if self.has_flow_control { self.sq_head } else { NO_SQHD };
        CompletionQueueEntry::new(cid, sqhd, status).with_result(result)
    }

    /// Counts a command that the host has put into its queue.
    fn advance_head(&mut self) {
        self.sq_head = if self.sq_head + 1 == self.sq_entries { 0 } else { self.sq_head + 1 };
        assert!(
            self.sq_head < self.sq_entries && self.commands.len() <= usize::from(self.sq_entries),
            "{} of {} entries are outstanding, the head is {}",
            self.commands.len(),
            self.sq_entries,
            self.sq_head
        );
    }

    fn respond(&mut self, tag: Tag, status: Status, result: u64) {
        let cqe = self.response(tag, status, result);
        let encoder = self.encoder;
        self.emit(|out| encoder.capsule_resp(out, &cqe));
    }

    /// Writes a header to the output. Our own headers can always be encoded. If one could not, the
    /// connection would end instead of sending a stream with a gap.
    fn emit(&mut self, encode: impl Fn(&mut [u8]) -> Result<usize, nvme::Error>) {
        if let Err(error) = self.output.header(encode) {
            tracing::error!(%error, "a header could not be encoded");
            self.state = QueuePairState::Terminated;
        }
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn output_bytes(&self) -> usize {
        self.output.bytes() + self.capsules.as_ref().map_or(0, |capsules| capsules.write_bytes())
    }

    /// Takes all output. `spare` is an empty list whose memory is used next. The second part of the
    /// result is the number of bytes to [`Self::release`] after the send.
    pub fn take_output(&mut self, spare: Vec<Chunk>) -> Option<(Vec<Chunk>, usize)> {
        (!self.output.is_empty()).then(|| self.output.take(spare))
    }

    /// Returns the memory of the data PDU that is being received, and the range of its missing
    /// bytes, so that they can be received directly there. [`Self::put_payload`] returns the
    /// memory. [`None`] between PDUs.
    pub fn take_payload(&mut self, bytes_min: usize) -> Option<(Buffer, Range<usize>)> {
        let payload = self.payload.as_ref()?;
        if payload.missing_bytes < bytes_min {
            return None;
        }
        let start = payload.offset;
        let end = start + payload.missing_bytes;
        self.commands.get_mut(payload.tag).data.take().map(|buffer| (buffer, start..end))
    }

    /// Returns memory from [`Self::take_payload`], with `bytes` more of the data in it.
    pub fn put_payload(&mut self, buffer: Buffer, bytes: usize) {
        let Some(payload) = &mut self.payload else { return };
        assert!(
            bytes <= payload.missing_bytes,
            "{bytes} bytes came for {:?}, of {} that are missing",
            payload.tag,
            payload.missing_bytes
        );
        if let Some(digest) = &mut payload.digest {
            digest.update(&buffer[payload.offset..payload.offset + bytes]);
        }
        payload.offset += bytes;
        payload.missing_bytes -= bytes;
        let tag = payload.tag;
        self.commands.get_mut(tag).data = Some(buffer);
        self.finish_payload_if_whole();
    }

    /// Drops all commands' buffers and the output, because the connection is over.
    pub fn clear(&mut self) {
        self.output.clear();
        self.clear_work();
        self.events.clear();
        self.awaiting_memory.clear();
        self.payload = None;
        self.state = QueuePairState::Terminated;
    }
}

fn put(out: &mut [u8], bytes: &[u8]) -> Result<usize, nvme::Error> {
    let have_bytes = out.len();
    let out = out
        .get_mut(..bytes.len())
        .ok_or(nvme::Error::BufferTooSmall { need_bytes: bytes.len(), have_bytes })?;
    out.copy_from_slice(bytes);
    Ok(bytes.len())
}
