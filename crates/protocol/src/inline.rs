//! Small data that a commit carries to the metadata store.

use crate::sums::checksum;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// End of the part of a file that can be inline data: its first bytes, up to here.
pub const INLINE_MAX_BYTES: u64 = 16 << 10;

/// Bytes, encoded as a whole.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
        Ok(Bytes(bytes.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Bytes, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = items.next_element()? {
            bytes.push(byte);
        }
        Ok(Bytes(bytes))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

/// Bytes of a file that a commit carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InlineRun {
    /// Offset in the file, in bytes.
    pub offset: u32,
    /// The bytes; at least one, and none at or past [`INLINE_MAX_BYTES`].
    pub bytes: Bytes,
    /// Their CRC-32C; none if the client computes none.
    pub sum: Option<u32>,
}

impl InlineRun {
    /// Returns one past the last byte in the file.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + self.bytes.0.len() as u64
    }
}

/// Returns whether runs are ascending and apart, none empty, and all within [`INLINE_MAX_BYTES`].
pub fn are_sound(runs: &[InlineRun]) -> bool {
    runs.iter().all(|run| !run.bytes.0.is_empty() && run.end() <= INLINE_MAX_BYTES)
        && runs.windows(2).all(|pair| pair[0].end() <= u64::from(pair[1].offset))
}

/// Returns whether bytes have the sum that their writer gave, if it gave one.
pub fn is_right(bytes: &Bytes, sum: Option<u32>) -> bool {
    sum.is_none_or(|sum| checksum(&bytes.0) == sum)
}

/// Writes runs over bytes; a gap between the end of the bytes and a run becomes zeros.
pub fn overlay(bytes: &mut Vec<u8>, runs: &[InlineRun]) {
    for run in runs {
        let (start, end) = (run.offset as usize, run.end() as usize);
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(&run.bytes.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset: u32, bytes: &[u8]) -> InlineRun {
        InlineRun { offset, bytes: Bytes(bytes.to_vec()), sum: Some(checksum(bytes)) }
    }

    /// Goal: bytes are taken apart as they were put together.
    #[test]
    fn encoding_is_invertible() {
        let runs = vec![run(3, b"abc"), run(9, &[7; 300])];
        let encoded = postcard::to_stdvec(&runs).unwrap();
        assert_eq!(postcard::from_bytes::<Vec<InlineRun>>(&encoded).unwrap(), runs);
    }

    /// Goal: runs that overlap, are empty or reach too far are recognised.
    #[test]
    fn soundness() {
        assert!(are_sound(&[run(0, b"ab"), run(2, b"c")]));
        assert!(!are_sound(&[run(0, b"ab"), run(1, b"c")]));
        assert!(!are_sound(&[run(0, b"")]));
        assert!(!are_sound(&[run(16383, b"ab")]) && are_sound(&[run(16382, b"ab")]));
        assert!(!are_sound(&[run(u32::MAX, b"ab")]));
    }

    /// Goal: gaps become zeros, and nothing else changes.
    #[test]
    fn overlaying() {
        let mut bytes = b"12".to_vec();
        overlay(&mut bytes, &[run(1, b"x"), run(4, b"y")]);
        assert_eq!(bytes, b"1x\0\0y");
    }
}
