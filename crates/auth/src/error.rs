//! Errors of secrets and of authentications.

use nvme::auth::Reason;

/// Why a text is not a secret. No variant holds any of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is not of this form.
    #[error("it is not of the form {0}")]
    Form(&'static str),
    /// The part after the prefix is not base64.
    #[error("the part behind the second colon is not base64")]
    Base64,
    /// Secrets have other lengths.
    #[error("a secret has {allowed} bytes, this one has {bytes}")]
    Length {
        /// Its length in bytes.
        bytes: usize,
        /// The lengths that there are.
        allowed: &'static str,
    },
    /// A hash function of TLS keys goes with one length.
    #[error("a TLS key for --hmac {hmac} has {bytes} bytes")]
    LengthOfHash {
        /// The hash function's number.
        hmac: u8,
        /// Bytes of its keys.
        bytes: usize,
    },
    /// The names of host and subsystem are too long for this version of the identity.
    #[error("the names of host and subsystem are too long for a PSK identity of version 0")]
    NamesTooLong,
    /// The checksum does not match: a character is wrong.
    #[error("its checksum does not match: a character is wrong")]
    Checksum,
}

/// Why an authentication did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer ended the authentication for this reason.
    #[error("the peer ended it: {0}")]
    Refused(Reason),
    /// The peer broke the protocol. We send it this reason before the connection ends.
    #[error("{0}")]
    Unacceptable(Reason),
    /// The controller was asked for a proof and gave none.
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
