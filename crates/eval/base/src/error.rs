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
    /// What is wrong, and what would be right.
    pub message: String,
}

/// A text that is no size or time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// It does not begin with a whole number.
    #[error("{0:?} is no size, e.g. 4KiB")]
    NoSize(String),
    /// Its unit is none of sizes.
    #[error("{0:?} has no known unit: there are KiB, MiB, GiB, TiB")]
    SizeUnit(String),
    /// It has more bytes than can be counted.
    #[error("{0:?} is too large")]
    TooLarge(String),
    /// It does not begin with a number.
    #[error("{0:?} is no time, e.g. 2s")]
    NoTime(String),
    /// Its unit is none of times.
    #[error("{0:?} has no known unit: there are ms, s, min, h")]
    TimeUnit(String),
    /// No clock counts so far.
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
    /// Refused, because it could destroy data.
    #[error("refused: {0}")]
    Refused(String),
    /// The user ended it; what was measured is kept.
    #[error("interrupted; what was measured is kept, --resume goes on")]
    Interrupted,
}

impl Error {
    /// Makes an I/O error into ours.
    pub fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| Self::Io { what, path: path.into(), cause }
    }

    /// Returns a failure of a program.
    pub fn program(program: &str, message: impl Into<String>) -> Self {
        Self::Program { program: program.into(), message: message.into() }
    }
}
