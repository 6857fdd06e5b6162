//! The superblock: the properties of a pool, and the place of its root page.
//!
//! Its content fits into 512 bytes, which a device writes atomically. So a wrong checksum means
//! damage, and not a power cut. Generation `n` is written to pages `n % 2` and `n % 2 + 2`; the
//! other two contain the previous generation. The highest valid generation counts.

use crate::layout::{Layout, PAGE_BYTES};
use crate::page::{Pointer, crc, get_u32, get_u64, put};
use uuid::Uuid;

const MAGIC: &[u8; 8] = b"tsmgpool";
/// Version of the format.
pub(crate) const VERSION: u32 = 2;
/// The version of pools that have not grown, which earlier versions of this program can use too.
const VERSION_FIRST: u32 = 1;
/// Size of the content, which the checksum covers.
const CONTENT_BYTES: usize = 512;

/// A superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    pub(crate) uuid: Uuid,
    /// As stored; it must be [possible](Layout::is_possible).
    pub(crate) layout: Layout,
    pub(crate) root: Pointer,
    /// The number of the next volume.
    pub(crate) next_id: u64,
    /// Number of map and volume pages.
    pub(crate) pages: u32,
    pub(crate) volumes: u32,
    /// Number of mapped clusters of all volumes.
    pub(crate) mapped: u64,
}

/// The reason why a page is not a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The page contains something else.
    Magic,
    /// The checksum does not match.
    Checksum,
    /// The version is unknown.
    Version(u32),
}

/// Returns the pages to which a generation is written.
pub(crate) fn places(generation: u64) -> [u64; 2] {
    [generation % 2, generation % 2 + 2]
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        put(&mut bytes, 0, MAGIC);
        let version = if self.layout.has_grown() { VERSION } else { VERSION_FIRST };
        put(&mut bytes, 12, &version.to_le_bytes());
        put(&mut bytes, 16, &self.generation.to_le_bytes());
        put(&mut bytes, 24, self.uuid.as_bytes());
        put(&mut bytes, 40, &self.layout.size.to_le_bytes());
        put(&mut bytes, 48, &self.layout.data_start.to_le_bytes());
        put(&mut bytes, 56, &self.layout.cluster_bytes.to_le_bytes());
        put(&mut bytes, 60, &self.layout.clusters.to_le_bytes());
        put(&mut bytes, 64, &self.layout.positions.to_le_bytes());
        put(&mut bytes, 68, &self.layout.slots.to_le_bytes());
        put(&mut bytes, 72, &self.root.slot.to_le_bytes());
        put(&mut bytes, 76, &self.root.crc.to_le_bytes());
        put(&mut bytes, 80, &self.next_id.to_le_bytes());
        put(&mut bytes, 88, &self.pages.to_le_bytes());
        put(&mut bytes, 92, &self.volumes.to_le_bytes());
        put(&mut bytes, 96, &self.mapped.to_le_bytes());
        let sum = crc(&bytes[12..CONTENT_BYTES]);
        put(&mut bytes, 8, &sum.to_le_bytes());
        bytes
    }

    /// Decodes a superblock from a page.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Flaw> {
        assert_eq!(bytes.len(), PAGE_BYTES, "a page");
        if bytes[..8] != *MAGIC {
            return Err(Flaw::Magic);
        }
        let is_whole = crc(&bytes[12..CONTENT_BYTES]) == get_u32(bytes, 8);
        if !is_whole && !reactor::mutant!("volume-checksum-ignored") {
            return Err(Flaw::Checksum);
        }
        match get_u32(bytes, 12) {
            VERSION_FIRST | VERSION => {}
            other => return Err(Flaw::Version(other)),
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[24..40]);
        Ok(Self {
            generation: get_u64(bytes, 16),
            uuid: Uuid::from_bytes(uuid),
            layout: Layout {
                size: get_u64(bytes, 40),
                data_start: get_u64(bytes, 48),
                cluster_bytes: get_u32(bytes, 56),
                clusters: get_u32(bytes, 60),
                positions: get_u32(bytes, 64),
                slots: get_u32(bytes, 68),
            },
            root: Pointer { slot: get_u32(bytes, 72), crc: get_u32(bytes, 76) },
            next_id: get_u64(bytes, 80),
            pages: get_u32(bytes, 88),
            volumes: get_u32(bytes, 92),
            mapped: get_u64(bytes, 96),
        })
    }
}
