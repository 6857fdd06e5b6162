//! Timers of one reactor: a binary heap in which each timer knows its position, so cancelling
//! really removes it. (With lazy removal, a deadline of a minute on each of 400 000 requests a
//! second would pile up 24 million dead entries.)

use std::task::Waker;

pub(crate) struct Timers {
    /// Keys of `waiting`, ordered as a heap by (deadline, sequence).
    heap: Vec<u32>,
    waiting: slab::Slab<Timer>,
    sequence: u64,
}

/// The identifier of a timer; the sequence distinguishes it from later users of the same key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerId {
    key: u32,
    sequence: u64,
}

struct Timer {
    deadline_ns: u64,
    /// Equal deadlines fire in the order in which they were set.
    sequence: u64,
    /// Index in `heap`.
    place: usize,
    waker: Waker,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Vec::new(), waiting: slab::Slab::new(), sequence: 0 }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.first().map(|&key| self.waiting[key as usize].deadline_ns)
    }

    pub(crate) fn insert(&mut self, deadline_ns: u64, waker: Waker) -> TimerId {
        let place = self.heap.len();
        let sequence = self.sequence;
        self.sequence += 1;
        let key = self.waiting.insert(Timer { deadline_ns, sequence, place, waker }) as u32;
        self.heap.push(key);
        self.sift_up(place);
        TimerId { key, sequence }
    }

    /// Changes the waker of a timer that still waits.
    pub(crate) fn set_waker(&mut self, id: TimerId, waker: &Waker) {
        if let Some(timer) = self.waiting.get_mut(id.key as usize)
            && timer.sequence == id.sequence
        {
            timer.waker.clone_from(waker);
        }
    }

    /// Removes a timer unless it has fired. Returns its waker, to be dropped outside of borrows.
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Waker> {
        let timer = self.waiting.get(id.key as usize)?;
        (timer.sequence == id.sequence).then(|| self.remove(id.key))
    }

    fn remove(&mut self, key: u32) -> Waker {
        let timer = self.waiting.remove(key as usize);
        let last = self.heap.len() - 1;
        self.heap.swap(timer.place, last);
        self.heap.pop();
        if let Some(&moved) = self.heap.get(timer.place) {
            self.waiting[moved as usize].place = timer.place;
            self.sift_down(timer.place);
            self.sift_up(timer.place);
        }
        timer.waker
    }

    /// Removes the earliest timer if it is due and returns its waker.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<Waker> {
        let &key = self.heap.first()?;
        (self.waiting[key as usize].deadline_ns <= now_ns).then(|| self.remove(key))
    }

    fn order(&self, place: usize) -> (u64, u64) {
        let timer = &self.waiting[self.heap[place] as usize];
        (timer.deadline_ns, timer.sequence)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.waiting[self.heap[a] as usize].place = a;
        self.waiting[self.heap[b] as usize].place = b;
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 && self.order(place) < self.order((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.order(child)) else { return };
            if self.order(place) <= self.order(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TimerId, Timers};
    use proptest::prelude::*;
    use std::task::Waker;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(usize),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..100_u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Cancel),
            1 => (0..30_u64).prop_map(Step::Advance),
        ]
    }

    proptest! {
        /// Goal: timers fire exactly when due and never after cancelling, like those of a plain
        /// list, and none is left behind.
        #[test]
        fn fire_like_a_list(steps in prop::collection::vec(step(), 1..200)) {
            let mut timers = Timers::new();
            let mut model: Vec<(u64, TimerId)> = Vec::new();
            let mut old: Vec<TimerId> = Vec::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Insert(delay) => {
                        let id = timers.insert(now + delay, Waker::noop().clone());
                        model.push((now + delay, id));
                    }
                    Step::Cancel(index) if !model.is_empty() => {
                        let (_, id) = model.swap_remove(index % model.len());
                        prop_assert!(timers.cancel(id).is_some());
                        old.push(id);
                    }
                    Step::Cancel(_) => {}
                    Step::Advance(by) => {
                        now += by;
                        let due = model.iter().filter(|(deadline, _)| *deadline <= now).count();
                        let fired = std::iter::from_fn(|| timers.pop_due(now)).count();
                        prop_assert_eq!(fired, due);
                        old.extend(model.extract_if(.., |(at, _)| *at <= now).map(|(_, id)| id));
                    }
                }
                prop_assert_eq!(timers.next_ns(), model.iter().map(|(at, _)| *at).min());
                prop_assert_eq!(timers.waiting.len(), model.len());
                prop_assert!(old.iter().all(|&id| timers.cancel(id).is_none()));
            }
        }
    }
}
