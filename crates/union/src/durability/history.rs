//! The batches of a committer so far, for the status.

use std::cell::Cell;
use std::time::Duration;

/// The batches of a committer so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    batches: Cell<u64>,
    files: Cell<u64>,
    last: Cell<Duration>,
    longest: Cell<Duration>,
}

impl History {
    /// Notes the number of copies in a batch, and how long making them durable took.
    pub(crate) fn note(&self, files: usize, took: Duration) {
        self.batches.set(self.batches.get() + 1);
        self.files.set(self.files.get() + files as u64);
        self.last.set(took);
        self.longest.set(self.longest.get().max(took));
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.get()
    }

    /// Copies in all batches.
    pub(crate) fn files(&self) -> u64 {
        self.files.get()
    }

    /// Returns how long the last batch took.
    pub(crate) fn last(&self) -> Duration {
        self.last.get()
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest.get()
    }
}
