//! The caller's side of an ioctl that a mounted file system answers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends a command without data to what is open, which arrives as an [`Ioctl`](crate::Ioctl) if it
/// lies on a FUSE mount, and gives what it answered. The command's direction bits must be those of
/// `_IO`, so that the kernel takes the argument for a number and touches no memory.
///
/// # Errors
/// `InvalidInput` for a command that names data; else what the file system answers, `ENOTTY` for a
/// command that it does not know.
pub fn send_ioctl(fd: BorrowedFd<'_>, command: u32) -> io::Result<i32> {
    /// Direction (2 bits) and size (14 bits) of a command, asm-generic/ioctl.h.
    const DATA_BITS: u32 = 0xffff_0000;
    if command & DATA_BITS != 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the command carries no data, so that the argument is the number 0 to whoever gets it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), reactor::ioctl::command(command), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Sends a command that answers bytes (`_IOR`), and gives them: as many as its number says, zeros
/// behind what the file system wrote.
///
/// # Errors
/// `InvalidInput` for a command that is not of this kind; else as [`send_ioctl`].
pub fn read_ioctl(fd: BorrowedFd<'_>, command: u32) -> io::Result<Vec<u8>> {
    /// `_IOC_READ` alone among the direction bits, asm-generic/ioctl.h.
    const READ: u32 = 2;
    if command >> 30 != READ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = vec![0_u8; ((command >> 16) & 0x3fff) as usize];
    // SAFETY: who answers writes at most the size that the command's number carries, which is that
    // of the buffer; it lives through the call.
    let result = unsafe {
        libc::ioctl(fd.as_raw_fd(), reactor::ioctl::command(command), bytes.as_mut_ptr())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes) }
}
