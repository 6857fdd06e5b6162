//! The options of the store.

use super::error::JournalError;
use super::record::{BODY_BYTES_MAX, DATA_BYTES_MAX};

/// Smallest chunk.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Largest chunk.
pub const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// The store's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Unit of partial copy-up: a power of two of 4 KiB..=4 MiB, or 0 for whole files.
    pub chunk_bytes: u64,
    /// Whether a write stores the whole chunks that it touches, or only its own bytes.
    pub has_whole_chunks: bool,
    /// A chunk in more pieces than this is stored again in one at the next write to it.
    pub runs_per_chunk_max: usize,
    /// Most runs in the maps of all files; one takes about 90 bytes of memory, with the checksums
    /// of its data.
    pub runs_max: usize,
    /// Size of the first segments; later ones grow with the log.
    pub segment_bytes_min: u64,
    /// Size of the largest segments.
    pub segment_bytes_max: u64,
    /// Whether a store is opened although durable records are missing. Reads of files that they may
    /// have concerned give errors, as far as these are known. A file that only the missing records
    /// named shows as the lower one.
    pub accepts_damage: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chunk_bytes: 64 << 10,
            has_whole_chunks: false,
            runs_per_chunk_max: 16,
            runs_max: 4 << 20,
            segment_bytes_min: 1 << 20,
            segment_bytes_max: 64 << 20,
            accepts_damage: false,
        }
    }
}

impl Options {
    /// Refuses what is out of range.
    pub(super) fn check(&self) -> Result<(), JournalError> {
        let refuse = |name, reason: &str| Err(JournalError::Option { name, reason: reason.into() });
        let chunks = CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX;
        let is_chunk = self.chunk_bytes.is_power_of_two() && chunks.contains(&self.chunk_bytes);
        if self.chunk_bytes != 0 && !is_chunk {
            return refuse("chunk", "0, or a power of two from 4 KiB to 4 MiB");
        }
        if self.runs_per_chunk_max < 4 || self.runs_max < 16 {
            return refuse("runs", "at least 4 for each chunk and 16 in all");
        }
        let most = u64::from(u32::MAX) - (BODY_BYTES_MAX + DATA_BYTES_MAX + 4096) as u64;
        let is_range = self.segment_bytes_min <= self.segment_bytes_max;
        if self.segment_bytes_min < 4096 || self.segment_bytes_max > most || !is_range {
            return refuse("segment size", "4 KiB or more, below 4 GiB, the least first");
        }
        Ok(())
    }
}
