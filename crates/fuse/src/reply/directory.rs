//! The answer to READDIR and READDIRPLUS: entries until the kernel's buffer is full.

use reactor::Buffer;
use zerocopy::IntoBytes;

use super::Entry;
use super::encode::entry_out;
use crate::abi::{Dirent, EntryOut};

/// Longest name in bytes that the kernel accepts in a listing (`FUSE_NAME_MAX`).
const NAME_LENGTH_MAX: usize = 1024;

/// The type of a directory entry, as `d_type` of readdir(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// Not known; the caller has to stat.
    Unknown,
    /// Fifo.
    Fifo,
    /// Character device.
    CharacterDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
}

impl FileType {
    /// Returns the type in a mode's `S_IFMT` bits.
    pub fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFCHR => Self::CharacterDevice,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFREG => Self::Regular,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFSOCK => Self::Socket,
            _ => Self::Unknown,
        }
    }

    fn to_raw(self) -> u32 {
        u32::from(match self {
            Self::Unknown => libc::DT_UNKNOWN,
            Self::Fifo => libc::DT_FIFO,
            Self::CharacterDevice => libc::DT_CHR,
            Self::Directory => libc::DT_DIR,
            Self::BlockDevice => libc::DT_BLK,
            Self::Regular => libc::DT_REG,
            Self::Symlink => libc::DT_LNK,
            Self::Socket => libc::DT_SOCK,
        })
    }
}

/// One entry of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Inode number, not 0.
    pub inode: u64,
    /// The position behind this entry: the `offset` of a later request. Not 0.
    pub offset: u64,
    /// Type.
    pub kind: FileType,
    /// Name.
    pub name: &'a [u8],
}

/// A listing under construction. Push entries until one is refused for lack of room, then answer.
/// An empty listing means the end.
#[derive(Debug)]
pub struct DirectoryBuffer {
    buffer: Buffer,
    size: usize,
}

impl DirectoryBuffer {
    /// Makes an empty listing for an answer of at most `size` bytes, as the request says.
    pub fn new(size: u32) -> Self {
        Self { buffer: Buffer::with_capacity(size as usize), size: size as usize }
    }

    /// Appends an entry for READDIR. Returns `false` if there is no room, or if the kernel does not
    /// accept the name (empty, or above 1024 bytes).
    #[must_use = "a refused entry has to go into the next listing"]
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.append(None, entry)
    }

    /// Appends an entry with its inode for READDIRPLUS; `false` if there is no room. `None` (or a
    /// node of 0, as for "." and "..") lists the name without its inode. An accepted entry raises
    /// the lookup count of its inode.
    #[must_use = "a refused entry has to go into the next listing"]
    pub fn push_plus(&mut self, inode: Option<&Entry>, entry: &DirectoryEntry<'_>) -> bool {
        self.append(Some(inode.map(entry_out).unwrap_or_default()), entry)
    }

    fn append(&mut self, plus: Option<EntryOut>, entry: &DirectoryEntry<'_>) -> bool {
        if entry.name.is_empty() || entry.name.len() > NAME_LENGTH_MAX {
            return false;
        }
        let plus = plus.as_ref().map(IntoBytes::as_bytes).unwrap_or_default();
        let len = plus.len() + size_of::<Dirent>() + entry.name.len();
        let padding = len.next_multiple_of(8) - len;
        if self.buffer.len() + len + padding > self.size {
            return false;
        }
        let dirent = Dirent {
            ino: entry.inode,
            off: entry.offset,
            namelen: entry.name.len() as u32,
            kind: entry.kind.to_raw(),
        };
        for bytes in [plus, dirent.as_bytes(), entry.name, &[0; 7][..padding]] {
            self.buffer.extend_from_slice(bytes);
        }
        true
    }

    /// Returns whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the listing's bytes, as the kernel receives them.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}
