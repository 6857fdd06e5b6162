//! The header of a segment file: its writer, its place in the log, and its random key.

use super::codec::{Reader, Writer};
use super::record::{Key, crc};
use super::types::{SegmentId, Sequence};

const MAGIC: u64 = u64::from_le_bytes(*b"tsumgjn1");

/// Bytes of the header; the first record begins here.
pub(super) const HEADER_BYTES: usize = 96;

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) segment: SegmentId,
    pub(super) key: Key,
    /// The last record before this segment that counts; later ones in older segments were found
    /// torn by a recovery and given up.
    pub(super) previous: Sequence,
    /// Records up to here were known to be durable.
    pub(super) synced: Sequence,
    /// The number that the next copy-up gets at least.
    pub(super) next_file: u64,
    /// [`Storage::witness`](super::Storage::witness) at the time of writing.
    pub(super) witness: u64,
    /// The oldest segment that was there when this one was made; later ones say in a record what
    /// goes. None in segments of older versions, which record nothing of that.
    pub(super) oldest: Option<SegmentId>,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer { bytes: Vec::with_capacity(HEADER_BYTES) };
        writer.u64(MAGIC);
        writer.u32(0);
        writer.u32(self.segment.0);
        writer.u64(self.key.journal);
        writer.u64(self.key.epoch);
        writer.u64(self.previous.0);
        writer.u64(self.synced.0);
        writer.u64(self.next_file);
        writer.u64(self.witness);
        writer.u32(self.oldest.map_or(0, |oldest| oldest.0));
        writer.bytes.resize(HEADER_BYTES, 0);
        let crc = crc(&[&writer.bytes]);
        writer.bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        writer.bytes
    }

    /// Returns the header of segment `segment`; `None` if the bytes are not that.
    pub(super) fn decode(segment: SegmentId, bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let mut reader = Reader::new(&bytes);
        let magic = reader.u64()?;
        let found_crc = reader.u32()?;
        let mut blank = bytes;
        blank[8..12].fill(0);
        if magic != MAGIC || found_crc != crc(&[&blank]) || reader.u32()? != segment.0 {
            return None;
        }
        let key = Key { journal: reader.u64()?, epoch: reader.u64()? };
        let previous = Sequence(reader.u64()?);
        let synced = Sequence(reader.u64()?);
        let next_file = reader.u64()?;
        let witness = reader.u64()?;
        let oldest = Some(SegmentId(reader.u32()?)).filter(|oldest| oldest.0 > 0);
        // Numbers near the end of their range would overflow; no store lives that long.
        let is_sane = synced <= previous
            && previous.0 < u64::MAX / 2
            && next_file < u64::MAX / 2
            && oldest.is_none_or(|oldest| oldest <= segment);
        is_sane.then_some(Self { segment, key, previous, synced, next_file, witness, oldest })
    }
}
