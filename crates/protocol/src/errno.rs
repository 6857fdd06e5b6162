//! Error numbers on the wire: those of Linux on x86-64 and aarch64, on any peer.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A Linux error number as the result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            fn text(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Errno::$name => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such data or hole";
    E2BIG = 7, "Argument list too long";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Try again";
    ENOMEM = 12, "Out of memory";
    EACCES = 13, "Permission denied";
    EBUSY = 16, "In use";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Not on the same file system";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on the pool's devices";
    EROFS = 30, "Read-only file system";
    EMLINK = 31, "Too many links";
    ERANGE = 34, "Result does not fit";
    EDEADLK = 35, "Locks would wait for each other";
    ENAMETOOLONG = 36, "Name too long";
    ENOLCK = 37, "Too many locks";
    ENOSYS = 38, "Not implemented";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many symbolic links";
    ENODATA = 61, "No such attribute";
    EPROTO = 71, "Protocol error";
    EOVERFLOW = 75, "Value too large";
    EOPNOTSUPP = 95, "Not supported";
    ETIMEDOUT = 110, "Timed out";
    ESTALE = 116, "The session or file is gone";
}

impl Errno {
    /// Returns the number, as C programs use it.
    pub fn raw(self) -> i32 {
        i32::from(self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.raw())
    }
}
