//! Keys for TLS between host and target: `NVMeTLSkey-1:0N:BASE64:`, and the PSKs derived from them
//! (TCP 3.6.1).
//!
//! The text contains the configured PSK. With N not 0 each host derives a retained PSK of its own
//! from it and its NQN. From that it derives a TLS PSK for each subsystem, with an identity of
//! host, subsystem and hash function. An identity of version 1 ends with a digest of the retained
//! PSK, one of version 0 does not.
//!
//! Until version 1.15 (July 2025) libnvme built the input of both derivations differently: without
//! the lengths that TLS 1.3 puts before label and context, and with the output's length in
//! little-endian. [`Derivation::Former`] does the same, for peers with keys that an older libnvme
//! put into the kernel's keyring.

use crate::error::KeyError;
use crate::hash::Hash;
use crate::interchange::Form;
use base64ct::{Base64, Encoding};
use hkdf::Hkdf;
use nvme::Nqn;
use sha2::{Sha256, Sha384};
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The text form of keys.
const FORM: Form = Form {
    prefix: "NVMeTLSkey-1:",
    shown: "NVMeTLSkey-1:0N:BASE64: (N from 0 to 2)",
    lengths: &[32, 48],
    lengths_shown: "32 or 48",
};
/// Longest context of a derivation; its length is one byte.
const CONTEXT_BYTES_MAX: usize = 255;

/// A configured PSK, or one that an authentication has generated. Neither printing nor comparing it
/// reveals it.
#[derive(Clone)]
pub struct TlsKey {
    secret: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
    is_generated: bool,
}

/// Version of a PSK's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdentityVersion {
    /// `NVMe0R0N HOST SUBSYSTEM` (TCP 1.0c).
    V0,
    /// `NVMe1R0N HOST SUBSYSTEM DIGEST` (TCP 1.1 and later).
    V1,
}

/// The form of the key derivation's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Derivation {
    /// The form of TLS 1.3 (RFC 8446, 7.1), and of libnvme from 1.15 on.
    #[default]
    Standard,
    /// The form of earlier libnvme versions.
    Former,
}

/// A PSK for TLS.
#[derive(Clone)]
pub struct TlsPsk {
    /// The identity by which the peers find it; sent in the clear.
    pub identity: String,
    /// The secret.
    pub secret: Zeroizing<Vec<u8>>,
    /// The hash function of its cipher suite.
    pub hash: Hash,
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPsk").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl TlsKey {
    /// Makes a random key for this hash function, SHA-256 or SHA-384.
    ///
    /// # Errors
    /// [`KeyError::Form`] for SHA-512, because no cipher suite has it.
    pub fn generate(transform: Hash) -> Result<Self, KeyError> {
        let mut secret = Zeroizing::new(vec![0; transform.bytes()]);
        reactor::random::fill(&mut secret);
        Self::new(Some(transform), secret)
    }

    /// Returns the key with this secret. The hash function derives the retained PSK; without one
    /// the secret itself is the retained PSK.
    ///
    /// # Errors
    /// [`KeyError::Length`], [`KeyError::LengthOfHash`], [`KeyError::Form`].
    pub fn new(transform: Option<Hash>, secret: Zeroizing<Vec<u8>>) -> Result<Self, KeyError> {
        FORM.check_length(secret.len())?;
        if let Some(hash) = transform {
            if !matches!(hash, Hash::Sha256 | Hash::Sha384) {
                return Err(KeyError::Form(FORM.shown));
            }
            if hash.bytes() != secret.len() {
                return Err(KeyError::LengthOfHash { hmac: hash.id(), bytes: hash.bytes() });
            }
        }
        Ok(Self { secret, transform, is_generated: false })
    }

    /// Returns the PSK that an authentication with this hash function has generated (TCP 3.6.1.2);
    /// [`None`] for SHA-512, because no cipher suite has it. Its only identity is `NVMe1G0N HOST
    /// SUBSYSTEM DIGEST`.
    pub(crate) fn generated(hash: Hash, secret: Zeroizing<Vec<u8>>) -> Option<Self> {
        assert_eq!(secret.len(), hash.bytes(), "a generated key is as long as its hash");
        (hash != Hash::Sha512).then_some(Self { secret, transform: None, is_generated: true })
    }

    /// Returns the same secret, used directly as the retained PSK.
    #[must_use]
    pub fn without_transform(self) -> Self {
        Self { transform: None, ..self }
    }

    /// Returns the key as text. Store it only where no other user can read it.
    pub fn to_text(&self) -> Zeroizing<String> {
        FORM.write(self.transform.map_or(0, Hash::id), &self.secret)
    }

    /// Returns the hash function that derives the retained PSK, if it is derived.
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// Returns the secret.
    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// Returns the length of the secret in bytes.
    pub fn bytes(&self) -> usize {
        self.secret.len()
    }

    /// Returns the hash function of the key's cipher suite, which has the length of the key.
    pub fn hash(&self) -> Hash {
        if self.secret.len() == Hash::Sha384.bytes() { Hash::Sha384 } else { Hash::Sha256 }
    }

    /// Derives the TLS PSK for a host's connections to a subsystem.
    ///
    /// # Errors
    /// [`KeyError::NamesTooLong`], only for version 0.
    pub fn psk(
        &self,
        host: &Nqn,
        subsystem: &Nqn,
        version: IdentityVersion,
        derivation: Derivation,
    ) -> Result<TlsPsk, KeyError> {
        self.derive(host.as_str(), subsystem.as_str(), version, derivation)
    }

    /// Derives all TLS PSKs that a host may use with a subsystem, best first: the identities of
    /// version 1 of both derivations where these differ, then that of version 0. Where both
    /// derivations give the same identity, `derivation` selects the PSK.
    pub fn psks(&self, host: &Nqn, subsystem: &Nqn, derivation: Derivation) -> Vec<TlsPsk> {
        let other = match derivation {
            Derivation::Standard => Derivation::Former,
            Derivation::Former => Derivation::Standard,
        };
        let mut psks: Vec<TlsPsk> = Vec::with_capacity(3);
        if self.is_generated {
            let psk = self.psk(host, subsystem, IdentityVersion::V1, Derivation::Standard);
            return psk.into_iter().collect();
        }
        for (version, derivation) in [
            (IdentityVersion::V1, derivation),
            (IdentityVersion::V1, other),
            (IdentityVersion::V0, derivation),
        ] {
            // Version 0 has no PSK if the names are too long.
            let Ok(psk) = self.psk(host, subsystem, version, derivation) else { continue };
            if psks.iter().all(|known| known.identity != psk.identity) {
                psks.push(psk);
            }
        }
        psks
    }

    fn derive(
        &self,
        host: &str,
        subsystem: &str,
        version: IdentityVersion,
        derivation: Derivation,
    ) -> Result<TlsPsk, KeyError> {
        let retained = match self.transform {
            None => self.secret.clone(),
            Some(hash) => expand(hash, &self.secret, "HostNQN", host, derivation)?,
        };
        let hash = self.hash();
        let id = hash.id();
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0R{id:02} {host} {subsystem}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let named = format!("{host} {subsystem} NVMe-over-Fabrics");
                let digest = Base64::encode_string(&hash.hmac(&retained, &[named.as_bytes()]));
                let kind = if self.is_generated { 'G' } else { 'R' };
                let identity = format!("NVMe1{kind}{id:02} {host} {subsystem} {digest}");
                (identity, format!("{id:02} {digest}"))
            }
        };
        let secret = expand(hash, &retained, "nvme-tls-psk", &context, derivation)?;
        Ok(TlsPsk { identity, secret, hash })
    }
}

/// Derives as many bytes as `key` has: HKDF-Extract without salt, then HKDF-Expand-Label.
fn expand(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &str,
    derivation: Derivation,
) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    if context.len() > CONTEXT_BYTES_MAX {
        return Err(KeyError::NamesTooLong);
    }
    let mut output = Zeroizing::new(vec![0; key.len()]);
    let bytes = output.len() as u16;
    let label = format!("tls13 {label}");
    let mut info = Vec::new();
    match derivation {
        Derivation::Standard => {
            info.extend_from_slice(&network_order(bytes));
            info.push(label.len() as u8);
            info.extend_from_slice(label.as_bytes());
            info.push(context.len() as u8);
        }
        Derivation::Former => {
            info.extend_from_slice(&bytes.to_le_bytes());
            info.extend_from_slice(label.as_bytes());
        }
    }
    info.extend_from_slice(context.as_bytes());
    let expanded = match hash {
        Hash::Sha384 => Hkdf::<Sha384>::new(None, key).expand(&info, &mut output),
        Hash::Sha256 => Hkdf::<Sha256>::new(None, key).expand(&info, &mut output),
        Hash::Sha512 => unreachable!("no TLS key is for SHA-512"),
    };
    expanded.expect("HKDF gives more bytes than a key has");
    Ok(output)
}

/// Returns a number in network byte order.
fn network_order(number: u16) -> [u8; 2] {
    [(number >> 8) as u8, number as u8]
}

impl FromStr for TlsKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (id, secret) = FORM.read(text)?;
        let transform = match id {
            0 => None,
            id => Some(Hash::from_id(id).ok_or(KeyError::Form(FORM.shown))?),
        };
        Self::new(transform, secret)
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsKey(..)")
    }
}

impl PartialEq for TlsKey {
    fn eq(&self, other: &Self) -> bool {
        self.transform == other.transform
            && self.is_generated == other.is_generated
            && bool::from(self.secret.ct_eq(&other.secret))
    }
}

impl Eq for TlsKey {}

#[cfg(test)]
mod tests;
