//! Fatal transport errors (TCP 3.5), and how a receiver reports them to its peer.

use core::fmt;

use super::header::TermReq;

/// Largest number of bytes of the erroneous PDU's header in a terminate request (TCP 3.6.2.4: the
/// whole PDU has at most 152 bytes).
pub const TERM_DATA_BYTES_MAX: usize = 128;

/// FES, fatal error status (TCP figures 22 and 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FatalErrorStatus(pub u16);

impl FatalErrorStatus {
    /// A header field is invalid; FEI is its byte offset in the PDU.
    pub const INVALID_HEADER_FIELD: Self = Self(1);
    /// The PDU is not expected now.
    pub const SEQUENCE_ERROR: Self = Self(2);
    /// The header digest does not match; FEI is the digest received.
    pub const HEADER_DIGEST_ERROR: Self = Self(3);
    /// The data lies outside the range of the R2T or the command.
    pub const DATA_OUT_OF_RANGE: Self = Self(4);
    /// More data than MAXH2CDATA in a PDU (to the controller), or more R2Ts than MAXR2T (to the
    /// host).
    pub const LIMIT_EXCEEDED: Self = Self(5);
    /// A parameter has a value that is not supported; FEI is its byte offset in the PDU.
    pub const UNSUPPORTED_PARAMETER: Self = Self(6);

    /// Returns the specification's name.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "Invalid PDU Header Field",
            2 => "PDU Sequence Error",
            3 => "Header Digest Error",
            4 => "Data Transfer Out of Range",
            5 => "Data Transfer or R2T Limit Exceeded",
            6 => "Unsupported Parameter",
            _ => return None,
        })
    }
}

impl fmt::Display for FatalErrorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "fatal error status {:#06x}", self.0),
        }
    }
}

/// A PDU that violates the transport: the field, its value, and the content of the terminate
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fes}: {field} is {value:#x}")]
pub struct PduError {
    /// Status for the terminate request.
    pub fes: FatalErrorStatus,
    /// Information for the terminate request: a byte offset or, for digests, the one received.
    pub fei: u32,
    /// Mnemonic of the field.
    pub field: &'static str,
    /// Value of the field.
    pub value: u64,
    /// Whether a terminate request is sent. In answer to a terminate request (TCP 3.5) the
    /// connection is just closed.
    pub is_reported: bool,
}

impl PduError {
    const fn new(fes: FatalErrorStatus, fei: u32, field: &'static str, value: u64) -> Self {
        Self { fes, fei, field, value, is_reported: true }
    }

    /// Returns the error for an invalid header field at this byte of the PDU.
    pub const fn invalid_field(field: &'static str, offset: u32, value: u64) -> Self {
        Self::new(FatalErrorStatus::INVALID_HEADER_FIELD, offset, field, value)
    }

    /// Returns the error for a PDU of a type that is not allowed now.
    pub const fn sequence(pdu_type: u8) -> Self {
        Self::new(FatalErrorStatus::SEQUENCE_ERROR, 0, "pdu_type", pdu_type as u64)
    }

    /// Returns the error for a header digest that does not match.
    pub const fn header_digest(received: u32) -> Self {
        Self::new(FatalErrorStatus::HEADER_DIGEST_ERROR, received, "hdgst", received as u64)
    }

    /// Returns the error for data outside of the agreed range; `field` is `datao`, `datal`, `r2to`
    /// or `r2tl`.
    pub const fn out_of_range(field: &'static str, value: u64) -> Self {
        Self::new(FatalErrorStatus::DATA_OUT_OF_RANGE, 0, field, value)
    }

    /// Returns the error for more data or R2Ts than the receiver accepts.
    pub const fn limit_exceeded(field: &'static str, value: u64) -> Self {
        Self::new(FatalErrorStatus::LIMIT_EXCEEDED, 0, field, value)
    }

    /// Returns the error for a parameter, at this byte of the PDU, with an unsupported value.
    pub const fn unsupported(field: &'static str, offset: u32, value: u64) -> Self {
        Self::new(FatalErrorStatus::UNSUPPORTED_PARAMETER, offset, field, value)
    }
}

impl TermReq {
    /// Returns the peer's reason for ending the connection.
    pub fn status(&self) -> FatalErrorStatus {
        FatalErrorStatus(self.fes.get())
    }
}
