//! Cipher suites.

/// The cipher suite of a connection; its key's hash function determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256,
}

impl Suite {
    /// Returns the length of its hash values and of its secrets, in bytes.
    pub(crate) fn hash_bytes(self) -> usize {
        match self {
            Self::Aes128 => 32,
            Self::Aes256 => 48,
        }
    }

    /// Returns its number as it is sent.
    pub(crate) fn code(self) -> [u8; 2] {
        match self {
            Self::Aes128 => [0x13, 0x01],
            Self::Aes256 => [0x13, 0x02],
        }
    }
}
