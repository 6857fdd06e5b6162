//! Secrets: `DHHC-1:0N:BASE64:`, where the base64 is of the secret and its CRC-32 (base 8.3.4).
//!
//! N names the hash function by which the secret is transformed with its owner's NQN before it is used, so
//! that one secret given to several owners is another one for each; 0 is for none.

use crate::error::KeyError;
use crate::hash::Hash;
use base64ct::{Base64, Encoding};
use crc_fast::CrcAlgorithm;
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const PREFIX: &str = "DHHC-1:";
/// Lengths of secrets in bytes.
const LENGTHS: [usize; 3] = [32, 48, 64];
const CRC_BYTES: usize = 4;

/// A secret. Its `Debug` form hides the bytes, and comparison takes constant time.
#[derive(Clone)]
pub struct Key {
    secret: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

impl Key {
    /// Generates a random secret. Its length is the transformation's, or `bytes` without one.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn generate(transform: Option<Hash>, bytes: usize) -> Result<Self, KeyError> {
        let bytes = transform.map_or(bytes, Hash::bytes);
        if !LENGTHS.contains(&bytes) {
            return Err(KeyError::Length(bytes));
        }
        let mut secret = Zeroizing::new(vec![0; bytes]);
        ring::random::fill(&mut secret);
        Ok(Self { secret, transform })
    }

    /// Returns the secret as text. Store it only in a file that no other user can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = self.secret.clone();
        bytes.extend_from_slice(&crc(&self.secret));
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        let id = self.transform.map_or(0, Hash::id);
        Zeroizing::new(format!("{PREFIX}{id:02}:{}:", base64.as_str()))
    }

    /// Returns the hash function that transforms the secret, if it has one.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// Returns the secret's length in bytes.
    pub fn bytes(&self) -> usize {
        self.secret.len()
    }

    /// Returns the HMAC key that the owner of this NQN uses.
    pub(crate) fn of(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.secret.clone(),
            Some(hash) => hash.hmac(&self.secret, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

/// The checksum: CRC-32 as Ethernet has it, little-endian.
fn crc(secret: &[u8]) -> [u8; CRC_BYTES] {
    (crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, secret) as u32).to_le_bytes()
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(KeyError::Form)?;
        let (id, base64) = rest.split_once(':').ok_or(KeyError::Form)?;
        let base64 = base64.strip_suffix(':').ok_or(KeyError::Form)?;
        let transform = match id {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(KeyError::Form),
        };
        let mut secret = Zeroizing::new(Base64::decode_vec(base64).map_err(|_| KeyError::Base64)?);
        let bytes = secret.len().saturating_sub(CRC_BYTES);
        if !LENGTHS.contains(&bytes) {
            return Err(KeyError::Length(bytes));
        }
        let sum = secret.split_off(bytes);
        if !bool::from(crc(&secret)[..].ct_eq(&sum)) {
            return Err(KeyError::Checksum);
        }
        Ok(Self { secret, transform })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.transform == other.transform && bool::from(self.secret.ct_eq(&other.secret))
    }
}

impl Eq for Key {}

/// The secrets of a host and of those that it connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// Proves the host (`dhchap-secret`).
    pub host: Key,
    /// Proves the controller to it (`dhchap-ctrl-secret`). A host that has it demands the proof.
    pub controller: Option<Key>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret of the bytes 0, 1, 2 …, whose text was made by other means (Python's base64 and zlib).
    const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    /// Goal: texts are read as others write them, and written back the same.
    #[test]
    fn known_texts_are_read() {
        let key: Key = KNOWN.parse().unwrap();
        assert_eq!(*key.secret, (0..32).collect::<Vec<u8>>());
        assert_eq!((key.transform(), key.to_text().as_str()), (None, KNOWN));
        for (transform, bytes) in [(None, 48), (Some(Hash::Sha256), 32), (Some(Hash::Sha512), 64)] {
            let key = Key::generate(transform, 48).unwrap();
            assert_eq!(key.bytes(), bytes);
            assert_eq!(key.to_text().parse::<Key>().unwrap(), key);
            assert_ne!(Key::generate(transform, 48).unwrap(), key);
        }
    }

    /// Goal: a damaged text is refused with what is wrong with it, and never repeated.
    #[test]
    fn damaged_texts_are_refused() {
        let wrong = |text: &str| text.parse::<Key>().unwrap_err();
        assert_eq!(wrong(""), KeyError::Form);
        assert_eq!(wrong(&KNOWN.replace("-1:", "-2:")), KeyError::Form);
        assert_eq!(wrong(&KNOWN.replace(":00:", ":04:")), KeyError::Form);
        assert_eq!(wrong(KNOWN.trim_end_matches(':')), KeyError::Form);
        assert_eq!(wrong(&KNOWN.replace("AAEC", "AA!C")), KeyError::Base64);
        assert_eq!(wrong(&KNOWN.replace("AAEC", "AAED")), KeyError::Checksum);
        assert_eq!(wrong("DHHC-1:00:AAEC:"), KeyError::Length(0));
        assert_eq!(Key::generate(None, 33), Err(KeyError::Length(33)));
        let shown = format!("{:?}", KNOWN.parse::<Key>());
        assert!(!shown.contains("AAEC"), "{shown}");
    }
}
