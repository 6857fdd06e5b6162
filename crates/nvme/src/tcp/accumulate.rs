//! Collects received bytes in pieces of any size and returns the PDU headers in them.
//!
//! For receivers without a large buffer for [`Parser`], or for headers that are split between two
//! buffers: it stores at most one header and no data.

use super::{CommonHeader, DIGEST_BYTES, IcReq, Parsed, Parser, PduError};

/// Size of the longest header with digest.
const KEPT_BYTES_MAX: usize = IcReq::BYTES + DIGEST_BYTES;

/// Keeps an incomplete header between receives.
#[derive(Clone, Debug)]
pub struct Accumulator {
    kept: [u8; KEPT_BYTES_MAX],
    kept_bytes: usize,
}

/// The result of [`Accumulator::feed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed<'a> {
    /// Number of bytes taken from the input.
    pub consumed_bytes: usize,
    /// The header, when it is complete. Padding, data and data digest follow in the input:
    /// `pdu_bytes` less [`Fed::header_bytes`].
    pub pdu: Option<Parsed<'a>>,
    /// Bytes of header and header digest, if `pdu` is set.
    pub header_bytes: usize,
}

impl Accumulator {
    /// Returns an empty accumulator.
    pub const fn new() -> Self {
        Self { kept: [0; KEPT_BYTES_MAX], kept_bytes: 0 }
    }

    /// Returns the number of stored bytes of an incomplete header.
    pub const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// Takes bytes up to the end of the header. After a PDU is returned, the next call starts a new
    /// header; the caller takes the PDU's data from the input in between.
    pub fn feed<'a>(&'a mut self, parser: &Parser, input: &[u8]) -> Result<Fed<'a>, PduError> {
        let mut consumed_bytes = 0;
        // First the common header, which contains the header's length, then the rest of it.
        for _ in 0..2 {
            let need_bytes = parser.need_bytes(&self.kept[..self.kept_bytes])?;
            let missing_bytes = need_bytes.saturating_sub(self.kept_bytes);
            let taken_bytes = missing_bytes.min(input.len() - consumed_bytes);
            self.kept[self.kept_bytes..self.kept_bytes + taken_bytes]
                .copy_from_slice(&input[consumed_bytes..consumed_bytes + taken_bytes]);
            self.kept_bytes += taken_bytes;
            consumed_bytes += taken_bytes;
        }
        let header_bytes = self.kept_bytes;
        let pdu = if header_bytes < CommonHeader::BYTES {
            None
        } else {
            parser.parse(&self.kept[..header_bytes])?
        };
        if pdu.is_some() {
            self.kept_bytes = 0;
        }
        Ok(Fed { consumed_bytes, pdu, header_bytes })
    }
}

impl Default for Accumulator {
    fn default() -> Self {
        Self::new()
    }
}
