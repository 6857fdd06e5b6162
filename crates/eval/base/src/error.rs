//! Errors that every part of the evaluation has.

use std::io;
use std::path::{Path, PathBuf};

/// A key of an experiment file that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key}: {message}")]
pub struct KeyError {
    /// Line in the file, from 1.
    pub line: usize,
    /// The key, with its tables.
    pub key: String,
    /// The error, and the accepted form.
    pub message: String,
}

/// A text that is not a size or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// The text does not begin with a whole number.
    #[error("{0:?} is no size, e.g. 4KiB")]
    NoSize(String),
    /// The unit is not a unit of sizes.
    #[error("{0:?} has no known unit: there are KiB, MiB, GiB, TiB")]
    SizeUnit(String),
    /// The size exceeds the largest number of bytes.
    #[error("{0:?} is too large")]
    TooLarge(String),
    /// The text does not begin with a number.
    #[error("{0:?} is no time, e.g. 2s")]
    NoTime(String),
    /// The unit is not a unit of times.
    #[error("{0:?} has no known unit: there are ms, s, min, h")]
    TimeUnit(String),
    /// The time exceeds the range of the clock.
    #[error("{0:?} is no time")]
    TimeRange(String),
}

/// An error of files, programs or the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The experiment file is wrong at one place.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file or device could not be used.
    #[error("{what} {}: {cause}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A program could not be run, or failed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: String,
        /// Its error output.
        message: String,
    },
    /// Refused, because the operation could destroy data.
    #[error("refused: {0}")]
    Refused(String),
    /// The user stopped the experiment; the measurements are kept.
    #[error("interrupted; what was measured is kept, --resume goes on")]
    Interrupted,
}

impl Error {
    /// Converts an I/O error.
    pub fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| Self::Io { what, path: path.into(), cause }
    }

    /// Returns a failure of a program.
    pub fn program(program: &str, message: impl Into<String>) -> Self {
        Self::Program { program: program.into(), message: message.into() }
    }
}
