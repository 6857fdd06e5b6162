//! Reply slots: each has at most one running call, so that a repeated call gets its first answer.
//!
//! Calls wait for others: a create for the return of a right, a lock for its release. So the calls
//! that end such waits have slots of their own, and locks that wait leave many to the others.
//!
//! Sequence numbers only grow, also over a lost session, so that running calls keep theirs.

use protocol::client::{Call, ChangeCall, SLOTS_PER_SESSION, Slot};
use reactor::local::{Permit, Semaphore};
use reactor::{Either, race};
use std::cell::RefCell;
use std::rc::Rc;

/// Slots for calls that end waits of others ([`ends_waits`]) alone.
const RESERVED: usize = 16;

/// Most locks that wait at the service, each in a slot.
pub(crate) const LOCK_WAITS_MAX: usize = 128;

const _: () = assert!(RESERVED + LOCK_WAITS_MAX < SLOTS_PER_SESSION as usize);

/// Returns whether a call may end another call's wait.
fn ends_waits(call: &Call) -> bool {
    matches!(
        call,
        Call::Change(
            ChangeCall::Unlock(_) | ChangeCall::Commit { .. } | ChangeCall::ReturnSpace { .. }
        )
    )
}

/// All slots of a session.
pub(super) struct Slots {
    /// Slots for all calls.
    permits: Semaphore,
    reserved: Semaphore,
    state: Rc<RefCell<State>>,
}

struct State {
    free: Vec<u16>,
    sequences: Vec<u64>,
}

/// A slot in use. Clones stand for the same call; the slot is free when the last one is dropped.
#[derive(Clone)]
pub(super) struct SlotGuard(Rc<Guard>);

struct Guard {
    slot: Slot,
    state: Rc<RefCell<State>>,
    _permit: Permit,
}

impl Slots {
    pub(super) fn new() -> Slots {
        let count = SLOTS_PER_SESSION;
        let state = State {
            // Low numbers are used first, so that the service stores few slots of idle clients.
            free: (0..count).rev().collect(),
            sequences: vec![0; usize::from(count)],
        };
        let permits = Semaphore::new(usize::from(count) - RESERVED);
        let reserved = Semaphore::new(RESERVED);
        Slots { permits, reserved, state: Rc::new(RefCell::new(state)) }
    }

    /// Takes a slot for a new call.
    pub(super) async fn take(&self, call: &Call) -> SlotGuard {
        let permit = if ends_waits(call) {
            match race(self.permits.acquire(1), self.reserved.acquire(1)).await {
                Either::First(permit) | Either::Second(permit) => permit,
            }
        } else {
            self.permits.acquire(1).await
        };
        let mut state = self.state.borrow_mut();
        let slot = state.free.pop().expect("there are as many slots as permits");
        state.sequences[usize::from(slot)] += 1;
        let sequence = state.sequences[usize::from(slot)];
        let slot = Slot { slot, sequence };
        SlotGuard(Rc::new(Guard { slot, state: Rc::clone(&self.state), _permit: permit }))
    }
}

impl SlotGuard {
    /// Returns the slot, for the call.
    pub(super) fn slot(&self) -> Slot {
        self.0.slot
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        // With two calls in one slot, one of them would get the other's answer.
        assert!(
            state.sequences[usize::from(self.slot.slot)] == self.slot.sequence
                && state.free.len() < state.sequences.len(),
            "{:?} is freed, and its slot is at {}",
            self.slot,
            state.sequences[usize::from(self.slot.slot)]
        );
        state.free.push(self.slot.slot);
    }
}
