//! Compaction: files that were written in small pieces are put together again.
//!
//! Blocks are write-once, so a file that is rewritten here and there comes to lie in as many places
//! as it was written in: each is a command to read, and a block is held as long as any byte of it
//! is in use. `small_pieces` records the windows of a file that commits put small pieces into. When
//! the file is due, the client reads those windows that lie in many pieces and writes each to one
//! place on the device that most of it lies on (so it stays near its writers). It has the device
//! flush the copy and asks the service to exchange the extents. The service does so only if they
//! are still those that were read, so nothing waits for a compaction and nothing is lost to it.
//!
//! Compaction works in the background: a few windows at a time, then a pause as long as they took,
//! or eight times as long while the client is used. It stops while less than an eighth of the pool
//! is free.

mod copy;

use crate::client::Client;
use crate::compact::copy::{Copied, CopyOutcome};
use crate::inode::Inode;
use crate::small_pieces::{QUIET, RETRY_PAUSE, Task, WINDOW_BYTES};
use protocol::Errno;
use reactor::time::{now, sleep};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Windows that share a flush of their device.
const WINDOWS_PER_ROUND: usize = 8;

/// Shortest pause between rounds.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// While the client is used, a pause is this many times as long as the round before it.
const BUSY_PAUSES: u32 = 8;

impl Client {
    /// Starts to compact files that are due, unless a compaction is running.
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

    /// Compacts the windows of a task, a few at a time, with a pause after each round.
    async fn compact_file(self: &Rc<Self>, task: &Task) {
        for (index, round) in task.windows.chunks(WINDOWS_PER_ROUND).enumerate() {
            if self.is_closed() || !self.session.life.is_alive() {
                return;
            }
            let (begun, uses) = (now(), self.compaction.uses.get());
            // Boxed: the state is large, and most of the time nothing is compacted.
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
            result = self.copy_window(&inode, task.is_quiet, range, &mut copies).await;
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

    /// Copies the parts of a window that are worth it, each stripe to a place of its own. Returns
    /// false if some of it should be looked at again when the file is quiet.
    async fn copy_window(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        is_quiet: bool,
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
            let CopyOutcome { end, copied, is_left } =
                self.copy_pieces(inode, from..end.min(window.end), is_quiet).await?;
            copies.extend(copied);
            is_done &= !is_left;
            from = end;
        }
        Ok(is_done)
    }
}
