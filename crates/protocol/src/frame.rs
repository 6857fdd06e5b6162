//! Frames: the form of messages in a byte stream.
//!
//! ```text
//!  0        4    6    8                16       20       24
//! ┌────────┬────┬────┬────────────────┬────────┬────────┬──────────────
//! │ magic  │ ver│kind│ tag            │ length │ crc32c │ body (length bytes)
//! └────────┴────┴────┴────────────────┴────────┴────────┴──────────────
//! ```
//!
//! Little-endian. The CRC-32C covers the header's first 20 bytes and the body. A reader that meets
//! other bytes closes the connection, because it cannot find the next frame in such a stream.

use crc_fast::{CrcAlgorithm, Digest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 24;

/// Longest body, in bytes.
pub const BODY_MAX_BYTES: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"TSMG";

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A step of [`crate::auth`].
    Handshake,
    /// A call, which needs an answer.
    Call,
    /// The answer to the call with the same tag.
    Answer,
}

/// A checked header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The frame's content.
    pub kind: Kind,
    /// Ties an answer to its call; each side numbers its own calls.
    pub tag: u64,
    /// Number of bytes of the body.
    pub length: usize,
    crc: u32,
}

/// Why bytes are not a frame.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer uses another protocol.
    #[error("frame starts with {0:02x?}, not with the magic of this protocol")]
    Magic([u8; 4]),
    /// The peer has another version.
    #[error("peer speaks version {0} of the protocol, this is version {ours}; run the same tsumugi on all nodes", ours = crate::VERSION)]
    Version(u16),
    /// There is no such kind.
    #[error("frame is of unknown kind {0}")]
    Kind(u16),
    /// Longer than allowed.
    #[error("frame's body has {0} bytes, more than {BODY_MAX_BYTES}")]
    Length(usize),
    /// The bytes were changed on the way.
    #[error("frame's CRC-32C is {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// As received.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// The body does not match its kind.
    #[error("frame's body cannot be decoded: {0}")]
    Body(String),
}

fn crc(header: &[u8], body: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    digest.finalize() as u32
}

/// Appends a frame to `out`.
///
/// # Errors
/// [`FrameError::Length`] if the body is too long; `out` is then unchanged.
pub fn encode<T: Serialize>(
    kind: Kind,
    tag: u64,
    body: &T,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let taken = std::mem::take(out);
    *out = postcard::to_extend(body, taken).map_err(|e| FrameError::Body(e.to_string()))?;
    let length = out.len() - start - HEADER_BYTES;
    if length > BODY_MAX_BYTES {
        out.truncate(start);
        return Err(FrameError::Length(length));
    }
    let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
    header[0..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&crate::VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    header[8..16].copy_from_slice(&tag.to_le_bytes());
    header[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    let crc = crc(&header[..20], body);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Takes the first frame off `bytes`: returns its header and body, or `None` if it is incomplete.
///
/// # Errors
/// Every [`FrameError`] except `Body`, as soon as the bytes show it.
pub fn take(bytes: &[u8]) -> Result<Option<(Header, &[u8])>, FrameError> {
    let Some(header) = bytes.get(..HEADER_BYTES) else {
        return Ok(None);
    };
    let magic = [header[0], header[1], header[2], header[3]];
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != crate::VERSION {
        return Err(FrameError::Version(version));
    }
    let kind = match u16::from_le_bytes([header[6], header[7]]) {
        0 => Kind::Handshake,
        1 => Kind::Call,
        2 => Kind::Answer,
        other => return Err(FrameError::Kind(other)),
    };
    let tag = u64::from(u32_at(header, 8)) | u64::from(u32_at(header, 12)) << 32;
    let length = u32_at(header, 16) as usize;
    if length > BODY_MAX_BYTES {
        return Err(FrameError::Length(length));
    }
    let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + length) else {
        return Ok(None);
    };
    let found = u32_at(header, 20);
    let computed = crc(&header[..20], body);
    if found != computed {
        return Err(FrameError::Crc { found, computed });
    }
    Ok(Some((Header { kind, tag, length, crc: found }, body)))
}

impl Header {
    /// Returns the number of bytes of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length
    }
}

/// Decodes a body, all of it.
///
/// # Errors
/// [`FrameError::Body`] if it is not a `T`, or if bytes are left over.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    let (value, rest) =
        postcard::take_from_bytes(body).map_err(|e| FrameError::Body(e.to_string()))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(FrameError::Body(format!("{} bytes are left over", rest.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Call, ChangeCall, OpenTold, Request, Slot};
    use crate::ids::InodeId;
    use proptest::prelude::*;

    fn sample(tag: u64, name: Vec<u8>) -> (Request, Vec<u8>) {
        let request = Request {
            slot: Some(Slot { slot: 3, sequence: 9 }),
            call: Call::Change(ChangeCall::Unlink {
                parent: InodeId(5),
                name,
                told: OpenTold::Of(InodeId(6)),
            }),
        };
        let mut bytes = Vec::new();
        encode(Kind::Call, tag, &request, &mut bytes).unwrap();
        (request, bytes)
    }

    proptest! {
        /// Goal: encoded values come back, for any cuts of the stream.
        #[test]
        fn frames_are_invertible(tag: u64, name: Vec<u8>, cut in 0usize..1000) {
            let (request, bytes) = sample(tag, name);
            if cut < bytes.len() {
                prop_assert_eq!(take(&bytes[..cut]), Ok(None));
            }
            let (header, body) = take(&bytes).unwrap().unwrap();
            prop_assert_eq!((header.tag, header.frame_bytes()), (tag, bytes.len()));
            prop_assert_eq!(decode::<Request>(body).unwrap(), request);
        }

        /// Goal: one changed byte is never taken for a frame.
        #[test]
        fn changed_bytes_are_refused(at in 0usize..60, flip in 1u8..) {
            let (_, mut bytes) = sample(1, vec![b'a'; 40]);
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert!(!matches!(take(&bytes), Ok(Some(_))));
        }

        /// Goal: arbitrary bodies never panic.
        #[test]
        fn arbitrary_bodies_do_not_panic(body: Vec<u8>) {
            let _ = decode::<Request>(&body);
            let _ = decode::<crate::client::Response>(&body);
            let _ = decode::<crate::agent::Call>(&body);
            let _ = decode::<crate::client::PushAnswer>(&body);
        }
    }
}
