//! Errors of reports.

use std::io;
use std::path::Path;

/// An error of a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The results could not be read.
    #[error(transparent)]
    Lab(#[from] lab::Error),
    /// A file could not be used.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// A chart could not be drawn.
    #[error("chart: {0}")]
    Chart(String),
    /// The content cannot be serialised.
    #[error("{0}")]
    Results(String),
}

impl Error {
    /// Converts an I/O error.
    pub(crate) fn io<'a>(
        what: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| base::Error::io(what, path)(cause).into()
    }
}
