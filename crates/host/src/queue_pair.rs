//! One queue pair's NVMe/TCP connection as a state machine without I/O.
//!
//! Bytes that arrived go in with [`QueuePair::receive`], in pieces of any size; chunks to send come
//! out of [`QueuePair::transmit`]; commands go in with [`QueuePair::submit`] and finished ones come
//! out of [`QueuePair::next_finished`]. All of a command's memory is a slot created at the start, so a command
//! costs no allocation. The driver of the machine decides when to send: everything submitted in one turn of its
//! loop leaves in one vectored send.
//!
//! Why no I/O here: the same machine runs on sockets, in the simulation and under property tests
//! that split the byte stream anywhere and let the peer lie.

mod data;
mod receive;
mod slots;
mod transmit;

pub use data::{Data, Destination};
pub use receive::{DIRECT_BYTES_MIN, DirectReceive};
pub use transmit::SEND_CHUNKS_MAX;

use crate::error::ProtocolError;
use nvme::tcp::{
    ADMIN_IN_CAPSULE_DATA_BYTES, Accumulator, Encoder, IcReq, IcResp, Parser, ParserConfig,
    PduError, Receiver,
};
use nvme::{CommandId, CompletionQueueEntry, SglDescriptor, SubmissionQueueEntry};
use receive::Receiving;
use slots::{Slot, SlotState, Slots};
use std::collections::VecDeque;
use transmit::Outbox;

/// Most commands outstanding on a queue pair, so that 4 bits of a command identifier remain for the
/// generation.
pub const DEPTH_MAX: u16 = 4095;

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Commands that may be outstanding, 1 to [`DEPTH_MAX`]; out of range values are clamped.
    pub depth: u16,
    /// Ask for header digests.
    pub has_header_digest: bool,
    /// Ask for data digests.
    pub has_data_digest: bool,
    /// How many ticks a command with a deadline may take; see [`QueuePair::tick`].
    pub timeout_ticks: u32,
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// `ICReq` is out (or queued); commands may not be submitted yet.
    Initializing,
    /// `ICResp` came; commands flow.
    Ready,
    /// The connection has ended or must be ended; no command is outstanding any more.
    Closed,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The controller answered; its status may still be an error.
    Completed(CompletionQueueEntry),
    /// The data that came does not match its digest; the command may be repeated.
    DataDigestMismatch,
    /// The controller reported success but sent less data than was asked for.
    DataUnderrun {
        /// Bytes that came.
        received_bytes: u32,
        /// Bytes asked for.
        expected_bytes: u32,
    },
    /// The connection ended before the answer; whether the command took effect is unknown.
    ConnectionLost,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many commands as the queue's depth are outstanding.
    QueueFull,
    /// The connection is not ready for commands.
    NotReady,
}

/// The state machine; see the module's head.
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
    finished: VecDeque<CommandId>,
    tick: u32,
    last_payload_bytes: usize,
}

impl QueuePair {
    /// A queue pair whose first output is `ICReq`.
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
            finished: VecDeque::with_capacity(usize::from(depth)),
            tick: 0,
            last_payload_bytes: 0,
        }
    }

    /// How far the connection is.
    pub fn state(&self) -> QueuePairState {
        self.state
    }

    /// Commands that may be outstanding.
    pub fn depth(&self) -> u16 {
        self.config.depth
    }

    /// Commands outstanding or finished and not yet taken.
    pub fn occupied(&self) -> u16 {
        self.slots.occupied()
    }

    /// Number of the slot of a command, below [`Self::depth`] for identifiers given by this queue
    /// pair.
    pub fn index_of(&self, cid: CommandId) -> usize {
        self.slots.index(cid)
    }

    /// Whether header and data digests are in force.
    pub fn digests(&self) -> (bool, bool) {
        (self.encoder.has_header_digest, self.encoder.has_data_digest)
    }

    /// Sets how much data commands may carry in their capsule: 8192 bytes at first, as every admin
    /// and Fabrics command may; for I/O queues what IOCCSZ of Identify Controller says.
    pub fn set_in_capsule_data_bytes_max(&mut self, bytes: u32) {
        self.in_capsule_data_bytes_max = bytes;
    }

    /// Takes a command and queues its capsule, with the data in it if it is to the controller and
    /// fits, else with a descriptor that lets the controller ask for it.
    ///
    /// `sqe` needs neither command identifier nor data pointer. With `has_deadline` the command
    /// counts for [`Self::tick`]. On failure the data comes back.
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
            // All of it is in the capsule: no R2T may ask for it.
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

    /// A command that has finished since; [`Self::take`] gives its outcome.
    pub fn next_finished(&mut self) -> Option<CommandId> {
        self.finished.pop_front()
    }

    /// The outcome of a finished command, with its data; frees its slot. [`None`] while it runs.
    pub fn take(&mut self, cid: CommandId) -> Option<(Outcome, Data)> {
        let slot = self.slots.get_mut(cid)?;
        let SlotState::Finished(outcome) = slot.state else { return None };
        let data = std::mem::replace(&mut slot.data, Data::None);
        self.slots.release(cid);
        Some((outcome, data))
    }

    /// Marks that no caller waits for the command: its slot is freed when its answer arrives.
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

    /// Counts time: true if a command with a deadline has been outstanding for more than the
    /// configured number of ticks. The connection should then be ended, as nothing else makes sure
    /// that the controller does not touch the command any more.
    pub fn tick(&mut self) -> bool {
        self.tick = self.tick.wrapping_add(1);
        self.slots.any_older_than(self.tick, self.config.timeout_ticks)
    }

    /// Ends everything: all outstanding commands finish as lost, nothing more is sent but a
    /// terminate request if `fault` says what the controller did wrong.
    pub fn close(&mut self, fault: Option<&ProtocolError>) {
        if self.state == QueuePairState::Closed {
            return;
        }
        self.state = QueuePairState::Closed;
        self.outbox.clear();
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

/// The host takes data PDUs of any length: each is checked against its command instead.
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
