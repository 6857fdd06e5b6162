//! The buffer memory of a queue pair's commands, from the budget that all connections share.

use super::{CommandState, Event, QueuePair, Tag};

impl QueuePair {
    /// Reserves buffer memory for a command. If there is none now, returns false, and
    /// [`Event::Reserved`] follows later. The memory is released when the command completes, or
    /// when its data was sent.
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
        // One command always passes the connection's own limit, however large it is.
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

    /// Releases the buffer memory of sent data.
    pub fn release(&mut self, bytes: usize) {
        assert!(
            bytes <= self.reserved_bytes,
            "{bytes} bytes of memory are released, but only {} are reserved",
            self.reserved_bytes
        );
        self.reserved_bytes -= bytes;
        self.share.shrink(self.reserved_bytes);
        self.retry_memory();
    }

    /// Returns whether a command waits for memory that other connections hold. The caller retries
    /// by [`Self::retry_memory`] when the budget has memory.
    pub fn awaits_budget(&self) -> bool {
        self.awaits_budget && !self.awaiting_memory.is_empty()
    }

    /// Lets waiting commands continue as far as there is memory. Returns true if any does.
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

    /// Returns the buffer memory of commands and unsent data.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }
}
