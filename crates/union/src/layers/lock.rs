//! One union at a time may have an upper or work directory.
//!
//! The lock is a flock(2) of the directory itself: it needs no file, ends with the process in any
//! case, and `/proc/locks` names its holder. A new union waits for a process that is just ending (a
//! container that restarts at once).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::UnionError;
use crate::sys;

/// How long a new mount waits for the old process's last commit.
const WAIT_MAX: Duration = Duration::from_secs(10);
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Holds a directory until dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock(#[allow(dead_code, reason = "held for its lock")] OwnedFd);

impl DirectoryLock {
    /// Takes the lock, and waits for a holder that is about to release it.
    pub(crate) fn take(path: &Path, directory: BorrowedFd<'_>) -> Result<Self, UnionError> {
        let error = |errno| UnionError::layer("directory", path, errno);
        // An open file description of its own: nothing else can drop the lock.
        let fd = sys::open_below(
            directory,
            b"",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
        )
        .map_err(error)?;
        let mut waited = Duration::ZERO;
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(fd)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if waited < WAIT_MAX => {
                    std::thread::sleep(WAIT_STEP);
                    waited += WAIT_STEP;
                }
                Err(Errno::WOULDBLOCK) => {
                    let inode = sys::stat_at(directory, b"").map_err(error)?.inode;
                    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
                    let holder = holder(&table, inode)
                        .map_or("another process".into(), |pid| format!("process {pid}"));
                    return Err(UnionError::Busy { path: path.into(), holder });
                }
                Err(errno) => return Err(error(errno)),
            }
        }
    }
}

/// Returns the process that holds a flock of an inode, from a table in the form of `proc_locks(5)`.
fn holder(table: &str, inode: u64) -> Option<u32> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, object, ..] = fields[..] else { return None };
        let number: u64 = object.rsplit(':').next()?.parse().ok()?;
        (number == inode).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the holder is found among locks of other kinds and of other inodes.
    #[test]
    fn the_holder_is_named() {
        let table = "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 12 fe:00:78 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 13 fe:00:77 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 14 fe:00:77 0 EOF\n";
        assert_eq!(holder(table, 77), Some(14));
        assert_eq!(holder(table, 79), None);
    }
}
