//! I/O commands of the NVM command set (NVM 3.3).

use crate::opcode::NvmOpcode;
use crate::{Error, Nsid, SubmissionQueueEntry, U32, U64};

const FUA: u32 = 1 << 30;
const LIMITED_RETRY: u32 = 1 << 31;
const DEALLOCATE: u32 = 1 << 25;
const PRINFO_SHIFT: u32 = 26;

/// Dwords 10 to 12 of Read, Write, Compare, Verify, Write Uncorrectable and Write Zeroes (NVM 3.3.1,
/// 3.3.4 to 3.3.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadWrite {
    /// SLBA: the first logical block.
    pub start_lba: u64,
    /// Number of logical blocks, 1 to 65536 (NLB + 1).
    pub blocks: u32,
    /// FUA, Force Unit Access: the data must be on the medium before the command completes.
    pub is_fua: bool,
    /// LR, Limited Retry.
    pub is_limited_retry: bool,
    /// DEAC, for Write Zeroes only: the controller should deallocate the blocks.
    pub is_deallocate: bool,
    /// PRINFO, protection information field (4 bits); 0 without end-to-end protection.
    pub prinfo: u8,
}

impl ReadWrite {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let cdw12 = sqe.cdw12.get();
        Self {
            start_lba: u64::from(sqe.cdw10.get()) | (u64::from(sqe.cdw11.get()) << 32),
            blocks: (cdw12 & 0xffff) + 1,
            is_fua: cdw12 & FUA != 0,
            is_limited_retry: cdw12 & LIMITED_RETRY != 0,
            is_deallocate: cdw12 & DEALLOCATE != 0,
            prinfo: ((cdw12 >> PRINFO_SHIFT) & 0xf) as u8,
        }
    }

    /// Encodes the command; `opcode` is one of Read, Write, Compare, Verify, Write Uncorrectable,
    /// Write Zeroes.
    ///
    /// Fails with [`Error::InvalidField`] if `blocks` is not in 1 to 65536 or `prinfo` is above 15.
    pub fn encode(&self, opcode: NvmOpcode, nsid: Nsid) -> Result<SubmissionQueueEntry, Error> {
        if self.blocks == 0 || self.blocks > 1 << 16 {
            return Err(Error::InvalidField { field: "nlb", value: u64::from(self.blocks) });
        }
        if self.prinfo > 0xf {
            return Err(Error::InvalidField { field: "prinfo", value: u64::from(self.prinfo) });
        }
        let mut cdw12 = (self.blocks - 1) | (u32::from(self.prinfo) << PRINFO_SHIFT);
        for (is_set, bit) in [
            (self.is_fua, FUA),
            (self.is_limited_retry, LIMITED_RETRY),
            (self.is_deallocate, DEALLOCATE),
        ] {
            cdw12 |= if is_set { bit } else { 0 };
        }
        let mut sqe = SubmissionQueueEntry::nvm(opcode, nsid);
        sqe.cdw10 = U32::new((self.start_lba & 0xffff_ffff) as u32);
        sqe.cdw11 = U32::new((self.start_lba >> 32) as u32);
        sqe.cdw12 = U32::new(cdw12);
        Ok(sqe)
    }

    /// Returns the bytes of `blocks` logical blocks of `1 << block_shift` bytes; [`None`] if the
    /// number does not fit, for shifts above 47.
    pub fn data_bytes(&self, block_shift: u32) -> Option<u64> {
        if block_shift > 47 { None } else { Some(u64::from(self.blocks) << block_shift) }
    }

    /// Whether all blocks lie in a namespace of `namespace_blocks` blocks.
    pub fn is_within(&self, namespace_blocks: u64) -> bool {
        self.start_lba
            .checked_add(u64::from(self.blocks))
            .is_some_and(|end| end <= namespace_blocks)
    }
}

/// Dwords 10 and 11 of Dataset Management (NVM 3.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Number of ranges in the data, 1 to 256 (NR + 1).
    pub ranges: u16,
    /// IDR: the ranges will be read as a whole.
    pub is_integral_read: bool,
    /// IDW: the ranges will be written as a whole.
    pub is_integral_write: bool,
    /// AD: the ranges may be deallocated.
    pub is_deallocate: bool,
}

impl DatasetManagement {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let cdw11 = sqe.cdw11.get();
        Self {
            ranges: (sqe.cdw10.get() & 0xff) as u16 + 1,
            is_integral_read: cdw11 & 1 != 0,
            is_integral_write: cdw11 & 2 != 0,
            is_deallocate: cdw11 & 4 != 0,
        }
    }

    /// Encodes the command; its data is `ranges` times [`DsmRange`].
    ///
    /// Fails with [`Error::InvalidField`] if `ranges` is not in 1 to 256.
    pub fn encode(&self, nsid: Nsid) -> Result<SubmissionQueueEntry, Error> {
        if self.ranges == 0 || self.ranges > 256 {
            return Err(Error::InvalidField { field: "nr", value: u64::from(self.ranges) });
        }
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::DATASET_MANAGEMENT, nsid);
        sqe.cdw10 = U32::new(u32::from(self.ranges) - 1);
        sqe.cdw11 = U32::new(
            u32::from(self.is_integral_read)
                | (u32::from(self.is_integral_write) << 1)
                | (u32::from(self.is_deallocate) << 2),
        );
        Ok(sqe)
    }

    /// Returns the size of the range list that the command transfers, in bytes.
    pub fn data_bytes(&self) -> usize {
        usize::from(self.ranges) * DsmRange::BYTES
    }
}

wire_struct! {
    /// One range of Dataset Management (NVM figure 42).
    pub struct DsmRange[16] {
        /// Context attributes.
        pub cattr: U32,
        /// Length in logical blocks, not 0's based.
        pub nlb: U32,
        /// First logical block.
        pub slba: U64,
    }
}

impl DsmRange {
    /// Returns a range without context attributes.
    pub fn new(start_lba: u64, blocks: u32) -> Self {
        Self { cattr: U32::new(0), nlb: U32::new(blocks), slba: U64::new(start_lba) }
    }

    /// Returns the ranges in the data of a Dataset Management command. An incomplete range at the
    /// end is ignored.
    pub fn list(data: &[u8]) -> &[Self] {
        let whole = &data[..data.len() - data.len() % Self::BYTES];
        // A multiple of the size of an unaligned structure always converts.
        <[Self] as zerocopy::FromBytes>::ref_from_bytes(whole).unwrap_or_default()
    }
}
