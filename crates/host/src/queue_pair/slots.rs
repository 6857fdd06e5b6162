//! The table of outstanding commands, and their identifiers.
//!
//! A command identifier has the slot's index in its low bits and the slot's generation above, which
//! distinguishes a late answer from an answer to the slot's next command. The index of all ones is
//! never used, so no identifier is `FFFFh`, which some log pages reserve.

use super::{Data, Outcome};
use nvme::{CommandId, CompletionQueueEntry};

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No command.
    Free,
    /// The controller has the command, or it is queued for sending.
    Outstanding,
    /// The command is over; its outcome was not taken yet.
    Finished(Outcome),
}

/// A command's state.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) state: SlotState,
    generation: u16,
    pub(super) data: Data,
    /// Received bytes so far, all from the start without a gap.
    pub(super) received_bytes: u32,
    /// Bytes to the controller that were in the capsule or requested by R2T.
    pub(super) requested_bytes: u32,
    /// Number of R2Ts.
    pub(super) r2ts: u32,
    /// Whether the driver has taken the capsule to send it over RDMA.
    pub(super) is_taken: bool,
    /// The answer of a command whose memory the adapter still has.
    pub(super) answer: Option<CompletionQueueEntry>,
    /// Whether a data digest did not match.
    pub(super) has_bad_digest: bool,
    /// Whether no caller waits for the outcome.
    pub(super) is_forgotten: bool,
    /// The tick of its submission, if it has a deadline.
    tick: Option<u32>,
}

impl Slot {
    pub(super) fn new(data: Data, requested_bytes: u32, tick: Option<u32>) -> Self {
        Self {
            state: SlotState::Outstanding,
            generation: 0,
            data,
            received_bytes: 0,
            requested_bytes,
            r2ts: 0,
            is_taken: false,
            answer: None,
            has_bad_digest: false,
            is_forgotten: false,
            tick,
        }
    }

    /// Checks that no more than the command's data arrived or was requested.
    pub(super) fn assert_bounds(&self) {
        let bytes = self.data.len();
        assert!(
            self.received_bytes <= bytes && self.requested_bytes <= bytes,
            "of {bytes} bytes {} have arrived and {} were requested, {:?}",
            self.received_bytes,
            self.requested_bytes,
            self.state
        );
    }

    fn free() -> Self {
        Self { state: SlotState::Free, ..Self::new(Data::None, 0, None) }
    }
}

/// All slots of a queue pair.
#[derive(Debug)]
pub(super) struct Slots {
    table: Vec<Slot>,
    free: Vec<u16>,
    index_bits: u32,
}

impl Slots {
    pub(super) fn new(depth: u16) -> Self {
        let index_bits = u16::BITS - depth.leading_zeros();
        Self {
            table: (0..depth).map(|_| Slot::free()).collect(),
            free: (0..depth).rev().collect(),
            index_bits,
        }
    }

    pub(super) fn occupied(&self) -> u16 {
        (self.table.len() - self.free.len()) as u16
    }

    pub(super) fn index(&self, cid: CommandId) -> usize {
        usize::from(cid.get() & ((1 << self.index_bits) - 1))
    }

    fn generation_mask(&self) -> u16 {
        u16::MAX.checked_shr(self.index_bits).unwrap_or(0)
    }

    fn id(&self, index: u16, generation: u16) -> CommandId {
        CommandId(index | generation.checked_shl(self.index_bits).unwrap_or(0))
    }

    /// Reserves a free slot and gives it a new identifier. [`Self::occupy`] must follow.
    pub(super) fn take_free(&mut self) -> Option<CommandId> {
        let index = self.free.pop()?;
        let mask = self.generation_mask();
        let slot = &mut self.table[usize::from(index)];
        assert_eq!(
            slot.state,
            SlotState::Free,
            "slot {index} is taken although its command is not over"
        );
        slot.generation = slot.generation.wrapping_add(1) & mask;
        let generation = slot.generation;
        Some(self.id(index, generation))
    }

    pub(super) fn occupy(&mut self, cid: CommandId, slot: Slot) {
        let index = self.index(cid);
        let Slot { generation, state, .. } = self.table[index];
        assert_eq!(state, SlotState::Free, "{cid:?} takes the slot of a command that is not over");
        assert_eq!(
            self.id(index as u16, generation),
            cid,
            "the slot of {cid:?} has the generation {generation} by now"
        );
        self.table[index] = Slot { generation, ..slot };
    }

    /// Returns the identifier of the command in the slot of this index.
    pub(super) fn id_at(&self, index: usize) -> Option<CommandId> {
        let slot = self.table.get(index).filter(|slot| slot.state != SlotState::Free)?;
        Some(self.id(index as u16, slot.generation))
    }

    /// Returns the slot of a command that is outstanding or finished.
    pub(super) fn get_mut(&mut self, cid: CommandId) -> Option<&mut Slot> {
        let index = self.index(cid);
        let generation = cid.get().checked_shr(self.index_bits).unwrap_or(0);
        self.table
            .get_mut(index)
            .filter(|slot| slot.generation == generation && slot.state != SlotState::Free)
    }

    /// Returns the slot of a command that is outstanding.
    pub(super) fn outstanding(&mut self, cid: CommandId) -> Option<&mut Slot> {
        self.get_mut(cid).filter(|slot| slot.state == SlotState::Outstanding)
    }

    pub(super) fn release(&mut self, cid: CommandId) {
        let index = self.index(cid);
        let before = std::mem::replace(&mut self.table[index].state, SlotState::Free);
        assert!(
            before != SlotState::Free && self.free.len() < self.table.len(),
            "the slot of {cid:?} is freed twice, {} of {} are free",
            self.free.len(),
            self.table.len()
        );
        self.free.push(index as u16);
    }

    /// Ends an outstanding command. If no caller waits for it, frees the slot and returns false.
    pub(super) fn finish(&mut self, cid: CommandId, outcome: Outcome) -> bool {
        let Some(slot) = self.outstanding(cid) else { return false };
        if slot.is_forgotten {
            slot.data = Data::None;
            self.release(cid);
            return false;
        }
        slot.state = SlotState::Finished(outcome);
        true
    }

    /// Ends all outstanding commands, and calls `each` for those with a waiting caller.
    pub(super) fn finish_all(&mut self, outcome: Outcome, mut each: impl FnMut(CommandId)) {
        for index in 0..self.table.len() as u16 {
            let cid = self.id(index, self.table[usize::from(index)].generation);
            if self.outstanding(cid).is_some() && self.finish(cid, outcome) {
                each(cid);
            }
        }
    }

    /// Returns whether the controller has a command.
    pub(super) fn any_outstanding(&self) -> bool {
        self.table.iter().any(|slot| slot.state == SlotState::Outstanding)
    }

    pub(super) fn any_older_than(&self, now: u32, ticks: u32) -> bool {
        self.table.iter().any(|slot| {
            slot.state == SlotState::Outstanding
                && slot.tick.is_some_and(|tick| now.wrapping_sub(tick) > ticks)
        })
    }
}
