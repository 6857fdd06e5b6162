//! Writes PDU headers with digest and padding into the caller's bytes.
//!
//! Each function writes everything before the PDU's data and returns the number of bytes. The
//! caller then sends the data and the data digest ([`DataDigest`](super::DataDigest)) from their
//! own buffers. Nothing is allocated, and `out` may be longer than needed: [`HEADER_BYTES_MAX`] is
//! always enough.

use super::header::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, PduType, R2t, TermReq,
    flag,
};
use super::{DATA_ALIGNMENT_BYTES_MAX, DIGEST_BYTES, PduError, TERM_DATA_BYTES_MAX, crc32c};
use crate::{CommandId, CompletionQueueEntry, Error, SubmissionQueueEntry, TransferTag, U16, U32};

/// Largest number of bytes that any function here writes: a terminate request with its data.
pub const HEADER_BYTES_MAX: usize = TermReq::BYTES + TERM_DATA_BYTES_MAX;

/// The negotiated parameters of the PDUs to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Header digests are in force.
    pub has_header_digest: bool,
    /// Data digests are in force.
    pub has_data_digest: bool,
    /// Alignment of data in the PDUs sent, in bytes, a multiple of 4 up to 128: from HPDA for a
    /// controller, from CPDA for a host.
    pub data_alignment_bytes: u32,
}

impl Encoder {
    /// Parameters of a connection that is not initialized yet: no digests, data aligned to 4 bytes.
    pub const INITIAL: Self =
        Self { has_header_digest: false, has_data_digest: false, data_alignment_bytes: 4 };

    /// Writes an initialize Connection Request.
    pub fn ic_req(out: &mut [u8], request: &IcReq) -> Result<usize, Error> {
        put(out, request.bytes())
    }

    /// Writes an initialize Connection Response.
    pub fn ic_resp(out: &mut [u8], response: &IcResp) -> Result<usize, Error> {
        put(out, response.bytes())
    }

    /// Writes a command capsule with `data_bytes` of in-capsule data.
    pub fn capsule_cmd(
        &self,
        out: &mut [u8],
        sqe: &SubmissionQueueEntry,
        data_bytes: u32,
    ) -> Result<usize, Error> {
        let ch = self.common_header(PduType::CapsuleCmd, 0, data_bytes)?;
        self.finish(out, ch, CapsuleCmd { ch, sqe: *sqe }.bytes())
    }

    /// Writes a response capsule.
    pub fn capsule_resp(&self, out: &mut [u8], cqe: &CompletionQueueEntry) -> Result<usize, Error> {
        let ch = self.common_header(PduType::CapsuleResp, 0, 0)?;
        self.finish(out, ch, CapsuleResp { ch, cqe: *cqe }.bytes())
    }

    /// Writes a data PDU to the controller: `data_bytes` from `data_offset` of the command's data,
    /// for the R2T with this tag; `is_last` if it is the R2T's last.
    pub fn h2c_data(
        &self,
        out: &mut [u8],
        cid: CommandId,
        ttag: TransferTag,
        data_offset: u32,
        data_bytes: u32,
        is_last: bool,
    ) -> Result<usize, Error> {
        let flags = if is_last { flag::LAST } else { 0 };
        let ch = self.data_header(PduType::H2cData, flags, data_bytes)?;
        let header = H2cData {
            ch,
            cccid: U16::new(cid.get()),
            ttag: U16::new(ttag.get()),
            datao: U32::new(data_offset),
            datal: U32::new(data_bytes),
            rsvd20: [0; 4],
        };
        self.finish(out, ch, header.bytes())
    }

    /// Writes a data PDU to the host: `data_bytes` from `data_offset` of the command's data;
    /// `is_last` if it is the command's last, `is_success` (only then) if no response capsule
    /// follows.
    pub fn c2h_data(
        &self,
        out: &mut [u8],
        cid: CommandId,
        data_offset: u32,
        data_bytes: u32,
        is_last: bool,
        is_success: bool,
    ) -> Result<usize, Error> {
        let flags = match (is_last, is_success) {
            (false, false) => 0,
            (true, false) => flag::LAST,
            (true, true) => flag::LAST | flag::SUCCESS,
            (false, true) => {
                return Err(Error::InvalidField {
                    field: "flags",
                    value: u64::from(flag::SUCCESS),
                });
            }
        };
        let ch = self.data_header(PduType::C2hData, flags, data_bytes)?;
        let header = C2hData {
            ch,
            cccid: U16::new(cid.get()),
            rsvd10: [0; 2],
            datao: U32::new(data_offset),
            datal: U32::new(data_bytes),
            rsvd20: [0; 4],
        };
        self.finish(out, ch, header.bytes())
    }

    /// Writes a request for `length_bytes` from `offset` of the command's data.
    pub fn r2t(
        &self,
        out: &mut [u8],
        cid: CommandId,
        ttag: TransferTag,
        offset: u32,
        length_bytes: u32,
    ) -> Result<usize, Error> {
        let ch = self.common_header(PduType::R2t, 0, 0)?;
        let header = R2t {
            ch,
            cccid: U16::new(cid.get()),
            ttag: U16::new(ttag.get()),
            r2to: U32::new(offset),
            r2tl: U32::new(length_bytes),
            rsvd20: [0; 4],
        };
        self.finish(out, ch, header.bytes())
    }

    /// Writes a terminate request from a host; the controller then closes the connection. `bytes`
    /// are the received bytes from the start of the PDU in error: the request contains its header.
    pub fn h2c_term_req(out: &mut [u8], error: &PduError, bytes: &[u8]) -> Result<usize, Error> {
        term_req(out, PduType::H2cTermReq, error, bytes)
    }

    /// Writes a terminate request from a controller, which then closes the connection; `bytes` as
    /// in [`Self::h2c_term_req`].
    pub fn c2h_term_req(out: &mut [u8], error: &PduError, bytes: &[u8]) -> Result<usize, Error> {
        term_req(out, PduType::C2hTermReq, error, bytes)
    }

    /// Returns the size of a whole PDU with `prefix_bytes` before the data.
    pub const fn pdu_bytes(&self, prefix_bytes: usize, data_bytes: u32) -> usize {
        let has_digest = self.has_data_digest && data_bytes > 0;
        prefix_bytes + data_bytes as usize + if has_digest { DIGEST_BYTES } else { 0 }
    }

    fn data_header(
        self,
        pdu_type: PduType,
        flags: u8,
        data_bytes: u32,
    ) -> Result<CommonHeader, Error> {
        if data_bytes == 0 {
            return Err(Error::InvalidField { field: "datal", value: 0 });
        }
        self.common_header(pdu_type, flags, data_bytes)
    }

    fn common_header(
        self,
        pdu_type: PduType,
        flags: u8,
        data_bytes: u32,
    ) -> Result<CommonHeader, Error> {
        let mut ch = CommonHeader::new(pdu_type);
        ch.flags = flags;
        let mut plen = u32::from(ch.hlen);
        if self.has_header_digest {
            ch.flags |= flag::HDGST;
            plen += DIGEST_BYTES as u32;
        }
        if data_bytes > 0 {
            let alignment = self.data_alignment_bytes;
            if !(4..=DATA_ALIGNMENT_BYTES_MAX).contains(&alignment) || !alignment.is_multiple_of(4)
            {
                return Err(Error::InvalidField { field: "pda", value: u64::from(alignment) });
            }
            plen = plen.next_multiple_of(alignment);
            ch.pdo = plen as u8;
            let digest_bytes = if self.has_data_digest { DIGEST_BYTES as u32 } else { 0 };
            if self.has_data_digest {
                ch.flags |= flag::DDGST;
            }
            plen = (plen + digest_bytes)
                .checked_add(data_bytes)
                .ok_or(Error::InvalidField { field: "plen", value: u64::from(data_bytes) })?;
        }
        ch.plen = U32::new(plen);
        Ok(ch)
    }

    fn finish(self, out: &mut [u8], ch: CommonHeader, header: &[u8]) -> Result<usize, Error> {
        let digest_bytes = if self.has_header_digest { DIGEST_BYTES } else { 0 };
        let unpadded_bytes = header.len() + digest_bytes;
        let total_bytes = unpadded_bytes.max(usize::from(ch.pdo));
        let have_bytes = out.len();
        let out = out
            .get_mut(..total_bytes)
            .ok_or(Error::BufferTooSmall { need_bytes: total_bytes, have_bytes })?;
        out[..header.len()].copy_from_slice(header);
        if self.has_header_digest {
            out[header.len()..unpadded_bytes].copy_from_slice(&crc32c(header).to_le_bytes());
        }
        out[unpadded_bytes..].fill(0);
        Ok(total_bytes)
    }
}

fn put(out: &mut [u8], header: &[u8]) -> Result<usize, Error> {
    Encoder::INITIAL.finish(out, CommonHeader::default(), header)
}

fn term_req(
    out: &mut [u8],
    pdu_type: PduType,
    error: &PduError,
    bytes: &[u8],
) -> Result<usize, Error> {
    // If HLEN cannot be right, the request contains only the common header.
    let hlen = match bytes.get(2) {
        Some(&hlen) if usize::from(hlen) >= CommonHeader::BYTES => usize::from(hlen),
        _ => CommonHeader::BYTES,
    };
    let data = &bytes[..bytes.len().min(hlen).min(TERM_DATA_BYTES_MAX)];
    let need_bytes = TermReq::BYTES + data.len();
    let mut ch = CommonHeader::new(pdu_type);
    ch.plen = U32::new(need_bytes as u32);
    let request =
        TermReq { ch, fes: U16::new(error.fes.0), fei: U32::new(error.fei), rsvd14: [0; 10] };
    let have_bytes = out.len();
    let out = out.get_mut(..need_bytes).ok_or(Error::BufferTooSmall { need_bytes, have_bytes })?;
    out[..TermReq::BYTES].copy_from_slice(request.bytes());
    out[TermReq::BYTES..].copy_from_slice(data);
    Ok(need_bytes)
}
