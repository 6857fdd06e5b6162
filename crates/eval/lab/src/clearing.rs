//! What a run has left is taken away so that the next run does not pay for it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What statfs(2) says of ext2, ext3 and ext4.
const EXT4_SUPER_MAGIC: i64 = 0xef53;
/// How long a mount may be in use by processes that have just ended, and a server may refuse the removal of
/// what was just unmounted: it may still give the last copies their names.
const PATIENCE: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(20);
/// How many directories are removed at a time. Those of earlier runs are in the page cache no more, and each is
/// read when it is removed, one block after another.
const REMOVERS: usize = 16;
/// How far below an experiment's directory, or a bench's, containers have their own.
const CONTAINER_DEPTH: usize = 3;

/// Removes a directory with everything in it. `aside` is a directory of ours on the same file system, which the
/// caller removes at the end; it is created when needed.
///
/// On ext4 the directory is moved there and its files are emptied, but stay: without a journal ext4 passes
/// over inodes that were deleted in the last minutes, one by one, for each file that is made
/// (`recently_deleted` of fs/ext4/ialloc.c), so that a run would pay for those before it.
pub fn clear(directory: &Path, aside: &Path) -> io::Result<()> {
    static CLEARED: AtomicU64 = AtomicU64::new(0);
    if rustix::fs::statfs(directory)?.f_type != EXT4_SUPER_MAGIC {
        return remove(directory);
    }
    fs::create_dir_all(aside)?;
    let to = aside.join(CLEARED.fetch_add(1, Ordering::Relaxed).to_string());
    fs::rename(directory, &to)?;
    empty(&to)
}

/// Removes a directory with everything in it.
pub fn remove(directory: &Path) -> io::Result<()> {
    insist(|| {
        remove_containers(directory)?;
        fs::remove_dir_all(directory)
    })
}

/// Removes the directories that lie as far below this one as containers do, many at a time.
pub(crate) fn remove_containers(directory: &Path) -> io::Result<()> {
    let mut level = vec![(0, directory.to_owned())];
    for _ in 0..CONTAINER_DEPTH {
        let mut below = Vec::new();
        for (_, path) in level {
            directories_in(&path, &mut below)?;
        }
        level = below;
    }
    // In the order in which they were made, more or less: neighbours are read together.
    level.sort_unstable();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((_, path)) = level.get(next.fetch_add(1, Ordering::Relaxed)) {
            fs::remove_dir_all(path)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..REMOVERS.min(level.len())).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|it| it.join().unwrap_or(Err(ErrorKind::Other.into())));
        ended.fold(Ok(()), Result::and)
    })
}

/// Adds the directories in a directory, with their inode numbers.
fn directories_in(directory: &Path, found: &mut Vec<(u64, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push((entry.ino(), entry.path()));
        }
    }
    Ok(())
}

/// Retries until it succeeds or patience ends.
pub(crate) fn insist(mut act: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match act() {
            Err(error)
                if begun.elapsed() < PATIENCE
                    && matches!(
                        error.kind(),
                        ErrorKind::ResourceBusy | ErrorKind::DirectoryNotEmpty
                    ) =>
            {
                std::thread::sleep(STEP);
            }
            done => return done,
        }
    }
}

/// Empties all files below a directory.
fn empty(directory: &Path) -> io::Result<()> {
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => left.push(entry.path()),
                kind if kind.is_file() => drop(File::create(entry.path())?),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever lies in a directory is removed with it, above, at and below where containers are, and
    /// nothing that links name; what cannot be removed is told.
    #[test]
    fn all_is_removed_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let (all, kept) = (scratch.path().join("all"), scratch.path().join("kept"));
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "stays").unwrap();
        for container in 0..100 {
            let at = all.join(format!("storage-{}/cleared/{container}", container % 3));
            fs::create_dir_all(at.join("upper/files/deep")).unwrap();
            fs::write(at.join("upper/files/deep/file"), "goes").unwrap();
            std::os::unix::fs::symlink(&kept, at.join("link")).unwrap();
        }
        std::os::unix::fs::symlink(&kept, all.join("storage-0/cleared/link")).unwrap();
        fs::write(all.join("storage-1/file"), "goes").unwrap();
        remove_containers(&all).unwrap();
        let mut left = Vec::new();
        directories_in(&all.join("storage-0/cleared"), &mut left).unwrap();
        assert!(left.is_empty() && all.join("storage-1/file").exists(), "{left:?}");
        remove(&all).unwrap();
        assert!(!all.exists());
        assert_eq!(fs::read(kept.join("file")).unwrap(), b"stays");
        assert!(remove(&all).is_err());
    }

    /// Goal: what was cleared is not at its place any more, nor has the disk its bytes, and what links name
    /// elsewhere stays as it is.
    #[test]
    fn what_is_cleared_holds_no_bytes() {
        let scratch = tempfile::tempdir().unwrap();
        let (run, aside) = (scratch.path().join("run"), scratch.path().join("aside"));
        let kept = scratch.path().join("kept");
        fs::write(&kept, "stays").unwrap();
        for _ in 0..2 {
            fs::create_dir_all(run.join("upper/deep")).unwrap();
            fs::write(run.join("upper/deep/file"), "goes").unwrap();
            std::os::unix::fs::symlink(&kept, run.join("upper/link")).unwrap();
            clear(&run, &aside).unwrap();
            assert!(!run.exists());
        }
        assert_eq!(fs::read(&kept).unwrap(), b"stays");
        let left = if aside.exists() { loads::file_set::list(&aside).unwrap() } else { Vec::new() };
        let bytes: u64 =
            left.iter().filter(|(name, _)| name.ends_with("file")).map(|(_, bytes)| bytes).sum();
        assert_eq!(bytes, 0, "{left:?}");
    }
}
