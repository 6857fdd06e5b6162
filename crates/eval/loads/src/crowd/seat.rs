//! An instance's side of the barrier.

use base::clock::now_ns;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A FIFO: a process that opens it for reading sleeps until the meeting begins.
pub(super) const GO: &str = "go";
/// When all begin, in ns of the monotonic clock; there before [`GO`] is opened.
pub(super) const START: &str = "start";

/// Where an instance says that it is ready, and waits for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The meeting's directory, as the instance sees it.
    pub directory: PathBuf,
    /// The instance, from 0.
    pub number: u32,
}

impl Seat {
    /// The seat of an instance.
    pub fn new(directory: &Path, number: u32) -> Self {
        Self { directory: directory.into(), number }
    }

    /// The file that says that its instance is ready: holds when, in ns of the monotonic clock.
    pub(super) fn file(&self) -> PathBuf {
        self.directory.join(format!("ready-{}", self.number))
    }

    /// Says that this instance is ready, and sleeps until all begin. Gives when that is, in ns of the
    /// monotonic clock: now, or a little earlier where the machine is busy.
    pub fn take(&self) -> io::Result<u64> {
        let file = self.file();
        let new = file.with_extension("new");
        // It has its name once it is whole.
        fs::write(&new, now_ns().to_string())?;
        fs::rename(&new, &file)?;
        drop(fs::File::open(self.directory.join(GO))?);
        let text = fs::read_to_string(self.directory.join(START))?;
        let start: u64 = text.parse().map_err(io::Error::other)?;
        std::thread::sleep(Duration::from_nanos(start.saturating_sub(now_ns())));
        Ok(start)
    }
}
