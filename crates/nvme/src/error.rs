//! The crate's error type: the structure, the wrong field, and its value.

use crate::tcp::PduError;

/// The reason why bytes could not be decoded or a value could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the structure needs.
    #[error("{structure} needs {need_bytes} bytes, got {have_bytes}")]
    Truncated {
        /// Name of the structure.
        structure: &'static str,
        /// Size of the structure in bytes.
        need_bytes: usize,
        /// Number of bytes given.
        have_bytes: usize,
    },
    /// A field has a value that the specification does not allow there.
    #[error("{field} has the invalid value {value:#x}")]
    InvalidField {
        /// Mnemonic of the field.
        field: &'static str,
        /// The value found.
        value: u64,
    },
    /// A string is not an NVMe qualified name.
    #[error("{nqn:?} is not an NVMe qualified name: {reason}")]
    InvalidNqn {
        /// The offending text (invalid UTF-8 replaced), at most 256 bytes.
        nqn: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The caller's buffer is too small for the encoded value.
    #[error("encoding needs a buffer of {need_bytes} bytes, got {have_bytes}")]
    BufferTooSmall {
        /// Bytes to be written.
        need_bytes: usize,
        /// Bytes of the buffer.
        have_bytes: usize,
    },
    /// A PDU violates the NVMe/TCP transport; the connection has to be terminated.
    #[error(transparent)]
    Pdu(#[from] PduError),
}
