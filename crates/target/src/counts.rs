//! Counts of the bytes and commands that a namespace has served.
//!
//! A queue pair gathers its own numbers in a [`Tally`] and adds them to its thread's [`Counter`]
//! once per loop turn, before the responses leave. So no command touches memory of another core,
//! but a host that has received a response finds the command counted.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// A snapshot of a namespace's counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NamespaceCounts {
    /// Bytes read by clients of the same node without a socket.
    pub read_local_bytes: u64,
    /// Bytes read over NVMe/TCP.
    pub read_remote_bytes: u64,
    /// Bytes written by clients of the same node without a socket.
    pub written_local_bytes: u64,
    /// Bytes written over NVMe/TCP.
    pub written_remote_bytes: u64,
    /// Read and compare commands.
    pub read_commands: u64,
    /// Write and write-zeroes commands.
    pub write_commands: u64,
    /// Commands of all kinds.
    pub commands: u64,
    /// Commands that ended with an error of the medium.
    pub media_errors: u64,
    /// Commands and connections refused because their host was not admitted.
    pub refused: u64,
}

/// Where a command came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client of the same node, without a socket.
    Local,
    /// A host on the fabric.
    Remote,
}

/// The counters of one namespace. Each thread has counters of its own; a reader adds them up.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    threads: Mutex<Vec<(ThreadId, Arc<Cells>)>>,
    /// Refused connections, which any thread counts.
    refused: AtomicU64,
}

/// The counters of one thread. Only that thread writes them, so that adding takes no locked
/// instruction and no cache line moves between cores.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Cells {
    read_local_bytes: AtomicU64,
    read_remote_bytes: AtomicU64,
    written_local_bytes: AtomicU64,
    written_remote_bytes: AtomicU64,
    read_commands: AtomicU64,
    write_commands: AtomicU64,
    commands: AtomicU64,
    media_errors: AtomicU64,
    refused: AtomicU64,
}

/// The calling thread's counters of a namespace. It stays on its thread.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    cells: Arc<Cells>,
    _thread: PhantomData<Rc<()>>,
}

/// Numbers that have not been added to a namespace's counters yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) read_commands: u64,
    pub(crate) write_commands: u64,
    pub(crate) commands: u64,
    pub(crate) media_errors: u64,
    pub(crate) refused: u64,
}

impl Counter {
    /// Adds numbers.
    pub(crate) fn add(&self, tally: &Tally, origin: Origin) {
        let cells = &*self.cells;
        let (read_bytes, written_bytes) = match origin {
            Origin::Local => (&cells.read_local_bytes, &cells.written_local_bytes),
            Origin::Remote => (&cells.read_remote_bytes, &cells.written_remote_bytes),
        };
        for (cell, number) in [
            (read_bytes, tally.read_bytes),
            (written_bytes, tally.written_bytes),
            (&cells.read_commands, tally.read_commands),
            (&cells.write_commands, tally.write_commands),
            (&cells.commands, tally.commands),
            (&cells.media_errors, tally.media_errors),
            (&cells.refused, tally.refused),
        ] {
            if number != 0 {
                cell.store(cell.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
            }
        }
    }
}

impl Counters {
    /// Returns the calling thread's counters. The next thread that asks gets the cells of a thread
    /// that no longer has a counter, with their numbers, so there are never more cells than threads
    /// at a time.
    pub(crate) fn of_thread(&self) -> Counter {
        let own = std::thread::current().id();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let known = threads.iter().position(|(thread, _)| *thread == own);
        let free = || threads.iter().position(|(_, cells)| Arc::strong_count(cells) == 1);
        let place = known.or_else(free).unwrap_or_else(|| {
            threads.push((own, Arc::default()));
            threads.len() - 1
        });
        // The former thread stored its numbers before it dropped its counter.
        std::sync::atomic::fence(Ordering::Acquire);
        threads[place].0 = own;
        Counter { cells: Arc::clone(&threads[place].1), _thread: PhantomData }
    }

    /// Counts a refused connection.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sums over all threads.
    pub(crate) fn snapshot(&self) -> NamespaceCounts {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |cell: fn(&Cells) -> &AtomicU64| {
            let cells = threads.iter().map(|(_, cells)| cell(cells).load(Ordering::Relaxed));
            cells.fold(0, u64::wrapping_add)
        };
        NamespaceCounts {
            read_local_bytes: sum(|it| &it.read_local_bytes),
            read_remote_bytes: sum(|it| &it.read_remote_bytes),
            written_local_bytes: sum(|it| &it.written_local_bytes),
            written_remote_bytes: sum(|it| &it.written_remote_bytes),
            read_commands: sum(|it| &it.read_commands),
            write_commands: sum(|it| &it.write_commands),
            commands: sum(|it| &it.commands),
            media_errors: sum(|it| &it.media_errors),
            refused: sum(|it| &it.refused) + self.refused.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Goal: threads count in cells of their own, on cache lines of their own, and lose nothing;
    /// cells of ended threads are used again.
    #[test]
    fn threads_count_apart() {
        const ROUNDS: u64 = 20_000;
        let (counters, barrier) = (Counters::default(), Barrier::new(2));
        let tally = Tally { commands: 1, read_bytes: 3, ..Tally::default() };
        for rounds in [ROUNDS, 2 * ROUNDS] {
            let places = std::thread::scope(|scope| {
                let work = || {
                    let (one, other) = (counters.of_thread(), counters.of_thread());
                    barrier.wait();
                    for _ in 0..ROUNDS / 2 {
                        one.add(&tally, Origin::Remote);
                        other.add(&tally, Origin::Local);
                    }
                    barrier.wait();
                    assert!(
                        Arc::ptr_eq(&one.cells, &other.cells),
                        "one set of cells for each thread"
                    );
                    Arc::as_ptr(&one.cells).addr()
                };
                let threads = [scope.spawn(work), scope.spawn(work)];
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(places[0].abs_diff(places[1]) >= 128, "{places:x?}");
            let counts = counters.snapshot();
            assert_eq!(counts.commands, 2 * rounds);
            assert_eq!(counts.read_local_bytes + counts.read_remote_bytes, 6 * rounds);
        }
        assert_eq!(counters.threads.lock().unwrap().len(), 2);
        counters.count_refused();
        assert_eq!(counters.snapshot().refused, 1);
    }
}
