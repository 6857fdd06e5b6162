//! Errors of connections.

/// The reason why a connection ends. It cannot be used afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no key for the identity that the peer gave, or the peer offered no key.
    #[error("the peer names no key that is known here: {0}")]
    Unknown(String),
    /// The peer does not know the key that it names, or its bytes were changed on the way.
    #[error("the peer's proof that it knows the key {identity} does not hold ({reason})")]
    Proof {
        /// The key's identity.
        identity: String,
        /// The library's reason.
        reason: &'static str,
    },
    /// The handshake failed in another way.
    #[error("the TLS handshake failed: {0}")]
    Handshake(&'static str),
    /// The peer ended the connection with an alert (RFC 8446, 6).
    #[error("the peer ended the connection with TLS alert {0}")]
    Alert(u8),
    /// A record that was changed, injected, repeated or omitted.
    #[error(
        "a record is not what the peer sent: it was changed, added, repeated or left out ({0})"
    )]
    Record(&'static str),
    /// The stream ended without a close message from the peer: it was cut, or the peer died.
    #[error("the stream ends before the peer has closed it")]
    Truncated,
    /// The connection has been closed, or has ended because of an earlier error.
    #[error("the TLS connection has ended")]
    Ended,
    /// The library itself failed.
    #[error("the TLS library failed: {0}")]
    Library(&'static str),
}
