//! Whether a write into the page cache returns at once.
//!
//! Below half of the sum of its two thresholds of dirty pages the kernel lets every process write,
//! and above it makes writers wait (`balance_dirty_pages` of mm/page-writeback.c, "free run"). A
//! serving thread that waited would stop all its unions. So it writes by itself only far below that
//! point, and stops doing so for some time if a write took long for another reason, such as a
//! control group's own bounds. Everything else is left to threads that may wait.

use std::cell::Cell;
use std::time::Duration;

use reactor::time::Instant;

/// How long a result stays valid. Memory that is written within that time must fit below the
/// kernel's bound.
const LOOK_TIME: Duration = Duration::from_millis(20);
/// A write that takes longer has waited for something.
const SLOW_TIME: Duration = Duration::from_millis(2);
/// How long nothing is written here after that.
const PAUSE_TIME: Duration = Duration::from_secs(1);
/// Most bytes of a write.
const BYTES_MAX: u32 = 128 << 10;
/// Only whole pages are written: of others the rest may have to be read from the disk first.
const PAGE_BYTES: u64 = 4096;

/// The knowledge of a thread.
#[derive(Debug, Default)]
pub(crate) struct FreeRun {
    /// The last result, and until when it is valid.
    found: Cell<Option<(Instant, bool)>>,
}

/// A write that is made here. When it is dropped, the write has ended.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    of: &'a FreeRun,
    since: Instant,
}

impl FreeRun {
    /// Begins a write, if it will not have to wait.
    pub(crate) fn begin(&self) -> Option<Run<'_>> {
        let now = reactor::time::now();
        let is_free = match self.found.get() {
            Some((until, is_free)) if now < until => is_free,
            _ => {
                let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
                let is_free = is_far_below(&text);
                self.found.set(Some((now + LOOK_TIME, is_free)));
                is_free
            }
        };
        is_free.then_some(Run { of: self, since: now })
    }

    /// As [`FreeRun::begin`], for a write of this length at this offset.
    pub(crate) fn begin_at(&self, offset: u64, length: u32) -> Option<Run<'_>> {
        let is_whole = offset.is_multiple_of(PAGE_BYTES) && u64::from(length) % PAGE_BYTES == 0;
        if is_whole && length <= BYTES_MAX { self.begin() } else { None }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let now = reactor::time::now();
        if now - self.since > SLOW_TIME {
            self.of.found.set(Some((now + PAUSE_TIME, false)));
        }
    }
}

/// Returns whether dirty pages and pages under write-back are below half of the point at which the
/// kernel makes writers wait, by the text of `/proc/vmstat`; false if the text does not show this.
fn is_far_below(vmstat: &str) -> bool {
    let value = |name: &str| -> Option<u64> {
        let line = vmstat.lines().find(|line| line.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    };
    let pages = || {
        let waiting = value("nr_dirty")? + value("nr_writeback")?;
        let bounds = value("nr_dirty_threshold")? + value("nr_dirty_background_threshold")?;
        Some((waiting, bounds / 2))
    };
    pages().is_some_and(|(waiting, bound)| waiting < bound / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Config, Runtime};

    fn vmstat(dirty: u64, writeback: u64) -> String {
        format!(
            "nr_free_pages 99\nnr_dirty {dirty}\nnr_writeback {writeback}\nnr_writeback_temp 5000\n\
             nr_dirty_threshold 3000\nnr_dirty_background_threshold 1000\n"
        )
    }

    // Goal: the bound is half of the middle of both thresholds; an incomplete text allows nothing.
    #[test]
    fn writes_run_free_far_below_the_thresholds() {
        assert!(is_far_below(&vmstat(600, 399)));
        assert!(!is_far_below(&vmstat(600, 400)));
        assert!(!is_far_below(""));
        assert!(!is_far_below("nr_dirty 1\nnr_writeback 1\n"));
    }

    // Goal: what has to wait is seen by its time, and ends writing here for a while; parts of pages
    // and large writes are never made here.
    #[test]
    fn a_slow_write_ends_it() {
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let free = FreeRun::default();
            free.found.set(Some((reactor::time::now() + Duration::from_mins(1), true)));
            assert!(free.begin_at(4096, 8192).is_some());
            assert!(free.begin_at(4095, 8192).is_none() && free.begin_at(4096, 100).is_none());
            assert!(free.begin_at(0, 256 << 10).is_none());
            assert!(free.begin().is_some(), "short writes change nothing");
            let run = free.begin();
            std::thread::sleep(SLOW_TIME + Duration::from_millis(1));
            drop(run);
            assert!(free.begin().is_none());
        });
    }
}
