//! The plain system calls of files: opening, sizes, locks.

use super::OpenOptions;
use crate::handle::Handle;
use crate::sim::{SimHandle, simulated};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// `BLKGETSIZE64` of linux/fs.h.
const BLKGETSIZE64: libc::Ioctl = crate::ioctl::command(0x8008_1272);
/// `BLKSSZGET` of linux/fs.h.
const BLKSSZGET: libc::Ioctl = crate::ioctl::command(0x1268);
/// The alignment for `O_DIRECT` if the kernel does not report it.
const DIRECT_ALIGNMENT_DEFAULT: u32 = 4096;
/// Logical block size of simulated files.
const SIMULATED_BLOCK_SIZE: u32 = 512;

pub(super) fn open(path: &Path, options: OpenOptions) -> io::Result<Handle> {
    if let Some(opened) = simulated(|world, node| world.open(node, path, options)) {
        return opened.map(SimHandle::into_handle);
    }
    let mut flags = match (options.read, options.write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    flags |= OFlags::CLOEXEC;
    flags.set(OFlags::CREATE, options.create || options.create_new);
    flags.set(OFlags::EXCL, options.create_new || options.exclusive);
    flags.set(OFlags::TRUNC, options.truncate);
    flags.set(OFlags::DIRECT, options.direct);
    Ok(Handle::from_fd(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

pub(super) fn is_block_device(handle: &Handle) -> io::Result<bool> {
    if handle.simulated() != 0 {
        return Ok(false);
    }
    let stat = rustix::fs::fstat(handle.as_fd()?)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
}

pub(super) fn size(handle: &Handle) -> io::Result<u64> {
    if let Some(size) = simulated(|world, _| world.file_size(handle.simulated())) {
        return size;
    }
    if is_block_device(handle)? {
        let mut bytes = 0_u64;
        // SAFETY: BLKGETSIZE64 writes a u64.
        unsafe { ioctl(handle.as_fd()?, BLKGETSIZE64, (&raw mut bytes).cast())? };
        return Ok(bytes);
    }
    Ok(rustix::fs::fstat(handle.as_fd()?)?.st_size as u64)
}

pub(super) fn set_size(handle: &Handle, size: u64) -> io::Result<()> {
    if let Some(result) = simulated(|world, _| world.set_file_size(handle.simulated(), size)) {
        return result;
    }
    Ok(rustix::fs::ftruncate(handle.as_fd()?, size)?)
}

pub(super) fn logical_block_size(handle: &Handle) -> io::Result<u32> {
    if handle.simulated() != 0 {
        return Ok(SIMULATED_BLOCK_SIZE);
    }
    if is_block_device(handle)? {
        let mut bytes = 0_i32;
        // SAFETY: BLKSSZGET writes an int.
        unsafe { ioctl(handle.as_fd()?, BLKSSZGET, (&raw mut bytes).cast())? };
        return Ok(bytes as u32);
    }
    let wanted = StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(handle.as_fd()?, "", AtFlags::EMPTY_PATH, wanted)?;
    let is_known = stat.stx_mask & wanted.bits() != 0 && stat.stx_dio_offset_align != 0;
    Ok(if is_known { stat.stx_dio_offset_align } else { DIRECT_ALIGNMENT_DEFAULT })
}

pub(super) fn memory_alignment(handle: &Handle) -> io::Result<u32> {
    if handle.simulated() != 0 {
        return Ok(1);
    }
    let wanted = StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(handle.as_fd()?, "", AtFlags::EMPTY_PATH, wanted)?;
    let is_known = stat.stx_mask & wanted.bits() != 0 && stat.stx_dio_mem_align != 0;
    Ok(if is_known { stat.stx_dio_mem_align } else { DIRECT_ALIGNMENT_DEFAULT })
}

/// # Safety
/// `argument` must point to the type that `request` writes.
unsafe fn ioctl(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    argument: *mut libc::c_void,
) -> io::Result<()> {
    // SAFETY: by the caller's promise.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn try_lock_exclusive(handle: &Handle) -> io::Result<()> {
    if let Some(result) = simulated(|world, _| world.lock_file(handle.simulated())) {
        return result;
    }
    try_lock(handle, whole_file_lock())
}

pub(super) fn try_lock_shared(handle: &Handle) -> io::Result<()> {
    if let Some(result) = simulated(|_, _| Err(io::Error::from(io::ErrorKind::Unsupported))) {
        return result;
    }
    try_lock(handle, libc::flock { l_type: libc::F_RDLCK as i16, ..whole_file_lock() })
}

fn try_lock(handle: &Handle, mut lock: libc::flock) -> io::Result<()> {
    let fd = handle.as_fd()?;
    // SAFETY: F_OFD_SETLK reads a flock.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
        return Err(error);
    }
    // SAFETY: F_OFD_GETLK reads and writes a flock.
    let known = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    // The kernel returns -1 for a holder that locks by open file description, as we do.
    let pid = if known && lock.l_pid > 0 { Some(lock.l_pid) } else { holder(fd) };
    let holder = pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"));
    Err(io::Error::new(io::ErrorKind::WouldBlock, format!("locked by {holder}")))
}

fn whole_file_lock() -> libc::flock {
    // SAFETY: a flock is plain C data for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock
}

/// Returns a process that has the file of `fd` open and a lock on it, as far as `/proc` shows; this
/// process comes last.
fn holder(fd: BorrowedFd<'_>) -> Option<i32> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let ours = std::process::id() as i32;
    let mut found = None;
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        if holds_lock(pid, stat.st_dev, stat.st_ino, (pid == ours).then(|| fd.as_raw_fd())) {
            found = Some(pid);
            if pid != ours {
                break;
            }
        }
    }
    found
}

/// Returns whether a process has a locked descriptor of the given file, other than `except`.
fn holds_lock(pid: i32, device: u64, inode: u64, except: Option<i32>) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let number = descriptor.file_name();
        let number = number.to_string_lossy();
        if except.is_some_and(|except| number == except.to_string()) {
            return false;
        }
        // The file system of another descriptor may never answer stat(2), so the lock comes first.
        std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))
            .is_ok_and(|info| info.lines().any(|line| is_lock_of(line, inode)))
            && rustix::fs::stat(descriptor.path())
                .is_ok_and(|stat| stat.st_dev == device && stat.st_ino == inode)
    })
}

/// Returns whether a line of `/proc/PID/fdinfo/FD` shows a lock of an inode with this number, as
/// `lock: 1: OFDLCK ADVISORY WRITE -1 08:01:1234 0 EOF` (`proc_pid_fdinfo(5)`).
fn is_lock_of(line: &str, inode: u64) -> bool {
    let is_of_inode = |word: &str| word.rsplit(':').next() == Some(&inode.to_string());
    line.starts_with("lock:")
        && line.split_whitespace().filter(|word| word.contains(':')).any(is_of_inode)
}
