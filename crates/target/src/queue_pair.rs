//! One queue pair's connection as a state machine without I/O, over TCP (TCP 3) or RDMA ([`capsules`]).
//!
//! Received bytes go in by [`QueuePair::receive`]; commands come out of [`QueuePair::next_event`], first
//! without their data. The executor of a command checks it and then requests buffer memory by
//! [`QueuePair::reserve`] and data outside of the capsule by [`QueuePair::request_data`], so nothing is
//! transferred for a command that fails anyway. A command ends by [`QueuePair::complete`] or
//! [`QueuePair::complete_read`], in any order. [`QueuePair::take_output`] takes all gathered output at once.
//!
//! Memory is bounded: commands and in-capsule data by the queue's entries, other data by a budget that all
//! connections share and whose waiters are served in order ([`Budget`]), output by the caller, which stops
//! calling `receive` while [`QueuePair::output_bytes`] is large.

mod capsules;
mod command;
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

/// SQHD of a queue pair whose host wants no flow control.
const NO_SQHD: u16 = 0xffff;

/// Data of at least this many bytes is worth receiving straight to where it belongs.
pub(crate) const LARGE_TRANSFER_BYTES: usize = 16 << 10;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// The connection is open and nothing has come yet; the first PDU must be `ICReq`.
    AwaitingIcReq,
    /// PDU parameters are negotiated; the first command must be Connect.
    AwaitingConnect,
    /// Connect has succeeded; commands flow.
    Connected,
    /// The peer violated the transport: a terminate request is to be sent, nothing more is taken.
    Terminating,
    /// The peer asked for the end of the connection.
    Terminated,
}

/// The events that [`QueuePair::next_event`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command came, with its in-capsule data if it has any.
    Command(Tag),
    /// Buffer memory that had to be waited for is reserved now.
    Reserved(Tag),
    /// The data that was requested has come in full.
    Data(Tag),
}

/// A connection's state machine.
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
    /// The first of the waiting commands waits for other connections' memory.
    awaits_budget: bool,
    /// Commands whose data was asked for and has not come in full.
    awaiting_data: usize,
    payload: Option<Payload>,
    /// Of a connection over RDMA.
    capsules: Option<Box<Capsules>>,
    /// Transfers of at least [`LARGE_TRANSFER_BYTES`] that are awaited.
    large_transfers: usize,
    output: Output,
    /// Entries of the submission queue and its head; no entries without flow control.
    sq_entries: u16,
    sq_head: u16,
    has_flow_control: bool,
    error: Option<PduError>,
}

impl QueuePair {
    /// The state of a connection that was just accepted, with a memory budget of its own.
    pub fn new(limits: &Limits) -> Self {
        Self::sharing(limits, &Arc::new(Budget::new(limits.data_bytes_total_max)))
    }

    /// As [`Self::new`], with a budget that it shares with others.
    pub fn sharing(limits: &Limits, budget: &Arc<Budget>) -> Self {
        let config = ParserConfig {
            receiver: Receiver::Controller,
            has_header_digest: false,
            has_data_digest: false,
            data_alignment_bytes: 4,
            // Connect comes before it is known which kind of queue this will be.
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

    /// How far the connection has come.
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// What the peer did wrong, if anything.
    pub fn error(&self) -> Option<PduError> {
        self.error
    }

    /// Connect has succeeded: the queue has so many entries from now on.
    pub fn set_connected(&mut self, sq_entries: u16, has_flow_control: bool, is_admin: bool) {
        assert_eq!(self.state, QueuePairState::AwaitingConnect);
        assert!(sq_entries >= 2, "Connect made a queue of {sq_entries} entries");
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

    /// Whether there is something to look at.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The command that [`Self::next_event`] will return, if it returns one.
    pub fn next_command(&self) -> Option<&SubmissionQueueEntry> {
        match self.events.front() {
            Some(&Event::Command(tag)) => Some(self.command(tag)),
            _ => None,
        }
    }

    /// The next thing to look at.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether there is something to look at.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// An outstanding command.
    pub fn command(&self, tag: Tag) -> &SubmissionQueueEntry {
        &self.commands.get(tag).sqe
    }

    /// Commands outstanding.
    pub fn commands_outstanding(&self) -> usize {
        self.commands.len()
    }

    /// Whether a command's data did not match its digest: it has to end with Transient Transport
    /// Error.
    pub fn is_damaged(&self, tag: Tag) -> bool {
        self.commands.get(tag).is_damaged
    }

    /// Whether a command was aborted while it waited: it has to end with that status.
    pub(crate) fn is_aborted(&self, tag: Tag) -> bool {
        self.commands.get(tag).is_aborted
    }

    /// Aborts the commands of a namespace that wait for memory or data.
    pub(crate) fn abort_waiting(&mut self, nsid: nvme::Nsid) {
        self.commands.abort_waiting(nsid);
    }

    /// Marks a command as aborted that waits for something else.
    pub(crate) fn abort(&mut self, tag: Tag) {
        self.commands.get_mut(tag).is_aborted = true;
    }

    /// Whether the command's data is here.
    pub fn has_data(&self, tag: Tag) -> bool {
        self.commands.get(tag).data.is_some()
    }

    /// The data that came with, or for, a command.
    pub fn data(&self, tag: Tag) -> &[u8] {
        self.commands.get(tag).data.as_deref().unwrap_or_default()
    }

    /// Whether data that is worth receiving where it belongs may come.
    pub fn awaits_large_data(&self) -> bool {
        self.large_transfers > 0
    }

    /// The outstanding command with this identifier.
    pub fn find(&self, cid: nvme::CommandId) -> Option<Tag> {
        self.commands.find(cid)
    }

    /// Takes the data that came with, or for, a command.
    pub fn take_data(&mut self, tag: Tag) -> Option<Buffer> {
        self.commands.get_mut(tag).data.take()
    }

    /// Counts buffer memory for a command. If there is none now, answers false, and
    /// [`Event::Reserved`] comes later. It is free again when the command completes, or its data
    /// was sent.
    pub fn reserve(&mut self, tag: Tag, bytes: usize) -> bool {
        let command = self.commands.get_mut(tag);
        assert_eq!(command.reserved_bytes, 0, "a command reserves once");
        command.reserved_bytes = bytes;
        if self.awaiting_memory.is_empty() && self.take_memory(bytes) {
            return true;
        }
        self.commands.get_mut(tag).state = CommandState::AwaitingMemory;
        self.awaiting_memory.push_back(tag);
        false
    }

    fn take_memory(&mut self, bytes: usize) -> bool {
        let is_first = self.reserved_bytes == 0;
        // One command always passes the connection's own limit, however large.
        let fits = is_first || self.reserved_bytes + bytes <= self.reserved_bytes_max;
        let has_room = fits && self.share.cover(self.reserved_bytes + bytes);
        self.awaits_budget = fits && !has_room;
        if has_room {
            self.reserved_bytes += bytes;
            assert!(
                self.reserved_bytes <= self.reserved_bytes_max.max(bytes),
                "{} bytes are reserved, of {}",
                self.reserved_bytes,
                self.reserved_bytes_max
            );
        }
        has_room
    }

    /// Buffer memory of sent data is free.
    pub fn release(&mut self, bytes: usize) {
        assert!(
            bytes <= self.reserved_bytes,
            "{bytes} bytes of memory are given back, and {} are reserved",
            self.reserved_bytes
        );
        self.reserved_bytes -= bytes;
        self.share.shrink(self.reserved_bytes);
        self.retry_memory();
    }

    /// Whether a command waits for memory that other connections have; try again by
    /// [`Self::retry_memory`] when the budget has some.
    pub fn awaits_budget(&self) -> bool {
        self.awaits_budget && !self.awaiting_memory.is_empty()
    }

    /// Lets commands that wait for memory go on as far as there is some; true if any does.
    pub fn retry_memory(&mut self) -> bool {
        let before = self.awaiting_memory.len();
        while let Some(&tag) = self.awaiting_memory.front() {
            let command = self.commands.get(tag);
            let bytes = command.reserved_bytes;
            assert_eq!(
                command.state,
                CommandState::AwaitingMemory,
                "{tag:?} waits for {bytes} bytes"
            );
            if !self.take_memory(bytes) {
                break;
            }
            self.commands.get_mut(tag).state = CommandState::Executing;
            self.awaiting_memory.pop_front();
            self.events.push_back(Event::Reserved(tag));
        }
        before != self.awaiting_memory.len()
    }

    /// Buffer memory that commands and unsent data have.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Commands whose data was asked for and has not come in full.
    pub fn awaiting_data(&self) -> usize {
        self.awaiting_data
    }

    /// Requests a command's data from the host; [`Event::Data`] reports when it is complete.
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
        // With flow control the host needs the response's SQHD; a result needs it too.
        let is_success = !self.has_flow_control && result == 0;
        self.send_data(cid, data, is_success, reserved_bytes);
        if !is_success {
            self.respond(tag, Status::SUCCESS, result);
        }
        self.commands.remove(tag);
    }

    /// Whether nothing is sent any more but a terminate request.
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
        // A memory namespace's bytes may change while they are sent: a digest needs its own copy.
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

    /// Writes a header to the output. Our own headers are always encodable; were one not, the
    /// connection would have to end rather than send a stream with a hole.
    fn emit(&mut self, encode: impl Fn(&mut [u8]) -> Result<usize, nvme::Error>) {
        if let Err(error) = self.output.header(encode) {
            tracing::error!(%error, "a header could not be encoded");
            self.state = QueuePairState::Terminated;
        }
    }

    /// Bytes waiting to be sent.
    pub fn output_bytes(&self) -> usize {
        self.output.bytes()
    }

    /// Takes all bytes to be sent. `spare` is an empty list whose memory is used next. When they
    /// have been sent, [`Self::release`] the number that comes second.
    pub fn take_output(&mut self, spare: Vec<Chunk>) -> Option<(Vec<Chunk>, usize)> {
        (!self.output.is_empty()).then(|| self.output.take(spare))
    }

    /// Bytes that are missing of a data PDU's data, and the memory they belong to, so that they can
    /// be received right there; give it back by [`Self::put_payload`]. [`None`] between PDUs.
    pub fn take_payload(&mut self, bytes_min: usize) -> Option<(Buffer, Range<usize>)> {
        let payload = self.payload.as_ref()?;
        if payload.missing_bytes < bytes_min {
            return None;
        }
        let start = payload.offset;
        let end = start + payload.missing_bytes;
        self.commands.get_mut(payload.tag).data.take().map(|buffer| (buffer, start..end))
    }

    /// Gives memory from [`Self::take_payload`] back, with `bytes` more of the data in it.
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

    /// Drops all commands' buffers and output: the connection is over.
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
