//! Secrets: `DHHC-1:0N:BASE64:`, with the base64 of the secret and its CRC-32 (base 8.3.4).
//!
//! N names the hash function that transforms the secret with its owner's NQN before use, so that
//! one secret given to several owners becomes another one for each; 0 means no transformation.

use crate::error::KeyError;
use crate::hash::Hash;
use crate::interchange::Form;
use crate::tls_key::TlsKey;
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The text form of secrets.
const FORM: Form = Form {
    prefix: "DHHC-1:",
    shown: "DHHC-1:0N:BASE64: (N from 0 to 3)",
    lengths: &[32, 48, 64],
    lengths_shown: "32, 48 or 64",
};

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
        FORM.check_length(bytes)?;
        let mut secret = Zeroizing::new(vec![0; bytes]);
        reactor::random::fill(&mut secret);
        Ok(Self { secret, transform })
    }

    /// Returns the secret as text. Store it only in a file that no other user can read.
    pub fn to_text(&self) -> Zeroizing<String> {
        FORM.write(self.transform.map_or(0, Hash::id), &self.secret)
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

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (id, secret) = FORM.read(text)?;
        let transform = match id {
            0 => None,
            id => Some(Hash::from_id(id).ok_or(KeyError::Form(FORM.shown))?),
        };
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

/// The secrets of a host and of the controllers that it connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The host proves itself with it (`dhchap-secret`).
    pub host: Key,
    /// The controller proves itself with it (`dhchap-ctrl-secret`). A host that has it demands the
    /// proof.
    pub controller: Option<Key>,
}

impl KeyPair {
    /// Returns the secrets of a host and a controller that share the key of an admission. Each side
    /// has one of its own, so that neither can repeat the other's answer as its own.
    pub fn of_admission(key: &TlsKey) -> Self {
        let derive = |label: &[u8]| Key {
            secret: Hash::Sha384.hmac(key.secret(), &[b"tsumugi admission ", label]),
            transform: None,
        };
        Self { host: derive(b"host"), controller: Some(derive(b"controller")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A secret of the bytes 0, 1, 2 …; Python's base64 and zlib made the text.
    const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    /// Goal: texts of other programs can be read, and are written back unchanged.
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

    /// Goal: both sides of an admission get the same two secrets from its key, which differ from each
    /// other, from the key, and from those of another key.
    #[test]
    fn an_admission_has_two_secrets() {
        let key = |byte| TlsKey::new(None, Zeroizing::new(vec![byte; 48])).unwrap();
        let pair = KeyPair::of_admission(&key(1));
        assert_eq!(pair, KeyPair::of_admission(&key(1)));
        let other = KeyPair::of_admission(&key(2));
        let secrets = [&pair.host, pair.controller.as_ref().unwrap(), &other.host];
        for (index, secret) in secrets.iter().enumerate() {
            assert_eq!(secret.bytes(), 48);
            assert_ne!(*secret.secret, [1; 48]);
            assert!(secrets[index + 1..].iter().all(|later| later != secret));
        }
    }

    /// Goal: a damaged text is refused with its defect, and is not printed.
    #[test]
    fn damaged_texts_are_refused() {
        let wrong = |text: &str| text.parse::<Key>().unwrap_err();
        let length = |bytes| KeyError::Length { bytes, allowed: "32, 48 or 64" };
        assert_eq!(wrong(""), KeyError::Form(FORM.shown));
        assert_eq!(wrong(&KNOWN.replace("-1:", "-2:")), KeyError::Form(FORM.shown));
        assert_eq!(wrong(&KNOWN.replace(":00:", ":04:")), KeyError::Form(FORM.shown));
        assert_eq!(wrong(KNOWN.trim_end_matches(':')), KeyError::Form(FORM.shown));
        assert_eq!(wrong(&KNOWN.replace("AAEC", "AA!C")), KeyError::Base64);
        assert_eq!(wrong(&KNOWN.replace("AAEC", "AAED")), KeyError::Checksum);
        assert_eq!(wrong("DHHC-1:00:AAEC:"), length(0));
        assert_eq!(Key::generate(None, 33), Err(length(33)));
        let shown = format!("{:?}", KNOWN.parse::<Key>());
        assert!(!shown.contains("AAEC"), "{shown}");
    }
}
