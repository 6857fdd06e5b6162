//! The keys of one direction (RFC 8446, 5.2, 5.3 and 7.3).

use super::{HEADER_BYTES, OVERHEAD_BYTES, PLAIN_BYTES_MAX};
use crate::error::Error;
use crate::suite::Suite;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use hkdf::Hkdf;
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

/// Number of records that AES-GCM may protect with one key (RFC 8446, 5.5: 2^24.5).
const RECORDS_MAX: u64 = 23_726_566;
/// The version in all records.
const LEGACY_VERSION: [u8; 2] = [3, 3];

/// See the module's head. Neither the secret nor anything derived from it is ever printed.
pub(crate) struct Direction {
    suite: Suite,
    secret: Zeroizing<Vec<u8>>,
    key: LessSafeKey,
    iv: Zeroizing<[u8; NONCE_LEN]>,
    /// Number of the next record.
    sequence: u64,
}

impl Direction {
    /// Returns the direction protected by this traffic secret, from this record on.
    pub(crate) fn new(
        suite: Suite,
        secret: Zeroizing<Vec<u8>>,
        sequence: u64,
    ) -> Result<Self, Error> {
        let algorithm = match suite {
            Suite::Aes128 => &AES_128_GCM,
            Suite::Aes256 => &AES_256_GCM,
        };
        let key = expand(suite, &secret, "key", algorithm.key_len())?;
        let mut iv = Zeroizing::new([0; NONCE_LEN]);
        iv.copy_from_slice(&expand(suite, &secret, "iv", NONCE_LEN)?);
        let key = UnboundKey::new(algorithm, &key)
            .map_err(|_| Error::Library("it takes no key of this length"))?;
        Ok(Self { suite, secret, key: LessSafeKey::new(key), iv, sequence })
    }

    /// Advances to the next secret.
    pub(super) fn renew(&mut self) -> Result<(), Error> {
        let secret = expand(self.suite, &self.secret, "traffic upd", self.suite.hash_bytes())?;
        *self = Self::new(self.suite, secret, 0)?;
        Ok(())
    }

    /// Whether the next record is the last that these keys may protect.
    pub(super) fn is_used_up(&self) -> bool {
        self.sequence >= RECORDS_MAX
    }

    /// Returns the nonce of the next record.
    fn nonce(&self) -> Nonce {
        let mut nonce = *self.iv;
        for (index, byte) in nonce[NONCE_LEN - 8..].iter_mut().enumerate() {
            *byte ^= (self.sequence >> (56 - 8 * index)) as u8;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Decrypts a record. Fails if its tag is wrong.
    pub(super) fn open(
        &mut self,
        header: &[u8],
        cipher_text: &[u8],
        tag: &[u8],
        plain: &mut [u8],
    ) -> Result<(), ()> {
        let opened =
            self.key.open_separate_gather(self.nonce(), Aad::from(header), cipher_text, tag, plain);
        opened.map_err(drop)?;
        self.sequence += 1;
        Ok(())
    }

    /// Makes a record of this type from `plain`, or from the plain text that is already in its
    /// place in the record.
    pub(super) fn seal(
        &mut self,
        kind: u8,
        plain: Option<&[u8]>,
        record: &mut [u8],
    ) -> Result<(), Error> {
        let bytes = record.len() - OVERHEAD_BYTES;
        assert!(bytes <= PLAIN_BYTES_MAX, "a record of {bytes} bytes");
        assert!(plain.is_none_or(|plain| plain.len() == bytes), "a record of another length");
        let (header, rest) = record.split_at_mut(HEADER_BYTES);
        let body_bytes = rest.len();
        header.copy_from_slice(&[
            super::content::DATA,
            LEGACY_VERSION[0],
            LEGACY_VERSION[1],
            (body_bytes >> 8) as u8,
            body_bytes as u8,
        ]);
        let (text, tail) = rest.split_at_mut(bytes);
        let (nonce, header, kind) = (self.nonce(), Aad::from(&*header), [kind]);
        // The number counts as used even if encryption fails.
        self.sequence += 1;
        match plain {
            Some(plain) => {
                self.key.seal_out_of_place_scatter(nonce, header, plain, text, &kind, tail)
            }
            None => self.key.seal_in_place_scatter(nonce, header, text, &kind, tail),
        }
        .map_err(|_| Error::Library("it does not encrypt a record"))
    }
}

/// HKDF-Expand-Label without a context (RFC 8446, 7.1).
fn expand(
    suite: Suite,
    secret: &[u8],
    label: &str,
    bytes: usize,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let mut info = vec![0, bytes as u8, (6 + label.len()) as u8];
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label.as_bytes());
    info.push(0);
    let mut output = Zeroizing::new(vec![0; bytes]);
    let expanded = match suite {
        Suite::Aes128 => {
            Hkdf::<Sha256>::from_prk(secret).ok().map(|hkdf| hkdf.expand(&info, &mut output))
        }
        Suite::Aes256 => {
            Hkdf::<Sha384>::from_prk(secret).ok().map(|hkdf| hkdf.expand(&info, &mut output))
        }
    };
    match expanded {
        Some(Ok(())) => Ok(output),
        _ => Err(Error::Library("it exports a secret of another length")),
    }
}
