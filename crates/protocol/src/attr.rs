//! The attributes of an inode, as `stat` returns them, and the layout of a file's data.

use crate::ids::{Generation, InodeId};
use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01T00:00:00Z; negative before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Creates a time from seconds and nanoseconds, saturating at the ends of the range (years 1677
    /// and 2262).
    pub fn from_parts(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds)))
    }

    /// Returns whole seconds, rounded down.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Returns the nanoseconds past [`Timestamp::seconds`].
    pub fn nanoseconds(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// The type of an inode (`S_IFMT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the bits of `st_mode` for this type.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::File => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// Returns the type in the bits of `st_mode`, if they are a known one.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & 0o170_000 {
            0o100_000 => FileKind::File,
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return None,
        })
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// The inode.
    pub inode: InodeId,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with suid, sgid and sticky (`07777`).
    pub mode: u16,
    /// Names (hard links); for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `st_rdev`.
    pub rdev: u32,
    /// Size in bytes; of a directory, the number of its entries.
    pub size: u64,
    /// Bytes of extents with data (`st_blocks` × 512, not rounded).
    pub allocated_bytes: u64,
    /// Last access. Changed only by explicit requests (the mount is `noatime`).
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Raised by every change of data or attributes: two equal versions mean equal contents.
    pub version: u64,
    /// Raised by every change of data: cached pages depend on it.
    pub data_version: u64,
    /// Truncate generation, which commits must carry.
    pub generation: Generation,
    /// The distribution of the data over devices (for a directory: inherited by new entries).
    pub layout: Layout,
}

impl Attr {
    /// Returns the mode after an operation that removes privileges: without suid, and without sgid
    /// where the group may execute (elsewhere sgid gives no privilege).
    #[must_use]
    pub fn without_privileges(&self) -> u16 {
        without_privileges(self.mode)
    }
}

/// As [`Attr::without_privileges`], for any mode.
#[must_use]
pub fn without_privileges(mode: u16) -> u16 {
    const SUID: u16 = 0o4000;
    const SGID: u16 = 0o2000;
    const GROUP_EXECUTE: u16 = 0o0010;
    let gone = if mode & GROUP_EXECUTE == 0 { SUID } else { SUID | SGID };
    mode & !gone
}

/// The distribution of a file's data over the pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes on one device before the next one follows; a multiple of 64 KiB, at most 1 GiB.
    pub stripe_size_bytes: u32,
    /// Number of devices: 0 = near first (the writer's own device), −1 = all of the pool.
    pub stripe_count: i32,
}

impl Layout {
    /// Near first: data goes to the writer's own device while that has room.
    pub const NEAR: Layout = Layout { stripe_size_bytes: 1 << 20, stripe_count: 0 };
}

impl Default for Layout {
    fn default() -> Layout {
        Layout::NEAR
    }
}

/// A requested change of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttrChanges {
    /// New permission bits (`07777`).
    pub mode: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size (truncate or extend), in bytes.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<Timestamp>,
    /// New modification time.
    pub mtime: Option<Timestamp>,
    /// New layout (for a file only while it has no data).
    pub layout: Option<Layout>,
    /// Clear suid, and sgid where the group may execute, as a write by a user other than root does.
    pub kill_privileges: bool,
}

impl AttrChanges {
    /// Returns whether the request changes the owner or the group.
    pub fn is_chown(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }
}

/// Changes of attributes that were made before the commit that carries them (see
/// [`crate::Rights::SOLE`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferred {
    /// The changes, which follow the commit's changes of the file's data. Neither size nor layout.
    pub changes: AttrChanges,
    /// The time of the last of them.
    pub ctime: Timestamp,
}
