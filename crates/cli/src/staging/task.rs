//! The unit of work of a worker: one entry of a source.

use std::fs::Metadata;
use std::path::PathBuf;

/// An entry to copy, other than a directory.
#[derive(Debug)]
pub(crate) struct Task {
    /// The path of the source.
    pub(crate) source: PathBuf,
    /// The path of the copy.
    pub(crate) target: PathBuf,
    /// The source's attributes.
    pub(crate) data: Metadata,
}
