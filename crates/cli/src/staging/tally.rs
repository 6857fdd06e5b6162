//! The progress of a copy, shared by its threads.

use serde::Serialize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of errors to keep; further ones are only counted.
const ERRORS_MAX: usize = 1000;

/// The counters of a copy.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Bytes to copy, as far as counted.
    pub(crate) bytes_found: AtomicU64,
    /// Bytes copied, holes included.
    pub(crate) bytes_done: AtomicU64,
    files: AtomicU64,
    verified: AtomicU64,
    failures: AtomicU64,
    errors: Mutex<Vec<Failure>>,
}

/// A file that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// The file.
    pub(crate) path: String,
    /// The reason.
    pub(crate) error: String,
}

/// The final result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    /// Number of copied files, links and special files.
    pub(crate) files: u64,
    /// Bytes copied, holes included.
    pub(crate) bytes: u64,
    /// Number of copies that were read back with the same digest.
    pub(crate) verified: u64,
    /// Number of entries that could not be copied.
    pub(crate) failures: u64,
    /// The first thousand failures.
    pub(crate) errors: Vec<Failure>,
}

impl Tally {
    /// Counts a copied file.
    pub(crate) fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a verified file.
    pub(crate) fn file_verified(&self) {
        self.verified.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts copied bytes.
    pub(crate) fn add_bytes(&self, count: u64) {
        self.bytes_done.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts and keeps a failure.
    pub(crate) fn failed(&self, path: &Path, error: &anyhow::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut errors) = self.errors.lock()
            && errors.len() < ERRORS_MAX
        {
            let path = path.display().to_string();
            errors.push(Failure { path, error: crate::print::words(error) });
        }
    }

    /// Returns the present counts.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes_done.load(Ordering::Relaxed),
            verified: self.verified.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            errors: self.errors.lock().map(|errors| errors.clone()).unwrap_or_default(),
        }
    }
}
