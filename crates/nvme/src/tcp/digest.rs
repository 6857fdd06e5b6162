//! Header and data digests (TCP 3.3.1.2): CRC-32C, sent little-endian.

use crc_fast::CrcAlgorithm;

/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;

/// Returns the CRC-32C of `bytes`, as in the digest fields.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The digest of data that is received or sent in several parts.
#[derive(Clone, Copy)]
pub struct DataDigest(crc_fast::Digest);

impl DataDigest {
    /// Returns the digest of no bytes.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// Returns the digest of all parts so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// Returns the four bytes to send after the data.
    pub fn to_wire(&self) -> [u8; DIGEST_BYTES] {
        self.value().to_le_bytes()
    }

    /// Whether the four bytes that followed the data match its digest.
    pub fn matches(&self, received: [u8; DIGEST_BYTES]) -> bool {
        self.to_wire() == received
    }
}

impl Default for DataDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for DataDigest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "DataDigest({:#010x})", self.value())
    }
}
