//! The record of a union's layers, for commands that get its upper directory alone (`tsumugi union
//! status|complete`).
//!
//! Each mount leaves two things: `WORKDIR/tsumugi/union` with its options and the identities of its
//! directories ([`Record`]), and in an attribute of the upper directory the path of the work
//! directory ([`WorkPath`]). The attribute is among overlayfs's own (`trusted.overlay.tsumugi`), so
//! that neither the kernel nor fuse-overlayfs shows it or takes it along; the rest is a file, since
//! options with 500 layers do not fit into an attribute. Both survive a kill immediately. They
//! survive a loss of power from the first flush of a partial file on, which makes them durable
//! ([`crate::journal::Directory`]).
//!
//! [`find()`] accepts a record only if the calling user wrote it, and only if it belongs to this
//! upper directory.

mod codec;
mod find;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};

use reactor::file::FileHandle;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::format::Prefix;
use crate::journal::RECORD as FILE;
use crate::layers::{Layers, OWN, Upper};
use crate::options::Options;
use crate::sys;
use codec::{Identity, Record, WorkPath};

pub(crate) use find::{check_record, find, work_of};

/// The attribute behind the prefix of the overlay's own.
const ATTRIBUTE: &[u8] = b"tsumugi";
/// The file that becomes the record.
const NEW_FILE: &str = "union.new";
/// Records are not longer: 500 layers with the longest paths, escaped.
const RECORD_BYTES_MAX: u64 = 8 << 20;

impl Identity {
    /// Returns the identity of an open directory.
    fn of(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let inode = sys::stat_at(directory, b"")?.inode;
        let uuid = reactor::file::file_system_uuid(directory).unwrap_or_default();
        let handle = FileHandle::of(directory).ok();
        Ok(Self { inode, uuid, handle })
    }
}

/// Records the layers of a union. A failure only prevents commands that get the upper directory
/// alone.
pub(crate) fn write(options: &Options, layers: &Layers, has_segments: bool) -> Result<(), Errno> {
    let Some(upper) = layers.upper.as_ref().filter(|_| !options.read_only) else { return Ok(()) };
    let recorded = write_record(options, layers, upper, has_segments);
    let recorded = recorded.and_then(|()| {
        write_work_path(options, &layers.prefix.name(ATTRIBUTE), upper, has_segments)
    });
    recorded.inspect_err(|errno| {
        tracing::warn!(%errno, "the layers of a union could not be recorded: `tsumugi union \
            status` and `complete` will need its options");
    })
}

/// `has_segments`: the journal has been used, and the first segment's flush is not to come.
fn write_record(
    options: &Options,
    layers: &Layers,
    upper: &Upper,
    has_segments: bool,
) -> Result<(), Errno> {
    let mut lower = Vec::with_capacity(layers.lower.len());
    for layer in &layers.lower {
        lower.push(Identity::of(layer.root.as_fd())?);
    }
    let record =
        Record { upper: Identity::of(upper.root.as_fd())?, lower, options: options.text() };
    let bytes = record.encode();
    let own = sys::open_below(
        upper.work_root.as_fd(),
        OWN.as_bytes(),
        OFlags::RDONLY | OFlags::DIRECTORY,
    )?;
    if read(own.as_fd()).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    replace(own.as_fd(), &bytes).inspect_err(|_| {
        // An older record would be wrong.
        let _ = rustix::fs::unlinkat(&own, FILE, AtFlags::empty());
    })?;
    if has_segments {
        rustix::fs::fsync(&open(own.as_fd())?)?;
        rustix::fs::fsync(&own)?;
    }
    Ok(())
}

fn write_work_path(
    options: &Options,
    name: &[u8],
    upper: &Upper,
    has_segments: bool,
) -> Result<(), Errno> {
    let (Some(path), Some(work)) = (&options.upper, &options.work) else { return Ok(()) };
    let work_path = WorkPath { relative: relative(path, work), absolute: work.clone() }.encode();
    let root = upper.root.as_fd();
    if sys::xattr(root, name)?.is_some_and(|found| found == work_path) {
        return Ok(());
    }
    sys::set_xattr(root, name, &work_path, XattrFlags::empty()).inspect_err(|_| {
        let _ = sys::remove_xattr(root, name);
    })?;
    if has_segments { rustix::fs::fsync(root) } else { Ok(()) }
}

/// Opens the record in `WORKDIR/tsumugi`.
fn open(own: BorrowedFd<'_>) -> Result<std::os::fd::OwnedFd, Errno> {
    sys::open_below(own, FILE.as_bytes(), OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK)
}

fn read(own: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    read_open(&open(own)?)
}

fn read_open(file: &std::os::fd::OwnedFd) -> Result<Vec<u8>, Errno> {
    let size = sys::stat_at(file.as_fd(), b"")?.size;
    if size > RECORD_BYTES_MAX {
        return Err(Errno::FBIG);
    }
    let mut bytes = vec![0; size as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Replaces or creates a record; a kill leaves the old or the new one.
fn replace(own: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(own, NEW_FILE, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(own, NEW_FILE, flags, Mode::RUSR | Mode::WUSR)?;
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::write(&file, &bytes[at..]) {
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    rustix::fs::renameat(own, NEW_FILE, own, FILE)
}

/// Returns the way from one directory to another, both absolute and without symbolic links.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

/// Returns the way to the work directory that an upper directory names.
fn work_path_of(upper: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, Errno> {
    for prefix in [Prefix::TRUSTED, Prefix::USER] {
        let found = sys::xattr(upper, &prefix.name(ATTRIBUTE))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the way leads from the one to the other, also where one lies above the other's place.
    #[test]
    fn work_paths_lead_there() {
        for (from, to, work_path) in [
            ("/a/upper", "/a/work", "../work"),
            ("/a/b/c", "/d", "../../../d"),
            ("/up", "/work/x", "../work/x"),
        ] {
            assert_eq!(relative(Path::new(from), Path::new(to)), Path::new(work_path));
        }
    }
}
