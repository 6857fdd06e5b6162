//! In-band authentication (base 8.3.4): the commands that carry it and the messages of
//! DH-HMAC-CHAP.
//!
//! Messages have parts of variable length, so they are not structures of this crate's usual kind: a
//! [`Message`] borrows its parts from the received bytes. Decoding checks lengths and the fields
//! that select the form; the two authenticating sides decide which values are acceptable and when.

use crate::opcode::FabricsType;
use crate::{Error, SubmissionQueueEntry, U32};

/// SECP of NVMe in-band authentication.
pub const SECP: u8 = 0xe9;
/// SPSP0 and SPSP1 of authentication messages, in that order in bytes 41 and 42 of the command.
const SPSP: u32 = 0x01_01;

/// `AUTH_TYPE` of messages that all protocols share.
const TYPE_COMMON: u8 = 0x00;
/// `AUTH_TYPE` of the messages of DH-HMAC-CHAP.
const TYPE_DHCHAP: u8 = 0x01;
/// `AUTH_ID`: `AUTH_Negotiate`.
const ID_NEGOTIATE: u8 = 0x00;
/// `AUTH_ID`: `DH-HMAC-CHAP_Challenge`.
const ID_CHALLENGE: u8 = 0x01;
/// `AUTH_ID`: `DH-HMAC-CHAP_Reply`.
const ID_REPLY: u8 = 0x02;
/// `AUTH_ID`: `DH-HMAC-CHAP_Success1`.
const ID_SUCCESS1: u8 = 0x03;
/// `AUTH_ID`: `DH-HMAC-CHAP_Success2`.
const ID_SUCCESS2: u8 = 0x04;
/// `AUTH_ID`: `AUTH_Failure2`.
const ID_FAILURE2: u8 = 0xf0;
/// `AUTH_ID`: `AUTH_Failure1`.
const ID_FAILURE1: u8 = 0xf1;

/// `AuthID` of DH-HMAC-CHAP in a protocol descriptor.
const PROTOCOL_DHCHAP: u8 = 0x01;
/// Bytes of a protocol descriptor.
const DESCRIPTOR_BYTES: usize = 64;
/// Largest number of hash identifiers, and of group identifiers, in a descriptor.
pub const IDS_MAX: usize = 30;
/// Bytes before the variable part of Challenge, Reply and Success1, and all of Success2.
const HEAD_BYTES: usize = 16;
/// Bytes of Negotiate before its descriptors, and all of a failure.
const SHORT_HEAD_BYTES: usize = 8;
/// Bytes of the longest hash.
pub const HASH_BYTES_MAX: usize = 64;
/// Bytes of the longest Diffie-Hellman value.
pub const DH_BYTES_MAX: usize = 1024;
/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + 2 * HASH_BYTES_MAX + DH_BYTES_MAX;

/// Dwords of Authentication Send (base 6.2) and Authentication Receive (base 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// TL or AL: bytes to transfer.
    pub bytes: u32,
}

impl Authentication {
    /// Unpacks the dwords of either command.
    ///
    /// Fails with [`Error::InvalidField`] unless the command is for NVMe in-band authentication.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let cdw10 = sqe.cdw10.get();
        let (secp, spsp) = ((cdw10 >> 24) as u8, (cdw10 >> 8) & 0xffff);
        if secp != SECP {
            return Err(Error::InvalidField { field: "secp", value: u64::from(secp) });
        }
        if spsp != SPSP {
            return Err(Error::InvalidField { field: "spsp", value: u64::from(spsp) });
        }
        Ok(Self { bytes: sqe.cdw11.get() })
    }

    /// Returns an Authentication Send command for a message of this number of bytes.
    pub fn send(self) -> SubmissionQueueEntry {
        self.encode(FabricsType::AUTHENTICATION_SEND)
    }

    /// Returns an Authentication Receive command with space for this number of bytes.
    pub fn receive(self) -> SubmissionQueueEntry {
        self.encode(FabricsType::AUTHENTICATION_RECEIVE)
    }

    fn encode(self, fctype: FabricsType) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::fabrics(fctype);
        sqe.cdw10 = U32::new(u32::from(SECP) << 24 | SPSP << 8);
        sqe.cdw11 = U32::new(self.bytes);
        sqe
    }
}

/// Whether this is one of the two authentication commands.
pub fn is_authentication(sqe: &SubmissionQueueEntry) -> bool {
    let fctype = sqe.fabrics_type();
    sqe.is_fabrics()
        && (fctype == FabricsType::AUTHENTICATION_SEND
            || fctype == FabricsType::AUTHENTICATION_RECEIVE)
}

/// A reason code explanation of a failure (base 8.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u8);

impl Reason {
    /// Authentication failed.
    pub const FAILED: Self = Self(0x01);
    /// Authentication protocol not usable.
    pub const PROTOCOL_UNUSABLE: Self = Self(0x02);
    /// Secure channel concatenation mismatch.
    pub const CONCATENATION_MISMATCH: Self = Self(0x03);
    /// Hash function not usable.
    pub const HASH_UNUSABLE: Self = Self(0x04);
    /// DH group not usable.
    pub const GROUP_UNUSABLE: Self = Self(0x05);
    /// Incorrect payload.
    pub const INCORRECT_PAYLOAD: Self = Self(0x06);
    /// Incorrect protocol message.
    pub const INCORRECT_MESSAGE: Self = Self(0x07);
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match *self {
            Self::FAILED => "the keys do not match",
            Self::PROTOCOL_UNUSABLE => "no usable authentication protocol",
            Self::CONCATENATION_MISMATCH => "secure channel concatenation mismatch",
            Self::HASH_UNUSABLE => "no usable hash function",
            Self::GROUP_UNUSABLE => "no usable Diffie-Hellman group or value",
            Self::INCORRECT_PAYLOAD => "incorrect payload",
            Self::INCORRECT_MESSAGE => "incorrect protocol message",
            Self(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

/// A message of DH-HMAC-CHAP, without its transaction identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The first message, from the host: its capabilities.
    Negotiate {
        /// `SC_C`: 0 for no secure channel concatenation.
        concatenation: u8,
        /// Identifiers of hash functions, at most [`IDS_MAX`].
        hashes: &'a [u8],
        /// Identifiers of groups, at most [`IDS_MAX`].
        groups: &'a [u8],
    },
    /// The controller's choice and challenge.
    Challenge {
        /// `HashID`.
        hash: u8,
        /// `DHgID`.
        group: u8,
        /// S1.
        sequence: u32,
        /// C1.
        challenge: &'a [u8],
        /// The controller's Diffie-Hellman value; empty for the null group.
        dh_value: &'a [u8],
    },
    /// The host's response, and its challenge if it has one.
    Reply {
        /// R1.
        response: &'a [u8],
        /// S2; 0 without a challenge.
        sequence: u32,
        /// C2, as long as the response.
        challenge: Option<&'a [u8]>,
        /// The host's Diffie-Hellman value; empty for the null group.
        dh_value: &'a [u8],
    },
    /// The controller accepts the host's proof.
    Success1 {
        /// Bytes of the hash in use.
        hash_bytes: u8,
        /// R2, if the host had a challenge.
        response: Option<&'a [u8]>,
    },
    /// The host accepts the controller's proof.
    Success2,
    /// The controller gives up.
    Failure1(Reason),
    /// The host gives up.
    Failure2(Reason),
}

impl<'a> Message<'a> {
    /// Decodes a message and its transaction identifier, `T_ID`. Bytes after the message are
    /// ignored.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::InvalidField`] for an unknown message, for a Negotiate with
    /// another protocol than DH-HMAC-CHAP, and for impossible lengths.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Error> {
        let head = part(bytes, 0, SHORT_HEAD_BYTES)?;
        let transaction = u16::from_le_bytes([head[4], head[5]]);
        let message = match (head[0], head[1]) {
            (TYPE_COMMON, ID_NEGOTIATE) => negotiate(bytes)?,
            (TYPE_COMMON, ID_FAILURE1) => Self::Failure1(Reason(head[7])),
            (TYPE_COMMON, ID_FAILURE2) => Self::Failure2(Reason(head[7])),
            (TYPE_DHCHAP, ID_CHALLENGE) => challenge(bytes)?,
            (TYPE_DHCHAP, ID_REPLY) => reply(bytes)?,
            (TYPE_DHCHAP, ID_SUCCESS1) => success1(bytes)?,
            (TYPE_DHCHAP, ID_SUCCESS2) => {
                part(bytes, 0, HEAD_BYTES)?;
                Self::Success2
            }
            (TYPE_COMMON | TYPE_DHCHAP, id) => {
                return Err(Error::InvalidField { field: "auth_id", value: u64::from(id) });
            }
            (kind, _) => {
                return Err(Error::InvalidField { field: "auth_type", value: u64::from(kind) });
            }
        };
        Ok((transaction, message))
    }

    /// Returns the message's bytes.
    ///
    /// # Panics
    /// If a part is longer than its length field allows.
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let [low, high] = transaction.to_le_bytes();
        let head = |kind: u8, id: u8| vec![kind, id, 0, 0, low, high];
        match *self {
            Self::Negotiate { concatenation, hashes, groups } => {
                assert!(hashes.len() <= IDS_MAX && groups.len() <= IDS_MAX, "too many identifiers");
                let mut bytes = head(TYPE_COMMON, ID_NEGOTIATE);
                bytes.extend([concatenation, 1]);
                bytes.extend([PROTOCOL_DHCHAP, 0, hashes.len() as u8, groups.len() as u8]);
                for ids in [hashes, groups] {
                    bytes.extend(ids);
                    bytes.resize(bytes.len() + IDS_MAX - ids.len(), 0);
                }
                bytes
            }
            Self::Challenge { hash, group, sequence, challenge, dh_value } => {
                let mut bytes = head(TYPE_DHCHAP, ID_CHALLENGE);
                bytes.extend([hash_bytes(challenge), 0, hash, group]);
                bytes.extend((dh_value.len() as u16).to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                [bytes.as_slice(), challenge, dh_value].concat()
            }
            Self::Reply { response, sequence, challenge, dh_value } => {
                let mut bytes = head(TYPE_DHCHAP, ID_REPLY);
                bytes.extend([hash_bytes(response), 0, u8::from(challenge.is_some()), 0]);
                bytes.extend((dh_value.len() as u16).to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                let none = vec![0; response.len()];
                let challenge = challenge.unwrap_or(&none);
                assert_eq!(challenge.len(), response.len(), "one hash, one length");
                [bytes.as_slice(), response, challenge, dh_value].concat()
            }
            Self::Success1 { hash_bytes, response } => {
                let mut bytes = head(TYPE_DHCHAP, ID_SUCCESS1);
                bytes.extend([hash_bytes, 0, u8::from(response.is_some())]);
                bytes.resize(HEAD_BYTES, 0);
                let none = vec![0; usize::from(hash_bytes)];
                [bytes.as_slice(), response.unwrap_or(&none)].concat()
            }
            Self::Success2 => {
                let mut bytes = head(TYPE_DHCHAP, ID_SUCCESS2);
                bytes.resize(HEAD_BYTES, 0);
                bytes
            }
            Self::Failure1(reason) => failure(head(TYPE_COMMON, ID_FAILURE1), reason),
            Self::Failure2(reason) => failure(head(TYPE_COMMON, ID_FAILURE2), reason),
        }
    }
}

fn failure(mut bytes: Vec<u8>, reason: Reason) -> Vec<u8> {
    // Reason code 1: authentication failure; there is no other.
    bytes.extend([1, reason.0]);
    bytes
}

fn hash_bytes(part: &[u8]) -> u8 {
    assert!(part.len() <= HASH_BYTES_MAX, "no hash has {} bytes", part.len());
    part.len() as u8
}

/// Returns `len` bytes from `start`.
fn part(bytes: &[u8], start: usize, len: usize) -> Result<&[u8], Error> {
    let need_bytes = start + len;
    bytes.get(start..need_bytes).ok_or(Error::Truncated {
        structure: "authentication message",
        need_bytes,
        have_bytes: bytes.len(),
    })
}

fn negotiate(bytes: &[u8]) -> Result<Message<'_>, Error> {
    let wrong = |field, value: u8| Err(Error::InvalidField { field, value: u64::from(value) });
    let (concatenation, napd) = (bytes[6], bytes[7]);
    if napd != 1 {
        return wrong("napd", napd);
    }
    let descriptor = part(bytes, SHORT_HEAD_BYTES, DESCRIPTOR_BYTES)?;
    let (halen, dhlen) = (descriptor[2], descriptor[3]);
    if descriptor[0] != PROTOCOL_DHCHAP {
        return wrong("authid", descriptor[0]);
    }
    if usize::from(halen) > IDS_MAX {
        return wrong("halen", halen);
    }
    if usize::from(dhlen) > IDS_MAX {
        return wrong("dhlen", dhlen);
    }
    let hashes = &descriptor[4..][..usize::from(halen)];
    let groups = &descriptor[4 + IDS_MAX..][..usize::from(dhlen)];
    Ok(Message::Negotiate { concatenation, hashes, groups })
}

/// Returns HL, DHVLEN and SEQNUM of Challenge and Reply.
fn lengths(bytes: &[u8]) -> Result<(usize, usize, u32), Error> {
    let head = part(bytes, 0, HEAD_BYTES)?;
    let hl = usize::from(head[6]);
    let dhvlen = usize::from(u16::from_le_bytes([head[10], head[11]]));
    if hl == 0 || hl > HASH_BYTES_MAX {
        return Err(Error::InvalidField { field: "hl", value: hl as u64 });
    }
    if dhvlen > DH_BYTES_MAX {
        return Err(Error::InvalidField { field: "dhvlen", value: dhvlen as u64 });
    }
    Ok((hl, dhvlen, u32::from_le_bytes([head[12], head[13], head[14], head[15]])))
}

fn challenge(bytes: &[u8]) -> Result<Message<'_>, Error> {
    let (hl, dhvlen, sequence) = lengths(bytes)?;
    Ok(Message::Challenge {
        hash: bytes[8],
        group: bytes[9],
        sequence,
        challenge: part(bytes, HEAD_BYTES, hl)?,
        dh_value: part(bytes, HEAD_BYTES + hl, dhvlen)?,
    })
}

fn reply(bytes: &[u8]) -> Result<Message<'_>, Error> {
    let (hl, dhvlen, sequence) = lengths(bytes)?;
    let challenge = part(bytes, HEAD_BYTES + hl, hl)?;
    Ok(Message::Reply {
        response: part(bytes, HEAD_BYTES, hl)?,
        sequence,
        challenge: (bytes[8] & 1 != 0).then_some(challenge),
        dh_value: part(bytes, HEAD_BYTES + 2 * hl, dhvlen)?,
    })
}

fn success1(bytes: &[u8]) -> Result<Message<'_>, Error> {
    let head = part(bytes, 0, HEAD_BYTES)?;
    let (hl, is_valid) = (head[6], head[8] & 1 != 0);
    if usize::from(hl) > HASH_BYTES_MAX {
        return Err(Error::InvalidField { field: "hl", value: u64::from(hl) });
    }
    let response = if is_valid { Some(part(bytes, HEAD_BYTES, usize::from(hl))?) } else { None };
    Ok(Message::Success1 { hash_bytes: hl, response })
}
