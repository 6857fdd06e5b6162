//! The text form of secrets: `PREFIX-1:0N:BASE64:`, with the base64 of the secret and its CRC-32
//! (base 8.3.4 for DH-HMAC-CHAP, TCP 3.6.1.3 for TLS).

use crate::error::KeyError;
use base64ct::{Base64, Encoding};
use crc_fast::CrcAlgorithm;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const CRC_BYTES: usize = 4;

/// One of the two forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// The prefix of a secret.
    pub(crate) prefix: &'static str,
    /// The whole form, for messages.
    pub(crate) shown: &'static str,
    /// Valid lengths of a secret, in bytes.
    pub(crate) lengths: &'static [usize],
    /// The lengths, for messages.
    pub(crate) lengths_shown: &'static str,
}

impl Form {
    /// Returns the text of a secret with N = `id`.
    pub(crate) fn write(self, id: u8, secret: &[u8]) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(secret.to_vec());
        bytes.extend_from_slice(&crc(secret));
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        Zeroizing::new(format!("{}{id:02}:{}:", self.prefix, base64.as_str()))
    }

    /// Parses a text. Returns N and the secret.
    pub(crate) fn read(self, text: &str) -> Result<(u8, Zeroizing<Vec<u8>>), KeyError> {
        let wrong = KeyError::Form(self.shown);
        let rest = text.trim().strip_prefix(self.prefix).ok_or(wrong)?;
        let (id, base64) = rest.split_once(':').ok_or(wrong)?;
        let base64 = base64.strip_suffix(':').ok_or(wrong)?;
        let id = match id {
            "00" => 0,
            "01" => 1,
            "02" => 2,
            "03" => 3,
            _ => return Err(wrong),
        };
        let mut secret = Zeroizing::new(Base64::decode_vec(base64).map_err(|_| KeyError::Base64)?);
        let bytes = secret.len().saturating_sub(CRC_BYTES);
        self.check_length(bytes)?;
        let sum = secret.split_off(bytes);
        if !bool::from(crc(&secret)[..].ct_eq(&sum)) {
            return Err(KeyError::Checksum);
        }
        Ok((id, secret))
    }

    /// Refuses an invalid length.
    pub(crate) fn check_length(self, bytes: usize) -> Result<(), KeyError> {
        if self.lengths.contains(&bytes) {
            return Ok(());
        }
        Err(KeyError::Length { bytes, allowed: self.lengths_shown })
    }
}

/// Returns the checksum: the CRC-32 of Ethernet, little-endian.
fn crc(secret: &[u8]) -> [u8; CRC_BYTES] {
    (crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, secret) as u32).to_le_bytes()
}
