//! The rest of the work directory: marks, copies that wait for their names, and half-made objects.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Check, Severity};
use crate::durability;
use crate::journal::{Inspection, Kind, Stage};
use crate::layers::{INCOMPATIBLE, MOUNTED, OWN, PENDING, WORK};
use crate::store::FILL_PREFIX;
use crate::sys;

impl Check<'_> {
    /// Checks what lies beside the journal.
    pub(super) fn work_directory(&mut self, inspection: &Inspection) -> Result<(), Errno> {
        self.marker(inspection);
        self.sign()?;
        self.pending(inspection)?;
        for name in self.entries(WORK)? {
            if name != INCOMPATIBLE.as_bytes() {
                let path = self.work_path.join(WORK).join(OsStr::from_bytes(&name));
                let what = "something that was being made did not get its name";
                self.add(Severity::Leftover, path, what.into(), "The next mount removes it");
            }
        }
        Ok(())
    }

    /// The mark that keeps the kernel's overlayfs away.
    fn marker(&mut self, inspection: &Inspection) {
        let has_partial = inspection.files.iter().any(|file| file.kind == Kind::Partial);
        let path = self.work_path.join(WORK).join(INCOMPATIBLE).join(OWN);
        if has_partial && inspection.is_synced && !inspection.has_marker {
            self.add(
                Severity::Damage,
                path,
                "the mark that keeps the kernel's overlayfs from partial files is missing".into(),
                "Do not mount these directories with the kernel's overlayfs, which would show lower files instead \
                 of partial ones. The next mount of a union makes the mark",
            );
        } else if !has_partial && inspection.has_marker {
            let what =
                "the mark that keeps the kernel's overlayfs away is there without a partial file";
            self.add(Severity::Leftover, path, what.into(), "The next mount removes it");
        }
    }

    /// The signs of a union that did not end by itself.
    fn sign(&mut self) -> Result<(), Errno> {
        let mounted = format!("{WORK}/{INCOMPATIBLE}/{MOUNTED}");
        if self.has(durability::RUNNING)? || self.has(&mounted)? {
            let path = self.work_path.join(durability::RUNNING);
            self.add(
                Severity::Leftover,
                path,
                "the union's server was killed, or the power failed, while it was mounted".into(),
                "The next mount finishes what it left; until then do not use the upper directory by itself",
            );
        }
        Ok(())
    }

    /// Copies that wait for their names.
    fn pending(&mut self, inspection: &Inspection) -> Result<(), Errno> {
        let pending = format!("{OWN}/{PENDING}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let names = self.entries(&pending)?;
        if names.is_empty() {
            return Ok(());
        }
        let directory = sys::open_below(self.work.as_fd(), pending.as_bytes(), flags)?;
        let waiting = durability::waiting_copies(self.work.as_fd(), directory.as_fd())?;
        for name in names {
            let is_published = inspection.files.iter().any(|file| match &file.stage {
                Stage::Publishing(work) => **work == *name,
                Stage::Open => false,
            });
            if is_published || is_filling(&name, inspection) {
                continue;
            }
            let path = self.work_path.join(&pending).join(OsStr::from_bytes(&name));
            match waiting.get(&name) {
                Some(goal) => {
                    let goal = String::from_utf8_lossy(goal);
                    let what = format!("the copy of {} waits for its name", goal.trim_start_matches('\0'));
                    self.add(Severity::Leftover, path, what, "The next mount gives it its name");
                }
                None => self.add(
                    Severity::Leftover,
                    path,
                    "a copy of which it is not known whether it is whole, or where it belongs".into(),
                    "The next mount removes it, and the lower file shows under its name, as after a loss of power. \
                     No fsync had acknowledged it",
                ),
            }
        }
        Ok(())
    }
}

/// Returns whether a name is that of a work file with which filling goes on.
fn is_filling(name: &[u8], inspection: &Inspection) -> bool {
    let text = String::from_utf8_lossy(name);
    let number = text.strip_prefix(FILL_PREFIX).and_then(|text| text.split_once('-'));
    let file = number.and_then(|(_, file)| u64::from_str_radix(file, 16).ok());
    file.is_some_and(|file| inspection.files.iter().any(|known| known.file.0 == file))
}
