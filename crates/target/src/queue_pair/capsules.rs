//! A queue pair over RDMA: the same commands and states, with capsules as messages and data that the adapter moves.
//!
//! A host names the memory of a command's data by a keyed descriptor. It is replaced by a descriptor of the same length
//! that means data moved by the transport, so that executors see no difference, and kept here until the command ends. What
//! is to be done comes out of [`QueuePair::take_work`], in order.

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

/// Type and sub type that no descriptor has.
const ID_NONE: u8 = 0xff;

/// What the connection has to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// Read a command's data from the host's memory; [`QueuePair::put_data`] when that is done.
    Read {
        /// The command.
        tag: Tag,
        /// Where.
        remote: KeyedSgl,
        /// Memory for it.
        buffer: Buffer,
    },
    /// Write data to the host's memory.
    Write {
        /// Where.
        remote: KeyedSgl,
        /// The data.
        chunk: Chunk,
    },
    /// Send a response.
    Respond {
        /// The response.
        cqe: CompletionQueueEntry,
        /// Key that it invalidates.
        invalidate: Option<u32>,
        /// Memory to [release](QueuePair::release) when it was sent.
        reserved_bytes: usize,
    },
}

/// What a queue pair over RDMA has beside its commands.
#[derive(Debug, Default)]
pub(super) struct Capsules {
    /// The hosts' memory of each outstanding command, by its tag.
    remotes: Vec<Option<KeyedSgl>>,
    work: VecDeque<Work>,
}

impl QueuePair {
    /// The state of a connection over RDMA that was just accepted.
    pub(crate) fn over_rdma(limits: &Limits, budget: &Arc<Budget>) -> Self {
        Self {
            state: QueuePairState::AwaitingConnect,
            commands: Commands::new(2),
            capsules: Some(Box::default()),
            ..Self::sharing(limits, budget)
        }
    }

    /// Takes a capsule with the data that came in it.
    ///
    /// # Errors
    /// How the host violates the transport: the connection has to end.
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

    /// The next thing to do.
    pub(crate) fn take_work(&mut self) -> Option<Work> {
        self.capsules.as_mut()?.work.pop_front()
    }

    /// Whether there is something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.capsules.as_ref().is_some_and(|capsules| !capsules.work.is_empty())
    }

    /// A command's data was read.
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

    /// Has a command's data read; false if this is no connection over RDMA.
    pub(super) fn read_remote(&mut self, tag: Tag, bytes: u32) -> bool {
        let Some(capsules) = &mut self.capsules else { return false };
        let remote = capsules.remotes[usize::from(tag.0)];
        let Some(remote) = remote.filter(|remote| remote.length_bytes >= bytes) else {
            unreachable!("{tag:?} asks for {bytes} bytes of {remote:?}, which was checked before")
        };
        let remote = KeyedSgl { length_bytes: bytes, ..remote };
        let Some(buffer) = self.commands.get_mut(tag).data.take() else { return true };
        capsules.work.push_back(Work::Read { tag, remote, buffer });
        true
    }

    /// Has a command's data written and its response sent; gives the data back if this is no connection over RDMA.
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
            // The host gave a descriptor of data in the capsule, which there is none of for it.
            None => Status::SGL_TYPE_INVALID.do_not_retry(),
            Some(remote) if (remote.length_bytes as usize) < data.len() => {
                Status::SGL_DATA_LENGTH_INVALID.do_not_retry()
            }
            Some(remote) => {
                capsules.work.push_back(Work::Write { remote, chunk: data });
                Status::SUCCESS
            }
        };
        let result = if status.is_success() { result } else { 0 };
        self.respond_remote(tag, status, result, reserved_bytes);
        self.commands.remove(tag);
        None
    }

    /// Has a response sent; false if this is no connection over RDMA.
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

    /// Drops what is to be done.
    pub(super) fn clear_work(&mut self) {
        if let Some(capsules) = &mut self.capsules {
            capsules.work.clear();
        }
    }
}

/// Replaces a keyed descriptor and returns it. Other descriptors of data outside of the capsule become ones that no
/// executor takes: over RDMA they name nothing.
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

/// The part of in-capsule data that the descriptor gives; one that begins at its start takes no copy.
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
