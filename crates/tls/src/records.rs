//! The record layer of TLS 1.3 (RFC 8446, 5) after a handshake: it converts plain text to records
//! and back.
//!
//! The library only carries out handshakes, because its own record layer copies each byte twice on
//! each side and overwrites what it has read twice. This layer encrypts from the place of the plain
//! text into the send buffer, and decrypts from the receive buffer into the caller's memory.
//! AES-GCM is aws-lc's, as in the library.
//!
//! The library exports the secrets of both directions and their record numbers once, closes its
//! connection and clears its keys, so that no record number is used twice. Keys are renewed as RFC
//! 8446, 4.6.3 and 5.5 require.

mod direction;

use crate::error::Error;
use crate::suite::Suite;
pub(crate) use direction::Direction;
use zeroize::Zeroizing;

/// Bytes of a record before the encrypted part.
pub(crate) const HEADER_BYTES: usize = 5;
/// Bytes of the tag after the encrypted part.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes that a record adds to its plain text: header, type and tag.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Bytes of the record that renews the keys.
pub(crate) const RENEWAL_BYTES: usize = 5 + OVERHEAD_BYTES;
/// Bytes of the record of an alert.
pub(crate) const ALERT_BYTES: usize = 2 + OVERHEAD_BYTES;
/// Longest plain text of a record.
pub(crate) const PLAIN_BYTES_MAX: usize = 16 << 10;
/// Most bytes after a header.
const BODY_BYTES_MAX: usize = PLAIN_BYTES_MAX + 256;
/// Longest post-handshake message that is accepted, in bytes. A session ticket, which is not used,
/// is shorter.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// Types of records and of their content.
mod content {
    pub(super) const ALERT: u8 = 21;
    pub(super) const HANDSHAKE: u8 = 22;
    pub(super) const DATA: u8 = 23;
}

/// Alerts (RFC 8446, 6).
mod alert {
    pub(super) const CLOSE_NOTIFY: u8 = 0;
    pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(super) const BAD_RECORD_MAC: u8 = 20;
    pub(super) const RECORD_OVERFLOW: u8 = 22;
    pub(super) const DECODE_ERROR: u8 = 50;
    pub(super) const USER_CANCELED: u8 = 90;
}

/// Types of messages that may come after a handshake, and bytes of their header.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const MESSAGE_HEAD_BYTES: usize = 4;

/// The reason for refusing a record: the alert to the peer, and the error for the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) alert: Option<u8>,
    pub(crate) error: Error,
}

impl Fault {
    fn record(alert: u8, what: &'static str) -> Self {
        Self { alert: Some(alert), error: Error::Record(what) }
    }

    fn unexpected(what: &'static str) -> Self {
        Self::record(alert::UNEXPECTED_MESSAGE, what)
    }
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// This number of bytes for the caller, at the front of its memory.
    Direct(usize),
    /// Bytes for the caller, stored in [`Held`].
    Held,
    /// The peer's close message.
    Farewell,
    /// Something for this layer only.
    Nothing,
}

/// Plain text of one record that did not fit into the caller's memory.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Moves bytes from the front into `plain`. Returns how many.
    pub(crate) fn take(&mut self, plain: &mut [u8]) -> usize {
        let bytes = plain.len().min(self.end - self.start);
        plain[..bytes].copy_from_slice(&self.bytes[self.start..self.start + bytes]);
        self.start += bytes;
        bytes
    }

    fn room(&mut self, bytes: usize) -> &mut [u8] {
        assert!(self.is_empty(), "{} bytes of a record are not taken", self.end - self.start);
        if self.bytes.len() < bytes {
            self.bytes.resize(BODY_BYTES_MAX, 0);
        }
        &mut self.bytes[..bytes]
    }
}

/// Both directions of a connection after its handshake.
pub(crate) struct Records {
    sealing: Direction,
    opening: Direction,
    /// The received part of an incomplete post-handshake message.
    message: Vec<u8>,
    /// Whether the peer has requested new keys, which must be sent before the next record.
    is_renewal_owed: bool,
    is_client: bool,
}

impl Records {
    pub(crate) fn new(sealing: Direction, opening: Direction, is_client: bool) -> Self {
        Self { sealing, opening, message: Vec::new(), is_renewal_owed: false, is_client }
    }

    /// Converts the library's export of a connection (`s2n_connection_serialize`, version 1).
    pub(crate) fn of_export(export: &[u8], suite: Suite, is_client: bool) -> Result<Self, Error> {
        const HEAD: [u8; 10] = [0, 0, 0, 0, 0, 0, 0, 1, 3, 4];
        let unknown = Error::Library("it exports a connection in an unknown form");
        let mut rest = export;
        let mut take = |bytes: usize| {
            let (front, behind) = rest.split_at_checked(bytes)?;
            rest = behind;
            Some(front)
        };
        let mut parts = || {
            let (head, cipher) = (take(HEAD.len())?, take(2)?);
            let (client, server) = (number(take(8)?), number(take(8)?));
            let _fragment_bytes_max = take(2)?;
            let (client_secret, server_secret) =
                (take(suite.hash_bytes())?, take(suite.hash_bytes())?);
            let is_known = head == HEAD && cipher == suite.code();
            is_known.then_some([(client_secret, client), (server_secret, server)])
        };
        let [client, server] = parts().ok_or(unknown)?;
        let direction = |(secret, sequence): (&[u8], u64)| {
            Direction::new(suite, Zeroizing::new(secret.to_vec()), sequence)
        };
        let (sealing, opening) = if is_client { (client, server) } else { (server, client) };
        Ok(Self::new(direction(sealing)?, direction(opening)?, is_client))
    }

    /// Returns the length of the record at the front of `bytes`; [`None`] if its header is
    /// incomplete.
    pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let Some(&[kind, _, _, high, low]) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        if kind != content::DATA {
            return Err(Fault::unexpected("it is not encrypted"));
        }
        let body_bytes = usize::from(high) << 8 | usize::from(low);
        if body_bytes > BODY_BYTES_MAX {
            return Err(Fault::record(alert::RECORD_OVERFLOW, "it is too long"));
        }
        if body_bytes <= TAG_BYTES {
            return Err(Fault::record(alert::DECODE_ERROR, "it is too short"));
        }
        Ok(Some(HEADER_BYTES + body_bytes))
    }

    /// Decrypts a whole record: into `plain` if all of it fits, otherwise into `held`, which must
    /// be empty. The bytes behind the plain text in `plain` may change.
    pub(crate) fn open(
        &mut self,
        record: &[u8],
        plain: &mut [u8],
        held: &mut Held,
    ) -> Result<Opened, Fault> {
        let body = &record[HEADER_BYTES..];
        let (cipher_text, tag) = body.split_at(body.len() - TAG_BYTES);
        let is_direct = cipher_text.len() <= plain.len();
        let into =
            if is_direct { &mut plain[..cipher_text.len()] } else { held.room(cipher_text.len()) };
        self.opening
            .open(&record[..HEADER_BYTES], cipher_text, tag, into)
            .map_err(|()| Fault::record(alert::BAD_RECORD_MAC, "its tag is wrong"))?;
        // The plain text is followed by the type and any number of zeros.
        let Some(end) = into.iter().rposition(|&byte| byte != 0) else {
            return Err(Fault::unexpected("it has no type"));
        };
        if end > PLAIN_BYTES_MAX {
            return Err(Fault::record(alert::RECORD_OVERFLOW, "it is too long"));
        }
        let (text, kind) = (&into[..end], into[end]);
        if kind != content::HANDSHAKE && !self.message.is_empty() {
            return Err(Fault::unexpected("it interrupts a message"));
        }
        match kind {
            content::DATA if is_direct => Ok(Opened::Direct(end)),
            content::DATA => {
                (held.start, held.end) = (0, end);
                Ok(Opened::Held)
            }
            content::ALERT => judge_alert(text),
            content::HANDSHAKE => self.take_messages(text).map(|()| Opened::Nothing),
            _ => Err(Fault::unexpected("its type is unknown")),
        }
    }

    /// Handles messages after the handshake: tickets, which are not used, and renewals of keys.
    fn take_messages(&mut self, text: &[u8]) -> Result<(), Fault> {
        if text.is_empty() {
            return Err(Fault::unexpected("it is empty"));
        }
        if self.message.len() + text.len() > MESSAGE_BYTES_MAX + MESSAGE_HEAD_BYTES {
            return Err(Fault::record(alert::DECODE_ERROR, "its message is too long"));
        }
        self.message.extend_from_slice(text);
        let message = std::mem::take(&mut self.message);
        let mut rest = &message[..];
        while let Some((&[kind, _, high, low], body)) =
            rest.split_first_chunk::<MESSAGE_HEAD_BYTES>()
        {
            let length = usize::from(rest[1]) << 16 | usize::from(high) << 8 | usize::from(low);
            if length > MESSAGE_BYTES_MAX {
                return Err(Fault::record(alert::DECODE_ERROR, "its message is too long"));
            }
            let Some((body, behind)) = body.split_at_checked(length) else { break };
            match (kind, body) {
                (NEW_SESSION_TICKET, _) if self.is_client => {}
                // The following bytes have other keys, so they must be in another record.
                (KEY_UPDATE, [wish @ (0 | 1)]) if behind.is_empty() => {
                    self.is_renewal_owed |= *wish == 1;
                    self.opening.renew().map_err(|error| Fault { alert: None, error })?;
                }
                _ => return Err(Fault::unexpected("its message has no place here")),
            }
            rest = behind;
        }
        self.message = rest.to_vec();
        Ok(())
    }

    /// Whether this side's keys must be renewed before the next record ([`Self::seal_renewal`]).
    pub(crate) fn owes_renewal(&self) -> bool {
        self.is_renewal_owed || self.sealing.is_used_up()
    }

    /// Makes the record that renews this side's keys, of [`RENEWAL_BYTES`].
    pub(crate) fn seal_renewal(&mut self, record: &mut [u8]) -> Result<(), Error> {
        self.sealing.seal(content::HANDSHAKE, Some(&[KEY_UPDATE, 0, 0, 1, 0]), record)?;
        self.is_renewal_owed = false;
        self.sealing.renew()
    }

    /// Makes a record of `plain`, or of the plain text that is already in its place in the record.
    pub(crate) fn seal(&mut self, plain: Option<&[u8]>, record: &mut [u8]) -> Result<(), Error> {
        self.sealing.seal(content::DATA, plain, record)
    }

    /// Makes the record of an alert, of [`ALERT_BYTES`]; [`None`] is the close message.
    pub(crate) fn seal_alert(&mut self, fatal: Option<u8>, record: &mut [u8]) -> Result<(), Error> {
        let text = fatal.map_or([1, alert::CLOSE_NOTIFY], |code| [2, code]);
        self.sealing.seal(content::ALERT, Some(&text), record)
    }
}

/// Interprets an alert.
fn judge_alert(text: &[u8]) -> Result<Opened, Fault> {
    match text {
        [_, alert::CLOSE_NOTIFY] => Ok(Opened::Farewell),
        // A close message follows.
        [_, alert::USER_CANCELED] => Ok(Opened::Nothing),
        [_, code] => Err(Fault { alert: None, error: Error::Alert(*code) }),
        _ => Err(Fault::record(alert::DECODE_ERROR, "its alert has another length")),
    }
}

/// Reads a number in network byte order.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests;
