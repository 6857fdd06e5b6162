//! One file's copy: making the file, and its bytes.
//!
//! A clone of the whole file first: it takes no space and no time. Else the kernel copies from page
//! cache to page cache, in steps, skipping holes. Write-back of each step starts while the next
//! step runs, so that the sync that follows is short. Write-back of the last part starts only when
//! the next copy is done, because the requester is about to write to it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use reactor::File;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::copy_range;
use crate::sys;
use crate::sys::errno_of;

/// Bytes of a step: others may have to wait for one.
const STEP_BYTES: u64 = 1 << 20;
/// Largest file that the requesting thread copies by itself, if it need not wait for anything:
/// handing it to another thread and waiting for the answer takes as long.
const AT_ONCE_BYTES_MAX: u64 = 64 << 10;

/// A lower file's bytes to be copied.
#[derive(Debug)]
pub(crate) struct Copy {
    from: File,
    /// Number of bytes to copy, from the start.
    length: u64,
    to: To,
    /// Whether write-back starts early.
    pub(super) writes_back: bool,
    progress: Option<Progress>,
}

/// Where the bytes go.
#[derive(Debug)]
pub(crate) enum To {
    /// A file that is made for them.
    New {
        directory: Arc<OwnedFd>,
        /// Its name there, which must be free.
        name: Vec<u8>,
        /// Permissions.
        mode: u32,
    },
    /// One that has none yet.
    Existing(File),
}

/// The copy, and how many bytes it has.
#[derive(Debug)]
struct Progress {
    file: File,
    at: u64,
    is_clone: bool,
}

/// A finished copy.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) file: File,
    /// Whether it shares the lower file's blocks.
    pub(crate) is_clone: bool,
}

/// The outcome of a turn.
#[derive(Debug)]
pub(super) enum Step {
    /// This part of the copy has been made.
    More(File, Range<u64>),
    /// The copy is complete.
    Done(Copied),
}

impl Copy {
    /// Makes a copy of the first `length` bytes.
    pub(crate) fn new(from: File, length: u64, to: To, writes_back: bool) -> Self {
        Self { from, length, to, writes_back, progress: None }
    }

    /// Makes all of it in this call, if it is small and the source's bytes are in memory.
    pub(super) fn at_once(&mut self) -> Result<Option<Copied>, Errno> {
        if self.length == 0 || self.length > AT_ONCE_BYTES_MAX {
            return Ok(None);
        }
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        let mut bytes = vec![0; self.length as usize];
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        match rustix::io::preadv2(from, &mut parts, 0, ReadWriteFlags::NOWAIT) {
            Ok(count) if count as u64 == self.length => {}
            _ => return Ok(None),
        }
        self.begin()?;
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        let Some(Progress { file, .. }) = &self.progress else { return Err(Errno::IO) };
        let to = file.handle().as_fd().map_err(errno_of)?;
        if rustix::fs::ioctl_ficlone(to, from).is_ok() {
            let now = sys::stat_at(to, b"")?;
            if now.size > self.length {
                rustix::fs::ftruncate(to, self.length)?;
            }
            return Ok(Some(Copied { file: file.clone(), is_clone: true }));
        }
        sys::write_all_at(to, &bytes, 0)?;
        Ok(Some(Copied { file: file.clone(), is_clone: false }))
    }

    /// Makes the file, if there is none yet.
    fn begin(&mut self) -> Result<(), Errno> {
        if self.progress.is_none() {
            let file = match &self.to {
                To::New { directory, name, mode } => make(directory, name, *mode)?,
                To::Existing(file) => file.clone(),
            };
            self.progress = Some(Progress { file, at: 0, is_clone: false });
        }
        Ok(())
    }

    /// Takes a turn.
    pub(super) fn step(&mut self) -> Result<Step, Errno> {
        self.begin()?;
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        let Some(Progress { file, at: start, is_clone }) = &mut self.progress else {
            return Err(Errno::IO);
        };
        let to = file.handle().as_fd().map_err(errno_of)?;
        if *start == 0 && self.length > 0 && rustix::fs::ioctl_ficlone(to, from).is_ok() {
            (*start, *is_clone) = (self.length, true);
        }
        let mut at = *start;
        let end = self.length.min(at + STEP_BYTES);
        while at < end {
            at += copy_range(from, at, to, at, end - at, true)?;
        }
        if at < self.length {
            let part = *start..at;
            *start = at;
            return Ok(Step::More(file.clone(), part));
        }
        let now = sys::stat_at(to, b"")?;
        if now.size < self.length || (*is_clone && now.size > self.length) {
            // A hole at the end, or a clone of more.
            rustix::fs::ftruncate(to, self.length)?;
        }
        Ok(Step::Done(Copied { file: file.clone(), is_clone: *is_clone }))
    }

    /// Removes what was made.
    pub(super) fn give_up(&self) {
        if let (To::New { directory, name, .. }, Some(_)) = (&self.to, &self.progress) {
            // What stays after an error is discarded by the next mount.
            let _ = rustix::fs::unlinkat(directory, &**name, AtFlags::empty());
        }
    }
}

fn make(directory: &OwnedFd, name: &[u8], mode: u32) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(mode))?;
    Ok(File::from_handle(reactor::Handle::from_fd(made)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Config, Handle, Runtime};
    use std::os::unix::fs::PermissionsExt;

    fn copy_of(bytes: &[u8], length: u64, to: &std::path::Path) -> Copy {
        let source = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(source.path(), bytes).unwrap();
        let from = File::from_handle(Handle::from_fd(source.into_file().into()));
        let directory = Arc::new(OwnedFd::from(std::fs::File::open(to).unwrap()));
        let to = To::New { directory, name: b"copy".to_vec(), mode: 0o640 };
        Copy::new(from, length, to, true)
    }

    // Goal: a small file whose bytes are in memory is copied in one call, up to where it is asked
    // for; a larger one, or nothing, is left to the steps; so is one that became shorter, and the
    // steps report that.
    #[test]
    fn small_files_are_copied_at_once() {
        let bytes: Vec<u8> = (0..=AT_ONCE_BYTES_MAX).map(|at| at as u8).collect();
        Runtime::new(&Config::default()).unwrap().block_on(async {
            for (length, is_done) in
                [(1, true), (5000, true), (AT_ONCE_BYTES_MAX, true), (0, false)]
                    .into_iter()
                    .chain([(AT_ONCE_BYTES_MAX + 1, false), (AT_ONCE_BYTES_MAX + 2, false)])
            {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("copy");
                let mut copy = copy_of(&bytes, length, directory.path());
                let copied = copy.at_once().unwrap();
                assert_eq!(copied.is_some(), is_done, "{length} bytes");
                assert_eq!(path.exists(), is_done);
                if is_done {
                    assert_eq!(std::fs::read(&path).unwrap(), bytes[..length as usize]);
                    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
                }
            }
            let directory = tempfile::tempdir().unwrap();
            let mut shorter = copy_of(b"abc", 5, directory.path());
            assert!(shorter.at_once().unwrap().is_none());
            assert!(matches!(shorter.step(), Err(Errno::IO)));
            shorter.give_up();
            assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        });
    }
}
