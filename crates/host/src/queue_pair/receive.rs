//! The receiving half: PDUs out of a byte stream that may be split anywhere.
//!
//! A header is parsed in place if it is complete, otherwise it is gathered in the accumulator. Data
//! is copied to its command when it arrives. When much of a PDU's data is still missing, the driver
//! can take the command's buffer and receive directly into it ([`QueuePair::take_direct`]).

use super::{Data, Outcome, QueuePair, QueuePairState};
use crate::error::ProtocolError;
use nvme::tcp::{
    C2hData, CapsuleResp, DIGEST_BYTES, DataDigest, Parsed, Pdu, PduError, R2t, TermReq,
};
use nvme::{CommandId, CompletionQueueEntry, Status};
use reactor::Buffer;
use std::ops::Range;

/// Minimum number of missing bytes for a receive directly into the destination.
pub const DIRECT_BYTES_MIN: usize = 16 * 1024;
/// Least mean number of bytes of a command's R2Ts.
const R2T_BYTES_MIN: u32 = 512;

/// The kind of the next received bytes.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per queue pair; a box would cost an allocation")]
pub(super) enum Receiving {
    /// A PDU's header.
    Header,
    /// Data of a `C2HData` PDU, preceded by padding.
    Data(Incoming),
}

/// A `C2HData` PDU that has not arrived completely.
#[derive(Debug)]
pub(super) struct Incoming {
    cid: CommandId,
    padding_bytes: usize,
    remaining_bytes: u32,
    digest: Option<DataDigest>,
    digest_received: [u8; DIGEST_BYTES],
    digest_received_bytes: usize,
    is_success: bool,
    is_lent: bool,
}

impl Receiving {
    /// Records that the driver will not return borrowed memory, because the connection ends.
    pub(super) fn return_nothing(&mut self) {
        *self = Self::Header;
    }
}

/// Memory for the next bytes of the stream.
#[derive(Debug)]
pub struct DirectReceive {
    /// The command's buffer; [`QueuePair::direct_received`] returns it.
    pub buffer: Buffer,
    /// Its range that is still missing.
    pub range: Range<usize>,
}

impl QueuePair {
    /// Takes received bytes, all of them.
    ///
    /// Fails if the controller violates the transport or ended the connection. The caller then has
    /// to close the connection with [`QueuePair::close`].
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolError> {
        if self.state == QueuePairState::Closed {
            return Ok(());
        }
        while !bytes.is_empty() {
            bytes = match &self.receiving {
                Receiving::Header => self.receive_header(bytes)?,
                Receiving::Data(_) => self.receive_data(bytes)?,
            };
        }
        Ok(())
    }

    /// Returns the length of the last `C2HData` PDU's data, as an estimate for the next one.
    pub fn last_payload_bytes(&self) -> usize {
        self.last_payload_bytes
    }

    /// Returns the buffer of the command whose data arrives next, if at least [`DIRECT_BYTES_MIN`]
    /// bytes of a PDU are missing.
    pub fn take_direct(&mut self) -> Option<DirectReceive> {
        let Receiving::Data(incoming) = &mut self.receiving else { return None };
        let is_wanted = incoming.padding_bytes == 0
            && !incoming.is_lent
            && incoming.remaining_bytes as usize >= DIRECT_BYTES_MIN;
        if !is_wanted {
            return None;
        }
        let slot = self.slots.outstanding(incoming.cid)?;
        let Data::Read(destination) = &mut slot.data else { return None };
        let start = destination.position(slot.received_bytes);
        let range = start..start + incoming.remaining_bytes as usize;
        let buffer = destination.take()?;
        if range.end > buffer.len() {
            destination.put_back(buffer);
            return None;
        }
        incoming.is_lent = true;
        Some(DirectReceive { buffer, range })
    }

    /// Returns the buffer after `received_bytes` of the range were received into it.
    pub fn direct_received(
        &mut self,
        buffer: Buffer,
        received_bytes: usize,
    ) -> Result<(), ProtocolError> {
        let Receiving::Data(incoming) = &mut self.receiving else { return Ok(()) };
        let Some(slot) = self.slots.outstanding(incoming.cid) else { return Ok(()) };
        let Data::Read(destination) = &mut slot.data else { return Ok(()) };
        assert!(incoming.is_lent, "returned memory of {:?} was not lent", incoming.cid);
        incoming.is_lent = false;
        let received_bytes = received_bytes.min(incoming.remaining_bytes as usize);
        let start = destination.position(slot.received_bytes);
        if let (Some(digest), Some(bytes)) =
            (&mut incoming.digest, buffer.get(start..start + received_bytes))
        {
            digest.update(bytes);
        }
        destination.put_back(buffer);
        slot.received_bytes += received_bytes as u32;
        slot.assert_bounds();
        incoming.remaining_bytes -= received_bytes as u32;
        self.finish_data_pdu()
    }

    fn receive_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        if self.accumulator.kept_bytes() == 0
            && let Some(parsed) = self.parser.parse(bytes)?
        {
            let header_bytes = self.parser.need_bytes(bytes)?;
            let pdu = Header::from(&parsed, header_bytes);
            self.accept(&pdu)?;
            return Ok(&bytes[header_bytes..]);
        }
        let fed = self.accumulator.feed(&self.parser, bytes)?;
        let consumed_bytes = fed.consumed_bytes;
        if let Some(parsed) = fed.pdu {
            let pdu = Header::from(&parsed, fed.header_bytes);
            self.accept(&pdu)?;
        }
        Ok(&bytes[consumed_bytes..])
    }

    fn accept(&mut self, header: &Header) -> Result<(), ProtocolError> {
        match &header.kind {
            Kind::IcResp(response) => self.initialize(response),
            Kind::Response(capsule) => self.accept_response(&capsule.cqe),
            Kind::Data(data) => self.accept_data(data, header),
            Kind::R2t(r2t) => self.accept_r2t(r2t),
            Kind::Term(request) => Err(ProtocolError::TerminatedByTarget {
                status: request.status(),
                information: request.fei.get(),
            }),
        }
    }

    fn accept_response(&mut self, cqe: &CompletionQueueEntry) -> Result<(), ProtocolError> {
        let cid = cqe.command_id();
        let Some(slot) = self.slots.outstanding(cid) else {
            return Err(ProtocolError::UnknownCommand(cid));
        };
        let expected_bytes = match &slot.data {
            Data::Read(_) => slot.data.len(),
            _ => 0,
        };
        let outcome = if slot.has_bad_digest {
            Outcome::DataDigestMismatch
        } else if cqe.status().is_success()
            && slot.received_bytes != expected_bytes
            && !reactor::mutant!("short-read-accepted")
        {
            Outcome::DataUnderrun { received_bytes: slot.received_bytes, expected_bytes }
        } else {
            Outcome::Completed(*cqe)
        };
        self.finish(cid, outcome);
        Ok(())
    }

    fn accept_data(&mut self, data: &C2hData, header: &Header) -> Result<(), ProtocolError> {
        let cid = data.command_id();
        let Some(slot) = self.slots.outstanding(cid) else {
            return Err(ProtocolError::UnknownCommand(cid));
        };
        let Data::Read(_) = &slot.data else {
            return Err(PduError::out_of_range("cccid", u64::from(cid.get())).into());
        };
        let (offset, length) = (data.datao.get(), data.datal.get());
        if offset != slot.received_bytes {
            return Err(PduError::out_of_range("datao", u64::from(offset)).into());
        }
        if length > slot.data.len() - slot.received_bytes {
            return Err(PduError::out_of_range("datal", u64::from(length)).into());
        }
        assert!(
            matches!(self.receiving, Receiving::Header),
            "data of {cid:?} begins within that of another: {:?}",
            self.receiving
        );
        self.last_payload_bytes = length as usize;
        self.receiving = Receiving::Data(Incoming {
            cid,
            padding_bytes: header.padding_bytes,
            remaining_bytes: length,
            digest: header.has_data_digest.then(DataDigest::new),
            digest_received: [0; DIGEST_BYTES],
            digest_received_bytes: 0,
            is_success: data.is_success(),
            is_lent: false,
        });
        Ok(())
    }

    fn accept_r2t(&mut self, r2t: &R2t) -> Result<(), ProtocolError> {
        let cid = r2t.command_id();
        let Some(slot) = self.slots.outstanding(cid) else {
            return Err(ProtocolError::UnknownCommand(cid));
        };
        let Data::Write(payload) = &slot.data else {
            return Err(PduError::out_of_range("cccid", u64::from(cid.get())).into());
        };
        let (offset, length) = (r2t.r2to.get(), r2t.r2tl.get());
        if offset != slot.requested_bytes {
            return Err(PduError::out_of_range("r2to", u64::from(offset)).into());
        }
        if length > payload.len() as u32 - slot.requested_bytes {
            return Err(PduError::out_of_range("r2tl", u64::from(length)).into());
        }
        // Each one costs memory until its data is sent, which the controller may put off.
        slot.r2ts += 1;
        if slot.r2ts > 1 + payload.len() as u32 / R2T_BYTES_MIN {
            return Err(PduError::out_of_range("r2tl", u64::from(length)).into());
        }
        slot.requested_bytes += length;
        slot.assert_bounds();
        let range = offset..offset + length;
        let ttag = r2t.transfer_tag();
        let maxh2cdata_bytes = self.maxh2cdata_bytes;
        self.outbox.push_data(self.encoder, cid, ttag, payload, range, maxh2cdata_bytes);
        Ok(())
    }

    fn receive_data<'a>(&mut self, mut bytes: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        let Receiving::Data(incoming) = &mut self.receiving else { return Ok(bytes) };
        let skipped_bytes = incoming.padding_bytes.min(bytes.len());
        incoming.padding_bytes -= skipped_bytes;
        bytes = &bytes[skipped_bytes..];

        let n = bytes.len().min(incoming.remaining_bytes as usize);
        assert!(
            n == 0 || !incoming.is_lent,
            "{n} bytes arrive for {:?}, but its memory is lent",
            incoming.cid
        );
        if n > 0 {
            let (data, rest) = bytes.split_at(n);
            let Some(slot) = self.slots.outstanding(incoming.cid) else {
                return Err(ProtocolError::UnknownCommand(incoming.cid));
            };
            let Data::Read(destination) = &mut slot.data else {
                return Err(ProtocolError::UnknownCommand(incoming.cid));
            };
            if !destination.fill(slot.received_bytes, data) {
                return Err(ProtocolError::DestinationGone(incoming.cid));
            }
            slot.received_bytes += n as u32;
            slot.assert_bounds();
            incoming.remaining_bytes -= n as u32;
            if let Some(digest) = &mut incoming.digest {
                digest.update(data);
            }
            bytes = rest;
        }
        if incoming.remaining_bytes == 0 && incoming.digest.is_some() {
            let have_bytes = incoming.digest_received_bytes;
            let n = bytes.len().min(DIGEST_BYTES - have_bytes);
            incoming.digest_received[have_bytes..have_bytes + n].copy_from_slice(&bytes[..n]);
            incoming.digest_received_bytes += n;
            bytes = &bytes[n..];
        }
        self.finish_data_pdu()?;
        Ok(bytes)
    }

    /// Ends the `C2HData` PDU if it is complete.
    fn finish_data_pdu(&mut self) -> Result<(), ProtocolError> {
        let Receiving::Data(incoming) = &self.receiving else { return Ok(()) };
        let is_digest_missing =
            incoming.digest.is_some() && incoming.digest_received_bytes < DIGEST_BYTES;
        if incoming.padding_bytes > 0 || incoming.remaining_bytes > 0 || is_digest_missing {
            return Ok(());
        }
        let (cid, is_success) = (incoming.cid, incoming.is_success);
        let is_intact =
            incoming.digest.as_ref().is_none_or(|digest| digest.matches(incoming.digest_received));
        self.receiving = Receiving::Header;
        if !is_intact && let Some(slot) = self.slots.outstanding(cid) {
            slot.has_bad_digest = true;
        }
        if is_success {
            let cqe = CompletionQueueEntry::new(cid, u16::MAX, Status::SUCCESS);
            self.accept_response(&cqe)?;
        }
        Ok(())
    }
}

/// A PDU's header, copied so that the bytes below it are free again.
struct Header {
    kind: Kind,
    padding_bytes: usize,
    has_data_digest: bool,
}

enum Kind {
    IcResp(Box<nvme::tcp::IcResp>),
    Response(CapsuleResp),
    Data(C2hData),
    R2t(R2t),
    Term(TermReq),
}

impl Header {
    fn from(parsed: &Parsed<'_>, header_bytes: usize) -> Self {
        let kind = match parsed.pdu {
            Pdu::IcResp(response) => Kind::IcResp(Box::new(*response)),
            Pdu::CapsuleResp(capsule) => Kind::Response(*capsule),
            Pdu::C2hData(data) => Kind::Data(*data),
            Pdu::R2t(r2t) => Kind::R2t(*r2t),
            Pdu::C2hTermReq(request) => Kind::Term(*request),
            // The parser of a host returns no other PDU.
            Pdu::IcReq(_) | Pdu::H2cTermReq(_) | Pdu::CapsuleCmd(_) | Pdu::H2cData(_) => {
                unreachable!("the parser refuses PDUs from hosts")
            }
        };
        let padding_bytes = parsed.data_offset.saturating_sub(header_bytes);
        Self { kind, padding_bytes, has_data_digest: parsed.has_data_digest }
    }
}
