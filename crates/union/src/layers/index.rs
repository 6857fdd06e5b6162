//! Opening an index: checking that it belongs to these layers, and removing leftovers, by the
//! kernel's rules (`ovl_get_indexdir`, `ovl_indexdir_cleanup`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reactor::file::FileHandle;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::UnionError;
use crate::format::index::{links, name_of};
use crate::format::{Origin, Prefix, suffix};
use crate::layers::{self, Layers, Upper};
use crate::options::Options;
use crate::sys::{self, Stat};

/// The directory, below the work directory.
pub(crate) const NAME: &str = "index";

/// Opens the index of a union's work directory, which is made if there is none.
///
/// # Errors
/// If it cannot be kept here, or is of other layers.
pub(crate) fn open(options: &Options, layers: &Layers) -> Result<Option<OwnedFd>, UnionError> {
    let (Some(upper), Some(path), true) = (&layers.upper, &options.work, options.index) else {
        return Ok(None);
    };
    let refuse = |reason: &str| UnionError::Index { path: path.clone(), reason: reason.into() };
    if layers.prefix != Prefix::TRUSTED {
        return Err(refuse("needs attributes that only root of the machine can set (trusted.*)"));
    }
    let missing = "every layer's file system must have a number and file handles";
    let top = layers.lower.first().and_then(|layer| origin_of(layer.root.as_fd(), layer.uuid));
    let top = top.and_then(|origin| origin.value()).ok_or_else(|| refuse(missing))?;
    let uuid = reactor::file::file_system_uuid(upper.root.as_fd()).ok();
    let own = origin_of(upper.root.as_fd(), uuid).and_then(|origin| origin.value_of_upper());
    let own = own.ok_or_else(|| refuse(missing))?;
    if layers.lower.iter().any(|layer| origin_of(layer.root.as_fd(), layer.uuid).is_none()) {
        return Err(refuse(missing));
    }
    let prefix = layers.prefix;
    let failed = |errno: Errno| refuse(&errno.to_string());
    if !is_of(upper.root.as_fd(), &prefix.name(suffix::ORIGIN), &top).map_err(failed)? {
        return Err(refuse("the upper directory was used with another topmost lower layer"));
    }
    let index = layers::make_directory(upper.work_root.as_fd(), NAME).map_err(failed)?;
    if !is_of(index.as_fd(), &prefix.name(suffix::UPPER), &own).map_err(failed)? {
        return Err(refuse("the index was made for another upper directory"));
    }
    clean(layers, index.as_fd()).map_err(|(name, errno)| {
        refuse(&format!("entry {} of the index: {errno}", String::from_utf8_lossy(&name)))
    })?;
    Ok(Some(index))
}

/// Returns the index of a work directory, if it has one: that of an earlier union.
pub(crate) fn existing(upper: &Upper) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    sys::open_below(upper.work_root.as_fd(), NAME.as_bytes(), flags)
}

fn origin_of(root: BorrowedFd<'_>, uuid: Option<[u8; 16]>) -> Option<Origin> {
    Some(Origin { uuid: uuid?, handle: FileHandle::of(root).ok()? })
}

/// Returns whether an attribute names an inode; one that names nothing is set.
fn is_of(object: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> Result<bool, Errno> {
    match sys::xattr(object, name)? {
        Some(known) if Origin::parse(&known).is_some() => Ok(known == value),
        _ => sys::set_xattr(object, name, value, XattrFlags::empty()).map(|()| true),
    }
}

/// Removes entries whose file is gone. An entry that cannot be judged ends the mount.
fn clean(layers: &Layers, index: BorrowedFd<'_>) -> Result<(), (Vec<u8>, Errno)> {
    for entry in sys::list(index).map_err(|errno| (NAME.into(), errno))? {
        let name = entry.name;
        let is_kept = is_kept(layers, index, &name);
        match is_kept.and_then(|is| if is { Ok(()) } else { layers::remove(index, &name) }) {
            Ok(()) => {}
            Err(errno) => return Err((name, errno)),
        }
    }
    Ok(())
}

fn is_kept(layers: &Layers, index: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    // Leftovers of single operations.
    if name.starts_with(b"#") {
        return Ok(false);
    }
    let Some(stat) = sys::find_at(index, name)? else { return Ok(true) };
    // Entries of directories and whiteouts are for NFS.
    if stat.is_directory() || stat.is_whiteout_device() {
        return Ok(true);
    }
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
    let object = sys::open_below(index, name, flags)?;
    let origin = sys::xattr(object.as_fd(), &layers.prefix.name(suffix::ORIGIN))?;
    let origin = origin.ok_or(Errno::NODATA)?;
    if *name_of(&origin) != *name {
        return Ok(false);
    }
    if stat.nlink > 1 {
        return Ok(true);
    }
    // No name of the upper directory: there must be one of a lower layer.
    let Some(lower) = Origin::parse(&origin).and_then(|origin| layers.original(&origin)) else {
        return Ok(false);
    };
    let value = sys::xattr(object.as_fd(), &layers.prefix.name(suffix::NLINK))?;
    Ok(has_links(value.as_deref(), &stat, &lower))
}

fn has_links(value: Option<&[u8]>, upper: &Stat, lower: &Stat) -> bool {
    let count = value.and_then(|value| links(value, upper.nlink, lower.nlink));
    lower.nlink > 1 && count.is_some_and(|count| count > 0)
}
