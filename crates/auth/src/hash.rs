//! The hash functions of DH-HMAC-CHAP, and HMAC with them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the function with this identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Returns `HashID`, which also names the transformation of a secret.
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Returns the length of its output in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Hashes `data`.
    pub(crate) fn digest(self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        })
    }

    /// Returns the HMAC of the concatenated parts.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

impl FromStr for Hash {
    type Err = String;

    /// Parses `sha256`, or the Linux kernel's spelling `hmac(sha256)`.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("hmac(").and_then(|name| name.strip_suffix(')'));
        Self::ALL.into_iter().find(|hash| hash.to_string() == name.unwrap_or(text)).ok_or_else(
            || format!("{text:?} is no hash function: there are sha256, sha384, sha512"),
        )
    }
}
