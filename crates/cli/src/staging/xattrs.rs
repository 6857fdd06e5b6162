//! Extended attributes: those that belong to a file's user, and as root those that programs trust.
//!
//! Copies `user.*`, and as root `trusted.*` and `security.capability`. Labels of security modules
//! depend on the machine, and Tsumugi's mounts do not support access control lists, so it copies
//! neither. If a file system lacks extended attributes, the error names the option that leaves them
//! out, because a silent loss would be noticed much later.

use anyhow::{Context, anyhow};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The kernel's limit of a list of names and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const BYTES_MAX: usize = 65536;

/// Copies the extended attributes from one path to another; those of a link itself, not of its
/// target.
pub(crate) fn copy(source: &Path, target: &Path) -> anyhow::Result<()> {
    let mut list = vec![0; BYTES_MAX];
    let length = match llistxattr(source, &mut list[..]) {
        Ok(length) => length,
        // The source's file system has none.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(error) => return Err(anyhow!(error).context("cannot list its extended attributes")),
    };
    let is_root = rustix::process::geteuid().is_root();
    let names = list[..length].split(|byte| *byte == 0);
    for name in names.filter(|name| is_copied(name, is_root)) {
        let name = OsStr::from_bytes(name);
        copy_one(source, target, name).with_context(|| {
            format!("extended attribute {} (--no-xattrs leaves them out)", name.display())
        })?;
    }
    Ok(())
}

/// Returns whether a path may have extended attributes to copy.
pub(crate) fn may_have_any(source: &Path) -> bool {
    let mut list = [0; 1024];
    let is_root = rustix::process::geteuid().is_root();
    match llistxattr(source, &mut list[..]) {
        Ok(length) => list[..length].split(|byte| *byte == 0).any(|name| is_copied(name, is_root)),
        Err(error) => !matches!(error, Errno::OPNOTSUPP | Errno::NOSYS),
    }
}

fn copy_one(source: &Path, target: &Path, name: &OsStr) -> anyhow::Result<()> {
    let mut value = vec![0; BYTES_MAX];
    let length = match lgetxattr(source, name, &mut value[..]) {
        Ok(length) => length,
        // Removed since it was listed.
        Err(Errno::NODATA) => return Ok(()),
        Err(error) => return Err(anyhow!(error).context("cannot read it")),
    };
    lsetxattr(target, name, &value[..length], XattrFlags::empty())
        .with_context(|| format!("cannot set it on {}", target.display()))
}

fn is_copied(name: &[u8], is_root: bool) -> bool {
    name.starts_with(b"user.")
        || (is_root && (name.starts_with(b"trusted.") || name == b"security.capability"))
}
