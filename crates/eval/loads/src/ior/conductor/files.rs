//! Files that tests made: only they are overwritten and removed.

use crate::ior::crew::IorError;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What was made and is still there.
#[derive(Debug, Default)]
pub struct Files {
    files: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> IorError {
    move |cause| IorError::File { what, path: path.into(), cause }
}

impl Files {
    /// Makes room for files that ranks will make: those that tests made before are removed, others
    /// are refused. From here on they count as made.
    pub(super) fn expect(
        &mut self,
        files: &[PathBuf],
        has_directories: bool,
    ) -> Result<(), IorError> {
        for path in files {
            if self.files.contains(path) {
                remove(path)?;
            } else if path.symlink_metadata().is_ok() {
                return Err(IorError::InTheWay(path.clone()));
            }
        }
        for path in files {
            if let (true, Some(directory)) = (has_directories, path.parent()) {
                self.make_directory(directory)?;
            }
            self.files.insert(path.clone());
        }
        Ok(())
    }

    fn make_directory(&mut self, directory: &Path) -> Result<(), IorError> {
        match std::fs::create_dir(directory) {
            Ok(()) => {
                self.directories.insert(directory.into());
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(failed("cannot make", directory)(error)),
        }
    }

    /// Removes those of these files that tests created; returns their number.
    pub(super) fn remove(&mut self, files: &[PathBuf]) -> Result<usize, IorError> {
        let mut count = 0;
        for path in files {
            if self.files.remove(path) {
                remove(path)?;
                count += 1;
            }
            if let Some(directory) = path.parent()
                && self.directories.contains(directory)
                && std::fs::remove_dir(directory).is_ok()
            {
                self.directories.remove(directory);
            }
        }
        Ok(count)
    }

    /// Removes everything.
    pub fn remove_all(&mut self) -> Result<(), IorError> {
        let all: Vec<PathBuf> = self.files.iter().cloned().collect();
        self.remove(&all).map(drop)
    }
}

/// A file that never came to be, because the test ended before, is no error.
fn remove(path: &Path) -> Result<(), IorError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(failed("cannot remove", path)(error))
        }
        _ => Ok(()),
    }
}
