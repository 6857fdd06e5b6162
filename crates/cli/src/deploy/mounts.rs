//! The kernel's list of mounts, and taking down the FUSE mounts of a job.
//!
//! Only [`condition`] looks *into* a mount, on a thread of its own: a mount with a stopped process
//! blocks its caller.

use anyhow::{Context, bail};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Maximum number of mounts on top of one another at one path.
const STACKED_MAX: usize = 16;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Its mount point.
    pub(crate) path: PathBuf,
    /// The file system's type, such as `fuse.tsumugi`.
    pub(crate) kind: String,
    /// The major and minor number of its device. The minor is the name of a FUSE connection.
    device: (u32, u32),
    /// The user that mounted it, if it is a FUSE mount.
    pub(crate) user: Option<u32>,
}

/// The condition of a mount point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    /// Its machine was not reached.
    #[default]
    Unknown,
    /// No FUSE file system is mounted there.
    NotMounted,
    /// A FUSE file system is mounted there, and answers.
    Mounted,
    /// One is mounted, but its process is gone: calls get ENOTCONN.
    Dead,
    /// One is mounted, but does not answer in time.
    Silent,
}

/// Returns all mounts of this mount namespace.
pub(crate) fn all() -> anyhow::Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo").context("cannot read the list of mounts")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Returns device numbers (`st_dev`) of the mounted file systems of one type; none if the list of
/// mounts cannot be read.
pub(crate) fn devices(kind: &str) -> BTreeSet<u64> {
    let mounts = all().unwrap_or_default().into_iter().filter(|mount| mount.kind == kind);
    // FUSE file systems have no block device, and the major number 0.
    mounts.map(|mount| rustix::fs::makedev(0, mount.device.1)).collect()
}

/// Returns the device numbers of mounted file systems that no process serves: access to them never
/// waits for a user.
pub(crate) fn devices_of_kernel() -> BTreeSet<(u32, u32)> {
    let is_kernels = |mount: &Mount| {
        !mount.kind.starts_with("fuse") && !["nfs", "nfs4", "9p"].contains(&mount.kind.as_str())
    };
    all().unwrap_or_default().iter().filter(|mount| is_kernels(mount)).map(|it| it.device).collect()
}

/// A line of mountinfo (proc(5)): `36 35 98:0 /root /path options [tags] - type source options`.
fn parse(line: &[u8]) -> Option<Mount> {
    let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let device = std::str::from_utf8(fields.get(2)?).ok()?;
    let options = String::from_utf8_lossy(fields.get(dash + 3).unwrap_or(&&b""[..])).into_owned();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="));
    Some(Mount {
        user: user.and_then(|user| user.parse().ok()),
        path: unescape(fields.get(4)?),
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        device: {
            let (major, minor) = device.split_once(':')?;
            (major.parse().ok()?, minor.parse().ok()?)
        },
    })
}

/// Returns whether a type is that of a FUSE connection. `fuseblk` has the number of its disk in the
/// place of a connection's, and `fusectl` has none.
fn is_fuse(kind: &str) -> bool {
    kind == "fuse" || kind.starts_with("fuse.")
}

/// Undoes the octal escapes of white space and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(octal) = octal {
            bytes.push(octal);
            rest = &after[3..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns whether a FUSE file system is mounted at `path`.
pub(crate) fn is_mounted(path: &Path) -> bool {
    all().is_ok_and(|mounts| mounts.iter().any(|m| m.path == path && is_fuse(&m.kind)))
}

/// Returns the condition of a mount point, whose file system must answer within this time.
pub(crate) fn condition(path: &Path, within: Duration) -> Condition {
    if !is_mounted(path) {
        return Condition::NotMounted;
    }
    let (sender, answer) = mpsc::channel();
    let asked = path.to_path_buf();
    // The thread may wait for ever; the end of this process then ends it.
    std::thread::spawn(move || {
        let _ = sender.send(rustix::fs::statfs(&asked).map(drop));
    });
    match answer.recv_timeout(within) {
        Ok(Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)) => Condition::Dead,
        // Another user's mount reveals nothing else.
        Ok(_) => Condition::Mounted,
        Err(_) => Condition::Silent,
    }
}

/// Returns the mounts at or below `path`.
pub(crate) fn below(path: &Path) -> anyhow::Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.path.starts_with(path)).collect())
}

/// Unmounts every FUSE mount at `path`, lazily, and first aborts its connection so that processes
/// that hang in it get an error. Returns whether there was one.
pub(crate) fn take_down(path: &Path) -> anyhow::Result<bool> {
    for round in 0..STACKED_MAX {
        let found = all()?.into_iter().rev().find(|mount| mount.path == path);
        let Some(mount) = found else { return Ok(round > 0) };
        if !is_fuse(&mount.kind) {
            bail!("{} is a mount of type {}, not ours: left alone", path.display(), mount.kind);
        }
        // Only root can, and only if the control file system is mounted.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.device.1), "1");
        if unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            unmount_as_user(path)?;
        }
    }
    bail!("{} is still a mount after {STACKED_MAX} unmounts", path.display())
}

fn unmount_as_user(path: &Path) -> anyhow::Result<()> {
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .context("cannot run fusermount3 to unmount (package fuse3)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("cannot unmount {}: {}", path.display(), said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: paths with white space, and lines with and without optional fields, are read
    /// correctly.
    #[test]
    fn lines_are_parsed() {
        let line = br"36 35 0:51 / /mnt/a\040b\134c rw,noatime shared:1 - fuse.tsumugi tsumugi rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.path, Path::new(r"/mnt/a b\c"));
        assert_eq!((mount.kind.as_str(), mount.device), ("fuse.tsumugi", (0, 51)));
        assert_eq!(mount.user, None);
        let line = b"1 2 0:4 / /x rw - fuse.tsumugi tsumugi rw,user_id=1000,group_id=1";
        assert_eq!(parse(line).unwrap().user, Some(1000));
        assert_eq!(parse(b"1 2 3:4 / /x rw - ext4 /dev/a rw").unwrap().kind, "ext4");
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3:4 / /x rw"), None);
    }

    /// Goal: the number of a disk or of the control file system is not taken for a connection's.
    #[test]
    fn only_connections_are_fuse() {
        for (kind, is_one) in [
            ("fuse", true),
            ("fuse.tsumugi", true),
            ("fuse.sshfs", true),
            ("fuseblk", false),
            ("fuseblk.ntfs", false),
            ("fusectl", false),
        ] {
            assert_eq!(is_fuse(kind), is_one, "{kind}");
        }
    }

    /// Goal: other mounts than FUSE mounts are left alone.
    #[test]
    fn foreign_mounts_are_left_alone() {
        assert!(take_down(Path::new("/proc")).is_err());
        assert!(!take_down(Path::new("/proc/self")).unwrap());
        assert!(!is_mounted(Path::new("/proc")));
        assert_eq!(below(Path::new("/proc")).unwrap()[0].path, Path::new("/proc"));
    }
}
