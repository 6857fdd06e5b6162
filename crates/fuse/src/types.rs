//! Identifiers, times and flag sets of the protocol.
//!
//! Identifiers are newtypes, so a node cannot be mistaken for a file handle. Flag sets keep unknown
//! bits, because a newer kernel may send them.

use std::ffi::OsStr;
use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use rustix::io::Errno;

/// The number of an inode towards the kernel: given in an entry, taken back by forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory, which is never looked up.
    pub const ROOT: Self = Self(1);
}

/// The number that the file system returned for open, opendir or create; the kernel sends it with
/// each use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FileHandle(pub u64);

/// The owner of POSIX and flock locks: opaque, equal for equal owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// The kernel's number for one request, unique among those in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unique(pub u64);

/// A poll in progress, for the notification that wakes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PollHandle(pub u64);

/// A file name as the kernel sends it: not empty, no NUL, no slash, not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Makes a name; `None` if it is empty or contains a NUL or a slash.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.iter().any(|&byte| byte == 0 || byte == b'/') {
            return None;
        }
        Some(Self(bytes.into()))
    }

    /// Returns the name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name for the standard library's path functions.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_os_str(), formatter)
    }
}

/// A point in time of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, 0..1 000 000 000.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                Self { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
            }
            Err(before) => {
                let before = before.duration();
                let nanoseconds = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
                let seconds = -(before.as_secs() as i64) - i64::from(nanoseconds != 0);
                Self { seconds, nanoseconds }
            }
        }
    }
}

/// Splits a cache lifetime into the protocol's seconds and nanoseconds.
pub(crate) fn lifetime(valid: Duration) -> (u64, u32) {
    (valid.as_secs(), valid.subsec_nanos())
}

/// Defines a set of flags over one integer.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $bits:ty {
        $($(#[$flag_doc:meta])* $flag:ident = $value:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($bits);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self($value);)*

            /// Returns the set with exactly these bits, known or not.
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// Returns all bits of the set.
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Returns whether every flag of `other` is in this set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the flags that are in both sets.
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// Returns this set without the flags of `other`.
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns the flags of both sets.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }
    };
}

flags! {
    /// How the kernel treats an open file (`FOPEN_*`).
    OpenFlags: u32 {
        /// Bypass the page cache: the file system gets each read and write.
        DIRECT_IO = 1 << 0;
        /// Keep pages that are cached from earlier opens.
        KEEP_CACHE = 1 << 1;
        /// The file has no position to seek to.
        NONSEEKABLE = 1 << 2;
        /// Cache this directory's entries.
        CACHE_DIR = 1 << 3;
        /// The file has no position at all.
        STREAM = 1 << 4;
        /// Send no FLUSH on close.
        NOFLUSH = 1 << 5;
        /// With `DIRECT_IO`: let writes that do not extend the file run in parallel.
        PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Read and write go to the backing file, not to the file system.
        PASSTHROUGH = 1 << 7;
    }
}

flags! {
    /// What kernel and file system agree on in INIT (`FUSE_*` init flags, low word and `flags2`).
    Capabilities: u64 {
        /// Several reads of one file at a time.
        ASYNC_READ = 1 << 0;
        /// The file system gets `fcntl` locks.
        POSIX_LOCKS = 1 << 1;
        /// `O_TRUNC` comes with open instead of as a SETATTR of its own.
        ATOMIC_O_TRUNC = 1 << 3;
        /// The file system answers lookups of "." and ".." (for NFS export).
        EXPORT_SUPPORT = 1 << 4;
        /// Writes above one page.
        BIG_WRITES = 1 << 5;
        /// Creation modes come unmasked, with the umask beside them.
        DONT_MASK = 1 << 6;
        /// The file system gets `flock` locks.
        FLOCK_LOCKS = 1 << 10;
        /// IOCTL on directories.
        HAS_IOCTL_DIR = 1 << 11;
        /// The kernel drops cached pages when it sees a new size or modification time.
        AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS exists.
        DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O requests of one call go out in parallel.
        ASYNC_DIO = 1 << 15;
        /// The kernel gathers writes in its page cache.
        WRITEBACK_CACHE = 1 << 16;
        /// An `ENOSYS` answer to OPEN means "no opens needed".
        NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and readdirs of one directory may run in parallel.
        PARALLEL_DIROPS = 1 << 18;
        /// The file system drops suid, sgid and capabilities (first form).
        HANDLE_KILLPRIV = 1 << 19;
        /// POSIX access control lists are kept in the file system's extended attributes.
        POSIX_ACL = 1 << 20;
        /// After an abort, reading the device gives `ECONNABORTED` instead of `ENODEV`.
        ABORT_ERROR = 1 << 21;
        /// `max_pages` is in the INIT answer.
        MAX_PAGES = 1 << 22;
        /// READLINK answers are cached.
        CACHE_SYMLINKS = 1 << 23;
        /// An `ENOSYS` answer to OPENDIR means "no opens needed".
        NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are dropped only when the file system says so.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// Entries may be marked as submounts.
        SUBMOUNTS = 1 << 27;
        /// The file system drops suid and sgid when the kernel says so.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has the long argument.
        SETXATTR_EXT = 1 << 29;
        /// The upper word of the flags exists.
        INIT_EXT = 1 << 30;
        /// Creations carry security contexts.
        SECURITY_CTX = 1 << 32;
        /// Creations carry the one supplementary group that matters.
        CREATE_SUPP_GROUP = 1 << 34;
        /// Entry invalidations may only expire.
        HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files that are open for direct I/O are allowed.
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Files may be backed by files of another file system.
        PASSTHROUGH = 1 << 37;
        /// The kernel takes file handles only of cached inodes.
        NO_EXPORT_SUPPORT = 1 << 38;
        /// Identity-mapped mounts are allowed.
        ALLOW_IDMAP = 1 << 40;
        /// Requests that were received and not answered can be requested again, by a successor.
        HAS_RESEND = 1 << 39;
        /// Requests may travel through an `io_uring`.
        OVER_IO_URING = 1 << 41;
    }
}
