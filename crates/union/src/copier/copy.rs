//! One file's copy: making the file, and its bytes.
//!
//! A clone of the whole file first: it takes no space and no time. Else the kernel copies from page
//! cache to page cache, in steps, skipping holes. What was copied is on its way to the disk while the
//! next step goes on, so that the sync that follows is short; the last part only when the next copy is
//! done, since whoever asked for the copy is about to write to it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring::File;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::copy_range;
use crate::commit::errno_of;
use crate::sys;

/// Bytes of a step: what others may have to wait for.
const STEP_BYTES: u64 = 1 << 20;

/// A lower file's bytes to be copied.
#[derive(Debug)]
pub(crate) struct Copy {
    from: File,
    /// How many of its bytes, from the start.
    length: u64,
    to: To,
    /// Whether what was copied is to go to the disk early.
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

/// What a turn has come to.
#[derive(Debug)]
pub(super) enum Step {
    /// This part of the copy has been made.
    More(File, Range<u64>),
    /// It is done.
    Done(Copied),
}

impl Copy {
    /// Of the first `length` bytes.
    pub(crate) fn new(from: File, length: u64, to: To, writes_back: bool) -> Self {
        Self { from, length, to, writes_back, progress: None }
    }

    /// Takes a turn.
    pub(super) fn step(&mut self) -> Result<Step, Errno> {
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        if self.progress.is_none() {
            let file = match &self.to {
                To::New { directory, name, mode } => make(directory, name, *mode)?,
                To::Existing(file) => file.clone(),
            };
            self.progress = Some(Progress { file, at: 0, is_clone: false });
        }
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
    Ok(File::from_handle(ring::Handle::from_fd(made)))
}
