//! The receiving half of a queue pair: from bytes to commands and data.

use super::command::{CommandState, Tag};
use super::{Event, QueuePair, QueuePairState};
use nvme::sgl::Sgl;
use nvme::tcp::{
    DIGEST_BYTES, DataDigest, Encoder, H2cData, HEADER_BYTES_MAX, IcReq, IcResp, Parsed, Pdu,
    PduError, PduType,
};
use reactor::{Buffer, Chunk};

/// The data PDU that is being received.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) tag: Tag,
    /// Position of the next byte in the command's data.
    pub(super) offset: usize,
    /// Bytes of the PDU's data that have not arrived.
    pub(super) missing_bytes: usize,
    /// The digest so far, if the PDU has one.
    pub(super) digest: Option<DataDigest>,
    is_last: bool,
}

impl QueuePair {
    /// Takes received bytes and returns how many of them it used. The rest is the start of a PDU
    /// that needs more bytes. The caller has to pass the rest again together with those. The rest
    /// is never longer than a header with in-capsule data.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            if matches!(self.state, QueuePairState::Terminating | QueuePairState::Terminated) {
                return bytes.len();
            }
            let rest = &bytes[used..];
            let step =
                if self.payload.is_some() { self.feed_payload(rest) } else { self.pdu(rest) };
            if step == 0 {
                break;
            }
            used += step;
        }
        used
    }

    /// Takes the PDU at the start of `bytes`. Returns 0 if it needs more bytes.
    fn pdu(&mut self, bytes: &[u8]) -> usize {
        let parsed = match self.parser.parse(bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return 0,
            Err(error) => return self.terminate(&error, bytes),
        };
        // Only the data of a data PDU may arrive later; everything else is taken as a whole.
        let is_data = matches!(parsed.pdu, Pdu::H2cData(_));
        let whole = if is_data { parsed.data_offset } else { parsed.pdu_bytes };
        if bytes.len() < whole {
            return 0;
        }
        let result = match parsed.pdu {
            Pdu::IcReq(request) => self.initialize(request),
            Pdu::CapsuleCmd(capsule) => self.capsule(&capsule.sqe, &parsed, bytes),
            Pdu::H2cData(data) => self.data_header(data, &parsed),
            Pdu::H2cTermReq(request) => {
                tracing::debug!(status = %request.status(), "the host terminates the connection");
                self.state = QueuePairState::Terminated;
                Ok(())
            }
            // The parser accepts only PDUs of a host.
            _ => Err(PduError::sequence(bytes[0])),
        };
        match result {
            Ok(()) => whole,
            Err(error) => self.terminate(&error, bytes),
        }
    }

    fn initialize(&mut self, request: &IcReq) -> Result<(), PduError> {
        if self.state != QueuePairState::AwaitingIcReq {
            return Err(PduError::sequence(PduType::IcReq as u8));
        }
        let mut config = *self.parser.config();
        config.has_header_digest = request.has_header_digest() && self.allows_header_digest;
        config.has_data_digest = request.has_data_digest() && self.allows_data_digest;
        let response = IcResp::new(
            0,
            config.has_header_digest,
            config.has_data_digest,
            self.h2c_data_bytes_max,
        );
        self.emit(|out| Encoder::ic_resp(out, &response));
        self.parser.set_initialized(config);
        self.encoder = Encoder {
            has_header_digest: config.has_header_digest,
            has_data_digest: config.has_data_digest,
            data_alignment_bytes: request.data_alignment_bytes(),
        };
        self.state = QueuePairState::AwaitingConnect;
        Ok(())
    }

    fn capsule(
        &mut self,
        sqe: &nvme::SubmissionQueueEntry,
        parsed: &Parsed<'_>,
        bytes: &[u8],
    ) -> Result<(), PduError> {
        let end = parsed.data_offset + parsed.data_bytes;
        let data = &bytes[parsed.data_offset..end];
        let is_damaged = parsed.has_data_digest
            && bytes[end..end + DIGEST_BYTES] != nvme::tcp::crc32c(data).to_le_bytes();
        let data = described(sqe, data);
        let buffer = (!data.is_empty()).then(|| Buffer::copy_from(data));
        // The host has sent more commands than the queue has entries, so no status can answer this
        // one.
        let Some(tag) = self.commands.insert(sqe, buffer) else {
            return Err(PduError::sequence(PduType::CapsuleCmd as u8));
        };
        self.commands.get_mut(tag).is_damaged = is_damaged;
        if self.state == QueuePairState::Connected {
            self.advance_head();
        }
        self.events.push_back(Event::Command(tag));
        Ok(())
    }

    /// Checks that the data is the next part of the data that an R2T requested (TCP 3.3.2.1: the
    /// PDUs of an R2T arrive in order).
    fn data_header(&mut self, data: &H2cData, parsed: &Parsed<'_>) -> Result<(), PduError> {
        let ttag = data.transfer_tag().get();
        let unknown = PduError::invalid_field("ttag", 10, u64::from(ttag));
        let command = self.commands.find_mut(ttag).ok_or(unknown)?;
        if command.state != CommandState::AwaitingData {
            return Err(unknown);
        }
        if data.command_id() != command.sqe.command_id() {
            let cccid = u64::from(data.command_id().get());
            return Err(PduError::invalid_field("cccid", 8, cccid));
        }
        let (offset, length) = (data.datao.get(), data.datal.get());
        if offset != command.received_bytes {
            return Err(PduError::out_of_range("datao", u64::from(offset)));
        }
        let missing = command.expected_bytes - command.received_bytes;
        if length > missing {
            return Err(PduError::out_of_range("datal", u64::from(length)));
        }
        if data.is_last() != (length == missing) {
            return Err(PduError::invalid_field("flags", 1, u64::from(data.ch.flags)));
        }
        assert!(self.payload.is_none(), "data of {ttag} begins within {:?}", self.payload);
        self.payload = Some(Payload {
            tag: Tag(ttag),
            offset: offset as usize,
            missing_bytes: parsed.data_bytes,
            digest: parsed.has_data_digest.then(DataDigest::new),
            is_last: data.is_last(),
        });
        Ok(())
    }

    /// Takes a part of a data PDU's data, or its digest. Returns 0 if the digest needs more bytes.
    fn feed_payload(&mut self, bytes: &[u8]) -> usize {
        let Some(payload) = &mut self.payload else { return 0 };
        if payload.missing_bytes > 0 {
            let taken = payload.missing_bytes.min(bytes.len());
            let command = self.commands.get_mut(payload.tag);
            if let Some(buffer) = &mut command.data {
                assert_eq!(
                    buffer.len(),
                    payload.offset,
                    "data of {:?} does not fit into its buffer",
                    payload.tag
                );
                buffer.extend_from_slice(&bytes[..taken]);
            }
            if let Some(digest) = &mut payload.digest {
                digest.update(&bytes[..taken]);
            }
            payload.offset += taken;
            payload.missing_bytes -= taken;
            self.finish_payload_if_whole();
            return taken;
        }
        let Some(received) = bytes.first_chunk::<DIGEST_BYTES>() else { return 0 };
        let is_match = payload.digest.take().is_none_or(|digest| digest.matches(*received));
        if !is_match {
            // Not fatal (TCP 3.3.1.2): the command fails, and the connection continues.
            self.commands.get_mut(payload.tag).is_damaged = true;
        }
        self.finish_payload_if_whole();
        DIGEST_BYTES
    }

    /// Ends the data PDU if nothing of it, including the digest, is missing.
    pub(super) fn finish_payload_if_whole(&mut self) {
        let is_whole =
            |payload: &mut Payload| payload.missing_bytes == 0 && payload.digest.is_none();
        let Some(payload) = self.payload.take_if(is_whole) else { return };
        let command = self.commands.get_mut(payload.tag);
        command.received_bytes = payload.offset as u32;
        assert!(
            command.state == CommandState::AwaitingData
                && command.received_bytes <= command.expected_bytes
                && payload.is_last == (command.received_bytes == command.expected_bytes),
            "{:?} is {:?} with {} of {} bytes, after the last part: {}",
            payload.tag,
            command.state,
            command.received_bytes,
            command.expected_bytes,
            payload.is_last
        );
        if payload.is_last {
            command.state = CommandState::Executing;
            let is_large = command.expected_bytes as usize >= super::LARGE_TRANSFER_BYTES;
            assert!(
                self.awaiting_data > 0 && (self.large_transfers > 0 || !is_large),
                "data of {:?} has arrived, but {} commands wait for data, {} for large data",
                payload.tag,
                self.awaiting_data,
                self.large_transfers
            );
            self.awaiting_data -= 1;
            self.large_transfers -= usize::from(is_large);
            self.events.push_back(Event::Data(payload.tag));
        }
    }

    /// Ends the connection with a terminate request that names the fault. Uses up all input.
    fn terminate(&mut self, error: &PduError, pdu: &[u8]) -> usize {
        tracing::debug!(%error, "the host violates the transport");
        self.state = QueuePairState::Terminating;
        self.error = Some(*error);
        if !error.is_reported {
            // A terminate request is not answered by another.
            self.state = QueuePairState::Terminated;
            return pdu.len();
        }
        let header_bytes = pdu.get(2).map_or(0, |&hlen| usize::from(hlen));
        let header = &pdu[..header_bytes.min(pdu.len())];
        let mut out = [0; HEADER_BYTES_MAX];
        match Encoder::c2h_term_req(&mut out, error, header) {
            Ok(bytes) => self.output.data(Chunk::copy_from(&out[..bytes]), 0),
            Err(error) => tracing::error!(%error, "a terminate request could not be encoded"),
        }
        pdu.len()
    }
}

/// Returns the part of in-capsule data that starts at the offset in the command's descriptor. An
/// offset past the end gives an empty part, which the executor answers with SGL Offset Invalid.
fn described<'a>(sqe: &nvme::SubmissionQueueEntry, data: &'a [u8]) -> &'a [u8] {
    let Ok(Sgl::InCapsule { offset_bytes, .. }) = sqe.sgl1.decode() else { return data };
    usize::try_from(offset_bytes).ok().and_then(|offset| data.get(offset..)).unwrap_or_default()
}
