//! The outstanding commands of a queue pair.

use nvme::SubmissionQueueEntry;
use reactor::Buffer;

/// Identifies an outstanding command of one queue pair. It is the transfer tag of its R2T too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub(crate) u16);

/// The state of a slot for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// The slot has no command.
    Free,
    /// The command has arrived and its executor has it or will get it.
    Executing,
    /// The executor has requested buffer memory, and none is free now.
    AwaitingMemory,
    /// The R2T was sent, and its data has not arrived in full.
    AwaitingData,
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) sqe: SubmissionQueueEntry,
    pub(crate) state: CommandState,
    /// The received data, or room for it.
    pub(crate) data: Option<Buffer>,
    /// Bytes that the R2T requested.
    pub(crate) expected_bytes: u32,
    pub(crate) received_bytes: u32,
    /// Buffer memory that is reserved for this command.
    pub(crate) reserved_bytes: usize,
    /// The identity of the command's namespace as of its first check.
    pub(crate) namespace: Option<u64>,
    /// Whether a data digest did not match: the command must fail.
    pub(crate) is_damaged: bool,
    /// Whether another host's Preempt and Abort arrived while the command waited for memory or
    /// data.
    pub(crate) is_aborted: bool,
}

impl Command {
    fn free() -> Self {
        Self {
            sqe: SubmissionQueueEntry::default(),
            state: CommandState::Free,
            data: None,
            expected_bytes: 0,
            received_bytes: 0,
            reserved_bytes: 0,
            namespace: None,
            is_damaged: false,
            is_aborted: false,
        }
    }
}

/// All slots of a queue pair.
#[derive(Debug)]
pub(crate) struct Commands {
    slots: Vec<Command>,
    free: Vec<u16>,
}

impl Commands {
    pub(crate) fn new(entries: u16) -> Self {
        let mut commands = Self { slots: Vec::new(), free: Vec::new() };
        commands.grow(entries);
        commands
    }

    /// Makes room for `entries` commands.
    pub(crate) fn grow(&mut self, entries: u16) {
        while self.slots.len() < usize::from(entries) {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Command::free());
        }
    }

    /// Takes a slot. Returns [`None`] if the host has more commands outstanding than its queue has
    /// entries.
    pub(crate) fn insert(
        &mut self,
        sqe: &SubmissionQueueEntry,
        data: Option<Buffer>,
    ) -> Option<Tag> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        assert_eq!(slot.state, CommandState::Free, "slot {index} is taken twice");
        slot.sqe = *sqe;
        slot.state = CommandState::Executing;
        slot.data = data;
        slot.expected_bytes = 0;
        slot.received_bytes = 0;
        slot.reserved_bytes = 0;
        slot.namespace = None;
        slot.is_damaged = false;
        slot.is_aborted = false;
        Some(Tag(index))
    }

    pub(crate) fn get(&self, tag: Tag) -> &Command {
        &self.slots[usize::from(tag.0)]
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> &mut Command {
        &mut self.slots[usize::from(tag.0)]
    }

    /// Returns the outstanding command with an identifier.
    pub(crate) fn find(&self, cid: nvme::CommandId) -> Option<Tag> {
        let is_it =
            |slot: &Command| slot.state != CommandState::Free && slot.sqe.command_id() == cid;
        self.slots.iter().position(is_it).map(|index| Tag(index as u16))
    }

    /// Returns the slot with a transfer tag from the wire, which may be any number.
    pub(crate) fn find_mut(&mut self, ttag: u16) -> Option<&mut Command> {
        self.slots.get_mut(usize::from(ttag))
    }

    /// Marks the commands of a namespace that wait for memory or data as aborted.
    pub(crate) fn abort_waiting(&mut self, nsid: nvme::Nsid) {
        for slot in &mut self.slots {
            let waits =
                matches!(slot.state, CommandState::AwaitingMemory | CommandState::AwaitingData);
            slot.is_aborted |= waits && slot.sqe.namespace_id() == nsid;
        }
    }

    /// Frees a slot.
    pub(crate) fn remove(&mut self, tag: Tag) {
        let slot = self.get_mut(tag);
        assert_ne!(slot.state, CommandState::Free, "a command ends once");
        slot.state = CommandState::Free;
        slot.data = None;
        self.free.push(tag.0);
        assert!(
            self.free.len() <= self.slots.len(),
            "{} of {} slots are free after {tag:?}",
            self.free.len(),
            self.slots.len()
        );
    }

    /// Returns the number of outstanding commands.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
