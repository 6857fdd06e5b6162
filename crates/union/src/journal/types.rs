//! The terms of the store: numbers, names, and the attributes of lower and new upper inodes.

use std::fmt;

use super::error::JournalError;

/// The number of a copy-up, unique in the life of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The number of a record: one more than that of the record before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// The number of a segment file; also its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

impl fmt::Display for FileId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08x}", self.0)
    }
}

/// A time stamp as statx gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Time {
    /// Seconds since 1970, UTC.
    pub seconds: i64,
    /// Nanoseconds, below a second.
    pub nanoseconds: u32,
}

/// Longest name of a directory entry.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest file handle with its type, and longest key of a parent directory.
pub const KEY_BYTES_MAX: usize = 160;
/// Longest path of a lower file.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest value of an extended attribute (the kernel's limit).
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Most bytes of all extended attributes of a file.
pub const XATTRS_BYTES_MAX: usize = 256 << 10;
/// Most names (hard links) of one copy-up.
pub const NAMES_MAX: usize = 1024;
/// Largest offset of a file.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A directory of the upper, by something that survives a rename of it and of the directories above
/// it and is not reused by another one: its file handle with generation. A renamed directory
/// therefore needs no record. The store does not look into it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParentKey(Box<[u8]>);

impl ParentKey {
    /// Returns a key of 1..=[`KEY_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, JournalError> {
        within("parent key", bytes.len(), KEY_BYTES_MAX)?;
        Ok(Self(bytes.into()))
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One name of a copy-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The upper directory that holds it.
    pub parent: ParentKey,
    /// The entry's name.
    pub name: Box<[u8]>,
    /// The handle of an upper entry that this name hides and that is to be removed, empty if there
    /// is none. At recovery an upper entry of this handle is a leftover; any other upper entry of
    /// the same name is newer than the record and wins.
    pub covers: Box<[u8]>,
}

impl Name {
    /// Returns a name that hides no upper entry.
    pub fn new(parent: ParentKey, name: &[u8]) -> Result<Self, JournalError> {
        within("name", name.len(), NAME_BYTES_MAX)?;
        Ok(Self { parent, name: name.into(), covers: Box::default() })
    }
}

/// A change of names; those of one call are one record, so that a rename or an exchange is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The file gets one more name.
    Add(FileId, Name),
    /// The file loses a name. Without names it lives until it is dropped or the store is opened.
    Remove(FileId, ParentKey, Box<[u8]>),
}

/// The lower file, as it was when it was copied up. If anything but the path differs later, bytes
/// that were not stored yet must not be read from it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LowerIdentity {
    /// The layer, numbered as the caller likes.
    pub layer: u32,
    /// The path below the layer's root, without a leading slash.
    pub path: Box<[u8]>,
    /// The file handle with its type.
    pub handle: Box<[u8]>,
    /// The inode number.
    pub inode: u64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The time of its last write.
    pub mtime: Time,
    /// The time of its last change.
    pub ctime: Time,
    /// A digest of its data, in the caller's form; empty in stores of an older version, or if there
    /// is none.
    pub digest: Box<[u8]>,
}

impl LowerIdentity {
    /// Returns whether `found` is the same inode of the same size and mtime, so that its data was
    /// written only if its mtime was set back.
    pub fn is_same_but_ctime(&self, found: &Self) -> bool {
        let now = Self { ctime: self.ctime, ..found.clone() };
        self.difference(&now).is_none()
    }

    /// Describes the difference between `found` and this file as recorded; `None` if there is none.
    /// Where a handle is missing, the other fields decide.
    pub fn difference(&self, found: &Self) -> Option<&'static str> {
        let other_handle =
            !self.handle.is_empty() && !found.handle.is_empty() && self.handle != found.handle;
        [
            (self.inode != found.inode || other_handle, "another file has its name"),
            (self.size_bytes != found.size_bytes, "its size is another"),
            (self.mtime != found.mtime, "its mtime is another: it was written to"),
            (
                self.ctime != found.ctime,
                "its ctime is another: it was linked or renamed, or its owner, mode or attributes were set",
            ),
        ]
        .into_iter()
        .find_map(|(is_other, words)| is_other.then_some(words))
    }
}

/// The attributes of the new upper inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attributes {
    /// File type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read.
    pub atime: Time,
    /// Last write.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
}

/// One extended attribute, as named in the merged tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// The whole name, 1..=255 bytes.
    pub name: Box<[u8]>,
    /// The value, at most 64 KiB.
    pub value: Box<[u8]>,
}

/// Where a copy-up keeps its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Touched bytes in segments, the rest in the lower.
    Partial,
    /// The whole file in the work file of this name.
    Pending(Box<[u8]>),
}

/// How far a copy-up has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It takes changes.
    Open,
    /// The whole file lies in the work file of this name, about to be renamed to its name in the
    /// upper. If after a crash the work file is gone, the file was published.
    Publishing(Box<[u8]>),
}

/// The initial state of a copy-up.
#[derive(Clone, Debug)]
pub struct Creation {
    /// The lower file; `None` for one that needs none of its bytes.
    pub lower: Option<LowerIdentity>,
    /// Where its data goes.
    pub kind: Kind,
    /// The size, at first usually the lower's.
    pub size_bytes: u64,
    /// The new inode's attributes.
    pub attributes: Attributes,
    /// The new inode's extended attributes.
    pub xattrs: Vec<Xattr>,
    /// Its names.
    pub names: Vec<Name>,
}

/// Refuses empty and overlong fields.
pub(super) fn within(what: &'static str, found: usize, limit: usize) -> Result<(), JournalError> {
    if found == 0 || found > limit {
        return Err(JournalError::TooLarge { what, found: found as u64, limit: limit as u64 });
    }
    Ok(())
}
