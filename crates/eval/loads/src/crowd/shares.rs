//! A directory of its own for each instance.

use base::Error;
use base::Stop;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

/// What all instances of a run begin with, for storages that have one lower directory below them all.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// Names the contents: runs with the same key begin with the same files, so a lower directory that was
    /// filled for it can be kept.
    pub key: &'a str,
    /// Fills an empty directory with it. Each call gives the same files.
    pub fill: &'a dyn Fn(&Path) -> Result<(), Error>,
}

impl Debug for Base<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Base").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Gives each instance of a run a directory of its own, and takes it away after the run.
pub trait Shares: Debug + Send + Sync {
    /// Creates this number of fresh directories: layered ones with the base below an empty upper. Plain ones
    /// are empty, and instances create their files themselves, outside the measurement. Paths are the host's.
    /// After an error or a stop nothing is left.
    fn make(&self, count: u32, base: &Base<'_>, stop: &Stop) -> Result<Vec<PathBuf>, Error>;

    /// Takes away what [`make`](Self::make) gave, mounts and uppers included; lowers may stay. Called once
    /// for each successful `make`, whatever became of the run.
    fn take_back(&self, directories: &[PathBuf]) -> Result<(), Error>;
}

/// Plain directories below one of ours.
#[derive(Clone, Debug)]
pub struct PlainShares {
    /// The directory, which has to be one that we made.
    pub parent: PathBuf,
}

impl Shares for PlainShares {
    fn make(&self, count: u32, _base: &Base<'_>, _stop: &Stop) -> Result<Vec<PathBuf>, Error> {
        let mut made = Vec::new();
        for number in 0..count {
            let path = self.parent.join(format!("instance-{number}"));
            // Fails if it exists: never somebody else's.
            if let Err(cause) = fs::create_dir(&path) {
                self.take_back(&made)?;
                return Err(Error::io("cannot make", &path)(cause));
            }
            made.push(path);
        }
        Ok(made)
    }

    fn take_back(&self, directories: &[PathBuf]) -> Result<(), Error> {
        for path in directories {
            fs::remove_dir_all(path).map_err(Error::io("cannot remove", path))?;
        }
        Ok(())
    }
}
