//! Room for the store on its file system.
//!
//! The engine stops for good when one of its own writes meets a full disk. So changes are refused
//! while there is still room for those under way ([`Room::has_room`]). A *reserve* file holds
//! blocks that go back to the file system if a commit meets a full disk all the same.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Changes are refused when less than this is free, in bytes; on small file systems a part of it.
const LOW_BYTES_MAX: u64 = 32 << 20;

/// Bytes of the reserve; on small file systems a part of it.
const RESERVE_BYTES_MAX: u64 = 16 << 20;

/// Each of the two is at most the file system's size divided by this.
const PARTS: u64 = 16;

/// The file system's size divided by this has to be free for data of files.
const PLENTY_PARTS: u64 = 4;

/// Least time between two checks of the file system.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Most bytes that are written between two checks.
const LOOK_BYTES: u64 = 1 << 20;

const NAME: &str = "reserve";

/// The state of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is room.
    Roomy,
    /// There is little room, and the reserve is intact.
    Low,
    /// The reserve was given back.
    Spent,
}

/// Watches the free space of a store's file system.
#[derive(Debug)]
pub(super) struct Room {
    directory: PathBuf,
    state: State,
    looked: Option<reactor::time::Instant>,
    written: u64,
}

struct Space {
    free: u64,
    all: u64,
    has_inodes: bool,
}

impl Space {
    fn low(&self) -> u64 {
        LOW_BYTES_MAX.min(self.all / PARTS)
    }

    fn reserve(&self) -> u64 {
        RESERVE_BYTES_MAX.min(self.all / PARTS)
    }
}

fn space(directory: &Path) -> io::Result<Space> {
    let use_ = rustix::fs::statvfs(directory)?;
    let free = if rustix::process::geteuid().is_root() { use_.f_bfree } else { use_.f_bavail };
    Ok(Space {
        free: free * use_.f_frsize,
        all: use_.f_blocks * use_.f_frsize,
        // Some file systems do not count inodes.
        has_inodes: use_.f_files == 0 || use_.f_ffree > 16,
    })
}

/// Returns whether little is free on a directory's file system.
pub(super) fn is_low(directory: &Path) -> bool {
    space(directory).is_ok_and(|space| space.free < space.low() || !space.has_inodes)
}

impl Room {
    /// Watches the file system of an open store.
    pub(super) fn new(directory: &Path) -> Room {
        let mut room =
            Room { directory: directory.into(), state: State::Roomy, looked: None, written: 0 };
        if room.fill_reserve().is_err() {
            room.state = State::Spent;
        }
        room
    }

    /// Records bytes that were written to the store.
    pub(super) fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Returns whether the store takes changes. When there is room and the engine has no workers,
    /// or the reserve was given back before, it calls `reopen`, and takes changes if that succeeds.
    pub(super) fn has_room(
        &mut self,
        has_workers: impl FnOnce() -> bool,
        reopen: impl FnOnce() -> bool,
    ) -> bool {
        let now = reactor::time::now();
        let is_fresh = self.looked.is_some_and(|looked| now.since(looked) < LOOK_EVERY);
        if is_fresh && self.written < LOOK_BYTES {
            return self.state == State::Roomy;
        }
        (self.looked, self.written) = (Some(now), 0);
        // If the file system does not answer, the next write finds out.
        let Ok(space) = space(&self.directory) else { return self.state == State::Roomy };
        let before = self.state;
        let has = |wanted: u64| space.free >= wanted && space.has_inodes;
        let is_roomy = match before {
            State::Roomy => has(space.low()) && (has_workers() || reopen()),
            State::Low => has(2 * space.low()) && (has_workers() || reopen()),
            State::Spent => {
                has(2 * space.low() + space.reserve()) && self.fill_reserve().is_ok() && reopen()
            }
        };
        self.state = match before {
            _ if is_roomy => State::Roomy,
            State::Spent => State::Spent,
            State::Roomy | State::Low => State::Low,
        };
        self.report(before, &space);
        self.state == State::Roomy
    }

    fn report(&self, before: State, space: &Space) {
        let (directory, free) = (self.directory.display(), space.free >> 20);
        match (before, self.state) {
            (State::Roomy, State::Low | State::Spent) => {
                let wanted = (2 * space.low() + space.reserve()) >> 20;
                tracing::error!(
                    "the file system of {directory} has {free} MiB free: changes are refused (ENOSPC) until {wanted} MiB are free"
                );
            }
            (State::Low | State::Spent, State::Roomy) => {
                tracing::warn!(
                    "the file system of {directory} has {free} MiB free: changes are taken again"
                );
            }
            _ => {}
        }
    }

    /// Returns whether at least a part of the file system is free.
    pub(super) fn has_plenty(&self) -> bool {
        space(&self.directory).is_ok_and(|space| space.free >= space.all / PLENTY_PARTS)
    }

    /// Returns whether little is free now, regardless of the last check.
    pub(super) fn is_low(&self) -> bool {
        self.state != State::Roomy || is_low(&self.directory)
    }

    /// Gives the reserve back to the file system.
    pub(super) fn spend(&mut self) {
        let before = std::mem::replace(&mut self.state, State::Spent);
        if let Err(error) = std::fs::remove_file(self.directory.join(NAME)) {
            tracing::warn!(%error, "the store's reserve cannot be given back");
        }
        if let Ok(space) = space(&self.directory) {
            self.report(before, &space);
        }
    }

    /// Creates the reserve, if it does not exist.
    fn fill_reserve(&self) -> io::Result<()> {
        let path = self.directory.join(NAME);
        let wanted = space(&self.directory)?.reserve();
        let mut options = OpenOptions::new();
        let mut file = options.create(true).write(true).truncate(false).mode(0o600).open(&path)?;
        let filled = fill(&mut file, wanted);
        if filled.is_err() {
            std::fs::remove_file(&path)?;
        }
        filled
    }
}

fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(&*file, FallocateFlags::empty(), 0, bytes) {
        // File systems that cannot allocate blocks in advance can still write them.
        Err(rustix::io::Errno::OPNOTSUPP) if file.metadata()?.len() < bytes => {
            let piece = vec![0; 1 << 20];
            let mut left = bytes;
            while left > 0 {
                let length = left.min(piece.len() as u64);
                file.write_all(&piece[..length as usize])?;
                left -= length;
            }
            file.sync_all()
        }
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
