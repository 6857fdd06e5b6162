//! The operations in flight of one reactor, in a slab of boxed, recycled slots.
//!
//! A slot is boxed because the kernel gets the addresses of its arguments (message header, socket
//! address). It is recycled so that an operation allocates nothing in the steady state.

use crate::engine::Arguments;
use crate::handle::Handle;
use crate::operation::{Completion, Operation};
use std::net::SocketAddr;
use std::task::{Poll, Waker};

/// The state of a slot's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// The slot waits for its next use.
    Free,
    /// The operation was queued and has not completed.
    Pending,
    /// It has completed and its future has not taken the result.
    Done,
    /// Its future is gone; everything is kept until it completes.
    Orphaned,
}

/// The rest of an operation that has ended.
pub(crate) type Ended = (Handle, Completion);

pub(crate) struct Slot {
    pub(crate) state: SlotState,
    /// Distinguishes this use of the slot from former ones, so that a late cancellation cannot
    /// affect a new one.
    pub(crate) generation: u32,
    pub(crate) code: i32,
    /// The runner on whose ring the operation is.
    pub(crate) runner: u16,
    pub(crate) handle: Option<Handle>,
    pub(crate) operation: Option<Operation>,
    pub(crate) accepted: Option<(Handle, SocketAddr)>,
    pub(crate) waker: Option<Waker>,
    pub(crate) arguments: Arguments,
}

impl Slot {
    /// Empties the slot for its next use.
    fn take(&mut self) -> Option<Ended> {
        self.state = SlotState::Free;
        self.generation = self.generation.wrapping_add(1);
        self.waker = None;
        let accepted = self.accepted.take();
        let (handle, operation) = (self.handle.take()?, self.operation.take()?);
        Some((handle, Completion { code: self.code, operation, accepted }))
    }
}

#[derive(Default)]
pub(crate) struct Slots {
    #[allow(clippy::vec_box, reason = "the kernel knows addresses inside of slots")]
    all: Vec<Box<Slot>>,
    free: Vec<u32>,
    in_flight: usize,
}

impl Slots {
    /// Returns the number of operations that have not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn get(&mut self, key: u32) -> &mut Slot {
        &mut self.all[key as usize]
    }

    /// Stores an operation and returns its key.
    pub(crate) fn insert(&mut self, handle: Handle, operation: Operation) -> u32 {
        let key = self.free.pop().unwrap_or_else(|| {
            self.all.push(Box::new(Slot {
                state: SlotState::Free,
                generation: 0,
                code: 0,
                runner: 0,
                handle: None,
                operation: None,
                accepted: None,
                waker: None,
                arguments: Arguments::default(),
            }));
            self.all.len() as u32 - 1
        });
        let slot = self.get(key);
        debug_assert_eq!(slot.state, SlotState::Free, "a slot has one user");
        slot.state = SlotState::Pending;
        slot.handle = Some(handle);
        slot.operation = Some(operation);
        self.in_flight += 1;
        key
    }

    /// Returns the completion, or registers the waker.
    pub(crate) fn poll(&mut self, key: u32, waker: &Waker) -> Poll<Ended> {
        let slot = self.get(key);
        match slot.state {
            SlotState::Done => {
                let completion = slot.take().expect("a slot in use is full");
                self.free.push(key);
                Poll::Ready(completion)
            }
            SlotState::Pending => {
                if !slot.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                    slot.waker = Some(waker.clone());
                }
                Poll::Pending
            }
            SlotState::Free | SlotState::Orphaned => unreachable!("only a live future polls"),
        }
    }

    /// Records a result. Returns the task to wake, or the value to drop, outside any borrow.
    pub(crate) fn complete(&mut self, key: u32, code: i32) -> (Option<Waker>, Option<Ended>) {
        self.in_flight -= 1;
        let slot = self.get(key);
        slot.code = code;
        if slot.state == SlotState::Orphaned {
            let rest = slot.take();
            self.free.push(key);
            return (None, rest);
        }
        debug_assert_eq!(slot.state, SlotState::Pending, "one completion per operation");
        slot.state = SlotState::Done;
        (slot.waker.take(), None)
    }

    /// Records that the future is gone. Releases a result, or keeps everything until one comes
    /// (then `true`).
    pub(crate) fn orphan(&mut self, key: u32) -> (bool, Option<Ended>) {
        let slot = self.get(key);
        match slot.state {
            SlotState::Done => {
                let rest = slot.take();
                self.free.push(key);
                (false, rest)
            }
            SlotState::Pending => {
                slot.state = SlotState::Orphaned;
                slot.waker = None;
                (true, None)
            }
            SlotState::Free | SlotState::Orphaned => unreachable!("only a live future is dropped"),
        }
    }

    /// Returns the keys of the operations in flight.
    pub(crate) fn pending(&self) -> Vec<u32> {
        let in_flight = [SlotState::Pending, SlotState::Orphaned];
        (0..self.all.len() as u32)
            .filter(|&key| in_flight.contains(&self.all[key as usize].state))
            .collect()
    }
}
