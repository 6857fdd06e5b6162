//! What can go wrong with experiments and their results.

use std::io;
use std::path::{Path, PathBuf};

/// An error of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, a program or the user.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// The experiment file is no TOML, or a key is unknown, missing or of a wrong type.
    #[error("{0}")]
    Toml(String),
    /// A file of another program's results cannot be read.
    #[error("{}:{line}: {field}: {message}", path.display())]
    Import {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Which value.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// The database of results could not be used.
    #[error("results: {0}")]
    Store(rusqlite::Error),
    /// The results belong to something else.
    #[error("{0}")]
    Results(String),
}

// Each message has its cause in it: a chain of causes would print it twice.
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error)
    }
}

impl Error {
    /// Makes an I/O error into ours.
    pub(crate) fn io<'a>(
        what: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| base::Error::io(what, path)(cause).into()
    }

    /// Returns whether the user ended it.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Base(base::Error::Interrupted))
    }
}
