//! The number of files that a serving thread keeps open although they are unused, or open to no
//! other process.
//!
//! A process has a limit of open files (`RLIMIT_NOFILE`). What applications have open must fit into
//! it; everything else is bounded by a share of it: directories and the lower files of partial
//! copies are closed, the oldest first, and opened again when they are needed; copies that wait for
//! their names, and files that are made durable in the background, wait for each other.

use reactor::local::Semaphore;
use rustix::process::{Resource, getrlimit};

/// Most directories that a thread keeps open.
const DIRECTORIES_MAX: usize = 2048;
/// Most lower files of partial copies.
const LOWERS_MAX: usize = 1024;
/// Most copies that are made or wait for their names.
const COPIES_MAX: usize = 1024;
/// Most files that are flushed in the background, at a time.
const FLUSHES_MAX: usize = 256;
/// Most files that are filled.
const FILLS_MAX: usize = 256;
/// How many descriptors filling one takes.
const FILL_FILES: usize = 2;
/// A limit as good as none.
const LIMIT_MAX: u64 = 1 << 20;
/// Each of the five kinds gets this fraction of a thread's part of the limit; the rest is for files
/// in use.
const SHARE: usize = 8;
/// The least number for each kind.
const LEAST: usize = 4;
/// What a mount has open for as long as it lives, about: its layers, journal and device, and what
/// it keeps for its next server.
const MOUNT_FILES: usize = 20;

/// The bounds of a thread.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// The thread's part of the limit.
    part: usize,
    /// Room for copies that wait for their names.
    pub(crate) copies: Semaphore,
    /// Room for files that are filled in the background and wait for their names.
    pub(crate) fills: Semaphore,
    /// How many files one flush takes at a time.
    pub(crate) flush_max: usize,
    /// Room for files that are flushed.
    pub(crate) flushes: Semaphore,
}

impl Default for Descriptors {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
        Self::new(limit as usize, std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Descriptors {
    /// Computes the bounds for a process that may open `limit` files and has this number of
    /// threads.
    fn new(limit: usize, threads: usize) -> Self {
        let part = limit / threads.max(1);
        let share = share(part);
        let flushes = share.min(FLUSHES_MAX);
        Self {
            part,
            copies: Semaphore::new(share.min(COPIES_MAX)),
            fills: Semaphore::new((share / FILL_FILES).clamp(1, FILLS_MAX)),
            flush_max: flushes.min(FLUSHES_MAX / 4),
            flushes: Semaphore::new(flushes),
        }
    }

    /// Returns the largest number of directories that a thread with this number of mounts keeps
    /// open.
    pub(crate) fn directories_max(&self, mounts: usize) -> usize {
        self.share_beside(mounts).min(DIRECTORIES_MAX)
    }

    /// Returns the largest number of lower files of partial copies, likewise.
    pub(crate) fn lowers_max(&self, mounts: usize) -> usize {
        self.share_beside(mounts).min(LOWERS_MAX)
    }

    fn share_beside(&self, mounts: usize) -> usize {
        share(self.part.saturating_sub(mounts * MOUNT_FILES))
    }
}

/// Returns the share of each kind in a thread's part.
fn share(part: usize) -> usize {
    (part / SHARE).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: kept files take at most five eighths of a process's limit, for any number of threads,
    // and a large limit does not make it keep more than is of use.
    #[test]
    fn what_is_kept_is_a_part_of_the_limit() {
        for (limit, threads) in [(256, 2), (1024, 16), (20_000, 2), (1 << 20, 1)] {
            let one = Descriptors::new(limit, threads);
            let kept = one.directories_max(1)
                + one.lowers_max(1)
                + one.copies.available()
                + one.flushes.available()
                + one.fills.available() * FILL_FILES;
            assert!(kept * threads <= limit * 5 / 8, "{limit}: {one:?}");
            assert!(one.flush_max <= one.flushes.available() && one.flush_max >= LEAST);
        }
        let large = Descriptors::new(1 << 20, 1);
        assert_eq!(large.directories_max(600), DIRECTORIES_MAX);
        assert_eq!(large.lowers_max(600), LOWERS_MAX);
        assert_eq!(large.copies.available(), COPIES_MAX);
        assert_eq!(large.fills.available(), FILLS_MAX);
        assert_eq!((large.flushes.available(), large.flush_max), (FLUSHES_MAX, FLUSHES_MAX / 4));
        assert_eq!(Descriptors::new(16, 64).lowers_max(1), LEAST);
        // Mounts come first: their own files reduce the number of files that are kept for speed.
        let many = Descriptors::new(20_000, 2);
        assert!(many.directories_max(300) < many.directories_max(1));
        assert_eq!(many.directories_max(300), (10_000 - 300 * MOUNT_FILES) / SHARE);
        assert_eq!(many.lowers_max(10_000), LEAST);
    }
}
