//! Identifiers of inodes that outlive their paths: file handles, and the number of a file system.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most bytes of a handle (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;
/// `_IOR(0x15, 0, struct fsuuid2)` of linux/fs.h: a length and 16 bytes.
const FS_IOC_GETFSUUID: libc::Ioctl = crate::ioctl::command(0x8011_1500);

/// `_IOWR('f', 134, struct fsverity_digest)` of linux/fsverity.h.
const FS_IOC_MEASURE_VERITY: libc::Ioctl = crate::ioctl::command(0xc004_6686);
/// Longest digest (`FS_VERITY_MAX_DIGEST_SIZE`).
const VERITY_BYTES_MAX: usize = 64;

/// `struct fsverity_digest` with room for the longest.
#[repr(C)]
struct RawDigest {
    algorithm: u16,
    size: u16,
    digest: [u8; VERITY_BYTES_MAX],
}

/// The result of `name_to_handle_at(2)`: an inode's name within its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHandle {
    /// The file system's kind of handle.
    pub kind: i32,
    /// Its bytes, at most 128.
    pub bytes: Box<[u8]>,
}

/// `struct file_handle` with room for the longest.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_BYTES_MAX],
}

/// `struct fsuuid2`
#[repr(C)]
struct RawUuid {
    len: u8,
    uuid: [u8; 16],
}

impl FileHandle {
    /// Returns the handle of the open file.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system has none.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut raw =
            RawHandle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, data: [0; HANDLE_BYTES_MAX] };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: the path is a C string, the handle has room for the length in it, and both
        // pointers are valid for writes during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                fd.as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount_id,
                libc::AT_EMPTY_PATH,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let len = (raw.bytes as usize).min(HANDLE_BYTES_MAX);
        Ok(Self { kind: raw.kind, bytes: raw.data[..len].into() })
    }

    /// Opens the inode by `O_PATH`, on the mount of `mount`. Needs `CAP_DAC_READ_SEARCH`.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode, `EPERM` without the capability.
    pub fn open(&self, mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        if self.bytes.len() > HANDLE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = self.bytes.len() as u32;
        let mut raw = RawHandle { bytes, kind: self.kind, data: [0; HANDLE_BYTES_MAX] };
        raw.data[..self.bytes.len()].copy_from_slice(&self.bytes);
        // SAFETY: the handle is valid for reads of the length in it during the call.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw const raw,
                libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
    }
}

/// Returns the identifier that a file system got at its creation; it survives mounts and moves.
/// Some images were created with zeros, which identify no file system.
///
/// # Errors
/// `ENOTTY` where the file system has none, or before Linux 6.9. `fd` must be open for reading.
pub fn file_system_uuid(fd: BorrowedFd<'_>) -> io::Result<[u8; 16]> {
    let mut raw = RawUuid { len: 0, uuid: [0; 16] };
    // SAFETY: the request writes one `fsuuid2` through the pointer, which is valid for the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFSUUID, &raw mut raw) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if raw.len == 16 { Ok(raw.uuid) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Returns the fs-verity digest of a file, with its algorithm in front: equal digests mean equal
/// bytes.
///
/// # Errors
/// `ENODATA` if the file has none, `ENOTTY` or `EOPNOTSUPP` where the file system knows none.
pub fn verity_digest(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut raw =
        RawDigest { algorithm: 0, size: VERITY_BYTES_MAX as u16, digest: [0; VERITY_BYTES_MAX] };
    // SAFETY: the request writes at most `size` bytes behind the two fields, and the pointer is
    // valid for the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_MEASURE_VERITY, &raw mut raw) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let digest = &raw.digest[..usize::from(raw.size).min(VERITY_BYTES_MAX)];
    Ok([&raw.algorithm.to_le_bytes()[..], digest].concat())
}

/// Starts writing the dirty pages of a range to the device, without waiting. It makes nothing
/// durable, but a later sync has less to do, and reports the errors.
pub(super) fn start_write_back(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the call takes no pointers.
    unsafe {
        libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// Writes all dirty pages of a file and waits until the device has taken them.
pub(super) fn write_back(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    /// Goal: a handle finds its inode under any name, if the file system has handles.
    #[test]
    fn handles_find_their_inodes() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(directory.path().join("a")).unwrap();
        let Ok(handle) = FileHandle::of(file.as_fd()) else { return };
        std::fs::rename(directory.path().join("a"), directory.path().join("b")).unwrap();
        let mount = std::fs::File::open(directory.path()).unwrap();
        match handle.open(mount.as_fd()) {
            Ok(found) => {
                let found = std::fs::File::from(found).metadata().unwrap();
                assert_eq!(found.ino(), file.metadata().unwrap().ino());
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }

    /// Goal: a file system returns the same identifier for each of its files.
    #[test]
    fn files_of_one_file_system_have_its_number() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"").unwrap();
        let file = std::fs::File::open(directory.path().join("a")).unwrap();
        let mount = std::fs::File::open(directory.path()).unwrap();
        let numbers = [file_system_uuid(mount.as_fd()).ok(), file_system_uuid(file.as_fd()).ok()];
        assert_eq!(numbers[0], numbers[1]);
    }
}
