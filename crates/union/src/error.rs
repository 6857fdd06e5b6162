//! The crate's error, for failures before and around serving; operations return `Errno`.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::options::OptionError;

/// How many files that stay partial an error names.
const FILES_NAMED_MAX: usize = 20;

/// Why a union could not be mounted, served or finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnionError {
    /// The options do not make a union.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A layer, or the work directory, cannot be used.
    #[error("cannot use {what} {path}: {source}")]
    Layer {
        /// `lowerdir`, `upperdir` or `workdir`.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Upper and work directory do not fit together.
    #[error("upperdir {upper} and workdir {work}: {reason}")]
    UpperAndWork {
        /// The upper directory.
        upper: PathBuf,
        /// The work directory.
        work: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
    /// The layers of an upper directory's union cannot be found.
    #[error(
        "cannot tell from upperdir {upper} alone what its union is made of: {reason} (say it: \
         -o lowerdir=…,workdir=…)"
    )]
    Record {
        /// The upper directory.
        upper: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Partial files could not be made whole; the others are.
    #[error("of upperdir {upper} these files stay partial: {files}")]
    Unfinished {
        /// The upper directory.
        upper: PathBuf,
        /// Their names, with the reasons.
        files: String,
    },
    /// A union that is not mounted cannot be checked.
    #[error("cannot check the union of upperdir {upper}: {reason}")]
    Check {
        /// The upper directory.
        upper: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The index of hard links cannot be kept.
    #[error("index=on with workdir {path}: {reason}")]
    Index {
        /// The work directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Another union has the directory.
    #[error(
        "{path} is in use by {holder} (a directory can be the upper or work directory of one union at a time)"
    )]
    Busy {
        /// The upper or work directory.
        path: PathBuf,
        /// The process that holds it.
        holder: String,
    },
    /// The journal of partial copies.
    #[error("cannot use the journal of partial copies in {path}/tsumugi: {source}")]
    Journal {
        /// The work directory.
        path: PathBuf,
        /// What is wrong.
        source: crate::journal::JournalError,
    },
    /// The mount itself.
    #[error(transparent)]
    Fuse(#[from] fuse::FuseError),
    /// The server of unions cannot be reached or started.
    #[error("cannot reach the server of unions: {0} (--own-process serves a mount without it)")]
    Serving(io::Error),
    /// The server of unions could not serve it, in its words.
    #[error("{0}")]
    Refused(String),
    /// The reactor.
    #[error("cannot start the reactor: {0}")]
    Reactor(io::Error),
}

/// A partial file that could not be completed.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// From the union's root.
    pub(crate) path: Vec<u8>,
    pub(crate) reason: String,
}

impl UnionError {
    pub(crate) fn layer(what: &'static str, path: &std::path::Path, errno: Errno) -> Self {
        Self::Layer { what, path: path.into(), source: errno.into() }
    }

    /// If there are any such files.
    pub(crate) fn unfinished(upper: &std::path::Path, files: &[Unfinished]) -> Option<Self> {
        let described = |file: &Unfinished| {
            let path = String::from_utf8_lossy(&file.path);
            format!("{path} ({})", file.reason)
        };
        let mut names: Vec<String> = files.iter().take(FILES_NAMED_MAX).map(described).collect();
        if files.len() > FILES_NAMED_MAX {
            names.push(format!("and {} more", files.len() - FILES_NAMED_MAX));
        }
        let files = names.join(", ");
        (!names.is_empty()).then(|| Self::Unfinished { upper: upper.into(), files })
    }
}
