//! A note, outside of the log, of how far the log is durable: the file `synced`.
//!
//! The log alone cannot distinguish its end from damage: a power loss may destroy unsynced records,
//! so unreadable records at the end look as if they had never been synced. The mark records how far
//! the log was durable. It is written after each flush and not flushed itself, which costs a write
//! to the page cache. Its statement is true of the disk before the mark itself reaches it, so an
//! old mark promises less, but nothing wrong. Two slots are written in turn, so that one is whole
//! at any time.

use super::codec::{Reader, Writer};
use super::record::crc;
use super::types::{SegmentId, Sequence};

const MAGIC: u64 = u64::from_le_bytes(*b"tsumgmk1");
/// The file's name, beside the segments.
pub(super) const NAME: &str = "synced";
/// Bytes of a mark.
const MARK_BYTES: usize = 48;
/// Distance of the two slots: no sector and no page holds both.
pub(super) const SLOT_BYTES: usize = 4096;
/// Bytes of the file.
pub(super) const FILE_BYTES: usize = 2 * SLOT_BYTES;

/// How far a log is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The log's number.
    pub(super) journal: u64,
    /// Counts the marks.
    pub(super) count: u64,
    /// The newest segment whose name and header are durable.
    pub(super) segment: SegmentId,
    /// All records up to this one are durable.
    pub(super) durable: Sequence,
}

/// The content of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The newest mark.
    pub(super) mark: Option<Mark>,
    /// Whether the file is not there.
    pub(super) is_missing: bool,
    /// Slots that hold something else, or are cut off.
    pub(super) damaged_slots: usize,
}

impl Mark {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer { bytes: Vec::with_capacity(MARK_BYTES) };
        writer.u64(MAGIC);
        writer.u32(0);
        writer.u32(self.segment.0);
        writer.u64(self.journal);
        writer.u64(self.count);
        writer.u64(self.durable.0);
        writer.bytes.resize(MARK_BYTES, 0);
        let crc = crc(&[&writer.bytes]);
        writer.bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        writer.bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; MARK_BYTES] = bytes.get(..MARK_BYTES)?.try_into().ok()?;
        let mut reader = Reader::new(&bytes);
        let magic = reader.u64()?;
        let found_crc = reader.u32()?;
        let mut blank = bytes;
        blank[8..12].fill(0);
        if magic != MAGIC || found_crc != crc(&[&blank]) {
            return None;
        }
        let segment = SegmentId(reader.u32()?);
        let (journal, count) = (reader.u64()?, reader.u64()?);
        let mark = Self { journal, count, segment, durable: Sequence(reader.u64()?) };
        (mark.durable.0 < u64::MAX / 2 && count < u64::MAX / 2).then_some(mark)
    }

    /// Returns where it goes.
    pub(super) fn position(&self) -> u64 {
        (self.count % 2) * SLOT_BYTES as u64
    }
}

impl Found {
    /// Reads the file's content.
    pub(super) fn read(bytes: Option<&[u8]>) -> Self {
        let Some(bytes) = bytes else { return Self { is_missing: true, ..Self::default() } };
        let mut found = Self::default();
        for slot in 0..2 {
            let slot = bytes.get(slot * SLOT_BYTES..).and_then(|slot| slot.get(..MARK_BYTES));
            match slot.map(|slot| (slot, Mark::decode(slot))) {
                Some((_, Some(mark))) => {
                    let is_newer = found.mark.is_none_or(|known| known.count < mark.count);
                    found.mark = if is_newer { Some(mark) } else { found.mark };
                }
                // Never written.
                Some((slot, None)) if slot.iter().all(|byte| *byte == 0) => {}
                _ => found.damaged_slots += 1,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the newer of two marks counts; a damaged one is reported and the older one counts.
    #[test]
    fn the_newest_whole_mark_counts() {
        let mark =
            |count| Mark { journal: 7, count, segment: SegmentId(3), durable: Sequence(count) };
        let mut bytes = vec![0; FILE_BYTES];
        assert_eq!(Found::read(Some(&bytes)), Found::default());
        for count in [4, 5] {
            let at = mark(count).position() as usize;
            bytes[at..at + MARK_BYTES].copy_from_slice(&mark(count).encode());
        }
        assert_eq!(Found::read(Some(&bytes)).mark, Some(mark(5)));
        bytes[SLOT_BYTES + 20] ^= 1;
        let found = Found::read(Some(&bytes));
        assert_eq!((found.mark, found.damaged_slots), (Some(mark(4)), 1));
        assert_eq!(Found::read(Some(&bytes[..100])).damaged_slots, 1);
        assert!(Found::read(None).is_missing);
    }
}
