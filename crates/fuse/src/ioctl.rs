//! The caller's side of an ioctl that a mounted file system answers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends a command without data to an open file, and returns the answer. If the file lies on a FUSE
/// mount, the command arrives as an [`Ioctl`](crate::Ioctl). The direction bits of the command must
/// be those of `_IO`, so that the kernel takes the argument for a number and touches no memory.
///
/// # Errors
/// `InvalidInput` for a command that carries data; otherwise the error that the file system
/// returns, `ENOTTY` for a command that it does not know.
pub fn send_ioctl(fd: BorrowedFd<'_>, command: u32) -> io::Result<i32> {
    /// Direction (2 bits) and size (14 bits) of a command, asm-generic/ioctl.h.
    const DATA_BITS: u32 = 0xffff_0000;
    if command & DATA_BITS != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the command carries no data, so every receiver takes the argument for the number 0.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), reactor::ioctl::command(command), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sends a command that returns bytes (`_IOR`). Returns as many bytes as the command's number says,
/// with zeros behind those that the file system wrote.
///
/// # Errors
/// `InvalidInput` for a command of another kind; otherwise those of [`send_ioctl`].
pub fn read_ioctl(fd: BorrowedFd<'_>, command: u32) -> io::Result<Vec<u8>> {
    /// `_IOC_READ` alone among the direction bits, asm-generic/ioctl.h.
    const READ: u32 = 2;
    if command >> 30 != READ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = vec![0_u8; ((command >> 16) & 0x3fff) as usize];
    // SAFETY: the receiver writes at most the size in the command's number, which is the size of
    // the buffer; the buffer lives through the call.
    let result = unsafe {
        libc::ioctl(fd.as_raw_fd(), reactor::ioctl::command(command), bytes.as_mut_ptr())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}
