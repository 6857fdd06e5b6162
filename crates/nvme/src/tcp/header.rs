//! The PDU headers (TCP 3.6.2). Digest, padding and data are not part of these structures.

use crate::{CommandId, CompletionQueueEntry, SubmissionQueueEntry, TransferTag, U16, U32};

/// Flag bits of the common header.
pub mod flag {
    /// HDGSTF: a header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// `LAST_PDU`: the last data PDU of its R2T or command.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS, with LAST in `C2HData`: the command succeeded and no response capsule follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// PDU-Type (TCP figure 18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller, the first PDU.
    IcReq = 0x00,
    /// Initialize Connection Response, the answer to it.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host to Controller Data Transfer.
    H2cData = 0x06,
    /// Controller to Host Data Transfer.
    C2hData = 0x07,
    /// Ready to Transfer.
    R2t = 0x09,
}

impl PduType {
    /// Returns the type with this number, if there is one.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// Returns HLEN of a PDU of this type, in bytes.
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::IcReq => IcReq::BYTES,
            Self::IcResp => IcResp::BYTES,
            Self::H2cTermReq | Self::C2hTermReq => TermReq::BYTES,
            Self::CapsuleCmd => CapsuleCmd::BYTES,
            Self::CapsuleResp => CapsuleResp::BYTES,
            Self::H2cData => H2cData::BYTES,
            Self::C2hData => C2hData::BYTES,
            Self::R2t => R2t::BYTES,
        }
    }

    /// Whether PDUs of this type carry digests once these are negotiated.
    pub const fn may_have_digest(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether this is a terminate request, of either end.
    pub const fn is_term_req(self) -> bool {
        matches!(self, Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether the host sends this type; otherwise the controller does.
    pub const fn is_from_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }
}

wire_struct! {
    /// PDU common header, CH (TCP figure 17).
    pub struct CommonHeader[8] {
        /// PDU-Type.
        pub pdu_type: u8,
        /// Flags, see [`flag`].
        pub flags: u8,
        /// HLEN: length of the header in bytes, without digest.
        pub hlen: u8,
        /// PDO: bytes from the start of the PDU to its data; 0 without data.
        pub pdo: u8,
        /// PLEN: length of the whole PDU in bytes, with digests and padding.
        pub plen: U32,
    }
}

impl CommonHeader {
    /// Returns a header for a PDU of this type without digests, padding and data.
    pub fn new(pdu_type: PduType) -> Self {
        let hlen = pdu_type.header_bytes();
        Self {
            pdu_type: pdu_type as u8,
            flags: 0,
            hlen: hlen as u8,
            pdo: 0,
            plen: U32::new(hlen as u32),
        }
    }
}

wire_struct! {
    /// Initialize Connection Request (TCP figure 19).
    pub struct IcReq[128] {
        /// Common header.
        pub ch: CommonHeader,
        /// PFV: PDU format version, 0.
        pub pfv: U16,
        /// HPDA: alignment of data in PDUs to the host, in dwords, 0's based, at most 31.
        pub hpda: u8,
        /// DGST: bit 0 header digest, bit 1 data digest wanted.
        pub dgst: u8,
        /// MAXR2T: R2Ts that the host takes at a time for one command, 0's based.
        pub maxr2t: U32,
        /// Reserved.
        pub rsvd16: [u8; 112],
    }
}

impl IcReq {
    /// Returns a request; `maxr2t` is 0's based.
    pub fn new(hpda: u8, has_header_digest: bool, has_data_digest: bool, maxr2t: u32) -> Self {
        Self {
            ch: CommonHeader::new(PduType::IcReq),
            hpda,
            dgst: dgst(has_header_digest, has_data_digest),
            maxr2t: U32::new(maxr2t),
            ..Self::default()
        }
    }

    /// Whether the host wants header digests.
    pub fn has_header_digest(&self) -> bool {
        self.dgst & 1 != 0
    }

    /// Whether the host wants data digests.
    pub fn has_data_digest(&self) -> bool {
        self.dgst & 2 != 0
    }

    /// Returns the alignment of data in PDUs to the host.
    pub fn data_alignment_bytes(&self) -> u32 {
        (u32::from(self.hpda) + 1) * 4
    }
}

wire_struct! {
    /// Initialize Connection Response (TCP figure 20).
    pub struct IcResp[128] {
        /// Common header.
        pub ch: CommonHeader,
        /// PFV: PDU format version, 0.
        pub pfv: U16,
        /// CPDA: alignment of data in PDUs to the controller, in dwords, 0's based, at most 31.
        pub cpda: u8,
        /// DGST: bit 0 header digest, bit 1 data digest in force.
        pub dgst: u8,
        /// MAXH2CDATA: most data in one `H2CData` PDU in bytes, a multiple of 4, at least 4096.
        pub maxh2cdata: U32,
        /// Reserved.
        pub rsvd16: [u8; 112],
    }
}

impl IcResp {
    /// Returns a response.
    pub fn new(
        cpda: u8,
        has_header_digest: bool,
        has_data_digest: bool,
        maxh2cdata_bytes: u32,
    ) -> Self {
        Self {
            ch: CommonHeader::new(PduType::IcResp),
            cpda,
            dgst: dgst(has_header_digest, has_data_digest),
            maxh2cdata: U32::new(maxh2cdata_bytes),
            ..Self::default()
        }
    }

    /// Whether header digests are in force from now on.
    pub fn has_header_digest(&self) -> bool {
        self.dgst & 1 != 0
    }

    /// Whether data digests are in force from now on.
    pub fn has_data_digest(&self) -> bool {
        self.dgst & 2 != 0
    }

    /// Returns the alignment of data in PDUs to the controller.
    pub fn data_alignment_bytes(&self) -> u32 {
        (u32::from(self.cpda) + 1) * 4
    }
}

fn dgst(has_header_digest: bool, has_data_digest: bool) -> u8 {
    u8::from(has_header_digest) | (u8::from(has_data_digest) << 1)
}

wire_struct! {
    /// Terminate Connection Request, either way (TCP figures 21 and 24); its data is the header of
    /// the PDU in error.
    pub struct TermReq[24] {
        /// Common header.
        pub ch: CommonHeader,
        /// FES: fatal error status.
        pub fes: U16,
        /// FEI: fatal error information; its meaning depends on FES.
        pub fei: U32,
        /// Reserved.
        pub rsvd14: [u8; 10],
    }
}

wire_struct! {
    /// Command capsule (TCP figure 27), followed by its in-capsule data, if any.
    pub struct CapsuleCmd[72] {
        /// Common header.
        pub ch: CommonHeader,
        /// CCSQE: the command.
        pub sqe: SubmissionQueueEntry,
    }
}

wire_struct! {
    /// Response capsule (TCP figure 28).
    pub struct CapsuleResp[24] {
        /// Common header.
        pub ch: CommonHeader,
        /// RCCQE: the completion.
        pub cqe: CompletionQueueEntry,
    }
}

wire_struct! {
    /// Host to Controller Data Transfer (TCP figure 29), followed by data.
    pub struct H2cData[24] {
        /// Common header.
        pub ch: CommonHeader,
        /// CCCID: the command that the data belongs to.
        pub cccid: U16,
        /// TTAG: the tag of the R2T that requested the data.
        pub ttag: U16,
        /// DATAO: offset of the data in the command's data, in bytes.
        pub datao: U32,
        /// DATAL: length of the data in bytes.
        pub datal: U32,
        /// Reserved.
        pub rsvd20: [u8; 4],
    }
}

impl H2cData {
    /// Returns the command that the data belongs to.
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cccid.get())
    }

    /// Returns the tag of the R2T that requested the data.
    pub fn transfer_tag(&self) -> TransferTag {
        TransferTag(self.ttag.get())
    }

    /// Whether this is the last PDU of its R2T.
    pub fn is_last(&self) -> bool {
        self.ch.flags & flag::LAST != 0
    }
}

wire_struct! {
    /// Controller to Host Data Transfer (TCP figure 30), followed by data.
    pub struct C2hData[24] {
        /// Common header.
        pub ch: CommonHeader,
        /// CCCID: the command that the data belongs to.
        pub cccid: U16,
        /// Reserved.
        pub rsvd10: [u8; 2],
        /// DATAO: offset of the data in the command's data, in bytes.
        pub datao: U32,
        /// DATAL: length of the data in bytes.
        pub datal: U32,
        /// Reserved.
        pub rsvd20: [u8; 4],
    }
}

impl C2hData {
    /// Returns the command that the data belongs to.
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cccid.get())
    }

    /// Whether this is the last PDU of its command.
    pub fn is_last(&self) -> bool {
        self.ch.flags & flag::LAST != 0
    }

    /// Whether the command succeeded and no response capsule will come.
    pub fn is_success(&self) -> bool {
        self.ch.flags & flag::SUCCESS != 0
    }
}

wire_struct! {
    /// Ready to Transfer (TCP figure 31).
    pub struct R2t[24] {
        /// Common header.
        pub ch: CommonHeader,
        /// CCCID: the command with the requested data.
        pub cccid: U16,
        /// TTAG: the tag that the `H2CData` PDUs repeat.
        pub ttag: U16,
        /// R2TO: offset in the command's data, in bytes.
        pub r2to: U32,
        /// R2TL: length of the requested data, in bytes.
        pub r2tl: U32,
        /// Reserved.
        pub rsvd20: [u8; 4],
    }
}

impl R2t {
    /// Returns the command with the requested data.
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cccid.get())
    }

    /// Returns the tag that the `H2CData` PDUs repeat.
    pub fn transfer_tag(&self) -> TransferTag {
        TransferTag(self.ttag.get())
    }
}
