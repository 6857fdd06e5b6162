//! Finds the PDU at the start of received bytes and checks its header (TCP 3.6.2).
//!
//! The parser stores only the negotiated parameters. The caller holds the bytes, calls
//! [`Parser::parse`] at each PDU's start, and advances by [`Parsed::pdu_bytes`], whether the PDU's
//! data is in the buffer already or still to be received. All returned lengths are checked against
//! each other and against the limits, so the caller may index by them.

use super::header::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, PduType, R2t, TermReq,
    flag,
};
use super::{
    DATA_ALIGNMENT_BYTES_MAX, DIGEST_BYTES, MAXH2CDATA_BYTES_MIN, PduError, TERM_DATA_BYTES_MAX,
    crc32c,
};

/// The end that parses; it determines the allowed PDU types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A controller, receiving from a host.
    Controller,
    /// A host, receiving from a controller.
    Host,
}

/// The negotiated parameters of the PDUs to receive, and the receiver's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParserConfig {
    /// The end that parses.
    pub receiver: Receiver,
    /// Header digests are in force.
    pub has_header_digest: bool,
    /// Data digests are in force.
    pub has_data_digest: bool,
    /// Alignment of data in the PDUs received, in bytes: any multiple of 4 up to 128. It comes from
    /// CPDA for a controller, from HPDA for a host.
    pub data_alignment_bytes: u32,
    /// Largest in-capsule data of a command in bytes. For a controller.
    pub in_capsule_data_bytes_max: u32,
    /// Largest data of one data PDU in bytes: MAXH2CDATA for a controller; for a host the largest
    /// transfer that it has requested.
    pub data_bytes_max: u32,
}

/// Checks headers of received PDUs; see the module's head.
#[derive(Clone, Debug)]
pub struct Parser {
    config: ParserConfig,
    is_initialized: bool,
}

/// A PDU's checked header, borrowed from the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu<'a> {
    /// Initialize Connection Request.
    IcReq(&'a IcReq),
    /// Initialize Connection Response.
    IcResp(&'a IcResp),
    /// Terminate request from the host; its data is the header of the PDU in error.
    H2cTermReq(&'a TermReq),
    /// Terminate request from the controller; its data is the header of the PDU in error.
    C2hTermReq(&'a TermReq),
    /// Command.
    CapsuleCmd(&'a CapsuleCmd),
    /// Response.
    CapsuleResp(&'a CapsuleResp),
    /// Data to the controller.
    H2cData(&'a H2cData),
    /// Data to the host.
    C2hData(&'a C2hData),
    /// Request for data.
    R2t(&'a R2t),
}

/// A PDU and the places of its parts, in bytes from its start. If it has data: `data_offset +
/// data_bytes + (4 if has_data_digest) == pdu_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// The header.
    pub pdu: Pdu<'a>,
    /// Offset of the data.
    pub data_offset: usize,
    /// Length of the data; 0 without data.
    pub data_bytes: usize,
    /// Whether a data digest follows the data.
    pub has_data_digest: bool,
    /// PLEN: offset of the next PDU.
    pub pdu_bytes: usize,
}

impl Parsed<'_> {
    /// Returns the part of the PDU's data that is in `bytes`, which begin with the PDU.
    pub fn data<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let end = bytes.len().min(self.data_offset + self.data_bytes);
        bytes.get(self.data_offset..end).unwrap_or_default()
    }

    /// Checks the data digest of a PDU that is in `bytes` from its start.
    ///
    /// Returns [`None`] if the PDU has no digest or is incomplete, otherwise whether the digest
    /// matches. A mismatch is not fatal for the connection (TCP 3.3.1.2): the command fails with a
    /// transient transport error.
    pub fn is_data_intact(&self, bytes: &[u8]) -> Option<bool> {
        let data_end = self.data_offset + self.data_bytes;
        if !self.has_data_digest {
            return None;
        }
        let received = bytes.get(data_end..)?.first_chunk::<DIGEST_BYTES>()?;
        Some(u32::from_le_bytes(*received) == crc32c(self.data(bytes)))
    }
}

/// The lengths of a PDU's parts from its common header.
struct Layout {
    pdu_type: PduType,
    data_offset: usize,
    data_bytes: usize,
    has_data_digest: bool,
    pdu_bytes: usize,
}

impl Parser {
    /// Returns a parser for a new connection. The first PDU must be `ICReq` or `ICResp`, which have
    /// neither digests nor data, so these parts of `config` matter only after
    /// [`Self::set_initialized`].
    pub const fn new(config: ParserConfig) -> Self {
        Self { config, is_initialized: false }
    }

    /// Marks the connection as initialized: from now on `ICReq` and `ICResp` are errors, and
    /// `config` with the negotiated parameters applies.
    pub const fn set_initialized(&mut self, config: ParserConfig) {
        self.config = config;
        self.is_initialized = true;
    }

    /// Returns the present parameters.
    pub const fn config(&self) -> &ParserConfig {
        &self.config
    }

    /// Returns the PDU at the start of `bytes`, or [`None`] if its header (with digest) is
    /// incomplete: [`Self::need_bytes`] returns how much is needed. The data need not be there.
    ///
    /// Fails as soon as the common header shows an error. The connection must then be terminated,
    /// because the start of the next PDU is unknown.
    pub fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Option<Parsed<'a>>, PduError> {
        let Ok(ch) = CommonHeader::from_prefix(bytes) else { return Ok(None) };
        let layout = self.check_common_header(*ch)?;
        let header_bytes = usize::from(ch.hlen);
        if bytes.len() < header_bytes + self.header_digest_bytes(layout.pdu_type) {
            return Ok(None);
        }
        if self.header_digest_bytes(layout.pdu_type) != 0 {
            check_header_digest(bytes, header_bytes)?;
        }
        let Some(pdu) = header_of(layout.pdu_type, bytes) else { return Ok(None) };
        check_fields(&pdu, layout.data_bytes)?;
        Ok(Some(Parsed {
            pdu,
            data_offset: layout.data_offset,
            data_bytes: layout.data_bytes,
            has_data_digest: layout.has_data_digest,
            pdu_bytes: layout.pdu_bytes,
        }))
    }

    /// Returns the number of bytes that [`Self::parse`] needs of the PDU at the start of `bytes`:
    /// those of the common header, or if they are there, those of the header and its digest.
    pub fn need_bytes(&self, bytes: &[u8]) -> Result<usize, PduError> {
        let Ok(ch) = CommonHeader::from_prefix(bytes) else { return Ok(CommonHeader::BYTES) };
        let layout = self.check_common_header(*ch)?;
        Ok(usize::from(ch.hlen) + self.header_digest_bytes(layout.pdu_type))
    }

    fn header_digest_bytes(&self, pdu_type: PduType) -> usize {
        if self.config.has_header_digest && pdu_type.may_have_digest() { DIGEST_BYTES } else { 0 }
    }

    fn check_common_header(&self, ch: CommonHeader) -> Result<Layout, PduError> {
        let pdu_type = self.check_type(ch.pdu_type)?;
        let is_reported = !pdu_type.is_term_req();
        self.check_rest(pdu_type, ch).map_err(|error| PduError { is_reported, ..error })
    }

    fn check_rest(&self, pdu_type: PduType, ch: CommonHeader) -> Result<Layout, PduError> {
        // The error must name the lowest invalid field (TCP 3.5), hence the order.
        if pdu_type.may_have_digest() {
            let has_flag = ch.flags & flag::HDGST != 0;
            if has_flag != self.config.has_header_digest {
                return Err(PduError::invalid_field("flags", 1, u64::from(ch.flags)));
            }
        }
        if pdu_type == PduType::C2hData && ch.flags & (flag::SUCCESS | flag::LAST) == flag::SUCCESS
        {
            return Err(PduError::invalid_field("flags", 1, u64::from(ch.flags)));
        }
        if usize::from(ch.hlen) != pdu_type.header_bytes() {
            return Err(PduError::invalid_field("hlen", 2, u64::from(ch.hlen)));
        }
        self.layout(pdu_type, ch)
    }

    fn check_type(&self, value: u8) -> Result<PduType, PduError> {
        let is_controller = self.config.receiver == Receiver::Controller;
        let pdu_type = PduType::from_u8(value)
            .filter(|pdu_type| pdu_type.is_from_host() == is_controller)
            .ok_or(PduError::invalid_field("pdu_type", 0, u64::from(value)))?;
        let is_expected = match pdu_type {
            PduType::IcReq | PduType::IcResp => !self.is_initialized,
            PduType::H2cTermReq | PduType::C2hTermReq => true,
            _ => self.is_initialized,
        };
        if is_expected { Ok(pdu_type) } else { Err(PduError::sequence(value)) }
    }

    fn layout(&self, pdu_type: PduType, ch: CommonHeader) -> Result<Layout, PduError> {
        let plen = ch.plen.get();
        let wrong_plen = PduError::invalid_field("plen", 4, u64::from(plen));
        let header_bytes = u32::from(ch.hlen) + self.header_digest_bytes(pdu_type) as u32;
        let no_data = Layout {
            pdu_type,
            data_offset: header_bytes as usize,
            data_bytes: 0,
            has_data_digest: false,
            pdu_bytes: header_bytes as usize,
        };
        let data_bytes_max = match pdu_type {
            PduType::H2cTermReq | PduType::C2hTermReq => {
                let data_bytes = plen.checked_sub(header_bytes).ok_or(wrong_plen)?;
                if data_bytes > TERM_DATA_BYTES_MAX as u32 {
                    return Err(wrong_plen);
                }
                let data_bytes = data_bytes as usize;
                return Ok(Layout { data_bytes, pdu_bytes: plen as usize, ..no_data });
            }
            PduType::CapsuleCmd if plen == header_bytes => return Ok(no_data),
            PduType::CapsuleCmd => self.config.in_capsule_data_bytes_max,
            PduType::H2cData | PduType::C2hData => self.config.data_bytes_max,
            PduType::IcReq | PduType::IcResp | PduType::CapsuleResp | PduType::R2t => {
                return if plen == header_bytes { Ok(no_data) } else { Err(wrong_plen) };
            }
        };
        self.layout_with_data(pdu_type, ch, header_bytes, data_bytes_max)
    }

    fn layout_with_data(
        &self,
        pdu_type: PduType,
        ch: CommonHeader,
        header_bytes: u32,
        data_bytes_max: u32,
    ) -> Result<Layout, PduError> {
        let plen = ch.plen.get();
        let wrong_plen = PduError::invalid_field("plen", 4, u64::from(plen));
        let has_data_digest = ch.flags & flag::DDGST != 0;
        if has_data_digest != self.config.has_data_digest {
            return Err(PduError::invalid_field("flags", 1, u64::from(ch.flags)));
        }
        let data_offset = u32::from(ch.pdo);
        if data_offset < header_bytes
            || !data_offset.is_multiple_of(self.config.data_alignment_bytes.max(1))
            || data_offset - header_bytes >= DATA_ALIGNMENT_BYTES_MAX
        {
            return Err(PduError::invalid_field("pdo", 3, u64::from(ch.pdo)));
        }
        let digest_bytes = if has_data_digest { DIGEST_BYTES as u32 } else { 0 };
        let data_bytes = plen
            .checked_sub(data_offset + digest_bytes)
            .filter(|&data_bytes| data_bytes > 0)
            .ok_or(wrong_plen)?;
        if data_bytes > data_bytes_max {
            // A wrong size of a capsule is an invalid field, a wrong size of a data PDU exceeds a
            // limit.
            return Err(match pdu_type {
                PduType::CapsuleCmd => wrong_plen,
                _ => PduError::limit_exceeded("plen", u64::from(plen)),
            });
        }
        Ok(Layout {
            pdu_type,
            data_offset: data_offset as usize,
            data_bytes: data_bytes as usize,
            has_data_digest,
            pdu_bytes: plen as usize,
        })
    }
}

fn check_header_digest(bytes: &[u8], header_bytes: usize) -> Result<(), PduError> {
    let (header, rest) = bytes.split_at(header_bytes);
    let received =
        rest.first_chunk::<DIGEST_BYTES>().map_or(0, |digest| u32::from_le_bytes(*digest));
    if received == crc32c(header) { Ok(()) } else { Err(PduError::header_digest(received)) }
}

fn header_of(pdu_type: PduType, bytes: &[u8]) -> Option<Pdu<'_>> {
    Some(match pdu_type {
        PduType::IcReq => Pdu::IcReq(IcReq::from_prefix(bytes).ok()?),
        PduType::IcResp => Pdu::IcResp(IcResp::from_prefix(bytes).ok()?),
        PduType::H2cTermReq => Pdu::H2cTermReq(TermReq::from_prefix(bytes).ok()?),
        PduType::C2hTermReq => Pdu::C2hTermReq(TermReq::from_prefix(bytes).ok()?),
        PduType::CapsuleCmd => Pdu::CapsuleCmd(CapsuleCmd::from_prefix(bytes).ok()?),
        PduType::CapsuleResp => Pdu::CapsuleResp(CapsuleResp::from_prefix(bytes).ok()?),
        PduType::H2cData => Pdu::H2cData(H2cData::from_prefix(bytes).ok()?),
        PduType::C2hData => Pdu::C2hData(C2hData::from_prefix(bytes).ok()?),
        PduType::R2t => Pdu::R2t(R2t::from_prefix(bytes).ok()?),
    })
}

/// Checks everything that can be checked without knowing the connection's commands.
fn check_fields(pdu: &Pdu<'_>, data_bytes: usize) -> Result<(), PduError> {
    match pdu {
        Pdu::IcReq(request) => check_init(request.pfv.get(), "hpda", request.hpda),
        Pdu::IcResp(response) => {
            check_init(response.pfv.get(), "cpda", response.cpda)?;
            let maxh2cdata = response.maxh2cdata.get();
            if maxh2cdata < MAXH2CDATA_BYTES_MIN || !maxh2cdata.is_multiple_of(4) {
                return Err(PduError::invalid_field("maxh2cdata", 12, u64::from(maxh2cdata)));
            }
            Ok(())
        }
        Pdu::H2cData(data) => check_range(data_bytes, data.datao.get(), data.datal.get()),
        Pdu::C2hData(data) => check_range(data_bytes, data.datao.get(), data.datal.get()),
        Pdu::R2t(r2t) => {
            let length = r2t.r2tl.get();
            if length == 0 || r2t.r2to.get().checked_add(length).is_none() {
                return Err(PduError::invalid_field("r2tl", 16, u64::from(length)));
            }
            Ok(())
        }
        Pdu::H2cTermReq(_) | Pdu::C2hTermReq(_) | Pdu::CapsuleCmd(_) | Pdu::CapsuleResp(_) => {
            Ok(())
        }
    }
}

fn check_init(pfv: u16, field: &'static str, alignment: u8) -> Result<(), PduError> {
    if pfv != 0 {
        return Err(PduError::unsupported("pfv", 8, u64::from(pfv)));
    }
    if alignment > 31 {
        return Err(PduError::invalid_field(field, 10, u64::from(alignment)));
    }
    Ok(())
}

fn check_range(data_bytes: usize, datao: u32, datal: u32) -> Result<(), PduError> {
    if datal as usize != data_bytes {
        return Err(PduError::invalid_field("datal", 16, u64::from(datal)));
    }
    if datao.checked_add(datal).is_none() {
        return Err(PduError::out_of_range("datao", u64::from(datao)));
    }
    Ok(())
}
