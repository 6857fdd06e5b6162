//! Descriptors that a program has inherited.

use std::io;
use std::os::fd::RawFd;

/// The first descriptor that is none of the standard three.
const FIRST: RawFd = 3;

/// Closes all descriptors but the standard three: what a program inherits that outlives the one that started it, such
/// as the pipe whose end a scheduler waits for, or a lock of the shell.
///
/// To be called first in a program, before anything of its own is open.
///
/// # Errors
/// If the kernel refuses, and the descriptors cannot be listed either.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: By contract nothing of this process owns a descriptor yet.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, 0) } == 0 {
        return Ok(());
    }
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    // Collected, as the directory is open as long as it is read.
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd")?.flatten().filter_map(name).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= FIRST) {
        // SAFETY: As above. That of the directory is closed already, which is a harmless error.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}
