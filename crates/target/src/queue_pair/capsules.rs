//! A queue pair over RDMA: the same commands and states, but capsules are messages and the adapter
//! moves the data.
//!
//! A host names the memory for a command's data in a keyed descriptor. The queue pair keeps this
//! descriptor until the command ends, and puts a descriptor for data of the same length that the
//! transport moves in its place. So executors see no difference. [`QueuePair::take_work`] returns
//! the resulting work, in order.

use super::command::{CommandState, Commands, Tag};
use super::{Event, QueuePair, QueuePairState};
use crate::budget::Budget;
use crate::limits::Limits;
use nvme::rdma::KeyedSgl;
use nvme::sgl::{Sgl, SglDescriptor};
use nvme::{CompletionQueueEntry, Status, SubmissionQueueEntry};
use reactor::{Buffer, Chunk};
use std::collections::VecDeque;
use std::sync::Arc;

/// Descriptor type and sub type that no descriptor has.
const ID_NONE: u8 = 0xff;

/// Work for the connection.
#[derive(Debug)]
pub(crate) enum Work {
    /// Read a command's data from the host's memory, then call [`QueuePair::put_data`].
    Read {
        /// The command.
        tag: Tag,
        /// The host's memory.
        remote: KeyedSgl,
        /// Buffer for the data.
        buffer: Buffer,
    },
    /// Write data to the host's memory.
    Write {
        /// The host's memory.
        remote: KeyedSgl,
        /// The data.
        chunk: Chunk,
    },
    /// Send a response.
    Respond {
        /// The response.
        cqe: CompletionQueueEntry,
        /// The key that the response invalidates.
        invalidate: Option<u32>,
        /// Memory to [release](QueuePair::release) after the response was sent.
        reserved_bytes: usize,
    },
}

/// The additional state of a queue pair over RDMA.
#[derive(Debug, Default)]
pub(super) struct Capsules {
    /// The host's memory for each outstanding command, by its tag.
    remotes: Vec<Option<KeyedSgl>>,
    work: VecDeque<Work>,
    /// Bytes of data to be written, in `work`.
    write_bytes: usize,
}

impl Capsules {
    /// Returns the number of bytes that wait to be written to the host's memory.
    pub(super) fn write_bytes(&self) -> usize {
        self.write_bytes
    }
}

impl QueuePair {
    /// Creates the state of a newly accepted connection over RDMA.
    pub(crate) fn over_rdma(limits: &Limits, budget: &Arc<Budget>) -> Self {
        Self {
            state: QueuePairState::AwaitingConnect,
            commands: Commands::new(2),
            capsules: Some(Box::default()),
            ..Self::sharing(limits, budget)
        }
    }

    /// Takes a capsule and the data in it.
    ///
    /// # Errors
    /// The host's violation of the transport: the connection has to end.
    pub(crate) fn receive_capsule(
        &mut self,
        head: &[u8],
        data: Option<Buffer>,
    ) -> Result<(), &'static str> {
        let Ok(sqe) = SubmissionQueueEntry::from_prefix(head) else {
            return Err("a command is shorter than 64 bytes");
        };
        let mut sqe = *sqe;
        let remote = localise(&mut sqe);
        let data = data.and_then(|data| described(&sqe, data));
        let Some(tag) = self.commands.insert(&sqe, data) else {
            return Err("the host has more commands outstanding than its queue has entries");
        };
        let Some(capsules) = &mut self.capsules else {
            return Err("it is no connection over RDMA");
        };
        let index = usize::from(tag.0);
        if capsules.remotes.len() <= index {
            capsules.remotes.resize(index + 1, None);
        }
        capsules.remotes[index] = remote;
        if self.state == QueuePairState::Connected {
            self.advance_head();
        }
        self.events.push_back(Event::Command(tag));
        Ok(())
    }

    /// Returns the next work.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        let capsules = self.capsules.as_mut()?;
        let work = capsules.work.pop_front()?;
        if let Work::Write { chunk, .. } = &work {
            capsules.write_bytes -= chunk.len();
        }
        Some(work)
    }

    /// Returns whether there is work.
    pub(crate) fn has_work(&self) -> bool {
        self.capsules.as_ref().is_some_and(|capsules| !capsules.work.is_empty())
    }

    /// Takes a command's data, which the adapter has read.
    pub(crate) fn put_data(&mut self, tag: Tag, data: Buffer) {
        let command = self.commands.get_mut(tag);
        assert_eq!(command.state, CommandState::AwaitingData, "{tag:?} gets data");
        let (expected, got) = (command.expected_bytes, data.len());
        assert_eq!(expected as usize, got, "{tag:?} gets data of another length");
        command.received_bytes = expected;
        command.data = Some(data);
        command.state = CommandState::Executing;
        self.awaiting_data -= 1;
        self.large_transfers -= usize::from(got >= super::LARGE_TRANSFER_BYTES);
        self.events.push_back(Event::Data(tag));
    }

    /// Requests a read of a command's data. Returns false if this is not a connection over RDMA.
    pub(super) fn read_remote(&mut self, tag: Tag, bytes: u32) -> bool {
        let Some(capsules) = &mut self.capsules else { return false };
        let remote = capsules.remotes[usize::from(tag.0)];
        let Some(remote) = remote.filter(|remote| remote.length_bytes >= bytes) else {
            unreachable!(
                "{tag:?} asks for {bytes} bytes of {remote:?}, although its length was checked"
            )
        };
        let remote = KeyedSgl { length_bytes: bytes, ..remote };
        let Some(buffer) = self.commands.get_mut(tag).data.take() else { return true };
        capsules.work.push_back(Work::Read { tag, remote, buffer });
        true
    }

    /// Requests a write of a command's data and then its response. Returns the data if this is not
    /// a connection over RDMA.
    pub(super) fn write_remote(
        &mut self,
        tag: Tag,
        data: Chunk,
        result: u64,
        reserved_bytes: usize,
    ) -> Option<Chunk> {
        let Some(capsules) = &mut self.capsules else { return Some(data) };
        let remote = capsules.remotes[usize::from(tag.0)];
        let status = match remote {
            // The descriptor names data in the capsule, which cannot take data for the host.
            None => Status::SGL_TYPE_INVALID.do_not_retry(),
            Some(remote) if (remote.length_bytes as usize) < data.len() => {
                Status::SGL_DATA_LENGTH_INVALID.do_not_retry()
            }
            Some(remote) => {
                capsules.write_bytes += data.len();
                capsules.work.push_back(Work::Write { remote, chunk: data });
                Status::SUCCESS
            }
        };
        let result = if status.is_success() { result } else { 0 };
        self.respond_remote(tag, status, result, reserved_bytes);
        self.commands.remove(tag);
        None
    }

    /// Requests the sending of a response. Returns false if this is not a connection over RDMA.
    pub(super) fn respond_remote(
        &mut self,
        tag: Tag,
        status: Status,
        result: u64,
        reserved_bytes: usize,
    ) -> bool {
        let cqe = self.response(tag, status, result);
        let Some(capsules) = &mut self.capsules else { return false };
        let remote = capsules.remotes[usize::from(tag.0)].take();
        let invalidate = remote.filter(|it| it.invalidates).map(|it| it.key);
        capsules.work.push_back(Work::Respond { cqe, invalidate, reserved_bytes });
        true
    }

    /// Drops all work.
    pub(super) fn clear_work(&mut self) {
        if let Some(capsules) = &mut self.capsules {
            capsules.work.clear();
            capsules.write_bytes = 0;
        }
    }
}

/// Replaces a keyed descriptor and returns it. Other descriptors of data outside of the capsule get
/// a type that no executor accepts, because over RDMA they name no memory.
fn localise(sqe: &mut SubmissionQueueEntry) -> Option<KeyedSgl> {
    if let Some(keyed) = KeyedSgl::decode(&sqe.sgl1) {
        sqe.sgl1 = SglDescriptor::transport(keyed.length_bytes);
        return (keyed.length_bytes > 0).then_some(keyed);
    }
    if matches!(sqe.sgl1.decode(), Ok(Sgl::Transport { .. })) {
        sqe.sgl1.id = ID_NONE;
    }
    None
}

/// Returns the part of in-capsule data that the descriptor names. A part that begins at the start
/// of the data is not copied.
fn described(sqe: &SubmissionQueueEntry, data: Buffer) -> Option<Buffer> {
    let Ok(Sgl::InCapsule { offset_bytes, .. }) = sqe.sgl1.decode() else { return Some(data) };
    if offset_bytes == 0 {
        return Some(data);
    }
    let rest = usize::try_from(offset_bytes).ok().and_then(|offset| data.get(offset..))?;
    (!rest.is_empty()).then(|| Buffer::copy_from(rest))
}

#[cfg(test)]
mod tests;
