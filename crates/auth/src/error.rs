//! Errors of secrets and of authentications.

use nvme::auth::Reason;

/// The reason why a text is not a secret. No variant contains any part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It does not have this form.
    #[error("it is not of the form {0}")]
    Form(&'static str),
    /// The part after the prefix is not base64.
    #[error("the part behind the second colon is not base64")]
    Base64,
    /// The secret has an invalid length.
    #[error("a secret has {allowed} bytes, this one has {bytes}")]
    Length {
        /// Its length in bytes.
        bytes: usize,
        /// The valid lengths.
        allowed: &'static str,
    },
    /// The length of a TLS key does not match its hash function.
    #[error("a TLS key for --hmac {hmac} has {bytes} bytes")]
    LengthOfHash {
        /// The hash function's number.
        hmac: u8,
        /// Bytes of keys with this hash function.
        bytes: usize,
    },
    /// The names of host and subsystem are too long for this version of the identity.
    #[error("the names of host and subsystem are too long for a PSK identity of version 0")]
    NamesTooLong,
    /// The checksum does not match: a character is wrong.
    #[error("its checksum does not match: a character is wrong")]
    Checksum,
}

/// The reason why an authentication did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer ended the authentication for this reason.
    #[error("the peer ended it: {0}")]
    Refused(Reason),
    /// The peer broke the protocol. This side sends the reason before the connection ends.
    #[error("{0}")]
    Unacceptable(Reason),
    /// The controller gave no proof although the host demanded one.
    #[error("the controller gave no proof though one was demanded")]
    Unproved,
}

impl Fault {
    /// Returns the reason to send to the peer, unless the peer itself ended the authentication.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Self::Refused(_) => None,
            Self::Unacceptable(reason) => Some(reason),
            Self::Unproved => Some(Reason::FAILED),
        }
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::Unacceptable(reason)
    }
}
