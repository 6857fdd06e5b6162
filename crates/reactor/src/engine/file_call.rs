//! System calls on files and block devices. They may block, so a thread of the pool executes them.

use super::pool::Work;
use std::io;
use std::os::fd::RawFd;

/// A system call on a file. Memory that it names, and the descriptor, stay until the call has
/// ended.
#[derive(Clone, Copy)]
pub(crate) enum FileCall {
    /// `preadv2`; an offset of `u64::MAX` is the current position.
    Read {
        fd: RawFd,
        vectors: *const libc::iovec,
        count: usize,
        offset: u64,
    },
    /// `pwritev2`, likewise.
    Write {
        fd: RawFd,
        vectors: *const libc::iovec,
        count: usize,
        offset: u64,
    },
    Sync {
        fd: RawFd,
        data: bool,
    },
    WriteBack {
        fd: RawFd,
    },
    Allocate {
        fd: RawFd,
        mode: i32,
        offset: u64,
        len: u64,
    },
}

// SAFETY: the code that makes a call keeps the memory that it names, as for the kernel: the memory
// is not accessed until the call has ended, on any thread.
unsafe impl Send for FileCall {}

impl Work for FileCall {
    fn run(&self) -> i32 {
        self.call(0)
    }
}

impl FileCall {
    /// Executes the call if it would not block. Returns `WouldBlock` if it would, and `Unknown` if
    /// the file system cannot determine this.
    pub(crate) fn run_if_at_once(&self) -> AtOnce {
        match (self, self.call(libc::RWF_NOWAIT)) {
            (_, code) if code == -libc::EAGAIN => AtOnce::WouldBlock,
            // Linux returns EINVAL for writes through the page cache until 5.x.
            (_, code) if code == -libc::EOPNOTSUPP || code == -libc::EINVAL => AtOnce::Unknown,
            (Self::Read { vectors, count, .. }, code) if code >= 0 => {
                // SAFETY: the vectors are kept until the call has ended.
                let vectors = unsafe { std::slice::from_raw_parts(*vectors, *count) };
                let bytes: usize = vectors.iter().map(|vector| vector.iov_len).sum();
                // The rest may be beyond the file's end, or not be cached. 0 need not be the end:
                // Linux 5.9 and 5.10 return it for pages that are not cached (readv(2), BUGS).
                if code as usize == bytes { AtOnce::Done(code) } else { AtOnce::WouldBlock }
            }
            (_, code) => AtOnce::Done(code),
        }
    }

    fn call(&self, flags: libc::c_int) -> i32 {
        loop {
            let result = self.call_once(flags);
            if result >= 0 {
                // The kernel moves less than 2 GiB at a time.
                return result as i32;
            }
            match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR => {}
                errno => return -errno,
            }
        }
    }

    fn call_once(&self, flags: libc::c_int) -> libc::c_long {
        match *self {
            // SAFETY: vectors and memory are kept until the call has ended.
            Self::Read { fd, vectors, count, offset } => unsafe {
                libc::syscall(libc::SYS_preadv2, fd, vectors, count, offset, offset >> 32, flags)
            },
            // SAFETY: as above.
            Self::Write { fd, vectors, count, offset } => unsafe {
                libc::syscall(libc::SYS_pwritev2, fd, vectors, count, offset, offset >> 32, flags)
            },
            // SAFETY: this call, and those below, take no pointers.
            Self::Sync { fd, data: true } => unsafe { libc::fdatasync(fd).into() },
            // SAFETY: see above.
            Self::Sync { fd, data: false } => unsafe { libc::fsync(fd).into() },
            Self::WriteBack { fd } => {
                let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                // A length of 0 reaches to the end of the file.
                // SAFETY: see above.
                unsafe { libc::sync_file_range(fd, 0, 0, flags).into() }
            }
            // SAFETY: see above.
            Self::Allocate { fd, mode, offset, len } => unsafe {
                libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t).into()
            },
        }
    }
}

/// The result of a call that must not block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// The result: not negative, or a negated errno.
    Done(i32),
    WouldBlock,
    /// It is unknown whether it would block: do not try it again on this file.
    Unknown,
}
