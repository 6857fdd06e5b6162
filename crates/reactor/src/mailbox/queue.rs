//! A bounded lock-free queue for many producers and consumers (D. Vyukov).
//!
//! Each slot has a turn. A turn equal to a position means that the slot is free for the push at
//! that position; one more means that it is full for the pop there. Popping sets the turn one lap
//! ahead.
//!
//! A slot stores its turn less its own index, so a new queue is all zeros. Its memory comes cleared
//! from the kernel, page by page as slots are first used, so a deep queue costs nothing until then.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keeps the two ends on cache lines of their own.
#[repr(align(128))]
struct Padded(AtomicUsize);

struct Slot<T> {
    /// Its turn, less its index.
    turn: AtomicUsize,
    message: UnsafeCell<MaybeUninit<T>>,
}

pub(super) struct Queue<T> {
    slots: Box<[Slot<T>]>,
    head: Padded,
    tail: Padded,
}

// SAFETY: `turn` hands each slot to one thread at a time; messages move between threads.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2).next_power_of_two();
        // SAFETY: an atomic integer may be zero, and a missing message may have any content.
        let slots = unsafe { Box::<[Slot<T>]>::new_zeroed_slice(capacity).assume_init() };
        Self { slots, head: Padded(AtomicUsize::new(0)), tail: Padded(AtomicUsize::new(0)) }
    }

    /// Returns the slot at a position, and its index.
    fn slot(&self, position: usize) -> (&Slot<T>, usize) {
        let index = position & (self.slots.len() - 1);
        (&self.slots[index], index)
    }

    /// Appends a message, or returns it if there is no room.
    pub(super) fn push(&self, message: T) -> Result<(), T> {
        let mut position = self.tail.0.load(Ordering::Relaxed);
        loop {
            let (slot, index) = self.slot(position);
            let turn = slot.turn.load(Ordering::Acquire).wrapping_add(index);
            if turn == position {
                match Self::advance(&self.tail, position) {
                    Ok(()) => {
                        // SAFETY: winning the position at this turn made the empty slot ours.
                        unsafe { (*slot.message.get()).write(message) };
                        let full = position.wrapping_add(1);
                        slot.turn.store(full.wrapping_sub(index), Ordering::Release);
                        return Ok(());
                    }
                    Err(current) => position = current,
                }
            } else if (turn.wrapping_sub(position) as isize) < 0 {
                return Err(message);
            } else {
                position = self.tail.0.load(Ordering::Relaxed);
            }
        }
    }

    /// Takes the oldest message.
    pub(super) fn pop(&self) -> Option<T> {
        let mut position = self.head.0.load(Ordering::Relaxed);
        loop {
            let (slot, index) = self.slot(position);
            let turn = slot.turn.load(Ordering::Acquire).wrapping_add(index);
            let full = position.wrapping_add(1);
            if turn == full {
                match Self::advance(&self.head, position) {
                    Ok(()) => {
                        // SAFETY: winning the position at this turn made the full slot ours.
                        let message = unsafe { (*slot.message.get()).assume_init_read() };
                        let next = position.wrapping_add(self.slots.len());
                        slot.turn.store(next.wrapping_sub(index), Ordering::Release);
                        return Some(message);
                    }
                    Err(current) => position = current,
                }
            } else if (turn.wrapping_sub(full) as isize) < 0 {
                return None;
            } else {
                position = self.head.0.load(Ordering::Relaxed);
            }
        }
    }

    fn advance(end: &Padded, position: usize) -> Result<(), usize> {
        let next = position.wrapping_add(1);
        let order = Ordering::Relaxed;
        end.0.compare_exchange_weak(position, next, order, order).map(drop)
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    proptest! {
        /// Goal: one thread sees a bounded first-in-first-out queue, over many laps.
        #[test]
        fn is_a_bounded_queue(
            capacity in 1..9_usize,
            steps in prop::collection::vec(any::<bool>(), 1..300),
        ) {
            let queue = Queue::new(capacity);
            let mut model = VecDeque::new();
            for (number, is_push) in steps.into_iter().enumerate() {
                if is_push {
                    let full = model.len() == capacity.max(2).next_power_of_two();
                    prop_assert_eq!(queue.push(number).is_err(), full);
                    if !full {
                        model.push_back(number);
                    }
                } else {
                    prop_assert_eq!(queue.pop(), model.pop_front());
                }
            }
        }
    }

    /// Goal: with several producers no message is lost, duplicated or reordered within a producer,
    /// and messages that are left are dropped with the queue.
    #[test]
    fn keeps_everything_between_threads() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let queue = Arc::new(Queue::<(u64, Box<u64>)>::new(64));
        let producers: Vec<_> = (0..3)
            .map(|producer| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        let mut message = (producer, Box::new(number));
                        while let Err(back) = queue.push(message) {
                            message = back;
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; 3];
        while next != [EACH; 3] {
            match queue.pop() {
                None => std::thread::yield_now(),
                Some((producer, number)) => {
                    assert_eq!(*number, next[producer as usize]);
                    next[producer as usize] += 1;
                }
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
        let last = Arc::new(());
        let queue = Queue::new(4);
        assert!(queue.push(Arc::clone(&last)).is_ok());
        drop(queue);
        assert_eq!(Arc::strong_count(&last), 1);
    }
}
