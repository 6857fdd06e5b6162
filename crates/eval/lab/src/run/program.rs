//! Whether loads are still run by the program that an experiment began with: with one that is replaced
//! meanwhile versions would change unseen, or runs fail for the moment in which there is none.

use crate::error::Error;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program's file, as it was when an experiment began.
#[derive(Debug)]
pub(super) struct SameProgram {
    path: PathBuf,
    identity: Identity,
}

/// Device, inode and time of the last change of its content.
type Identity = (u64, u64, i64, i64);

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

impl SameProgram {
    /// The program at this path as it is now.
    ///
    /// # Errors
    ///
    /// Where there is none.
    pub(super) fn at(path: &Path) -> Result<Self, Error> {
        let file = path.metadata().map_err(Error::io("cannot find", path))?;
        Ok(Self { path: path.into(), identity: identity(&file) })
    }

    /// # Errors
    ///
    /// Where it is gone, or another.
    pub(super) fn check(&self) -> Result<(), Error> {
        let is_same = self.path.metadata().is_ok_and(|file| identity(&file) == self.identity);
        is_same.then_some(()).ok_or_else(|| {
            Error::Results(format!(
                "{} was replaced while the experiment ran; what was measured is kept, --resume goes on with the new \
                 one",
                self.path.display()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a program is the same until another is put in its place, or it is written to or removed.
    #[test]
    fn what_is_replaced_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        assert!(SameProgram::at(&path).is_err());
        std::fs::write(&path, "one").unwrap();
        let first = SameProgram::at(&path).unwrap();
        first.check().unwrap();
        let other = directory.path().join("other");
        std::fs::write(&other, "one").unwrap();
        std::fs::rename(&other, &path).unwrap();
        let said = first.check().unwrap_err().to_string();
        assert!(said.contains("was replaced") && said.contains("--resume"), "{said}");
        let second = SameProgram::at(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(second.check().is_err());
    }
}
