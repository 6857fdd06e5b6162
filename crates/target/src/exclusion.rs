//! Exclusive access to blocks for Compare and Write: from the comparison to the end of the write, no
//! other write to the blocks is under way, from any queue pair or client of this node.
//!
//! Compare and Write is rare and writes are not, so writes pay little for it. A writer (a queue
//! pair's or a thread's view of the namespace) counts its writes in memory of its own. Only while
//! there is a hold do writes enter a list behind a lock. There each waits for earlier holds of its
//! blocks. A hold waits for earlier writes and holds of its blocks, and for the counted writes of all
//! writers, whatever their blocks. Nothing waits for a later entry and no command has two entries,
//! so no two wait for each other.

use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The holds and listed writes of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    /// Number of holds, including those that wait.
    holds: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    gates: Vec<Arc<Gate>>,
    /// In the order of their arrival.
    entries: Vec<Entry>,
    next_number: u64,
}

/// The counted writes of one writer.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Gate {
    in_flight: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    bytes: Range<u64>,
    is_hold: bool,
    waker: Option<Waker>,
}

impl Exclusion {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all entries that wait.
    fn wake(&self) {
        let wakers: Vec<Waker> =
            self.inner().entries.iter_mut().filter_map(|entry| entry.waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Adds an entry at the end of the list.
    fn list(this: &Arc<Self>, bytes: Range<u64>, is_hold: bool) -> Listed {
        let mut inner = this.inner();
        let number = inner.next_number;
        inner.next_number += 1;
        inner.entries.push(Entry { number, bytes, is_hold, waker: None });
        if is_hold {
            // Before the first look at the gates: a writer sees either this number or is seen.
            this.holds.fetch_add(1, Ordering::SeqCst);
        }
        Listed { exclusion: Arc::clone(this), number, is_hold }
    }
}

impl Inner {
    /// Returns whether an entry may begin.
    fn is_free(&self, number: u64) -> bool {
        let Some(position) = self.entries.iter().position(|entry| entry.number == number) else {
            return true;
        };
        let (earlier, own) = (&self.entries[..position], &self.entries[position]);
        let conflicts = |other: &Entry| {
            (own.is_hold || other.is_hold)
                && own.bytes.start < other.bytes.end
                && other.bytes.start < own.bytes.end
        };
        let is_counted = |gate: &Arc<Gate>| gate.in_flight.load(Ordering::SeqCst) > 0;
        let awaits_counted = own.is_hold && self.gates.iter().any(is_counted);
        !awaits_counted && !earlier.iter().any(conflicts)
    }
}

/// A writer of a namespace. It stays on its thread.
#[derive(Clone, Debug)]
pub(crate) struct Writer(Rc<WriterInner>);

#[derive(Debug)]
struct WriterInner {
    exclusion: Arc<Exclusion>,
    gate: Arc<Gate>,
}

impl Writer {
    pub(crate) fn new(exclusion: &Arc<Exclusion>) -> Self {
        let gate = Arc::<Gate>::default();
        exclusion.inner().gates.push(Arc::clone(&gate));
        Self(Rc::new(WriterInner { exclusion: Arc::clone(exclusion), gate }))
    }

    /// Counts a write in. Returns [`None`] while there is a hold: then [`Self::list`] it.
    pub(crate) fn enter(&self) -> Option<Counted> {
        let inner = &self.0;
        inner.gate.in_flight.fetch_add(1, Ordering::SeqCst);
        // From here on, dropping it counts the write out again.
        let counted = Counted(Rc::clone(inner));
        (inner.exclusion.holds.load(Ordering::SeqCst) == 0).then_some(counted)
    }

    /// Lists a write of these bytes.
    pub(crate) fn list(&self, bytes: Range<u64>) -> Listed {
        Exclusion::list(&self.0.exclusion, bytes, false)
    }

    /// Lists a hold of these bytes.
    pub(crate) fn hold(&self, bytes: Range<u64>) -> Listed {
        Exclusion::list(&self.0.exclusion, bytes, true)
    }
}

impl Drop for WriterInner {
    fn drop(&mut self) {
        // Counted writes hold the writer, so there are none any more.
        let in_flight = self.gate.in_flight.load(Ordering::SeqCst);
        assert_eq!(in_flight, 0, "a writer is dropped with writes in flight");
        self.exclusion.inner().gates.retain(|gate| !Arc::ptr_eq(gate, &self.gate));
    }
}

/// A write that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Rc<WriterInner>);

impl Drop for Counted {
    fn drop(&mut self) {
        let before = self.0.gate.in_flight.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a write is counted out twice");
        if self.0.exclusion.holds.load(Ordering::SeqCst) > 0 {
            self.0.exclusion.wake();
        }
    }
}

/// An entry of the list until it is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    exclusion: Arc<Exclusion>,
    number: u64,
    is_hold: bool,
}

impl Listed {
    /// Waits until the write or hold may begin.
    pub(crate) async fn begin(&self) {
        poll_fn(|cx| {
            let mut inner = self.exclusion.inner();
            if let Some(entry) = inner.entries.iter_mut().find(|it| it.number == self.number) {
                entry.waker = Some(cx.waker().clone());
            }
            // Checked after the waker is stored: the end of a write finds either the waker or this
            // check.
            if inner.is_free(self.number) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.exclusion.inner().entries.retain(|entry| entry.number != self.number);
        if self.is_hold {
            self.exclusion.holds.fetch_sub(1, Ordering::SeqCst);
        }
        self.exclusion.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    fn may_begin(listed: &Listed) -> bool {
        pin!(listed.begin()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Goal: a hold waits for all writes that were counted before it, and for listed writes of its
    /// blocks only. Writes that arrive while it waits or holds wait behind it if they share blocks.
    #[test]
    fn a_hold_excludes_writes() {
        let exclusion = Arc::<Exclusion>::default();
        let (one, other) = (Writer::new(&exclusion), Writer::new(&exclusion));
        let counted = one.enter().unwrap();
        let hold = other.hold(10..20);
        assert!(!may_begin(&hold), "a write is under way, of unknown blocks");
        assert!(one.enter().is_none() && other.enter().is_none());
        let (same, beside) = (one.list(19..30), one.list(20..30));
        assert!(!may_begin(&same) && may_begin(&beside));
        drop(counted);
        assert!(may_begin(&hold) && !may_begin(&same));
        drop(hold);
        assert!(may_begin(&same));
        let counted = other.enter().expect("there is no hold any more");
        let hold = other.hold(25..26);
        assert!(!may_begin(&hold));
        drop((counted, beside));
        assert!(!may_begin(&hold), "the listed write of the same block has not ended");
        drop(same);
        assert!(may_begin(&hold));
    }

    /// Goal: holds of the same blocks follow each other in their order; those of other blocks do
    /// not wait. An abandoned entry delays no other command.
    #[test]
    fn holds_follow_each_other() {
        let exclusion = Arc::<Exclusion>::default();
        let writer = Writer::new(&exclusion);
        let holds = [writer.hold(0..4), writer.hold(2..6), writer.hold(3..4), writer.hold(8..9)];
        assert_eq!(holds.each_ref().map(may_begin), [true, false, false, true]);
        let [first, second, third, fourth] = holds;
        drop(second);
        assert!(!may_begin(&third));
        drop(first);
        assert!(may_begin(&third) && may_begin(&fourth));
        drop((third, fourth));
        assert!(writer.enter().is_some());
        assert!(exclusion.inner().entries.is_empty());
    }

    /// Goal: the end of a write wakes a hold on another thread. Two threads add to a number by
    /// comparison and write; none of their additions is lost.
    #[test]
    fn threads_do_not_lose_additions() {
        const ROUNDS: u64 = 2000;
        let (exclusion, number) = (Arc::<Exclusion>::default(), Arc::<AtomicUsize>::default());
        let add = |is_hold: bool| {
            let (exclusion, number) = (Arc::clone(&exclusion), Arc::clone(&number));
            move || async move {
                let writer = Writer::new(&exclusion);
                for _ in 0..ROUNDS {
                    let listed = if is_hold {
                        Some(writer.hold(0..1))
                    } else if let Some(counted) = writer.enter() {
                        // A counted write excludes holds, and there is one such writer.
                        number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        drop(counted);
                        None
                    } else {
                        Some(writer.list(0..1))
                    };
                    if let Some(listed) = listed {
                        listed.begin().await;
                        number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                }
            }
        };
        let config = reactor::Config::default();
        let threads = [true, true, false]
            .map(|is_hold| reactor::thread::spawn("adder", &config, add(is_hold)).unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(number.load(Ordering::Relaxed) as u64, 3 * ROUNDS);
    }
}
