//! Descriptors that a program has inherited.

use std::io;
use std::os::fd::RawFd;

/// The first descriptor after the standard three.
const FIRST: RawFd = 3;

/// Closes all descriptors except the standard three. A program that outlives its parent inherits,
/// for example, the pipe on which a scheduler waits for the end, or a lock of the shell.
///
/// Has to be called first in a program, before it opens anything.
///
/// # Errors
/// If the kernel refuses, and the descriptors cannot be listed either.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: by contract no descriptor of this process has an owner yet.
    if unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, 0) } == 0 {
        return Ok(());
    }
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    // Collected first, because the directory is open while it is read.
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd")?.flatten().filter_map(name).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= FIRST) {
        // SAFETY: as above. The directory's own descriptor is closed already, which is a harmless
        // error.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}
