//! Backing files, which the kernel reads and writes itself (`FUSE_PASSTHROUGH`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;

use reactor::Handle;

use crate::abi::BackingMap;
use crate::error::FuseError;

/// `_IOW(229, 1, struct fuse_backing_map)`
const FUSE_DEV_IOC_BACKING_OPEN: libc::Ioctl = reactor::ioctl::command(0x4010_e501);
/// `_IOW(229, 2, uint32_t)`
const FUSE_DEV_IOC_BACKING_CLOSE: libc::Ioctl = reactor::ioctl::command(0x4004_e502);

#[derive(Debug)]
struct Registration {
    device: Handle,
    id: i32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(device) = self.device.as_fd() {
            // SAFETY: the request reads one `u32` through the pointer, which is valid for the call.
            unsafe {
                libc::ioctl(device.as_raw_fd(), FUSE_DEV_IOC_BACKING_CLOSE, &raw const self.id)
            };
        }
    }
}

/// A file that is registered with the kernel as a backing file of this mount. Clones name the same
/// registration, which ends with the last of them. Files that were opened with it keep it in the
/// kernel until they are released, so it may be dropped once the last open is answered.
#[derive(Debug, Clone)]
pub struct BackingId(Rc<Registration>);

/// Registers backing files of one mount.
#[derive(Debug, Clone)]
pub struct Backings(Handle);

impl Backings {
    pub(crate) fn new(device: Handle) -> Self {
        Self(device)
    }

    /// Registers an open file.
    ///
    /// # Errors
    /// [`FuseError::Backing`] without `CAP_SYS_ADMIN`, before Linux 6.9, and for a file on
    /// `max_stack_depth` or more stacked file systems.
    pub fn register(&self, file: BorrowedFd<'_>) -> Result<BackingId, FuseError> {
        BackingId::register(&self.0, file)
    }
}

impl BackingId {
    fn register(device: &Handle, file: BorrowedFd<'_>) -> Result<Self, FuseError> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        let fd = device.as_fd().map_err(FuseError::Backing)?;
        // SAFETY: the request reads one `fuse_backing_map` through the pointer, which is valid for
        // the call; both descriptors are borrowed for its duration.
        let id = unsafe { libc::ioctl(fd.as_raw_fd(), FUSE_DEV_IOC_BACKING_OPEN, &raw const map) };
        if id <= 0 {
            return Err(FuseError::Backing(io::Error::last_os_error()));
        }
        Ok(Self(Rc::new(Registration { device: device.clone(), id })))
    }

    /// Returns the kernel's number.
    pub(crate) fn raw(&self) -> i32 {
        self.0.id
    }
}

impl PartialEq for BackingId {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for BackingId {}
