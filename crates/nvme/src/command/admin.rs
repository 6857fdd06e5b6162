//! Admin commands (base 5).

use crate::opcode::AdminOpcode;
use crate::{CommandId, ControllerId, Error, Nsid, QueueId, SubmissionQueueEntry, U32};

/// Dwords of Identify (base 5.1.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identify {
    /// CNS: the requested structure, see [`crate::identify::cns`].
    pub cns: u8,
    /// CNTID: a controller, for the CNS values that need one.
    pub cntid: ControllerId,
    /// CNSSID: identifier required by some CNS values.
    pub cnssid: u16,
    /// CSI: command set, see [`crate::identify::csi`].
    pub csi: u8,
    /// UUID index (7 bits).
    pub uuid_index: u8,
}

impl Identify {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            cns: (cdw10 & 0xff) as u8,
            cntid: ControllerId((cdw10 >> 16) as u16),
            cnssid: (cdw11 & 0xffff) as u16,
            csi: (cdw11 >> 24) as u8,
            uuid_index: (sqe.cdw14.get() & 0x7f) as u8,
        }
    }

    /// Encodes the command; its data is 4096 bytes. Bit 7 of the UUID index is dropped.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::admin(AdminOpcode::IDENTIFY, nsid);
        sqe.cdw10 = U32::new(u32::from(self.cns) | (u32::from(self.cntid.get()) << 16));
        sqe.cdw11 = U32::new(u32::from(self.cnssid) | (u32::from(self.csi) << 24));
        sqe.cdw14 = U32::new(u32::from(self.uuid_index & 0x7f));
        sqe
    }
}

/// Dwords of Get Log Page (base 5.1.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID: which page, see [`crate::log_page::lid`].
    pub lid: u8,
    /// LSP: log specific parameter (7 bits).
    pub lsp: u8,
    /// RAE: reading does not clear the page's asynchronous event.
    pub is_event_retained: bool,
    /// Dwords to transfer, 1 to 2^32 (NUMD + 1).
    pub dwords: u64,
    /// LSI: log specific identifier.
    pub lsi: u16,
    /// LPO: start in the page: in bytes, or an index if `is_offset_index`.
    pub offset: u64,
    /// OT: the offset counts entries of the page, not bytes.
    pub is_offset_index: bool,
    /// CSI: command set.
    pub csi: u8,
    /// UUID index (7 bits).
    pub uuid_index: u8,
}

impl GetLogPage {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        let numd = (u64::from(cdw11 & 0xffff) << 16) | u64::from(cdw10 >> 16);
        Self {
            lid: (cdw10 & 0xff) as u8,
            lsp: ((cdw10 >> 8) & 0x7f) as u8,
            is_event_retained: cdw10 & (1 << 15) != 0,
            dwords: numd + 1,
            lsi: (cdw11 >> 16) as u16,
            offset: u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32),
            is_offset_index: cdw14 & (1 << 23) != 0,
            csi: (cdw14 >> 24) as u8,
            uuid_index: (cdw14 & 0x7f) as u8,
        }
    }

    /// Encodes the command. The upper bit of the 7-bit fields is dropped.
    ///
    /// Fails with [`Error::InvalidField`] if `dwords` is not in 1 to 2^32.
    pub fn encode(&self, nsid: Nsid) -> Result<SubmissionQueueEntry, Error> {
        if self.dwords == 0 || self.dwords > 1 << 32 {
            return Err(Error::InvalidField { field: "numd", value: self.dwords });
        }
        let numd = self.dwords - 1;
        let mut sqe = SubmissionQueueEntry::admin(AdminOpcode::GET_LOG_PAGE, nsid);
        sqe.cdw10 = U32::new(
            u32::from(self.lid)
                | (u32::from(self.lsp & 0x7f) << 8)
                | (u32::from(self.is_event_retained) << 15)
                | (((numd & 0xffff) as u32) << 16),
        );
        sqe.cdw11 = U32::new(((numd >> 16) as u32) | (u32::from(self.lsi) << 16));
        sqe.cdw12 = U32::new((self.offset & 0xffff_ffff) as u32);
        sqe.cdw13 = U32::new((self.offset >> 32) as u32);
        sqe.cdw14 = U32::new(
            u32::from(self.uuid_index & 0x7f)
                | (u32::from(self.is_offset_index) << 23)
                | (u32::from(self.csi) << 24),
        );
        Ok(sqe)
    }

    /// Returns the number of bytes to transfer.
    pub fn data_bytes(&self) -> u64 {
        self.dwords * 4
    }
}

/// The value that Get Features requests (base figure 192).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeatureSelect {
    /// 000b: the value in force.
    #[default]
    Current,
    /// 001b: the factory value.
    Default,
    /// 010b: the value kept over resets.
    Saved,
    /// 011b: the capabilities of the feature.
    SupportedCapabilities,
}

/// Dwords of Get Features (base 5.1.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feature {
    /// FID: which feature, see [`crate::feature::fid`].
    pub fid: u8,
    /// SEL: which of its values.
    pub select: FeatureSelect,
    /// Dword 11, for features that need a parameter.
    pub dword11: u32,
}

impl Feature {
    /// Unpacks the dwords.
    ///
    /// Fails with [`Error::InvalidField`] `sel` if that is reserved.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let cdw10 = sqe.cdw10.get();
        let select = match (cdw10 >> 8) & 7 {
            0 => FeatureSelect::Current,
            1 => FeatureSelect::Default,
            2 => FeatureSelect::Saved,
            3 => FeatureSelect::SupportedCapabilities,
            sel => return Err(Error::InvalidField { field: "sel", value: u64::from(sel) }),
        };
        Ok(Self { fid: (cdw10 & 0xff) as u8, select, dword11: sqe.cdw11.get() })
    }

    /// Encodes the Get Features command.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let sel = match self.select {
            FeatureSelect::Current => 0,
            FeatureSelect::Default => 1,
            FeatureSelect::Saved => 2,
            FeatureSelect::SupportedCapabilities => 3,
        };
        let mut sqe = SubmissionQueueEntry::admin(AdminOpcode::GET_FEATURES, nsid);
        sqe.cdw10 = U32::new(u32::from(self.fid) | (sel << 8));
        sqe.cdw11 = U32::new(self.dword11);
        sqe
    }
}

/// Dwords of Set Features (base 5.1.25).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFeatures {
    /// FID: which feature, see [`crate::feature::fid`].
    pub fid: u8,
    /// SV: keep the value over resets and power cycles.
    pub is_saved: bool,
    /// Dword 11: the value, for most features.
    pub dword11: u32,
    /// Dword 12.
    pub dword12: u32,
    /// Dword 13.
    pub dword13: u32,
}

impl SetFeatures {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            fid: (cdw10 & 0xff) as u8,
            is_saved: cdw10 & (1 << 31) != 0,
            dword11: sqe.cdw11.get(),
            dword12: sqe.cdw12.get(),
            dword13: sqe.cdw13.get(),
        }
    }

    /// Encodes the Set Features command.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::admin(AdminOpcode::SET_FEATURES, nsid);
        sqe.cdw10 = U32::new(u32::from(self.fid) | (u32::from(self.is_saved) << 31));
        sqe.cdw11 = U32::new(self.dword11);
        sqe.cdw12 = U32::new(self.dword12);
        sqe.cdw13 = U32::new(self.dword13);
        sqe
    }
}

/// Dword 10 of Abort (base 5.1.1). Bit 0 of the completion's dword 0 is 1 if nothing was aborted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abort {
    /// SQID: the queue of the command to abort.
    pub sqid: QueueId,
    /// CID: the command to abort.
    pub cid: CommandId,
}

impl Abort {
    /// Unpacks the dword; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self { sqid: QueueId((cdw10 & 0xffff) as u16), cid: CommandId((cdw10 >> 16) as u16) }
    }

    /// Encodes the Abort command.
    pub fn encode(&self) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::admin(AdminOpcode::ABORT, Nsid(0));
        sqe.cdw10 = U32::new(u32::from(self.sqid.get()) | (u32::from(self.cid.get()) << 16));
        sqe
    }
}
