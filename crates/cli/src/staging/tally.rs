//! What a copy has done so far, shared by its threads.

use serde::Serialize;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Errors that are kept; the rest is counted.
const ERRORS_MAX: usize = 1000;

/// Counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Bytes there are to copy, as far as counted.
    pub(crate) bytes_found: AtomicU64,
    /// Bytes copied, holes included.
    pub(crate) bytes_done: AtomicU64,
    files: AtomicU64,
    verified: AtomicU64,
    failures: AtomicU64,
    errors: Mutex<Vec<Failure>>,
}

/// What went wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// The file.
    pub(crate) path: String,
    /// What went wrong.
    pub(crate) error: String,
}

/// The end result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    /// Files, links and special files copied.
    pub(crate) files: u64,
    /// Bytes copied, holes included.
    pub(crate) bytes: u64,
    /// Files whose copy was read back and had the same digest.
    pub(crate) verified: u64,
    /// Things that could not be copied.
    pub(crate) failures: u64,
    /// The first thousand of them.
    pub(crate) errors: Vec<Failure>,
}

impl Tally {
    /// One more file is copied.
    pub(crate) fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// One more file is verified.
    pub(crate) fn file_verified(&self) {
        self.verified.fetch_add(1, Ordering::Relaxed);
    }

    /// More bytes are copied.
    pub(crate) fn add_bytes(&self, count: u64) {
        self.bytes_done.fetch_add(count, Ordering::Relaxed);
    }

    /// Something could not be copied.
    pub(crate) fn failed(&self, path: &Path, error: &anyhow::Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut errors) = self.errors.lock()
            && errors.len() < ERRORS_MAX
        {
            let path = path.display().to_string();
            errors.push(Failure { path, error: crate::print::words(error) });
        }
    }

    /// The counts now.
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
