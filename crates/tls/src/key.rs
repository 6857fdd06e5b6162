//! Pre-shared keys.

use s2n_tls::enums::PskHmac;
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Longest identity of a key, in bytes: enough for one of NVMe with two NQNs and a digest.
pub const IDENTITY_BYTES_MAX: usize = 1024;

/// Lengths that keys may have, in bytes.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=64;

/// The reason why a text is not a key. No variant contains any part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It has neither of the two forms.
    #[error(
        "it is neither a job's key (64 hexadecimal digits) nor IDENTITY and 96 hexadecimal digits"
    )]
    Form,
    /// The library accepts secrets of 16 bytes and more; ours have 32 to 64.
    #[error("a pre-shared key has 32 to 64 bytes, this one has {0}")]
    Length(usize),
    /// An identity that is empty or overlong.
    #[error("the identity of a key has 1 to {max} bytes, this one has {0}", max = IDENTITY_BYTES_MAX)]
    Identity(usize),
    /// All bytes are zero, for example because a key was not set.
    #[error("the key is all zeros")]
    Zeros,
}

/// The hash function of a key, which determines the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hash {
    /// With `TLS_AES_128_GCM_SHA256`.
    Sha256,
    /// With `TLS_AES_256_GCM_SHA384`.
    Sha384,
}

/// A pre-shared key with its identity. Neither printing nor comparing it reveals it.
#[derive(Clone)]
pub struct Psk {
    identity: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    hash: Hash,
}

impl Psk {
    /// Returns a key with this identity, which is sent in the clear.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn new(identity: &[u8], key: Zeroizing<Vec<u8>>, hash: Hash) -> Result<Self, KeyError> {
        if identity.is_empty() || identity.len() > IDENTITY_BYTES_MAX {
            return Err(KeyError::Identity(identity.len()));
        }
        if !KEY_BYTES.contains(&key.len()) {
            return Err(KeyError::Length(key.len()));
        }
        if key.iter().all(|&byte| byte == 0) {
            return Err(KeyError::Zeros);
        }
        Ok(Self { identity: identity.to_vec(), key, hash })
    }

    /// Returns the identity as it is sent.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Returns the hash function.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the key in the library's form; the library clears its copy.
    pub(crate) fn to_library(&self) -> Result<s2n_tls::psk::Psk, s2n_tls::error::Error> {
        let mut builder = s2n_tls::psk::Psk::builder()?;
        builder.set_identity(&self.identity)?.set_secret(&self.key)?.set_hmac(match self.hash {
            Hash::Sha256 => PskHmac::SHA256,
            Hash::Sha384 => PskHmac::SHA384,
        })?;
        builder.build()
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Psk").field("identity", &shown(&self.identity)).finish_non_exhaustive()
    }
}

impl PartialEq for Psk {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
            && self.hash == other.hash
            && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Psk {}

/// Returns an identity as text for messages, cut to a reasonable length, because it may come from a
/// stranger.
pub(crate) fn shown(identity: &[u8]) -> String {
    const BYTES_MAX: usize = 128;
    let cut = &identity[..identity.len().min(BYTES_MAX)];
    let more = if cut.len() < identity.len() { "…" } else { "" };
    format!("{}{more}", cut.escape_ascii())
}
