//! The records of the log, and their bytes.
//!
//! ```text
//! ┌ head, 48 bytes ────────────────────────────────────────────────────────────┐
//! │ crc u32 │ epoch u32 │ sequence u64 │ file u64 │ body length u32 │          │
//! │ data length u32 │ data crc u32 │ unsynced u32 │ kind u8 │ 7 zero bytes     │
//! ├ body ───────────────┬ data ────────────────────────────────────────────────┤
//! │ fields of the kind  │ bytes of the file                                    │
//! └─────────────────────┴──────────────────────────────────────────────────────┘
//! ```
//!
//! All little-endian; records begin at multiples of 8. `crc` covers the segment's key, the rest of
//! the head and the body, so a record of another segment, or of an earlier life of the space, is no
//! record here. The data has checksums of its own ([`Sums`]), because recovery reads heads without
//! the data when they are known to have been synced: `data crc` if there is one for all of it, else
//! one for each block, in the body behind the other fields (and `data crc` is 0). `unsynced` is the
//! number of records before this one that were not known to be durable when it was written.

use crc_fast::{CrcAlgorithm, Digest};

use super::base::Base;
use super::codec::{Reader, Writer};
use super::sums::{BLOCK_BYTES, Sums};
use super::types::{
    Attributes, FILE_BYTES_MAX, FileId, KEY_BYTES_MAX, NAME_BYTES_MAX, Name, NameChange, ParentKey,
    SegmentId, Sequence, Time, XATTR_BYTES_MAX, Xattr,
};

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 48;
/// Longest body.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// Most data of one record; longer writes become several.
pub(super) const DATA_BYTES_MAX: usize = 1 << 20;
/// Most ranges of one record.
pub(super) const RANGES_MAX: usize = 1024;
/// Most changes of names in one record.
pub(super) const CHANGES_MAX: usize = 8;

/// Kinds of a write and of a move whose data has a checksum for each block.
const WRITE_OF_BLOCKS: u8 = 17;
const MOVE_OF_BLOCKS: u8 = 18;

/// The key of the records of a segment: the random numbers of the store and of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) journal: u64,
    pub(super) epoch: u64,
}

/// One change, as it lies in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A new copy-up: everything but its data.
    Create(Base),
    /// The same again, so that older records of the file may go; its map stays.
    Snapshot(Base),
    /// Bytes written by the application; the data follows.
    Write { offset: u64, mtime: Time },
    /// Bytes moved by the cleaner; the data follows.
    Move { offset: u64 },
    /// Ranges that read as zeros.
    Zero { ranges: Vec<(u64, u64)>, mtime: Option<Time> },
    /// Ranges that were stored and cannot be read any more.
    Lost { ranges: Vec<(u64, u64)> },
    /// A new size; what lies behind it is gone for good.
    Truncate { size_bytes: u64, mtime: Time },
    /// New attributes.
    Attributes(Attributes),
    /// An extended attribute set, or removed.
    SetXattr(Xattr),
    /// An extended attribute removed.
    RemoveXattr(Box<[u8]>),
    /// Names added and removed, together.
    Names(Vec<NameChange>),
    /// The work file of a pending copy-up is durable.
    DataDurable,
    /// The whole file lies in a work file and is about to be renamed into the upper.
    Publishing(Box<[u8]>),
    /// Publication was given up.
    Unpublishing,
    /// The file is complete in the upper.
    Published,
    /// The file is gone.
    Dropped,
    /// This segment and all before it are needed no more, and may be missing. Of no file.
    Forget(SegmentId),
}

/// A decoded head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: Sequence,
    pub(super) file: FileId,
    pub(super) body_bytes: usize,
    pub(super) data_bytes: usize,
    data_crc: u32,
    pub(super) synced: Sequence,
    kind: u8,
    crc: u32,
}

impl Head {
    /// Returns the bytes from the head's start to the next record's.
    pub(super) fn record_bytes(&self) -> u64 {
        (self.data_start() + self.data_bytes as u64).next_multiple_of(8)
    }

    /// Returns the bytes from the head's start to the data.
    pub(super) fn data_start(&self) -> u64 {
        (HEAD_BYTES + self.body_bytes) as u64
    }

    /// Reads the fields; only [`decode`] verifies them.
    pub(super) fn parse(bytes: &[u8], key: Key) -> Option<Self> {
        let mut reader = Reader::new(bytes.get(..HEAD_BYTES)?);
        let crc = reader.u32()?;
        let epoch = reader.u32()?;
        let sequence = reader.u64()?;
        let file = FileId(reader.u64()?);
        let body_bytes = reader.u32()? as usize;
        let data_bytes = reader.u32()? as usize;
        let data_crc = reader.u32()?;
        let unsynced = u64::from(reader.u32()?);
        let kind = reader.u8()?;
        let is_plausible = epoch == key.epoch as u32
            && body_bytes <= BODY_BYTES_MAX
            && data_bytes <= DATA_BYTES_MAX
            && sequence > 0;
        is_plausible.then(|| Self {
            sequence: Sequence(sequence),
            file,
            body_bytes,
            data_bytes,
            data_crc,
            synced: Sequence(sequence.saturating_sub(unsynced)),
            kind,
            crc,
        })
    }
}

/// Returns a record's checksum.
pub(super) fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

fn keyed_crc(key: Key, head: &[u8], body: &[u8]) -> u32 {
    crc(&[&key.journal.to_le_bytes(), &key.epoch.to_le_bytes(), &head[4..HEAD_BYTES], body])
}

/// The data behind a record, and its checksums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload<'a> {
    pub(super) data: &'a [u8],
    pub(super) sums: &'a Sums,
}

/// Head and body of a record, in one piece, with the data and its checksums given. `None` if the
/// body is longer than allowed.
pub(super) fn encode(
    key: Key,
    sequence: Sequence,
    synced: Sequence,
    file: FileId,
    record: &Record,
    Payload { data, sums }: Payload<'_>,
) -> Option<Vec<u8>> {
    debug_assert!(
        data.len() <= DATA_BYTES_MAX && synced < sequence,
        "the caller splits and counts"
    );
    let mut writer = Writer { bytes: Vec::with_capacity(HEAD_BYTES + 32) };
    writer.u32(0);
    writer.u32(key.epoch as u32);
    writer.u64(sequence.0);
    writer.u64(file.0);
    writer.u32(0);
    writer.u32(data.len() as u32);
    writer.u32(if let Sums::Whole(sum) = sums { *sum } else { 0 });
    writer.u32(u32::try_from(sequence.0 - synced.0).unwrap_or(u32::MAX));
    writer.u8(record.kind(sums));
    writer.bytes.resize(HEAD_BYTES, 0);
    record.encode_body(&mut writer);
    if let Sums::Blocks(sums) = sums {
        sums.iter().for_each(|sum| writer.u32(*sum));
    }
    let mut bytes = writer.bytes;
    // The data begins at a multiple of 8, which costs nothing and keeps copies aligned.
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let body_bytes = bytes.len() - HEAD_BYTES;
    if body_bytes > BODY_BYTES_MAX {
        return None;
    }
    bytes[24..28].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    let (head, body) = bytes.split_at(HEAD_BYTES);
    let crc = keyed_crc(key, head, body);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    Some(bytes)
}

/// Returns the record of a head and its body, and the checksums of its data; `None` if the checksum
/// or the body is wrong.
pub(super) fn decode(key: Key, head: &Head, bytes: &[u8]) -> Option<(Record, Sums)> {
    let (head_bytes, body) = bytes.split_at_checked(HEAD_BYTES)?;
    let body = body.get(..head.body_bytes)?;
    if keyed_crc(key, head_bytes, body) != head.crc {
        return None;
    }
    Record::decode_body(head, body)
}

impl Record {
    fn kind(&self, sums: &Sums) -> u8 {
        match self {
            Self::Write { .. } if matches!(sums, Sums::Blocks(_)) => WRITE_OF_BLOCKS,
            Self::Move { .. } if matches!(sums, Sums::Blocks(_)) => MOVE_OF_BLOCKS,
            Self::Create(_) => 1,
            Self::Snapshot(_) => 2,
            Self::Write { .. } => 3,
            Self::Move { .. } => 4,
            Self::Zero { .. } => 5,
            Self::Lost { .. } => 6,
            Self::Truncate { .. } => 7,
            Self::Attributes(_) => 8,
            Self::SetXattr(_) => 9,
            Self::RemoveXattr(_) => 10,
            Self::Names(_) => 11,
            Self::DataDurable => 12,
            Self::Publishing(_) => 13,
            Self::Unpublishing => 14,
            Self::Published => 15,
            Self::Dropped => 16,
            Self::Forget(_) => 19,
        }
    }

    /// Returns the length of the body; for the short kinds an upper bound.
    pub(super) fn body_bytes(&self, sums: &Sums) -> usize {
        let blocks = if let Sums::Blocks(sums) = sums { 4 * sums.len() } else { 0 };
        match self {
            Self::Write { .. } | Self::Move { .. } => 24 + blocks,
            _ => {
                let mut writer = Writer::default();
                self.encode_body(&mut writer);
                writer.bytes.len()
            }
        }
    }

    fn encode_body(&self, writer: &mut Writer) {
        match self {
            Self::Create(base) | Self::Snapshot(base) => base.encode(writer),
            Self::Write { offset, mtime } => {
                writer.u64(*offset);
                writer.time(*mtime);
            }
            Self::Move { offset } => writer.u64(*offset),
            Self::Zero { ranges, mtime } => {
                encode_ranges(writer, ranges);
                writer.u8(u8::from(mtime.is_some()));
                writer.time(mtime.unwrap_or_default());
            }
            Self::Lost { ranges } => encode_ranges(writer, ranges),
            Self::Truncate { size_bytes, mtime } => {
                writer.u64(*size_bytes);
                writer.time(*mtime);
            }
            Self::Attributes(attributes) => encode_attributes(writer, attributes),
            Self::SetXattr(xattr) => {
                writer.blob(&xattr.name);
                writer.blob(&xattr.value);
            }
            Self::RemoveXattr(name) | Self::Publishing(name) => writer.blob(name),
            Self::Names(changes) => encode_changes(writer, changes),
            Self::Forget(segment) => writer.u32(segment.0),
            Self::DataDurable | Self::Unpublishing | Self::Published | Self::Dropped => {}
        }
    }

    fn decode_body(head: &Head, body: &[u8]) -> Option<(Self, Sums)> {
        let mut reader = Reader::new(body);
        let reader = &mut reader;
        let record = match head.kind {
            1 => Self::Create(Base::decode(reader)?),
            2 => Self::Snapshot(Base::decode(reader)?),
            3 | WRITE_OF_BLOCKS => {
                Self::Write { offset: decode_offset(reader)?, mtime: reader.time()? }
            }
            4 | MOVE_OF_BLOCKS => Self::Move { offset: decode_offset(reader)? },
            5 => {
                let ranges = decode_ranges(reader)?;
                let has_mtime = reader.u8()? != 0;
                Self::Zero { ranges, mtime: Some(reader.time()?).filter(|_| has_mtime) }
            }
            6 => Self::Lost { ranges: decode_ranges(reader)? },
            7 => Self::Truncate { size_bytes: decode_offset(reader)?, mtime: reader.time()? },
            8 => Self::Attributes(decode_attributes(reader)?),
            9 => {
                let name = reader.blob(NAME_BYTES_MAX)?.into();
                Self::SetXattr(Xattr { name, value: reader.blob(XATTR_BYTES_MAX)?.into() })
            }
            10 => Self::RemoveXattr(reader.blob(NAME_BYTES_MAX)?.into()),
            11 => Self::Names(decode_changes(reader)?),
            12 => Self::DataDurable,
            13 => Self::Publishing(reader.blob(NAME_BYTES_MAX)?.into()),
            14 => Self::Unpublishing,
            15 => Self::Published,
            16 => Self::Dropped,
            19 => Self::Forget(SegmentId(reader.u32()?)),
            _ => return None,
        };
        let sums = match head.kind {
            WRITE_OF_BLOCKS | MOVE_OF_BLOCKS => {
                let count = head.data_bytes.div_ceil(BLOCK_BYTES);
                Sums::Blocks((0..count).map(|_| reader.u32()).collect::<Option<_>>()?)
            }
            _ => Sums::Whole(head.data_crc),
        };
        reader.padding()?;
        Some((record, sums))
    }
}

fn decode_offset(reader: &mut Reader<'_>) -> Option<u64> {
    reader.u64().filter(|&offset| offset <= FILE_BYTES_MAX)
}

fn encode_ranges(writer: &mut Writer, ranges: &[(u64, u64)]) {
    writer.u32(ranges.len() as u32);
    for &(start, end) in ranges {
        writer.u64(start);
        writer.u64(end);
    }
}

fn decode_ranges(reader: &mut Reader<'_>) -> Option<Vec<(u64, u64)>> {
    let count = reader.u32()? as usize;
    if count > RANGES_MAX {
        return None;
    }
    let range = |reader: &mut Reader<'_>| {
        let (start, end) = (decode_offset(reader)?, decode_offset(reader)?);
        (start < end).then_some((start, end))
    };
    (0..count).map(|_| range(reader)).collect()
}

pub(super) fn encode_attributes(writer: &mut Writer, attributes: &Attributes) {
    writer.u32(attributes.mode);
    writer.u32(attributes.uid);
    writer.u32(attributes.gid);
    writer.time(attributes.atime);
    writer.time(attributes.mtime);
    writer.time(attributes.ctime);
}

pub(super) fn decode_attributes(reader: &mut Reader<'_>) -> Option<Attributes> {
    Some(Attributes {
        mode: reader.u32()?,
        uid: reader.u32()?,
        gid: reader.u32()?,
        atime: reader.time()?,
        mtime: reader.time()?,
        ctime: reader.time()?,
    })
}

pub(super) fn encode_name(writer: &mut Writer, name: &Name) {
    writer.blob(name.parent.as_bytes());
    writer.blob(&name.name);
    writer.blob(&name.covers);
}

pub(super) fn decode_name(reader: &mut Reader<'_>) -> Option<Name> {
    let parent = ParentKey::new(reader.blob(KEY_BYTES_MAX)?).ok()?;
    let name = reader.blob(NAME_BYTES_MAX)?.into();
    Some(Name { parent, name, covers: reader.blob(KEY_BYTES_MAX)?.into() })
}

fn encode_changes(writer: &mut Writer, changes: &[NameChange]) {
    writer.u32(changes.len() as u32);
    for change in changes {
        match change {
            NameChange::Add(file, name) => {
                writer.u8(1);
                writer.u64(file.0);
                encode_name(writer, name);
            }
            NameChange::Remove(file, parent, name) => {
                writer.u8(2);
                writer.u64(file.0);
                writer.blob(parent.as_bytes());
                writer.blob(name);
            }
        }
    }
}

fn decode_changes(reader: &mut Reader<'_>) -> Option<Vec<NameChange>> {
    let count = reader.u32()? as usize;
    if count > CHANGES_MAX {
        return None;
    }
    let change = |reader: &mut Reader<'_>| {
        let tag = reader.u8()?;
        let file = FileId(reader.u64()?);
        match tag {
            1 => Some(NameChange::Add(file, decode_name(reader)?)),
            2 => {
                let parent = ParentKey::new(reader.blob(KEY_BYTES_MAX)?).ok()?;
                Some(NameChange::Remove(file, parent, reader.blob(NAME_BYTES_MAX)?.into()))
            }
            _ => None,
        }
    };
    (0..count).map(|_| change(reader)).collect()
}

#[cfg(test)]
mod tests;
