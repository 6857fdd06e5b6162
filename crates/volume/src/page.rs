//! Metadata pages: a root page names index pages, these name map pages and volume pages.
//!
//! Bytes of a page (little endian): checksum of the rest at 0 (CRC-32C), kind at 4, generation of
//! the commit that wrote it at 8, number of the volume at 16, its index within its kind at 24,
//! entries in use at 28, content from 32 on. A pointer is a slot and the checksum of the page
//! there; slot 0 means no page.

use crate::layout::{ENTRIES, PAGE_BYTES, POINTERS};
use crc_fast::CrcAlgorithm;
use uuid::Uuid;

const HEADER_BYTES: usize = 32;
/// Longest name of a volume in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Flag of a volume that is a snapshot.
const FLAG_SNAPSHOT: u32 = 1;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Pointers to index pages.
    Root = 1,
    /// Pointers to volume and map pages.
    Index = 2,
    /// A volume's name, size and other properties.
    Volume = 3,
    /// A part of a volume's table.
    Map = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Root, Self::Index, Self::Volume, Self::Map].into_iter().find(|it| *it as u8 == byte)
    }
}

/// The slot of a page, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// From 1 on; 0 means no page.
    pub(crate) slot: u32,
    pub(crate) crc: u32,
}

impl Pointer {
    pub(crate) const NONE: Self = Self { slot: 0, crc: 0 };

    pub(crate) fn is_none(self) -> bool {
        self.slot == 0
    }
}

/// The start of a page, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) generation: u64,
    /// The volume; 0 for root and index pages.
    pub(crate) owner: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

/// A volume's properties, as stored in its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    /// Its size.
    pub(crate) clusters: u32,
    pub(crate) is_snapshot: bool,
    /// The first volume of its family: only volumes of one family share clusters.
    pub(crate) family: u64,
    /// The volume that it was copied from, or 0. That volume may have been removed.
    pub(crate) origin: u64,
    /// Number of its mapped clusters.
    pub(crate) mapped: u32,
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

/// Whether a volume can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    is_first && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_rest)
}

/// A page and its checksum.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) crc: u32,
}

fn encode(header: Header, fill: impl FnOnce(&mut [u8])) -> Encoded {
    let mut bytes = vec![0; PAGE_BYTES];
    bytes[4] = header.kind as u8;
    put(&mut bytes, 8, &header.generation.to_le_bytes());
    put(&mut bytes, 16, &header.owner.to_le_bytes());
    put(&mut bytes, 24, &header.index.to_le_bytes());
    put(&mut bytes, 28, &header.count.to_le_bytes());
    fill(&mut bytes[HEADER_BYTES..]);
    let crc = crc(&bytes[4..]);
    put(&mut bytes, 0, &crc.to_le_bytes());
    Encoded { bytes, crc }
}

/// Returns a root or index page.
pub(crate) fn encode_pointers(
    kind: Kind,
    generation: u64,
    index: u32,
    pointers: &[Pointer],
) -> Encoded {
    assert!(pointers.len() <= POINTERS, "{} pointers", pointers.len());
    let count = pointers.iter().filter(|pointer| !pointer.is_none()).count() as u32;
    encode(Header { kind, generation, owner: 0, index, count }, |content| {
        for (at, pointer) in pointers.iter().enumerate() {
            put(content, at * 8, &pointer.slot.to_le_bytes());
            put(content, at * 8 + 4, &pointer.crc.to_le_bytes());
        }
    })
}

/// Returns a map page: for each cluster 0, or the number of the pool's cluster from 1 on.
pub(crate) fn encode_map(generation: u64, owner: u64, index: u32, entries: &[u32]) -> Encoded {
    assert!(entries.len() <= ENTRIES, "{} entries", entries.len());
    let count = entries.iter().filter(|entry| **entry != 0).count() as u32;
    encode(Header { kind: Kind::Map, generation, owner, index, count }, |content| {
        for (at, entry) in entries.iter().enumerate() {
            put(content, at * 4, &entry.to_le_bytes());
        }
    })
}

/// Returns a volume page.
pub(crate) fn encode_record(generation: u64, owner: u64, record: &Record) -> Encoded {
    assert!(is_name(&record.name), "{:?}", record.name);
    encode(Header { kind: Kind::Volume, generation, owner, index: 0, count: 1 }, |content| {
        put(content, 0, record.uuid.as_bytes());
        put(content, 16, &record.clusters.to_le_bytes());
        let flags = if record.is_snapshot { FLAG_SNAPSHOT } else { 0 };
        put(content, 20, &flags.to_le_bytes());
        put(content, 24, &record.family.to_le_bytes());
        put(content, 32, &record.origin.to_le_bytes());
        put(content, 40, &record.mapped.to_le_bytes());
        put(content, 44, &(record.name.len() as u32).to_le_bytes());
        put(content, 48, record.name.as_bytes());
    })
}

/// Reads a page's header. The page must be the one that `pointer` names.
///
/// # Errors
/// The defect of the page.
pub(crate) fn decode(bytes: &[u8], pointer: Pointer) -> Result<Header, String> {
    assert_eq!(bytes.len(), PAGE_BYTES, "a page");
    let stored = get_u32(bytes, 0);
    if (stored != pointer.crc || crc(&bytes[4..]) != stored)
        && !reactor::mutant!("volume-checksum-ignored")
    {
        return Err("its checksum is not the expected one".into());
    }
    let kind = Kind::of(bytes[4]).ok_or_else(|| format!("kind {} is unknown", bytes[4]))?;
    Ok(Header {
        kind,
        generation: get_u64(bytes, 8),
        owner: get_u64(bytes, 16),
        index: get_u32(bytes, 24),
        count: get_u32(bytes, 28),
    })
}

/// Returns the pointers of a root or index page.
pub(crate) fn decode_pointers(bytes: &[u8]) -> Vec<Pointer> {
    let content = &bytes[HEADER_BYTES..];
    let at =
        |index| Pointer { slot: get_u32(content, index * 8), crc: get_u32(content, index * 8 + 4) };
    (0..POINTERS).map(at).collect()
}

/// Returns the entries of a map page.
pub(crate) fn decode_map(bytes: &[u8]) -> Vec<u32> {
    let content = &bytes[HEADER_BYTES..];
    (0..ENTRIES).map(|index| get_u32(content, index * 4)).collect()
}

/// Returns the properties in a volume page.
///
/// # Errors
/// The defect of the page.
pub(crate) fn decode_record(bytes: &[u8]) -> Result<Record, String> {
    let content = &bytes[HEADER_BYTES..];
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&content[..16]);
    let len = get_u32(content, 44) as usize;
    let name = content.get(48..48 + len.min(NAME_BYTES_MAX + 1)).unwrap_or_default();
    let name = String::from_utf8(name.to_vec()).map_err(|_| "its name is not text")?;
    if !is_name(&name) {
        return Err(format!("{name:?} is not a volume's name"));
    }
    let flags = get_u32(content, 20);
    if flags & !FLAG_SNAPSHOT != 0 {
        return Err(format!("flags {flags:#x} are unknown"));
    }
    Ok(Record {
        name,
        uuid: Uuid::from_bytes(uuid),
        clusters: get_u32(content, 16),
        is_snapshot: flags & FLAG_SNAPSHOT != 0,
        family: get_u64(content, 24),
        origin: get_u64(content, 32),
        mapped: get_u32(content, 40),
    })
}
