//! Finishing the copies that a killed process has left waiting.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, OFlags, RenameFlags};
use rustix::io::Errno;

use super::marks;
use crate::layers::Upper;
use crate::sys;

/// Copies that could not get their names, below the work directory.
const LOST: &str = "tsumugi/lost";

/// Finishes the copies that a killed process has left waiting, and discards those that cannot be
/// trusted, except for files that must be kept.
pub(crate) fn recover(upper: &Upper, is_kept: impl Fn(&[u8]) -> bool) -> Result<(), Errno> {
    let paths = marks::read(upper)?;
    let mut has_discarded = false;
    for entry in sys::list(upper.pending.as_fd())? {
        if is_kept(&entry.name) {
            continue;
        }
        if let Some(path) = paths.get(&*entry.name) {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
            let file = sys::open_below(upper.pending.as_fd(), &entry.name, flags)?;
            rustix::fs::fsync(&file)?;
            match finish_one(upper, &entry.name, path) {
                // The directory was moved or removed after the copy was made. All other copies
                // must not wait for this one.
                Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)) => {
                    let kept = set_aside(upper, &entry.name)?;
                    tracing::error!(
                        %errno,
                        path = %path.escape_ascii(),
                        kept = %format_args!("WORKDIR/{LOST}/{}", kept.escape_ascii()),
                        "a waiting copy could not get its name, and was set aside"
                    );
                }
                other => other?,
            }
        } else {
            rustix::fs::unlinkat(&upper.pending, &entry.name, AtFlags::empty())?;
            has_discarded = true;
        }
    }
    marks::remove(upper)?;
    // A discarded file must not come back under a name that a new file has by then.
    if has_discarded { rustix::fs::fsync(&upper.pending) } else { Ok(()) }
}

/// Moves a copy to the directory of those that have no name. Returns its name there.
fn set_aside(upper: &Upper, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let lost = crate::layers::make_directory(upper.work_root.as_fd(), LOST)?;
    let inode = sys::stat_at(upper.pending.as_fd(), name)?.inode;
    let kept = format!("{inode}-").into_bytes().into_iter().chain(name.iter().copied()).collect();
    rustix::fs::renameat(&upper.pending, name, &lost, Vec::as_slice(&kept))?;
    rustix::fs::fsync(&lost)?;
    Ok(kept)
}

fn finish_one(upper: &Upper, name: &[u8], path: &[u8]) -> Result<(), Errno> {
    if let Some(entry) = path.strip_prefix(&[0]) {
        return finish_entry(upper, name, entry);
    }
    let cut = path.iter().rposition(|&byte| byte == b'/');
    let (above, last) = cut.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let parent = sys::open_below(upper.root.as_fd(), above, flags)?;
    let before = sys::stat_at(parent.as_fd(), b"")?;
    let no_replace = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&upper.pending, name, &parent, last, no_replace) {
        Ok(()) => sys::set_times(parent.as_fd(), Some(before.atime), Some(before.mtime))?,
        // Something took the name after the copy was made: that is the newer one.
        Err(Errno::EXIST) => rustix::fs::unlinkat(&upper.pending, name, AtFlags::empty())?,
        Err(errno) => return Err(errno),
    }
    rustix::fs::fsync(&parent)
}

fn finish_entry(upper: &Upper, name: &[u8], entry: &[u8]) -> Result<(), Errno> {
    let index = crate::layers::existing_index(upper)?;
    match rustix::fs::renameat_with(&upper.pending, name, &index, entry, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => rustix::fs::unlinkat(&upper.pending, name, AtFlags::empty())?,
        Err(errno) => return Err(errno),
    }
    rustix::fs::fsync(&index)
}
