//! The connection of one queue pair, as a state machine without I/O.
//!
//! Commands, their identifiers, deadlines and ends are the same over TCP and RDMA. Over RDMA the
//! adapter moves messages and data instead of a byte stream, see [`Capsule`].
//!
//! [`QueuePair::receive`] takes received bytes, in pieces of any size, and [`QueuePair::transmit`]
//! returns chunks to send. [`QueuePair::submit`] takes commands, and [`QueuePair::next_finished`]
//! returns finished ones. The memory of each command is a slot created at the start, so a command
//! costs no allocation. The driver of the machine decides when to send: all commands of one turn of
//! its loop leave in one vectored send.
//!
//! The machine does no I/O, so that it runs on sockets, in the simulation, and under property tests
//! that split the byte stream anywhere and simulate a lying peer.

mod capsules;
mod data;
mod receive;
mod slots;
mod transmit;

pub use capsules::{Capsule, Transfer};
pub use data::{Data, Destination};
pub use receive::{DIRECT_BYTES_MIN, DirectReceive};
pub use transmit::SEND_CHUNKS_MAX;

use crate::error::ProtocolError;
use capsules::Capsules;
use nvme::tcp::{
    ADMIN_IN_CAPSULE_DATA_BYTES, Accumulator, Encoder, IcReq, IcResp, Parser, ParserConfig,
    PduError, Receiver,
};
use nvme::{CommandId, CompletionQueueEntry, SglDescriptor, SubmissionQueueEntry};
use receive::Receiving;
use slots::{Slot, SlotState, Slots};
use std::collections::VecDeque;
use transmit::Outbox;

/// Maximum number of outstanding commands on a queue pair, so that 4 bits of a command identifier
/// remain for the generation.
pub const DEPTH_MAX: u16 = 4095;

/// Configuration of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Maximum number of outstanding commands, 1 to [`DEPTH_MAX`]; values out of range are clamped.
    pub depth: u16,
    /// Whether to request header digests.
    pub has_header_digest: bool,
    /// Whether to request data digests.
    pub has_data_digest: bool,
    /// Number of ticks that a command with a deadline may take; see [`QueuePair::tick`].
    pub timeout_ticks: u32,
}

/// The progress of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// `ICReq` was sent or queued; commands may not be submitted yet.
    Initializing,
    /// `ICResp` has arrived; commands may be submitted.
    Ready,
    /// The connection has ended or must be ended; no command is outstanding any more.
    Closed,
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The controller answered; its status may still be an error.
    Completed(CompletionQueueEntry),
    /// The received data does not match its digest; the command may be repeated.
    DataDigestMismatch,
    /// The controller reported success but sent less data than requested.
    DataUnderrun {
        /// Received bytes.
        received_bytes: u32,
        /// Requested bytes.
        expected_bytes: u32,
    },
    /// The connection ended before the answer; whether the command took effect is unknown.
    ConnectionLost,
}

/// Reason for refusing a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The number of outstanding commands has reached the queue's depth.
    QueueFull,
    /// The connection is not ready for commands.
    NotReady,
}

/// The state machine; see the module's description.
#[derive(Debug)]
pub struct QueuePair {
    config: QueuePairConfig,
    state: QueuePairState,
    encoder: Encoder,
    parser: Parser,
    accumulator: Accumulator,
    receiving: Receiving,
    in_capsule_data_bytes_max: u32,
    maxh2cdata_bytes: u32,
    slots: Slots,
    outbox: Outbox,
    /// Over RDMA, the commands for the adapter.
    capsules: Option<Capsules>,
    finished: VecDeque<CommandId>,
    tick: u32,
    last_payload_bytes: usize,
}

impl QueuePair {
    /// Creates a queue pair whose first output is `ICReq`.
    pub fn new(config: QueuePairConfig) -> Self {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let config = QueuePairConfig { depth, ..config };
        let mut outbox = Outbox::new();
        outbox
            .push_bytes(IcReq::new(0, config.has_header_digest, config.has_data_digest, 0).bytes());
        Self {
            config,
            state: QueuePairState::Initializing,
            encoder: Encoder::INITIAL,
            parser: Parser::new(parser_config(false, false)),
            accumulator: Accumulator::new(),
            receiving: Receiving::Header,
            in_capsule_data_bytes_max: ADMIN_IN_CAPSULE_DATA_BYTES,
            maxh2cdata_bytes: 0,
            slots: Slots::new(depth),
            outbox,
            capsules: None,
            finished: VecDeque::with_capacity(usize::from(depth)),
            tick: 0,
            last_payload_bytes: 0,
        }
    }

    /// Returns the progress of the connection.
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Returns the maximum number of outstanding commands.
    pub fn depth(&self) -> u16 {
        self.config.depth
    }

    /// Returns the number of commands that are outstanding, or finished but not taken yet.
    pub fn occupied(&self) -> u16 {
        self.slots.occupied()
    }

    /// Returns the number of a command's slot, which is below [`Self::depth`] for identifiers from
    /// this queue pair.
    pub fn index_of(&self, cid: CommandId) -> usize {
        self.slots.index(cid)
    }

    /// Returns whether header and data digests are in use.
    pub fn digests(&self) -> (bool, bool) {
        (self.encoder.has_header_digest, self.encoder.has_data_digest)
    }

    /// Sets the most data in a command's capsule. The initial value is 8192 bytes, which admin and
    /// Fabrics commands may have; for I/O queues it comes from IOCCSZ of Identify Controller.
    pub fn set_in_capsule_data_bytes_max(&mut self, bytes: u32) {
        self.in_capsule_data_bytes_max = bytes;
    }

    /// Takes a command and queues its capsule. Data to the controller is in the capsule if it fits;
    /// otherwise a descriptor lets the controller request it.
    ///
    /// `sqe` needs neither command identifier nor data pointer. With `has_deadline` the command
    /// counts for [`Self::tick`]. A failure returns the data.
    pub fn submit(
        &mut self,
        sqe: &SubmissionQueueEntry,
        data: Data,
        has_deadline: bool,
    ) -> Result<CommandId, (SubmitError, Data)> {
        if self.state != QueuePairState::Ready {
            return Err((SubmitError::NotReady, data));
        }
        let Some(cid) = self.slots.take_free() else {
            return Err((SubmitError::QueueFull, data));
        };
        let length_bytes = data.len();
        let sqe = sqe.with_command_id(cid);
        if self.capsules.is_some() {
            self.submit_capsule(cid, &sqe, data, has_deadline);
            return Ok(cid);
        }
        match &data {
            Data::Write(payload) if length_bytes <= self.in_capsule_data_bytes_max => {
                let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, length_bytes));
                self.outbox.push_capsule(self.encoder, &sqe, Some(payload));
            }
            _ => {
                let sqe = sqe.with_sgl(SglDescriptor::transport(length_bytes));
                self.outbox.push_capsule(self.encoder, &sqe, None);
            }
        }
        let requested_bytes = match &data {
            // The capsule contains all of the data: no R2T may request it.
            Data::Write(_) if length_bytes <= self.in_capsule_data_bytes_max => length_bytes,
            _ => 0,
        };
        assert!(
            requested_bytes <= length_bytes,
            "{cid:?} sends {requested_bytes} of {length_bytes} bytes in its capsule"
        );
        let tick = has_deadline.then_some(self.tick);
        self.slots.occupy(cid, Slot::new(data, requested_bytes, tick));
        let (occupied, depth) = (self.slots.occupied(), self.config.depth);
        assert!((1..=depth).contains(&occupied), "{occupied} of {depth} commands are outstanding");
        Ok(cid)
    }

    /// Returns a newly finished command; [`Self::take`] returns its outcome.
    pub fn next_finished(&mut self) -> Option<CommandId> {
        self.finished.pop_front()
    }

    /// Takes the outcome of a finished command, with its data, and frees its slot. [`None`] while
    /// it runs.
    pub fn take(&mut self, cid: CommandId) -> Option<(Outcome, Data)> {
        let slot = self.slots.get_mut(cid)?;
        let SlotState::Finished(outcome) = slot.state else { return None };
        let data = std::mem::replace(&mut slot.data, Data::None);
        self.slots.release(cid);
        Some((outcome, data))
    }

    /// Marks a command as one without a waiting caller: its slot is freed when its answer arrives.
    pub fn forget(&mut self, cid: CommandId) {
        let Some(slot) = self.slots.get_mut(cid) else { return };
        match slot.state {
            SlotState::Finished(_) => {
                slot.data = Data::None;
                self.slots.release(cid);
            }
            _ => slot.is_forgotten = true,
        }
    }

    /// Advances the time by a tick. Returns true if a command with a deadline has been outstanding
    /// for more than the configured number of ticks. The caller should then end the connection,
    /// because nothing else ensures that the controller no longer touches the command.
    pub fn tick(&mut self) -> bool {
        self.tick = self.tick.wrapping_add(1);
        self.slots.any_older_than(self.tick, self.config.timeout_ticks)
    }

    /// Ends everything: all outstanding commands finish as lost, and nothing more is sent, except a
    /// terminate request if `fault` names a violation by the controller.
    pub fn close(&mut self, fault: Option<&ProtocolError>) {
        if self.state == QueuePairState::Closed {
            return;
        }
        self.state = QueuePairState::Closed;
        self.outbox.clear();
        self.withdraw_capsules();
        if let Some(ProtocolError::Pdu(error)) = fault {
            self.outbox.push_term_request(error);
        }
        self.receiving.return_nothing();
        let finished = &mut self.finished;
        self.slots.finish_all(Outcome::ConnectionLost, |cid| finished.push_back(cid));
        assert!(!self.slots.any_outstanding(), "a command outlives its connection");
    }

    fn finish(&mut self, cid: CommandId, outcome: Outcome) {
        if self.slots.finish(cid, outcome) {
            self.finished.push_back(cid);
        }
    }

    fn initialize(&mut self, response: &IcResp) -> Result<(), ProtocolError> {
        let (header, data) = (response.has_header_digest(), response.has_data_digest());
        if (header && !self.config.has_header_digest) || (data && !self.config.has_data_digest) {
            let fault = PduError::invalid_field("dgst", 11, u64::from(response.dgst));
            return Err(fault.into());
        }
        self.encoder = Encoder {
            has_header_digest: header,
            has_data_digest: data,
            data_alignment_bytes: response.data_alignment_bytes(),
        };
        self.maxh2cdata_bytes = response.maxh2cdata.get();
        self.parser.set_initialized(parser_config(header, data));
        self.state = QueuePairState::Ready;
        Ok(())
    }
}

/// Returns a configuration that accepts data PDUs of any length: each is checked against its
/// command instead.
fn parser_config(has_header_digest: bool, has_data_digest: bool) -> ParserConfig {
    ParserConfig {
        receiver: Receiver::Host,
        has_header_digest,
        has_data_digest,
        data_alignment_bytes: 4,
        in_capsule_data_bytes_max: 0,
        data_bytes_max: u32::MAX,
    }
}
