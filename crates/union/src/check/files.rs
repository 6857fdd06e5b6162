//! Partial files: what the journal has of each, and whether its names still lead somewhere.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::{Check, Severity};
use crate::journal::{FileId, FileStatus, Inspection, Stage};
use crate::layers::{OWN, PENDING};
use crate::store::directories_below;
use crate::sys;
use crate::sys::join;

/// Where a partial file is.
struct Located<'a> {
    file: &'a FileStatus,
    /// In the upper directory; none if its directory is gone.
    path: Option<Vec<u8>>,
}

impl Check<'_> {
    /// Checks each partial file.
    pub(super) fn files(&mut self, inspection: &Inspection) -> Result<(), Errno> {
        if inspection.files.is_empty() {
            return Ok(());
        }
        let directories = directories_below(self.upper.as_fd())?;
        for file in &inspection.files {
            let path = file.names.first().and_then(|name| {
                let directory = directories.get(&name.parent)?;
                Some(join(directory, &name.name).to_vec())
            });
            let located = Located { file, path };
            self.data(&located, inspection);
            self.name(&located)?;
        }
        Ok(())
    }

    fn path_of(&self, located: &Located<'_>) -> PathBuf {
        if let Some(path) = &located.path {
            return self.upper_path.join(OsStr::from_bytes(path));
        }
        let name = located.file.names.first().map_or(&b"?"[..], |name| &name.name);
        self.upper_path.join("…").join(OsStr::from_bytes(name))
    }

    /// Whether its bytes are what was written.
    fn data(&mut self, located: &Located<'_>, inspection: &Inspection) {
        let path = self.path_of(located);
        if located.file.is_damaged {
            self.add(
                Severity::Damage,
                path,
                "records of the journal that may have changed this file are missing".into(),
                "Its content is not known. Restore upper and work directory from a backup, or remove the file in \
                 a mount with -o accept_damage: all reads of it give EIO there",
            );
            return;
        }
        let of_file = |ranges: &[(FileId, u64, u64)]| -> Vec<(u64, u64)> {
            let ranges = ranges.iter().filter(|range| range.0 == located.file.file);
            ranges.map(|range| (range.1, range.2)).collect()
        };
        for (start, end) in of_file(&inspection.rotten) {
            self.add(
                Severity::Damage,
                path.clone(),
                format!("stored bytes {start} to {} are not what was written", end - 1),
                "Reads of them give EIO, and the file cannot be completed. Restore upper and work directory from \
                 a backup, or overwrite these bytes, or remove the file",
            );
        }
        for (start, end) in of_file(&inspection.lost) {
            self.add(
                Severity::Damage,
                path.clone(),
                format!("stored bytes {start} to {} were lost earlier", end - 1),
                "Reads of them give EIO. Overwrite them, or remove the file",
            );
        }
    }

    /// Whether its name still shows it.
    fn name(&mut self, located: &Located<'_>) -> Result<(), Errno> {
        let path = self.path_of(located);
        let forgotten = "The next mount forgets what the journal has of it";
        let Some(below) = &located.path else {
            let what = "the journal has a partial file whose directory is gone";
            self.add(Severity::Leftover, path, what.into(), forgotten);
            return Ok(());
        };
        let has_name = sys::find_at(self.upper.as_fd(), below)?.is_some();
        match &located.file.stage {
            Stage::Open if has_name => {
                let what =
                    "the upper directory has something newer than the partial file of this name";
                self.add(Severity::Leftover, path, what.into(), forgotten);
            }
            Stage::Open => {}
            Stage::Publishing(work) => {
                let name = [OWN.as_bytes(), b"/", PENDING.as_bytes(), b"/", work].concat();
                let has_work = sys::find_at(self.work.as_fd(), &name)?.is_some();
                let advice = if has_name && !has_work {
                    "It has its name already: the next mount forgets what the journal has of it"
                } else {
                    "It is partial still: the next mount goes on from there"
                };
                let what =
                    "the file was being completed when its server was killed or the power failed";
                self.add(Severity::Leftover, path, what.into(), advice);
            }
        }
        Ok(())
    }

    /// Returns whether something lies at a path below the work directory.
    pub(super) fn has(&self, path: &str) -> Result<bool, Errno> {
        match rustix::fs::statat(&self.work, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the entries of a directory below the work directory; none if it is not there.
    pub(super) fn entries(&self, path: &str) -> Result<Vec<Vec<u8>>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match sys::open_below(self.work.as_fd(), path.as_bytes(), flags) {
            Ok(directory) => {
                let entries = sys::list(directory.as_fd())?;
                Ok(entries.into_iter().map(|entry| entry.name).collect())
            }
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}
