//! The record of files that were written in small pieces, for compaction.
//!
//! A client notes the windows of a file (1 MiB) that its own commits put small pieces into. A file
//! is due when it has been quiet for a moment, or has been written for long.

use protocol::{Extent, InodeId};
use reactor::local::WaitGroup;
use reactor::time::{Instant, now};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of a window, which is compacted as one: the longest allocation.
pub(crate) const WINDOW_BYTES: u64 = protocol::space::ALLOCATION_MAX_BYTES;

/// An extent shorter than this is a small piece.
const PIECE_BYTES: u32 = 32 << 10;

/// Fewest small pieces that make a window worth a look.
const PIECES_MIN: u16 = 4;

/// Most windows that are remembered, of all files. Others are looked at when they are written
/// again.
const WINDOWS_MAX: usize = 1 << 16;

/// A file is quiet if it was not written for this long.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// A file that is written all the time is looked at this often.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause before a compaction that failed is tried again, and how often it is.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(30);
const TRIES_MAX: u8 = 10;

/// One client's record of small pieces.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    files: RefCell<BTreeMap<InodeId, FileRecord>>,
    windows: Cell<usize>,
    pub(crate) is_running: Cell<bool>,
    /// Requests for space for copies.
    pub(crate) leases: WaitGroup,
    /// Reads and writes so far.
    pub(crate) uses: Cell<u64>,
    counts: Cell<CompactCounts>,
}

/// A file that was written in small pieces.
#[derive(Debug)]
struct FileRecord {
    /// Windows, by number, and the small pieces that were written there.
    windows: BTreeMap<u64, u16>,
    first: Instant,
    last: Instant,
    due: Instant,
    tries: u8,
}

/// A file to compact.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) id: InodeId,
    /// Windows that are worth a look, ascending.
    pub(crate) windows: Vec<u64>,
    /// How often they were tried.
    tries: u8,
    /// Whether the file was not written lately. Otherwise only windows that hold too many blocks
    /// are compacted, because the rest is soon in pieces again.
    pub(crate) is_quiet: bool,
}

/// Counts of compactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CompactCounts {
    /// Bytes that now lie in one place.
    pub compacted_bytes: u64,
    /// The number of pieces that they lay in before.
    pub compacted_pieces: u64,
    /// Windows that were written, truncated or moved meanwhile: their copies were thrown away.
    pub compactions_overtaken: u64,
}

/// Returns the windows into which small pieces are committed, one for each piece.
pub(crate) fn small_pieces(extents: &[Extent]) -> Vec<u64> {
    let small = extents.iter().filter(|extent| extent.length < PIECE_BYTES);
    small.map(|extent| extent.offset / WINDOW_BYTES).collect()
}

impl Compaction {
    /// Notes that the client is used.
    pub(crate) fn note_use(&self) {
        self.uses.set(self.uses.get() + 1);
    }

    /// Notes small pieces that were committed.
    pub(crate) fn note(&self, id: InodeId, pieces: &[u64]) {
        if pieces.is_empty() {
            return;
        }
        let now = now();
        let mut files = self.files.borrow_mut();
        let new =
            FileRecord { windows: BTreeMap::new(), first: now, last: now, due: now, tries: 0 };
        let worn = files.entry(id).or_insert(new);
        worn.last = now;
        worn.due = (now + QUIET).min(worn.first + PATIENCE).max(now);
        for window in pieces {
            if let Some(count) = worn.windows.get_mut(window) {
                *count = count.saturating_add(1);
            } else if self.windows.get() < WINDOWS_MAX {
                worn.windows.insert(*window, 1);
                self.windows.set(self.windows.get() + 1);
            }
        }
    }

    /// Takes out the next file that is due.
    pub(crate) fn take_due(&self) -> Option<Task> {
        let now = now();
        let mut files = self.files.borrow_mut();
        let id = files.iter().find(|(_, worn)| worn.due <= now).map(|(id, _)| *id)?;
        let FileRecord { windows, last, tries, .. } = files.remove(&id)?;
        self.windows.set(self.windows.get() - windows.len());
        let is_quiet = now - last >= QUIET;
        let windows = windows.into_iter().filter(|(_, pieces)| *pieces >= PIECES_MIN);
        Some(Task { id, windows: windows.map(|(window, _)| window).collect(), tries, is_quiet })
    }

    /// Schedules windows of a task again, after a pause.
    pub(crate) fn put_off(&self, task: &Task, windows: &[u64], pause: Duration) {
        if task.tries >= TRIES_MAX {
            return;
        }
        let pieces = |window: &u64| std::iter::repeat_n(*window, usize::from(PIECES_MIN));
        self.note(task.id, &windows.iter().flat_map(pieces).collect::<Vec<_>>());
        if let Some(worn) = self.files.borrow_mut().get_mut(&task.id) {
            worn.due = now() + pause;
            worn.tries = task.tries + u8::from(task.is_quiet);
        }
    }

    /// Changes the counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut CompactCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Returns what was counted so far.
    pub(crate) fn counts(&self) -> CompactCounts {
        self.counts.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{AllocationId, DeviceId, Place};
    use reactor::sim::Simulation;
    use reactor::time::sleep;

    fn extent(offset: u64, length: u32) -> Extent {
        let allocation = AllocationId { device: DeviceId(0), block: 0 };
        Extent { offset, length, place: Place { allocation, at: 0 } }
    }

    /// Goal: windows that got several small pieces are looked at after the file has been quiet, and
    /// once.
    #[test]
    fn windows_of_many_small_pieces_are_due_when_the_file_is_quiet() {
        let scene = async {
            let compaction = Compaction::default();
            let mut extents: Vec<Extent> = (0..4).map(|at| extent(at * 8192, 4096)).collect();
            extents.push(extent(3 * WINDOW_BYTES, 4096));
            extents.push(extent(5 * WINDOW_BYTES, 1 << 20));
            assert_eq!(small_pieces(&extents), [0, 0, 0, 0, 3]);
            compaction.note(InodeId(7), &small_pieces(&extents));
            assert_eq!(compaction.take_due(), None);
            sleep(QUIET / 2).await;
            compaction.note(InodeId(7), &[3]);
            sleep(QUIET * 3 / 4).await;
            assert_eq!(compaction.take_due(), None, "it was written a moment ago");
            sleep(QUIET / 4).await;
            let task = Task { id: InodeId(7), windows: vec![0], tries: 0, is_quiet: true };
            assert_eq!(compaction.take_due(), Some(task));
            assert_eq!((compaction.take_due(), compaction.windows.get()), (None, 0));
        };
        Simulation::new(1).run(scene).unwrap();
    }

    /// Goal: a file that is written without a pause has its turn too.
    #[test]
    fn a_file_that_is_always_written_is_due_in_the_end() {
        let scene = async {
            let (compaction, begun) = (Compaction::default(), now());
            let task = loop {
                compaction.note(InodeId(7), &[0, 0]);
                sleep(QUIET / 4).await;
                if let Some(task) = compaction.take_due() {
                    break task;
                }
            };
            assert!(!task.is_quiet && task.windows == [0]);
            assert!(now() - begun <= PATIENCE + QUIET);
        };
        Simulation::new(1).run(scene).unwrap();
    }

    /// Goal: a compaction that failed is tried again later, but not for ever.
    #[test]
    fn what_could_not_be_done_is_put_off() {
        let scene = async {
            let compaction = Compaction::default();
            let task = |tries| Task { id: InodeId(7), windows: vec![2, 9], tries, is_quiet: true };
            compaction.put_off(&task(0), &[2, 9], RETRY_PAUSE);
            assert_eq!(compaction.take_due(), None);
            sleep(RETRY_PAUSE).await;
            assert_eq!(compaction.take_due(), Some(task(1)));
            compaction.put_off(&task(TRIES_MAX), &[2, 9], RETRY_PAUSE);
            assert!(compaction.files.borrow().is_empty());
        };
        Simulation::new(1).run(scene).unwrap();
    }
}
