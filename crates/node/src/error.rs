//! The errors with which a node cannot start, or had to end.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// An error of a node: what went wrong, where, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The configuration file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The error, with line and key where they are known.
        reason: String,
    },
    /// A device cannot be used.
    #[error("device {path}: {source}")]
    Device {
        /// Its file.
        path: PathBuf,
        /// The error.
        source: block::Error,
    },
    /// The file of marks cannot be used.
    #[error(
        "{path}, in which the node notes failed flushes, cannot be used: {source}; name another \
         file with `marks`"
    )]
    Marks {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The target cannot run.
    #[error("target: {0}")]
    Target(#[from] target::Error),
    /// The metadata service does not accept this node's devices.
    #[error("metadata service: {0}")]
    Agent(String),
    /// The mount failed.
    #[error("mount: {0}")]
    Mount(String),
    /// A thread or reactor cannot be made.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
