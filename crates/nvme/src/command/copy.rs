//! Copy (NVM 3.3.2): the controller copies blocks without moving them over the fabric.

use crate::opcode::NvmOpcode;
use crate::{Error, Nsid, SubmissionQueueEntry, U16, U32, U64};

const FUA: u32 = 1 << 30;
const LIMITED_RETRY: u32 = 1 << 31;
const FORMAT_SHIFT: u32 = 8;

/// Dwords 10 to 12 of Copy. The data is a list of [`CopyRange`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// SDLBA: the first block of the destination.
    pub destination_lba: u64,
    /// Number of source ranges in the data, 1 to 256 (NR + 1).
    pub ranges: u16,
    /// Descriptor format of the ranges (4 bits). [`CopyRange`] is format 0.
    pub format: u8,
    /// FUA, Force Unit Access: the copy must be on the medium before the command completes.
    pub is_fua: bool,
    /// LR, Limited Retry.
    pub is_limited_retry: bool,
}

impl Copy {
    /// The descriptor format of [`CopyRange`].
    pub const FORMAT_0: u8 = 0;

    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let cdw12 = sqe.cdw12.get();
        Self {
            destination_lba: u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32),
            ranges: (cdw12 & 0xff) as u16 + 1,
            format: ((cdw12 >> FORMAT_SHIFT) & 0xf) as u8,
            is_fua: cdw12 & FUA != 0,
            is_limited_retry: cdw12 & LIMITED_RETRY != 0,
        }
    }

    /// Encodes the command.
    ///
    /// Fails with [`Error::InvalidField`] if `ranges` is not in 1 to 256 or `format` is above 15.
    pub fn encode(&self, nsid: Nsid) -> Result<SubmissionQueueEntry, Error> {
        if self.ranges == 0 || self.ranges > 256 {
            return Err(Error::InvalidField { field: "nr", value: u64::from(self.ranges) });
        }
        if self.format > 0xf {
            return Err(Error::InvalidField { field: "desfmt", value: u64::from(self.format) });
        }
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::COPY, nsid);
        sqe.cdw10 = U32::new((self.destination_lba & 0xffff_ffff) as u32);
        sqe.cdw11 = U32::new((self.destination_lba >> 32) as u32);
        sqe.cdw12 = U32::new(
            (u32::from(self.ranges) - 1)
                | (u32::from(self.format) << FORMAT_SHIFT)
                | if self.is_fua { FUA } else { 0 }
                | if self.is_limited_retry { LIMITED_RETRY } else { 0 },
        );
        Ok(sqe)
    }

    /// Returns the size of the range list that the command transfers in format 0, in bytes.
    pub fn data_bytes(&self) -> usize {
        usize::from(self.ranges) * CopyRange::BYTES
    }
}

wire_struct! {
    /// One source range of Copy in descriptor format 0 (NVM figure 31).
    pub struct CopyRange[32] {
        /// Reserved.
        pub rsvd0: [u8; 8],
        /// First logical block.
        pub slba: U64,
        /// Number of logical blocks, 0's based.
        pub nlb: U16,
        /// Reserved.
        pub rsvd18: [u8; 6],
        /// Expected initial logical block reference tag, without end-to-end protection unused.
        pub eilbrt: U32,
        /// Expected logical block application tag.
        pub elbat: U16,
        /// Expected logical block application tag mask.
        pub elbatm: U16,
    }
}

impl CopyRange {
    /// Returns a range of `blocks` blocks.
    ///
    /// Fails with [`Error::InvalidField`] if `blocks` is not in 1 to 65536.
    pub fn new(start_lba: u64, blocks: u32) -> Result<Self, Error> {
        let wrong = Error::InvalidField { field: "nlb", value: u64::from(blocks) };
        let nlb = blocks.checked_sub(1).and_then(|nlb| u16::try_from(nlb).ok()).ok_or(wrong)?;
        Ok(Self { slba: U64::new(start_lba), nlb: U16::new(nlb), ..Self::default() })
    }

    /// Returns the number of blocks, 1 to 65536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }
    /// Returns the ranges in the data of a Copy command. An incomplete range at the end is ignored.
    pub fn list(data: &[u8]) -> &[Self] {
        let whole = &data[..data.len() - data.len() % Self::BYTES];
        // A multiple of the size of an unaligned structure always converts.
        <[Self] as zerocopy::FromBytes>::ref_from_bytes(whole).unwrap_or_default()
    }
}
