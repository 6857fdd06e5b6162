//! An I/O command, decoded and checked against the namespace before any data moves (NVM 3.3).

use super::reserve::Reserve;
use crate::admission::Moment;
use crate::controller::transfer_bytes;
use crate::limits::{COPY_RANGES_MAX, Limits};
use crate::namespace::Namespace;
use metrics::{Family, Point};
use nvme::command::{Copy, CopyRange, DatasetManagement, DsmRange, Fuse, ReadWrite};
use nvme::opcode::{FabricsType, NvmOpcode};
use nvme::{Nsid, Status, SubmissionQueueEntry};
use reactor::time::Instant;

/// Most bytes that Verify reads at a time.
pub(super) const VERIFY_STEP_BYTES: u64 = 256 << 10;

/// The error that the metrics record for a failed command, for any status.
const EIO: i32 = 5;

/// A range of a namespace in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A checked I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoCommand {
    Read(Extent),
    Write {
        extent: Extent,
        is_fua: bool,
    },
    Compare(Extent),
    /// A fused pair: Compare, then Write of the same blocks.
    CompareAndWrite {
        extent: Extent,
        is_fua: bool,
    },
    Verify(Extent),
    /// Copy of blocks that `list_bytes` of ranges name, to `destination_lba`.
    Copy {
        destination_lba: u64,
        list_bytes: u32,
        /// The most bytes that it can copy.
        bytes_max: u32,
        is_fua: bool,
    },
    WriteUncorrectable(Extent),
    WriteZeroes {
        extent: Extent,
        is_fua: bool,
        is_deallocate: bool,
    },
    /// Dataset Management with `list_bytes` of range list. It does nothing unless it deallocates.
    Manage {
        list_bytes: u32,
        is_deallocate: bool,
    },
    Flush,
    /// A command that changes reservations.
    Reserve(Reserve),
    /// Reservation Report of `bytes`.
    Report {
        bytes: u32,
    },
}

impl IoCommand {
    /// Counts a command that has ended.
    pub(crate) fn count(&self, nsid: u64, started: Moment, has_failed: bool) {
        let (bytes, errno) = if has_failed { (0, EIO) } else { (self.cost_bytes(), 0) };
        let started = Instant::from_ns(started.as_ns());
        metrics::record(self.point(), nsid, started, bytes, errno);
    }

    /// Returns the command's entry in the metrics.
    fn point(&self) -> Point {
        let (index, name) = match self {
            Self::Read(_) => (0, "read"),
            Self::Write { .. } => (1, "write"),
            Self::WriteZeroes { .. } => (2, "write_zeroes"),
            Self::Compare(_) => (3, "compare"),
            Self::Manage { .. } => (4, "dataset_management"),
            Self::Flush => (5, "flush"),
            Self::Reserve(_) => (6, "reserve"),
            Self::Report { .. } => (7, "reservation_report"),
            Self::CompareAndWrite { .. } => (8, "compare_and_write"),
            Self::Verify(_) => (9, "verify"),
            Self::Copy { .. } => (10, "copy"),
            Self::WriteUncorrectable(_) => (11, "write_uncorrectable"),
        };
        Point::new(Family::Target, index, name)
    }

    /// Returns the number of bytes that the host has to send. The command must be checked.
    pub(crate) fn data_bytes_in(&self) -> u32 {
        match self {
            Self::Write { extent, .. } | Self::Compare(extent) => extent.bytes as u32,
            Self::CompareAndWrite { extent, .. } => 2 * extent.bytes as u32,
            Self::Manage { list_bytes, .. } | Self::Copy { list_bytes, .. } => *list_bytes,
            Self::Reserve(reserve) => reserve.data_bytes(),
            Self::Read(_)
            | Self::Verify(_)
            | Self::WriteUncorrectable(_)
            | Self::WriteZeroes { .. }
            | Self::Flush
            | Self::Report { .. } => 0,
        }
    }

    /// Returns whether the command needs buffer memory although the host sends no data.
    pub(crate) fn needs_buffer(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Report { .. } | Self::Verify(_) | Self::Copy { .. })
    }

    /// Returns the bytes that the command moves over the fabric.
    fn transfer_bytes(&self) -> usize {
        match self {
            // Before the check of the transfer limit this may be more than 32 bits hold.
            Self::Read(extent) | Self::Write { extent, .. } | Self::Compare(extent) => {
                extent.bytes as usize
            }
            Self::Report { bytes } => *bytes as usize,
            _ => self.data_bytes_in() as usize,
        }
    }

    /// Returns the buffer memory that the command's data may need, in addition to in-capsule data.
    pub(crate) fn buffer_bytes(&self) -> usize {
        match self {
            Self::Verify(extent) => extent.bytes.min(VERIFY_STEP_BYTES) as usize,
            Self::Copy { list_bytes, bytes_max, .. } => *list_bytes as usize + *bytes_max as usize,
            _ => self.transfer_bytes(),
        }
    }

    /// Returns the bytes that count for limits and metrics. Those of Copy follow from its list.
    pub(crate) fn cost_bytes(&self) -> u64 {
        match self {
            Self::Verify(extent) => extent.bytes,
            _ => self.transfer_bytes() as u64,
        }
    }

    /// Checks what does not depend on the namespace: the command must be one of an I/O queue pair
    /// of a controller with the NVM command set. Fabrics commands that manage a controller belong
    /// to the admin queue pair, and Connect is allowed only once (base 3.3, 6.3).
    pub(crate) fn check_opcode(sqe: &SubmissionQueueEntry) -> Result<(), Status> {
        match sqe.nvm_opcode() {
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::COMPARE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::WRITE_UNCORRECTABLE
            | NvmOpcode::VERIFY
            | NvmOpcode::COPY
            | NvmOpcode::DATASET_MANAGEMENT
            | NvmOpcode::FLUSH => {}
            opcode if Reserve::is_opcode(opcode) => {}
            NvmOpcode::FABRICS if sqe.fabrics_type() == FabricsType::CONNECT => {
                return Err(Status::COMMAND_SEQUENCE_ERROR);
            }
            _ => return Err(Status::INVALID_OPCODE),
        }
        if sqe.fuse() != Fuse::None || !sqe.has_sgl() {
            return Err(Status::INVALID_FIELD);
        }
        Ok(())
    }

    /// Decodes and checks a command for `namespace` that has passed [`Self::check_opcode`].
    pub(crate) fn new(
        sqe: &SubmissionQueueEntry,
        namespace: &Namespace,
        limits: &Limits,
    ) -> Result<Self, Status> {
        let command = match sqe.nvm_opcode() {
            NvmOpcode::READ => {
                let (extent, _) = Self::extent(sqe, namespace)?;
                Self::Read(extent)
            }
            NvmOpcode::WRITE => {
                let (extent, command) = Self::extent(sqe, namespace)?;
                Self::Write { extent, is_fua: command.is_fua }
            }
            NvmOpcode::COMPARE => {
                let (extent, _) = Self::extent(sqe, namespace)?;
                Self::Compare(extent)
            }
            NvmOpcode::VERIFY => {
                let (extent, _) = Self::extent(sqe, namespace)?;
                Self::Verify(extent)
            }
            NvmOpcode::WRITE_UNCORRECTABLE if namespace.allows_write_uncorrectable() => {
                let (extent, _) = Self::extent(sqe, namespace)?;
                Self::WriteUncorrectable(extent)
            }
            NvmOpcode::COPY => Self::copy(sqe, namespace, limits)?,
            NvmOpcode::WRITE_ZEROES => {
                let (extent, command) = Self::extent(sqe, namespace)?;
                let (is_fua, is_deallocate) = (command.is_fua, command.is_deallocate);
                Self::WriteZeroes { extent, is_fua, is_deallocate }
            }
            NvmOpcode::DATASET_MANAGEMENT => {
                let command = DatasetManagement::decode(sqe);
                let list_bytes = command.data_bytes() as u32;
                Self::Manage { list_bytes, is_deallocate: command.is_deallocate }
            }
            NvmOpcode::FLUSH => Self::Flush,
            opcode if Reserve::is_opcode(opcode) && namespace.reservations().is_some() => {
                Reserve::decode(sqe)?
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        command.check(sqe, namespace, limits)?;
        Ok(command)
    }

    fn extent(
        sqe: &SubmissionQueueEntry,
        namespace: &Namespace,
    ) -> Result<(Extent, ReadWrite), Status> {
        let command = ReadWrite::decode(sqe);
        if !command.is_within(namespace.blocks()) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let shift = namespace.block_shift();
        let bytes = command.data_bytes(shift).ok_or(Status::INVALID_FIELD)?;
        Ok((Extent { offset: command.start_lba << shift, bytes }, command))
    }

    fn copy(
        sqe: &SubmissionQueueEntry,
        namespace: &Namespace,
        limits: &Limits,
    ) -> Result<Self, Status> {
        let command = Copy::decode(sqe);
        if command.format != Copy::FORMAT_0 {
            return Err(Status::INVALID_FIELD);
        }
        // NVM 3.3.2, MSRC.
        if command.ranges > COPY_RANGES_MAX {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        if command.destination_lba >= namespace.blocks() {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let shift = namespace.block_shift();
        Ok(Self::Copy {
            destination_lba: command.destination_lba,
            list_bytes: command.data_bytes() as u32,
            bytes_max: limits.copy_blocks_max(shift) << shift,
            is_fua: command.is_fua,
        })
    }

    /// Returns whether the command changes the medium.
    fn is_change(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteZeroes { .. }
            | Self::WriteUncorrectable(_)
            | Self::CompareAndWrite { .. }
            | Self::Copy { .. } => true,
            Self::Manage { is_deallocate, .. } => *is_deallocate,
            Self::Read(_)
            | Self::Compare(_)
            | Self::Verify(_)
            | Self::Flush
            | Self::Reserve(_)
            | Self::Report { .. } => false,
        }
    }

    fn check(
        &self,
        sqe: &SubmissionQueueEntry,
        namespace: &Namespace,
        limits: &Limits,
    ) -> Result<(), Status> {
        if self.is_change() && namespace.is_write_protected() {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let wanted = self.transfer_bytes();
        if wanted > limits.transfer_bytes_max as usize {
            return Err(Status::INVALID_FIELD);
        }
        match self {
            // NVM 4.1.5.2, WZSL and VSL.
            Self::WriteZeroes { extent, .. } | Self::Verify(extent)
                if extent.bytes > limits.zero_bytes_max.into() =>
            {
                return Err(Status::INVALID_FIELD);
            }
            // NVM 4.1.5.2, DMRL.
            Self::Manage { is_deallocate: true, .. }
                if wanted > usize::from(limits.deallocate_ranges_max) * DsmRange::BYTES =>
            {
                return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
            }
            _ => {}
        }
        let given = transfer_bytes(sqe)? as usize;
        // The list of ranges may be longer than its entries need. Other data must fit exactly.
        let fits = match self {
            Self::Manage { .. } | Self::Copy { .. } => {
                given >= wanted && given <= limits.transfer_bytes_max as usize
            }
            _ => given == wanted,
        };
        if fits { Ok(()) } else { Err(Status::SGL_DATA_LENGTH_INVALID) }
    }
}

/// Returns whether the command is a flush of all namespaces.
pub(crate) fn is_broadcast_flush(sqe: &SubmissionQueueEntry) -> bool {
    sqe.nvm_opcode() == NvmOpcode::FLUSH && sqe.namespace_id() == Nsid::BROADCAST
}

/// Returns the ranges of a Dataset Management command that deallocates, if all are within the
/// namespace and the limits in Identify Controller.
pub(crate) fn ranges(
    namespace: &Namespace,
    ranges: &[DsmRange],
    limits: &Limits,
) -> Result<Vec<Extent>, Status> {
    let (shift, blocks) = (namespace.block_shift(), namespace.blocks());
    let mut extents = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (start, count) = (range.slba.get(), u64::from(range.nlb.get()));
        if count > u64::from(limits.deallocate_range_blocks_max) {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        if start.checked_add(count).is_none_or(|end| end > blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        extents.push(Extent { offset: start << shift, bytes: count << shift });
    }
    Ok(extents)
}

/// Returns the sources of a Copy to `destination_lba` in order, if they and the destination are
/// within the namespace, and the limits in Identify Namespace.
pub(crate) fn sources(
    namespace: &Namespace,
    ranges: &[CopyRange],
    destination_lba: u64,
    limits: &Limits,
) -> Result<Vec<Extent>, Status> {
    let (shift, blocks) = (namespace.block_shift(), namespace.blocks());
    let blocks_max = u64::from(limits.copy_blocks_max(shift));
    let mut extents = Vec::with_capacity(ranges.len());
    let mut total = 0;
    for range in ranges {
        let (start, count) = (range.slba.get(), u64::from(range.blocks()));
        total += count;
        // MSSRL and MCL.
        if count > blocks_max.min(u16::MAX.into()) || total > blocks_max {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        if start.checked_add(count).is_none_or(|end| end > blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        extents.push(Extent { offset: start << shift, bytes: count << shift });
    }
    if destination_lba.checked_add(total).is_none_or(|end| end > blocks) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::MemoryBacking;
    use nvme::SglDescriptor;
    use std::sync::Arc;

    /// Goal: a command for more bytes than 32 bits count is refused because of the transfer limit,
    /// although the rest of its length fits its descriptor.
    #[test]
    fn the_most_blocks_exceed_the_transfer_limit() {
        const BLOCK: u32 = 64 << 10;
        let backing = MemoryBacking::new(u64::from(BLOCK) << 16, BLOCK).unwrap();
        let namespace = Namespace::new(Nsid(1), [1; 16], Arc::new(backing), false);
        let limits = Limits::default();
        let decode = |opcode, blocks, bytes| {
            let command = ReadWrite { start_lba: 0, blocks, ..ReadWrite::default() };
            let sqe = command.encode(opcode, Nsid(1)).unwrap();
            IoCommand::new(&sqe.with_sgl(SglDescriptor::transport(bytes)), &namespace, &limits)
        };
        for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
            for (blocks, bytes) in [(1 << 16, 0), (1 << 16, BLOCK), (17, 17 * BLOCK)] {
                assert_eq!(decode(opcode, blocks, bytes), Err(Status::INVALID_FIELD), "{opcode}");
            }
            let largest = decode(opcode, 16, 16 * BLOCK).unwrap();
            assert_eq!(largest.buffer_bytes(), limits.transfer_bytes_max as usize);
        }
    }
}
