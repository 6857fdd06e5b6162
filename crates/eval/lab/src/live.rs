//! Whether an experiment is running: a file beside the database that is locked while its process lives,
//! whatever ends it. So two processes never write to the same results, and a reader can distinguish a running
//! experiment from a killed one.

use crate::error::Error;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the file is called, instead of the database's ending.
const ENDING: &str = "running";
/// How often a claim is tried, and what lies between.
const TRIES_MAX: u32 = 10;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// A process works on it.
    Running,
    /// Its process ended without a word.
    Killed,
    /// No process works on it.
    Idle,
}

/// The claim of a process on results; given up when dropped, or when the process ends.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _file: File,
}

impl Claim {
    /// Claims a database, or reports that another process works on it.
    pub fn on(database: &Path) -> Result<Self, Error> {
        let path = database.with_extension(ENDING);
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(Error::io("cannot claim", &path))?;
        // A process that looks whether it is locked locks it for a moment.
        for _ in 0..TRIES_MAX {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { path, _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(TRY_AGAIN),
                Err(errno) => return Err(Error::io("cannot claim", &path)(errno.into())),
            }
        }
        Err(Error::Results(format!("another run works on {} now", database.display())))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What stays says that the process was killed, which the next one puts right.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Life {
    /// How a database stands.
    pub fn of(database: &Path) -> Self {
        let Ok(file) = File::open(database.with_extension(ENDING)) else { return Self::Idle };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Self::Killed,
            Err(_) => Self::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: results have one writer; a reader distinguishes a living one from one that was killed.
    #[test]
    fn results_have_one_writer() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("results.sqlite");
        assert_eq!(Life::of(&database), Life::Idle);
        let claim = Claim::on(&database).unwrap();
        assert_eq!(Life::of(&database), Life::Running);
        assert!(Claim::on(&database).unwrap_err().to_string().contains("another run"));
        drop(claim);
        assert_eq!(Life::of(&database), Life::Idle);
        // A killed process leaves its file, without a lock.
        std::fs::write(database.with_extension(ENDING), "").unwrap();
        assert_eq!(Life::of(&database), Life::Killed);
        drop(Claim::on(&database).unwrap());
        assert_eq!(Life::of(&database), Life::Idle);
    }
}
