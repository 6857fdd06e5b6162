//! What the metadata service stores: typed records and their keys.
//!
//! A value is one byte with the version of the record's form, then the record in postcard. A key is
//! a tag and big-endian numbers, so that the store's order is the order of the numbers. Records
//! that belong together are adjacent: all entries of a directory, all extents of a file.

mod key;

pub(crate) use key::{Key, key_number, key_tail};

use crate::space::{Durability, FIRST_FLUSH_EPOCH, Ranges};
use crate::store::Error;
use crate::tree::FIRST_COOKIE;
use protocol::client::Response;
use protocol::inline::{Bytes, INLINE_MAX_BYTES};
use protocol::space::DeviceInfo;
use protocol::sums::checksum;
use protocol::{
    AllocationId, Attr, DeviceId, Epoch, ExtentList, FILE_SIZE_MAX_BYTES, FileKind, FreeEpoch,
    HostId, InodeId, SessionId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A stored record.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// Version of the record's form: the first byte of its value.
    const VERSION: u8 = 1;
}

/// Returns the bytes of a record.
pub(crate) fn encode<R: Record>(record: &R) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(128);
    bytes.push(R::VERSION);
    postcard::to_extend(record, bytes)
        .map_err(|source| Error::Store { operation: "encode a record", source: Box::new(source) })
}

/// Returns the record in `bytes`.
pub(crate) fn decode<R: Record>(key: &[u8], bytes: &[u8]) -> Result<R, Error> {
    match bytes.split_first() {
        Some((version, body)) if *version == R::VERSION => {
            postcard::from_bytes(body).map_err(|error| corrupt(key, &error))
        }
        Some((version, _)) => Err(corrupt(key, &format!("unknown record version {version}"))),
        None => Err(corrupt(key, "empty value")),
    }
}

/// Returns the error for a record that makes no sense.
pub(crate) fn corrupt(key: &[u8], reason: &(impl ToString + ?Sized)) -> Error {
    use std::fmt::Write;
    let mut hex = String::new();
    for byte in key {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    Error::Corrupt { key: hex, reason: reason.to_string() }
}

/// Numbers that exist once per file system. Each transaction that changes one writes this record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// The file system's identity.
    pub(crate) file_system: Uuid,
    /// The machine's boot in which the store was last opened.
    pub(crate) boot: Uuid,
    /// Number of the next new inode.
    pub(crate) next_inode: u64,
    /// Number of the next new session.
    pub(crate) next_session: u64,
    /// Number of the next new device.
    pub(crate) next_device: u32,
    /// Epoch of the next admission.
    pub(crate) next_epoch: u64,
    /// Number of transactions that freed blocks.
    pub(crate) free_epoch: FreeEpoch,
    /// Number of inode records.
    pub(crate) inodes: u64,
    /// The present flush epoch.
    pub(crate) flush_epoch: u64,
}

impl Record for Counters {
    const VERSION: u8 = 3;
}

impl Counters {
    /// Returns whether a service can have given out these numbers: none can be given out until it
    /// wraps.
    pub(crate) fn are_sound(&self) -> bool {
        let numbers = [
            self.next_inode,
            self.next_session,
            self.next_epoch,
            self.free_epoch.0,
            self.flush_epoch,
        ];
        let have_begun = self.next_inode > InodeId::ROOT.0 && self.flush_epoch >= FIRST_FLUSH_EPOCH;
        have_begun && numbers.iter().all(|number| *number < 1 << 62)
    }
}

/// Lease stamps, see [`protocol::lease::Grant::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamps {
    /// The first stamp that the next life of the service gives out.
    pub(crate) next: u64,
}

impl Record for Stamps {}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inode {
    /// The attributes that `stat` returns.
    pub(crate) attr: Attr,
    /// A directory's parent, for `..` and to find loops.
    pub(crate) parent: InodeId,
    /// The cookie of a directory's next new entry.
    pub(crate) next_cookie: u64,
    /// A symbolic link's target.
    pub(crate) target: Vec<u8>,
    /// Number of extended attributes.
    pub(crate) xattrs: u32,
    /// The range that a call has cut off or out, or that a dead inode has, and that is not removed
    /// yet.
    pub(crate) truncating: Option<Truncation>,
    /// No path or open file leads to it any more: its data is being freed.
    pub(crate) is_dead: bool,
    /// The last flush epoch in which its unflushed data was committed; 0 if all of its data is
    /// known to be durable.
    pub(crate) flush_epoch: u64,
    /// The session that made it and may hold back changes of its attributes: no other session has
    /// seen it, and no commit has come.
    pub(crate) sole: Option<SessionId>,
    /// Bytes of its data in the store.
    pub(crate) inline: u32,
}

impl Record for Inode {
    const VERSION: u8 = 4;
}

impl Inode {
    /// Returns the first fault of the record for an inode of this number; `None` if it has none.
    /// Called when a record is read, and asserted when one is written.
    pub(crate) fn fault(&self, id: InodeId) -> Option<&'static str> {
        let Attr { inode, kind, mode, nlink, size, allocated_bytes, .. } = self.attr;
        let is_file = kind == FileKind::File;
        let is_link = kind == FileKind::Symlink;
        let is_directory = kind == FileKind::Directory;
        let faults = [
            (inode != id, "it is another inode's"),
            (mode & !0o7777 != 0, "its mode has more than permissions"),
            (is_directory && nlink == 1, "it is a directory with one link"),
            (is_file && size > FILE_SIZE_MAX_BYTES, "its size is too large"),
            (allocated_bytes > FILE_SIZE_MAX_BYTES, "it has more extents than a file has bytes"),
            (u64::from(self.inline) > allocated_bytes, "it has more inline bytes than bytes"),
            (u64::from(self.inline) > INLINE_MAX_BYTES, "it has too many inline bytes"),
            (u64::from(self.inline) > size, "it has inline bytes past its end"),
            (!is_file && allocated_bytes > 0, "it is no file and has extents"),
            (is_link == self.target.is_empty(), "its target does not match its type"),
            (is_link && size != self.target.len() as u64, "its size is not that of its target"),
            (self.next_cookie < FIRST_COOKIE, "its next cookie is one that is reserved"),
            (self.is_dead && nlink > 0, "it is dead and has links"),
            (self.truncating.is_some_and(|it| !it.is_sound()), "its truncation has no range"),
            (self.truncating.is_some() && !is_file, "it is no file and is truncated"),
        ];
        faults.iter().find(|(is_so, _)| *is_so).map(|(_, fault)| *fault)
    }
}

/// The removal of a range under way, from its end down: by a truncation, a hole, or the death of the
/// inode. It records its progress, so that no step searches the part that earlier steps removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Truncation {
    /// Extents from this byte on must be removed,
    pub(crate) from: u64,
    /// up to this byte.
    pub(crate) to: u64,
}

impl Truncation {
    fn is_sound(&self) -> bool {
        self.from < self.to && self.to <= FILE_SIZE_MAX_BYTES
    }
}

/// A directory's entry, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dentry {
    /// The named inode.
    pub(crate) inode: InodeId,
    /// Its place in the order of `readdir`.
    pub(crate) cookie: u64,
}

impl Record for Dentry {}

/// A directory's entry, by cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CookieEntry {
    /// The named inode.
    pub(crate) inode: InodeId,
    /// Its name.
    pub(crate) name: Vec<u8>,
}

impl Record for CookieEntry {}

/// An extended attribute's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Xattr {
    /// The value.
    pub(crate) value: Vec<u8>,
}

impl Record for Xattr {}

/// The data of a file that is in the store: its first bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inline {
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// Their CRC-32C.
    pub(crate) checksum: u32,
}

impl Record for Inline {}

impl Inline {
    /// Stores bytes with their checksum.
    pub(crate) fn of(bytes: Vec<u8>) -> Inline {
        let checksum = checksum(&bytes);
        Inline { bytes: Bytes(bytes), checksum }
    }

    /// Stores bytes with the checksum that their writer computed.
    pub(crate) fn summed(bytes: Vec<u8>, checksum: u32) -> Inline {
        Inline { bytes: Bytes(bytes), checksum }
    }

    /// Returns whether the bytes match their checksum.
    pub(crate) fn is_whole(&self) -> bool {
        checksum(&self.bytes.0) == self.checksum || reactor::mutant!("inline-unchecked")
    }
}

/// The extents of a part of a file: from the key's offset to `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExtentPage {
    /// One past the last byte of the page's range in the file.
    pub(crate) end: u64,
    /// Extents, ascending and apart from one another, all within the page's range.
    pub(crate) extents: ExtentList,
}

impl Record for ExtentPage {}

impl ExtentPage {
    /// Returns whether the extents are valid in a page that begins at `start`.
    pub(crate) fn is_sound(&self, start: u64) -> bool {
        let extents = &self.extents.0;
        start < self.end
            && extents.first().is_none_or(|first| first.offset >= start)
            && extents.last().is_none_or(|last| last.end() <= self.end)
            && extents.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
    }
}

/// A segment that was used at least once: its free blocks that are not leased.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// The blocks.
    pub(crate) free: Ranges,
}

impl Record for Segment {
    const VERSION: u8 = 2;
}

/// A session's lease on blocks of a segment: those that no commit has named yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpaceLease {
    /// The blocks.
    pub(crate) free: Ranges,
}

impl Record for SpaceLease {
    const VERSION: u8 = 2;
}

/// Blocks that were freed under one epoch and may still be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resting {
    /// First block and how many, ascending and apart from one another.
    pub(crate) freed: Vec<(AllocationId, u32)>,
}

impl Record for Resting {}

/// A device of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// The device's latest registration.
    pub(crate) info: DeviceInfo,
    /// The durable part of its data, and the lost part.
    pub(crate) durability: Durability,
}

impl Record for Device {
    const VERSION: u8 = 3;
}

/// A session, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The identifier by which its host connects to targets.
    pub host: HostId,
    /// The node that runs its client.
    pub node: String,
    /// The epoch of its admission.
    pub epoch: Epoch,
    /// Devices that admit it.
    pub admitted: Vec<DeviceId>,
    /// It is being fenced, or the store may have lost changes whose success the session knows: it
    /// must not be resumed.
    pub is_void: bool,
}

impl Record for SessionRecord {}

/// A slot's last call and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotRecord {
    /// The call's number.
    pub(crate) sequence: u64,
    /// The answer.
    pub(crate) response: Response,
}

impl Record for SlotRecord {}

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DurableLock(pub(crate) protocol::lock::Lock);

impl Record for DurableLock {
    const VERSION: u8 = 2;
}

/// The record of a key that carries all information itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark;

impl Record for Mark {}
