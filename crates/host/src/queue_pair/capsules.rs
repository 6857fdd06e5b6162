//! Commands over RDMA: capsules are messages, and the adapter moves the data.
//!
//! [`QueuePair::take_capsule`] returns the next command to send, and how its data is moved: with the
//! message, or through memory that the connection lends to the controller. A read's buffer leaves
//! the command with its capsule and is back with [`QueuePair::returned`]. A command is finished when
//! its answer is there *and* the controller has no access to its memory any more: until then the
//! answer waits in the slot. So a caller never sees memory that the controller may still write.

use super::slots::Slot;
use super::{DEPTH_MAX, Data, Outcome, QueuePair, QueuePairConfig, QueuePairState};
use crate::error::ProtocolError;
use nvme::rdma::{KEYED_BYTES_MAX, KeyedSgl};
use nvme::{CommandId, CompletionQueueEntry, SglDescriptor, SubmissionQueueEntry};
use reactor::{Buffer, Shared};
use std::collections::VecDeque;
use std::ops::Range;

/// A command for the adapter.
#[derive(Debug)]
pub struct Capsule {
    /// The command's identifier.
    pub cid: CommandId,
    /// The command. Its descriptor is complete, except for lent memory: see [`Self::keyed`].
    pub sqe: SubmissionQueueEntry,
    /// The transfer of its data.
    pub transfer: Transfer,
}

/// The transfer of a command's data.
#[derive(Debug)]
pub enum Transfer {
    /// There is no data.
    None,
    /// The data is in the capsule, after the command.
    InCapsule(Shared),
    /// The controller reads these bytes.
    Source(Shared),
    /// The controller writes this range of the buffer.
    Sink(Buffer, Range<usize>),
}

impl Capsule {
    /// Returns the command with a keyed descriptor for its lent memory, which asks the controller
    /// to invalidate the key with its answer (RDMA 3.2, Remote Invalidate).
    ///
    /// # Errors
    /// [`nvme::Error::InvalidField`] for more than 24 bits of length.
    pub fn keyed(
        &self,
        address: u64,
        length_bytes: u32,
        key: u32,
    ) -> Result<SubmissionQueueEntry, nvme::Error> {
        let keyed = KeyedSgl { address, length_bytes, key, invalidates: true };
        Ok(self.sqe.with_sgl(keyed.encode()?))
    }
}

/// The additional state of a queue pair over RDMA.
#[derive(Debug, Default)]
pub(super) struct Capsules {
    waiting: VecDeque<Capsule>,
}

impl QueuePair {
    /// Creates the queue pair of an established connection over RDMA. It has no digests, and no
    /// data in capsules until [`Self::set_in_capsule_data_bytes_max`].
    pub fn over_rdma(config: QueuePairConfig) -> Self {
        assert!((1..=DEPTH_MAX).contains(&config.depth), "{} commands", config.depth);
        let config = QueuePairConfig { has_header_digest: false, has_data_digest: false, ..config };
        let mut pair = Self::new(config);
        pair.outbox.clear();
        pair.state = QueuePairState::Ready;
        pair.in_capsule_data_bytes_max = 0;
        pair.capsules = Some(Capsules::default());
        pair
    }

    /// Queues a command. Its descriptor is that of no data or of data in the capsule.
    pub(super) fn submit_capsule(
        &mut self,
        cid: CommandId,
        sqe: &SubmissionQueueEntry,
        mut data: Data,
        has_deadline: bool,
    ) {
        let length_bytes = data.len();
        assert!(length_bytes <= KEYED_BYTES_MAX, "{cid:?} has {length_bytes} bytes of data");
        let mut sgl = SglDescriptor::keyed_null();
        let transfer = match &mut data {
            Data::Write(bytes) if length_bytes <= self.in_capsule_data_bytes_max => {
                sgl = SglDescriptor::in_capsule(0, length_bytes);
                Transfer::InCapsule(bytes.clone())
            }
            Data::Write(bytes) => Transfer::Source(bytes.clone()),
            Data::Read(destination) => match destination.take() {
                Some(buffer) => {
                    let start = destination.position(0);
                    Transfer::Sink(buffer, start..start + length_bytes as usize)
                }
                // Nothing is lent, so the controller finds no memory and fails the command.
                None => Transfer::None,
            },
            Data::None => Transfer::None,
        };
        let tick = has_deadline.then_some(self.tick);
        self.slots.occupy(cid, Slot::new(data, 0, tick));
        let capsule = Capsule { cid, sqe: sqe.with_sgl(sgl), transfer };
        self.capsules.get_or_insert_default().waiting.push_back(capsule);
    }

    /// Returns the next command to send.
    pub fn take_capsule(&mut self) -> Option<Capsule> {
        let capsule = self.capsules.as_mut()?.waiting.pop_front()?;
        if let Some(slot) = self.slots.outstanding(capsule.cid) {
            slot.is_taken = true;
        }
        Some(capsule)
    }

    /// Returns whether a command waits to be sent.
    pub fn has_capsule(&self) -> bool {
        self.capsules.as_ref().is_some_and(|capsules| !capsules.waiting.is_empty())
    }

    /// Drops the commands that were not sent, and takes their memory back.
    pub(super) fn withdraw_capsules(&mut self) {
        while let Some(capsule) = self.take_capsule() {
            if let Transfer::Sink(buffer, _) = capsule.transfer
                && let Some(slot) = self.slots.outstanding(capsule.cid)
                && let Data::Read(destination) = &mut slot.data
            {
                destination.put_back(buffer);
            }
        }
    }

    /// Takes an answer, and returns its command, whose memory the caller then takes back from the
    /// controller and returns with [`Self::returned`].
    ///
    /// # Errors
    /// The controller's violation of the transport; the connection has to end.
    pub fn receive_response(&mut self, message: &[u8]) -> Result<CommandId, ProtocolError> {
        let short = ProtocolError::ShortResponse(message.len());
        let cqe = CompletionQueueEntry::from_prefix(message).map_err(|_| short)?;
        let cid = cqe.command_id();
        // An answer that comes before its command would free the slot while its capsule waits.
        let is_expected = |slot: &&mut Slot| slot.is_taken && slot.answer.is_none();
        let slot = self.slots.outstanding(cid).filter(is_expected);
        let slot = slot.ok_or(ProtocolError::UnknownCommand(cid))?;
        slot.answer = Some(*cqe);
        Ok(cid)
    }

    /// Takes a command's memory back, to which the controller has no access any more: the buffer of
    /// a read. With its answer the command is finished.
    pub fn returned(&mut self, index: usize, buffer: Option<Buffer>) {
        let Some(cid) = self.slots.id_at(index) else { return };
        let Some(slot) = self.slots.outstanding(cid) else { return };
        if let (Data::Read(destination), Some(buffer)) = (&mut slot.data, buffer) {
            destination.put_back(buffer);
            slot.received_bytes = slot.data.len();
        }
        let Some(cqe) = slot.answer.take() else { return };
        let is_read = matches!(slot.data, Data::Read(_));
        let expected_bytes = if is_read { slot.data.len() } else { 0 };
        let received_bytes = slot.received_bytes;
        let outcome = if cqe.status().is_success() && received_bytes != expected_bytes {
            Outcome::DataUnderrun { received_bytes, expected_bytes }
        } else {
            Outcome::Completed(cqe)
        };
        self.finish(cid, outcome);
    }
}
