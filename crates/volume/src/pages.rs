//! The places of metadata pages: positions identify them, slots contain them.
//!
//! A page keeps its position and is written to another slot each time. The former slot is free only
//! when the metadata that no longer name it are durable. There are twice as many slots as pages, so
//! a commit always finds free ones.

use crate::layout::{Layout, POINTERS};
use crate::page::Pointer;
use std::collections::BTreeSet;

/// The positions and slots of a pool.
#[derive(Debug)]
pub(crate) struct Pages {
    /// By position.
    pub(crate) pointers: Vec<Pointer>,
    free_positions: Vec<u32>,
    pub(crate) indexes: Vec<Pointer>,
    pub(crate) root: Pointer,
    pub(crate) dirty_indexes: BTreeSet<usize>,
    free_slots: Vec<u32>,
    /// Slots that the durable metadata name and the next ones do not.
    released: Vec<u32>,
}

impl Pages {
    /// Returns the pages of a pool with metadata that name `pointers` by `indexes` and `root`.
    /// `is_used` has an entry for each slot, counted from 1; the first is not used.
    pub(crate) fn new(
        layout: &Layout,
        pointers: Vec<Pointer>,
        indexes: Vec<Pointer>,
        root: Pointer,
        is_used: &[bool],
    ) -> Self {
        assert_eq!(pointers.len(), layout.positions as usize, "positions");
        assert_eq!(indexes.len(), layout.indexes(), "indexes");
        let free = |position: &u32| pointers[*position as usize].is_none();
        let free_positions = (0..layout.positions).rev().filter(free).collect();
        let free_slots = (1..=layout.slots).rev().filter(|slot| !is_used[*slot as usize]).collect();
        Self {
            pointers,
            free_positions,
            indexes,
            root,
            dirty_indexes: BTreeSet::new(),
            free_slots,
            released: Vec::new(),
        }
    }

    /// Returns the number of free positions.
    pub(crate) fn free_positions(&self) -> usize {
        self.free_positions.len()
    }

    /// Returns the number of positions in use: map and volume pages.
    pub(crate) fn live(&self) -> u32 {
        (self.pointers.len() - self.free_positions.len()) as u32
    }

    pub(crate) fn take_position(&mut self) -> Option<u32> {
        self.free_positions.pop()
    }

    pub(crate) fn release_position(&mut self, position: u32) {
        self.point(position, Pointer::NONE);
        self.free_positions.push(position);
    }

    /// Sets the slot of a new version of a page.
    pub(crate) fn point(&mut self, position: u32, pointer: Pointer) {
        let old = std::mem::replace(&mut self.pointers[position as usize], pointer);
        self.release(old);
        self.dirty_indexes.insert(position as usize / POINTERS);
    }

    /// Sets the slot of a new version of an index page.
    pub(crate) fn point_index(&mut self, index: usize, pointer: Pointer) {
        let old = std::mem::replace(&mut self.indexes[index], pointer);
        self.release(old);
    }

    /// Sets the slot of a new version of the root page.
    pub(crate) fn point_root(&mut self, pointer: Pointer) {
        let old = std::mem::replace(&mut self.root, pointer);
        self.release(old);
    }

    fn release(&mut self, old: Pointer) {
        if old.is_none() {
            return;
        }
        if reactor::mutant!("volume-page-overwritten") {
            self.free_slots.push(old.slot);
        } else {
            self.released.push(old.slot);
        }
    }

    /// Allocates a slot that no durable metadata name.
    ///
    /// # Panics
    /// If there is none, which is impossible: there are twice as many as pages.
    pub(crate) fn take_slot(&mut self) -> u32 {
        self.free_slots.pop().expect("there are twice as many slots as pages")
    }

    /// Takes the slots that become free when the metadata are durable.
    pub(crate) fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }

    /// Frees slots.
    pub(crate) fn free(&mut self, slots: Vec<u32>) {
        self.free_slots.extend(slots);
    }

    /// Returns the pointers of an index page.
    pub(crate) fn of_index(&self, index: usize) -> &[Pointer] {
        let start = index * POINTERS;
        &self.pointers[start..(start + POINTERS).min(self.pointers.len())]
    }
}
