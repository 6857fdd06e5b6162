//! The NVMe/TCP transport (TCP 3): PDUs, digests, a parser and encoders; no sockets.
//!
//! [`Parser`] reads a slice of received bytes and returns the PDU at its start and the place of the
//! PDU's data, borrowed, so that one receive is parsed into many PDUs without a copy. [`Encoder`]
//! writes a PDU's header, header digest and padding into the caller's bytes, so that the caller can
//! send the data itself without a copy.

mod accumulate;
mod digest;
mod encode;
mod header;
mod parse;
mod term;

pub use accumulate::{Accumulator, Fed};
pub use digest::{DIGEST_BYTES, DataDigest, crc32c};
pub use encode::{Encoder, HEADER_BYTES_MAX};
pub use header::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, PduType, R2t, TermReq,
    flag,
};
pub use parse::{Parsed, Parser, ParserConfig, Pdu, Receiver};
pub use term::{FatalErrorStatus, PduError, TERM_DATA_BYTES_MAX};

/// Port of the discovery service (TCP 3.1).
pub const DISCOVERY_PORT: u16 = 8009;
/// Port customarily used for I/O subsystems (TCP 3.1: assigned for NVMe over Fabrics).
pub const IO_PORT: u16 = 4420;
/// Longest PDU data alignment in bytes: HPDA and CPDA are at most 31 (dwords, 0's based).
pub const DATA_ALIGNMENT_BYTES_MAX: u32 = 128;
/// Least value of MAXH2CDATA in bytes (TCP 3.6.2.3).
pub const MAXH2CDATA_BYTES_MIN: u32 = 4096;
/// Number of bytes of in-capsule data that every admin and Connect command may use (TCP 3.3.1.1).
pub const ADMIN_IN_CAPSULE_DATA_BYTES: u32 = 8192;
