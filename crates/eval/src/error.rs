//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// An error of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The experiment file is wrong at one place.
    #[error("line {line}: {key}: {message}")]
    Experiment {
        /// Line in the file, from 1.
        line: usize,
        /// The key, with its tables.
        key: String,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// The experiment file is no TOML, or a key is unknown, missing or of a wrong type.
    #[error("{0}")]
    Toml(String),
    /// A file or device could not be used.
    #[error("{what} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A program could not be run, or failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: String,
        /// What it said.
        message: String,
    },
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
    /// Refused, because it could destroy data.
    #[error("refused: {0}")]
    Refused(String),
    /// The database of results could not be used.
    #[error("results: {0}")]
    Store(rusqlite::Error),
    /// The results belong to something else.
    #[error("{0}")]
    Results(String),
    /// A chart could not be drawn.
    #[error("chart: {0}")]
    Chart(String),
    /// The user ended it; what was measured is kept.
    #[error("interrupted; what was measured is kept, --resume goes on")]
    Interrupted,
}

// Each message has its cause in it: who prints a chain of causes would print it twice.
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
        move |cause| Self::Io { what, path: path.into(), cause }
    }

    /// A failure of a program.
    pub(crate) fn program(program: &str, message: impl Into<String>) -> Self {
        Self::Program { program: program.into(), message: message.into() }
    }
}
