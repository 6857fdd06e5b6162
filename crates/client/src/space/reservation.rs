//! Reservations for bytes that were written: memory, and blocks of a device.
//!
//! A [`Reservation`] releases what it holds when it is dropped, on every path. It goes from the
//! writer to the fill, and from there to the task that writes the fill out. Blocks belong to the
//! session that leased them. A session that is lost leaves its count behind, and what is released
//! to that count has no effect on the next session.

use protocol::DeviceId;
use reactor::local::Semaphore;
use std::cell::Cell;
use std::rc::Rc;

/// Counts the blocks of one device that one session has reserved.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved(Rc<Cell<u64>>);

impl Reserved {
    /// Returns how many blocks are reserved.
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    /// Reserves blocks.
    pub(crate) fn take(&self, device: DeviceId, blocks: u64) -> Blocks {
        self.0.set(self.0.get() + blocks);
        Blocks { device, count: Some(self.clone()), number: blocks }
    }

    /// Releases blocks.
    fn give_back(&self, device: DeviceId, blocks: u64) {
        let before = self.0.get();
        assert!(
            before >= blocks,
            "{blocks} blocks of {device} are given back, and {before} are set aside"
        );
        self.0.set(before - blocks);
    }

    /// Returns whether both are the same count.
    fn is_same(&self, other: &Reserved) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// Blocks of one device that are reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct Blocks {
    device: DeviceId,
    /// The count that they are in. `None` for no blocks of a device without a lease.
    count: Option<Reserved>,
    number: u64,
}

impl Blocks {
    /// Returns no blocks of a device.
    pub(crate) fn none(device: DeviceId) -> Blocks {
        Blocks { device, count: None, number: 0 }
    }

    /// Returns how many blocks there are.
    pub(crate) fn get(&self) -> u64 {
        self.number
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns whether they were reserved in the session that keeps this count, or are none.
    pub(crate) fn are_of(&self, present: &Reserved) -> bool {
        self.number == 0 || self.count.as_ref().is_some_and(|count| count.is_same(present))
    }

    /// Releases `blocks`, or all if there are fewer: they are allocated now, or not needed.
    pub(crate) fn release(&mut self, blocks: u64) {
        let released = blocks.min(self.number);
        self.number -= released;
        if let Some(count) = &self.count {
            count.give_back(self.device, released);
        }
    }

    /// Splits off all but `kept` blocks.
    fn split_off(&mut self, kept: u64) -> Blocks {
        let rest = self.number.saturating_sub(kept);
        self.number -= rest;
        Blocks { device: self.device, count: self.count.clone(), number: rest }
    }

    /// Adds blocks of the same device, reserved in the same session.
    fn join(&mut self, mut other: Blocks) {
        assert_eq!(self.device, other.device, "blocks of two devices are joined");
        if self.number == 0 {
            std::mem::swap(self, &mut other);
        }
        let is_of_one_session = other.count.as_ref().is_none_or(|other| self.are_of(other));
        assert!(
            other.number == 0 || is_of_one_session,
            "blocks of {}, set aside in two sessions, are joined",
            self.device
        );
        self.number += std::mem::take(&mut other.number);
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.release(self.number);
    }
}

/// Memory and blocks for bytes that were written.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Memory,
    /// The blocks.
    pub(crate) blocks: Blocks,
}

/// Bytes of the budget for dirty data. They go back when this is dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Semaphore,
    bytes: usize,
}

impl Memory {
    /// Takes over the bytes of a permit.
    pub(crate) fn acquired(
        budget: &Semaphore,
        permit: reactor::local::Permit,
        bytes: usize,
    ) -> Memory {
        permit.forget();
        Memory { budget: budget.clone(), bytes }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.add(self.bytes);
        }
    }
}

impl Reservation {
    /// Joins memory and blocks.
    pub(crate) fn new(memory: Memory, blocks: Blocks) -> Reservation {
        Reservation { memory, blocks }
    }

    /// Returns an empty one, of the same budget and device.
    pub(crate) fn empty(&self) -> Reservation {
        let memory = Memory { budget: self.memory.budget.clone(), bytes: 0 };
        Reservation { memory, blocks: Blocks::none(self.blocks.device) }
    }

    /// Returns how many bytes of memory it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// Splits off `bytes` of memory, and all blocks.
    pub(crate) fn take(&mut self, bytes: usize) -> Reservation {
        assert!(
            bytes <= self.memory.bytes,
            "{bytes} bytes are placed on {}, and {} are set aside",
            self.blocks.device,
            self.memory.bytes
        );
        self.memory.bytes -= bytes;
        let memory = Memory { budget: self.memory.budget.clone(), bytes };
        Reservation { memory, blocks: self.blocks.split_off(0) }
    }

    /// Adds another reservation.
    pub(crate) fn join(&mut self, mut other: Reservation) {
        self.memory.bytes += std::mem::take(&mut other.memory.bytes);
        let none = Blocks::none(other.blocks.device);
        self.blocks.join(std::mem::replace(&mut other.blocks, none));
    }

    /// Splits off the blocks beyond `kept`.
    pub(crate) fn spare(&mut self, kept: u64) -> Blocks {
        self.blocks.split_off(kept)
    }

    /// Adds blocks.
    pub(crate) fn add_blocks(&mut self, blocks: Blocks) {
        self.blocks.join(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    fn reservation(budget: &Semaphore, count: &Reserved) -> Reservation {
        let permit = budget.try_acquire(100).unwrap();
        Reservation::new(Memory::acquired(budget, permit, 100), count.take(DEVICE, 8))
    }

    /// Goal: each byte and block of a reservation comes back once, wherever its parts go.
    #[test]
    fn what_is_dropped_comes_back_once() {
        let (budget, count) = (Semaphore::new(1000), Reserved::default());
        let mut whole = reservation(&budget, &count);
        let mut first = whole.take(60);
        assert_eq!((first.bytes(), first.blocks.get(), whole.blocks.get()), (60, 8, 0));
        let spare = first.spare(5);
        whole.add_blocks(spare);
        first.blocks.release(2);
        assert_eq!((budget.available(), count.get()), (900, 6));
        drop(first);
        assert_eq!((budget.available(), count.get()), (960, 3));
        whole.join(reservation(&budget, &count));
        assert_eq!((budget.available(), count.get()), (860, 11));
        drop(whole);
        assert_eq!((budget.available(), count.get()), (1000, 0));
    }

    /// Goal: the reservations of a lost session do not lower the count of the next.
    #[test]
    fn a_lost_session_takes_its_count_along() {
        let lost = Reserved::default();
        let old = lost.take(DEVICE, 4);
        let present = Reserved::default();
        let new = present.take(DEVICE, 3);
        assert!(!old.are_of(&present) && new.are_of(&present));
        assert!(Blocks::none(DEVICE).are_of(&present));
        drop(old);
        assert_eq!((lost.get(), present.get()), (0, 3));
    }
}
