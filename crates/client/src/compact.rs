//! Compaction: files that were written in small pieces are put together again.
//!
//! Blocks are write-once, so a file that is rewritten here and there comes to lie in as many places as it was
//! written in: each is a command to read, and a block is held as long as any byte of it is in use. A client
//! takes note of the windows of a file (1 MiB) that its own commits put small pieces into. When the file has
//! been quiet for a moment, or has been written for long, it reads those windows that lie in many pieces,
//! writes each to one place on the device that most of it lies on (so it stays near its writers), has the
//! device flush it, and asks the service to exchange the extents. The service does so only if they are still
//! those that were read, so nothing waits for a compaction and nothing is lost to it.
//!
//! It works in the background: a few windows at a time, then a pause as long as they took, or eight times as
//! long while the client is used. It stops while less than an eighth of the pool is free.

mod window;

use crate::client::Client;
use crate::inode::Inode;
use protocol::{Errno, Extent, InodeId};
use reactor::time::{Instant, now, sleep};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use window::{Copied, Look};

/// What is put together: an allocation is no longer.
const WINDOW_BYTES: u64 = protocol::space::ALLOCATION_MAX_BYTES;

/// An extent shorter than this is a small piece.
const PIECE_BYTES: u32 = 32 << 10;

/// So many small pieces in a window are worth a look.
const PIECES_MIN: u16 = 4;

/// Windows that are remembered, of all files. What is not is looked at when it is written again.
const WINDOWS_MAX: usize = 1 << 16;

/// Windows that share a flush of their device.
const WINDOWS_PER_ROUND: usize = 8;

/// A file that was not written for so long is not likely to be written at once.
const QUIET: Duration = Duration::from_secs(2);

/// A file that is written all the time is looked at this often.
const PATIENCE: Duration = Duration::from_secs(20);

/// When what could not be compacted is tried again, and how often.
const RETRY_PAUSE: Duration = Duration::from_secs(30);
const TRIES_MAX: u8 = 10;

/// Shortest pause between rounds.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// A pause is so many times as long as the round before it, while the client is used.
const BUSY_PAUSES: u32 = 8;

/// One part in so many of the pool has to be free.
const FREE_PARTS: u64 = 8;

/// What one client knows of pieces.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    files: RefCell<BTreeMap<InodeId, Worn>>,
    windows: Cell<usize>,
    is_running: Cell<bool>,
    /// Reads and writes so far.
    uses: Cell<u64>,
    counts: Cell<CompactCounts>,
}

/// A file that was written in small pieces.
#[derive(Debug)]
struct Worn {
    /// Windows, by number, and the small pieces that were written there.
    windows: BTreeMap<u64, u16>,
    first: Instant,
    last: Instant,
    due: Instant,
    tries: u8,
}

/// What is to be done about a file.
#[derive(Debug, PartialEq, Eq)]
struct Task {
    id: InodeId,
    /// Windows that are worth a look, ascending.
    windows: Vec<u64>,
    /// How often they were tried.
    tries: u8,
    /// Nobody writes to the file. Else only what holds too much is compacted: the rest is soon in pieces
    /// again.
    is_quiet: bool,
}

/// What was counted of compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CompactCounts {
    /// Bytes that lie in one place now.
    pub compacted_bytes: u64,
    /// In how many pieces they lay.
    pub compacted_pieces: u64,
    /// Windows that were written, cut off or moved meanwhile: their copies were thrown away.
    pub compactions_overtaken: u64,
}

/// The windows into which small pieces are committed, one for each piece.
pub(crate) fn small_pieces(extents: &[Extent]) -> Vec<u64> {
    let small = extents.iter().filter(|extent| extent.length < PIECE_BYTES);
    small.map(|extent| extent.offset / WINDOW_BYTES).collect()
}

impl Compaction {
    /// Takes note that the client is used.
    pub(crate) fn note_use(&self) {
        self.uses.set(self.uses.get() + 1);
    }

    /// Takes note of small pieces that were committed.
    pub(crate) fn note(&self, id: InodeId, pieces: &[u64]) {
        if pieces.is_empty() {
            return;
        }
        let now = now();
        let mut files = self.files.borrow_mut();
        let new = Worn { windows: BTreeMap::new(), first: now, last: now, due: now, tries: 0 };
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
    fn take_due(&self) -> Option<Task> {
        let now = now();
        let mut files = self.files.borrow_mut();
        let id = files.iter().find(|(_, worn)| worn.due <= now).map(|(id, _)| *id)?;
        let Worn { windows, last, tries, .. } = files.remove(&id)?;
        self.windows.set(self.windows.get() - windows.len());
        let is_quiet = now - last >= QUIET;
        let windows = windows.into_iter().filter(|(_, pieces)| *pieces >= PIECES_MIN);
        Some(Task { id, windows: windows.map(|(window, _)| window).collect(), tries, is_quiet })
    }

    /// Looks at windows of a task again, after a pause.
    fn put_off(&self, task: &Task, windows: &[u64], pause: Duration) {
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

    fn count(&self, change: impl FnOnce(&mut CompactCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> CompactCounts {
        self.counts.get()
    }
}

impl Client {
    /// Begins to compact what is due, unless that is under way.
    pub(crate) fn compact_due(self: &Rc<Self>) {
        if self.compaction.is_running.get() {
            return;
        }
        let Some(first) = self.compaction.take_due() else { return };
        self.compaction.is_running.set(true);
        let client = Rc::clone(self);
        reactor::spawn(async move {
            let mut next = Some(first);
            while let Some(task) = next {
                client.compact_file(&task).await;
                next = client.compaction.take_due().filter(|_| !client.is_closed());
            }
            client.compaction.is_running.set(false);
        });
    }

    async fn compact_file(self: &Rc<Self>, task: &Task) {
        for (index, round) in task.windows.chunks(WINDOWS_PER_ROUND).enumerate() {
            if self.is_closed() || !self.session.life.is_alive() {
                return;
            }
            let (begun, uses) = (now(), self.compaction.uses.get());
            // Boxed: it is large, and waits for nothing most of the time.
            let done = Box::pin(self.compact_windows(task, round)).await;
            match done {
                Ok(()) => {}
                Err(Errno::ESTALE | Errno::ENOENT) => return,
                Err(errno) => {
                    tracing::debug!(inode = task.id.0, %errno, "a file is compacted later");
                    let rest = &task.windows[index * WINDOWS_PER_ROUND..];
                    return self.compaction.put_off(task, rest, RETRY_PAUSE);
                }
            }
            let took = now() - begun;
            let is_used = self.compaction.uses.get() != uses;
            sleep((took * if is_used { BUSY_PAUSES } else { 1 }).max(PAUSE_MIN)).await;
        }
    }

    /// Compacts some windows with one flush.
    async fn compact_windows(self: &Rc<Self>, task: &Task, windows: &[u64]) -> Result<(), Errno> {
        let inode = self.inode(task.id);
        let (mut copies, mut later): (Vec<Copied>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut result = Ok(true);
        for window in windows {
            let range = window * WINDOW_BYTES..(window + 1) * WINDOW_BYTES;
            result = self.copy_window((&inode, task.is_quiet), range, &mut copies).await;
            match result {
                Ok(true) => {}
                Ok(false) => later.push(*window),
                Err(_) => break,
            }
        }
        self.compaction.put_off(task, &later, QUIET);
        for copied in copies {
            let window = copied.offset() / WINDOW_BYTES;
            if !self.exchange(&inode, copied).await {
                self.compaction.put_off(task, &[window], RETRY_PAUSE);
            }
        }
        result.map(|_| ())
    }

    /// Copies what is worth it of a window, each stripe to a place of its own; false if some of it should be
    /// looked at when the file is quiet.
    async fn copy_window(
        self: &Rc<Self>,
        (inode, is_quiet): (&Rc<Inode>, bool),
        window: Range<u64>,
        copies: &mut Vec<Copied>,
    ) -> Result<bool, Errno> {
        let layout = self.layout(inode).await?;
        let stripe = match layout.stripe_count {
            0 => WINDOW_BYTES,
            _ => u64::from(layout.stripe_size_bytes).clamp(1, WINDOW_BYTES),
        };
        let mut from = window.start;
        let mut is_done = true;
        while from < window.end {
            let end = (from / stripe + 1) * stripe;
            let Look { end, copied, is_left } =
                self.copy_pieces(inode, from..end.min(window.end), is_quiet).await?;
            copies.extend(copied);
            is_done &= !is_left;
            from = end;
        }
        Ok(is_done)
    }

    /// ENOSPC unless the pool keeps room beside a round of copies.
    async fn find_room(self: &Rc<Self>) -> Result<(), Errno> {
        let pool = self.pool_use().await?;
        // What is leased and unused is returned when it is needed.
        let spare = pool.free_bytes.saturating_sub(pool.dead_bytes);
        let is_enough = spare >= pool.total_bytes / FREE_PARTS;
        if is_enough { Ok(()) } else { Err(Errno::ENOSPC) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{AllocationId, DeviceId, Place};
    use reactor::sim::Simulation;

    fn extent(offset: u64, length: u32) -> Extent {
        let allocation = AllocationId { device: DeviceId(0), block: 0 };
        Extent { offset, length, place: Place { allocation, at: 0 } }
    }

    /// Goal: only windows that several small pieces were written to are looked at, after the file has been
    /// quiet, and once.
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

    /// Goal: what could not be done is tried again later, and not for ever.
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
