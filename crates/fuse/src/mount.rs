//! Making a mount and removing it.
//!
//! Root calls mount(2) itself. Other users execute `fusermount3`, which passes the open device back
//! over a socket. A process that confines itself lets another process do either, see [`Mounter`]. A
//! mount is identified by its device number in `/proc/self/mountinfo`, never by a request to the
//! mount itself, which could wait for an answer from this process.

mod cpus;
mod helper;
mod mounter;
mod mountinfo;
mod options;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::FuseError;

pub(crate) use cpus::Cpus;
pub use mounter::{Mounter, serve_mounter};
pub use mountinfo::has_mounts_below;
pub use options::MountOptions;

/// How far the kernel reads ahead for a reader through its pages, if this process may set it.
/// Otherwise it is 128 KiB (`VM_READAHEAD_PAGES`), which INIT can only reduce.
const READ_AHEAD_BYTES: u32 = 1 << 20;

/// How long dropping a session waits for the unmount before it leaves the unmount to a thread.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// A mount; dropping it unmounts.
#[derive(Debug)]
pub(crate) struct Mount {
    unmounter: Unmounter,
    /// Whether another process owns the mount.
    is_of_another: bool,
}

impl Mount {
    /// Mounts, through `mounter` if there is one, and returns the open, non-blocking device.
    pub(crate) fn new(
        path: &Path,
        options: &MountOptions,
        mounter: Option<Arc<Mounter>>,
    ) -> Result<(Self, OwnedFd), FuseError> {
        let (unmounter, device) = make(path, options, mounter)?;
        Ok((Self { unmounter, is_of_another: false }, device))
    }

    /// Returns a mount that another process has made and removes.
    pub(crate) fn of_another(unmounter: Unmounter) -> Self {
        Self { unmounter, is_of_another: true }
    }

    pub(crate) fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.unmounter.path
    }

    pub(crate) fn connection_number(&self) -> Option<u32> {
        self.unmounter.connection
    }
}

impl Drop for Mount {
    /// Unmounts on another thread: the unmount may wait until this thread releases its ring.
    fn drop(&mut self) {
        if self.is_of_another {
            return;
        }
        let unmounter = self.unmounter.clone();
        let (done, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("fuse-unmount".into());
        let started = thread.spawn(move || {
            let result = unmounter.unmount();
            if let Err(error) = &result {
                tracing::error!(%error, "left mounted");
            }
            let _ = done.send(());
        });
        if started.is_ok() && wait.recv_timeout(UNMOUNT_TIME_MAX).is_err() {
            tracing::warn!(path = ?self.path(), "unmounting takes long; a thread continues it");
        }
    }
}

/// Mounts. Returns the handle that unmounts, and the open, non-blocking device.
fn make(
    path: &Path,
    options: &MountOptions,
    mounter: Option<Arc<Mounter>>,
) -> Result<(Unmounter, OwnedFd), FuseError> {
    let at = |source| FuseError::MountPoint { path: path.into(), source };
    let path = path.canonicalize().map_err(at)?;
    if !fs::metadata(&path).map_err(at)?.is_dir() {
        return Err(at(io::ErrorKind::NotADirectory.into()));
    }
    options.check()?;
    let is_root = rustix::process::geteuid().is_root();
    let device = match &mounter {
        Some(mounter) => mounter.mount()?,
        None if is_root => mount_directly(&path, options)?,
        None => helper::mount(&path, options)?,
    };
    set_nonblocking(&device).map_err(|errno| at(errno.into()))?;
    let connection = mountinfo::find(&path).map_err(at)?;
    Ok((Unmounter { path, is_root, connection, mounter }, device))
}

/// Mounts without serving, for a caller that passes the device on to the process that serves it
/// ([`Session::adopt`](crate::Session::adopt)). Accesses to the mount wait until then.
///
/// # Errors
/// As [`Session::mount`](crate::Session::mount).
pub fn mount_device(
    path: &Path,
    options: &MountOptions,
) -> Result<(Unmounter, OwnedFd), FuseError> {
    make(path, options, None)
}

/// Makes the device non-blocking, as the reactor requires.
pub(crate) fn set_nonblocking(device: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let flags = rustix::fs::fcntl_getfl(device)?;
    rustix::fs::fcntl_setfl(device, flags | OFlags::NONBLOCK)
}

/// Opens the directory at a canonical path. A link that another user has put into the path since
/// then is refused: root would mount wherever it leads.
fn open_in_place(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (root, mode) = (rustix::fs::CWD, Mode::empty());
    rustix::fs::openat2(root, path, flags, mode, ResolveFlags::NO_SYMLINKS)
}

fn mount_directly(path: &Path, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    let place = open_in_place(path)
        .map_err(|errno| FuseError::MountPoint { path: path.into(), source: errno.into() })?;
    let through = format!("/proc/self/fd/{}", place.as_raw_fd());
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| FuseError::Device(errno.into()))?;
    let data = options.mount_data(device.as_fd().as_raw_fd());
    let mut flags = MountFlags::empty();
    for (is_set, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.allow_suid, MountFlags::NOSUID),
        (!options.allow_devices, MountFlags::NODEV),
        (options.no_exec, MountFlags::NOEXEC),
        (options.no_atime, MountFlags::NOATIME),
    ] {
        flags.set(flag, is_set);
    }
    let data_c = std::ffi::CString::new(data.clone()).map_err(|_| FuseError::Option {
        option: data.clone(),
        reason: "must not contain a NUL",
    })?;
    rustix::mount::mount(&options.fs_name, through, options.type_name(), flags, data_c.as_c_str())
        .map_err(|errno| FuseError::Mount {
            path: path.into(),
            options: data,
            source: errno.into(),
        })?;
    Ok(device)
}

/// A handle that unmounts, from any thread except the one that serves the mount.
#[derive(Debug, Clone)]
pub struct Unmounter {
    path: PathBuf,
    is_root: bool,
    connection: Option<u32>,
    /// The helper process that made the mount, and unmounts it.
    mounter: Option<Arc<Mounter>>,
}

impl Unmounter {
    /// Returns a handle for a mount that another process has made at `path`, with this connection
    /// number.
    pub fn of(path: &Path, connection: u32) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { path: path.into(), is_root, connection: Some(connection), mounter: None }
    }

    /// Returns the helper process that made the mount, if it was not this one.
    pub(crate) fn mounter(&self) -> Option<Arc<Mounter>> {
        self.mounter.clone()
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.path
    }

    /// Returns the connection's number under `/sys/fs/fuse/connections`.
    pub fn connection_number(&self) -> Option<u32> {
        self.connection
    }

    /// Makes the kernel read further ahead than by default. Needs root, and a mount that is being
    /// served.
    ///
    /// # Errors
    /// The reason as text.
    pub fn widen_read_ahead(&self) -> Result<(), String> {
        if let Some(mounter) = &self.mounter {
            return mounter.widen();
        }
        let Some(connection) = self.connection else {
            return Err("the connection's number is not known".into());
        };
        let path = format!("/sys/class/bdi/0:{connection}/read_ahead_kb");
        let window = (READ_AHEAD_BYTES >> 10).to_string();
        fs::write(&path, window).map_err(|error| format!("{path}: {error}"))
    }

    /// Detaches the mount: names below it are gone at once, and the session ends when the last file
    /// is closed. Does nothing if it is not mounted any more.
    pub fn unmount(&self) -> Result<(), FuseError> {
        let error = |message: String| FuseError::Unmount { path: self.path.clone(), message };
        // The helper checks what is mounted: the list may be inaccessible to this process.
        if let Some(mounter) = &self.mounter {
            return mounter.unmount().map_err(error);
        }
        let mounted = mountinfo::find(&self.path).map_err(|source| error(source.to_string()))?;
        if mounted.is_none() || mounted != self.connection {
            return Ok(());
        }
        if self.is_root {
            return rustix::mount::unmount(
                &self.path,
                UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
            )
            .map_err(|errno| error(io::Error::from(errno).to_string()));
        }
        helper::unmount(&self.path).map_err(error)
    }

    /// Aborts the connection: all requests in flight and all later ones fail with `ECONNABORTED` or
    /// `ENOTCONN`, and the session ends even if files are still open. Where `fusectl` is not
    /// mounted, root uses a private mount of it, or a forced unmount.
    pub fn abort(&self) -> Result<(), FuseError> {
        let error = |message: String| FuseError::Unmount { path: self.path.clone(), message };
        let Some(connection) = self.connection else {
            return Err(error("the connection's number is not known".into()));
        };
        let path = format!("/sys/fs/fuse/connections/{connection}/abort");
        match fs::write(&path, "1") {
            Ok(()) => return Ok(()),
            Err(source) if source.kind() == io::ErrorKind::NotFound && self.is_root => {
                if abort_privately(connection).is_ok() {
                    return Ok(());
                }
            }
            Err(source) => return Err(error(format!("{path}: {source}"))),
        }
        let mounted = mountinfo::find(&self.path).map_err(|source| error(source.to_string()))?;
        if mounted != self.connection {
            return Err(error(format!(
                "{path} does not exist and the mount is detached (mount -t fusectl fusectl \
                 /sys/fs/fuse/connections)"
            )));
        }
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(&self.path, flags)
            .map_err(|errno| error(io::Error::from(errno).to_string()))
    }
}

/// Aborts a connection through a private `fusectl` that is not attached to any path.
fn abort_privately(connection: u32) -> rustix::io::Result<()> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(context.as_fd(), flags, MountAttrFlags::empty())?;
    let path = format!("{connection}/abort");
    let file = rustix::fs::openat(&root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, b"1").map(drop)
}

/// Removes a mount at `path` that a dead process has left. Does nothing unless a FUSE file system
/// is mounted there.
pub fn unmount_stale(path: &Path) -> Result<(), FuseError> {
    let error = |message: String| FuseError::Unmount { path: path.into(), message };
    let connection = mountinfo::find(path).map_err(|source| error(source.to_string()))?;
    let is_root = rustix::process::geteuid().is_root();
    Unmounter { path: path.into(), is_root, connection, mounter: None }.unmount()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a link that comes into the path after it was resolved does not choose another place.
    #[test]
    fn links_do_not_move_a_mount() {
        let base = tempfile::tempdir().expect("a directory");
        let base = base.path().canonicalize().expect("its path");
        fs::create_dir_all(base.join("job/node1")).expect("made");
        let path = base.join("job/node1").canonicalize().expect("its path");
        open_in_place(&path).expect("it is a directory");
        fs::rename(base.join("job"), base.join("elsewhere")).expect("renamed");
        std::os::unix::fs::symlink("elsewhere", base.join("job")).expect("linked");
        assert!(path.is_dir(), "the link leads to a directory");
        assert_eq!(open_in_place(&path).expect_err("a link"), rustix::io::Errno::LOOP);
        let last = base.join("last");
        std::os::unix::fs::symlink("elsewhere", &last).expect("linked");
        assert!(open_in_place(&last).is_err());
    }
}
