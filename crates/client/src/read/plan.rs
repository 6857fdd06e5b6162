//! The plan of a read: which bytes come from where.

use crate::client::Client;
use crate::dirty::fill::{Fill, FillState};
use crate::inode::Inode;
use crate::read::extents::HeldExtents;
use crate::space::Allocated;
use crate::sums::{Checks, blocks_at};
use protocol::{DeviceId, Errno, Place};
use reactor::{Buffer, Shared};
use std::ops::Range;
use std::rc::Rc;

/// A part of a planned read.
pub(crate) enum ReadPart {
    Hole(u64),
    Memory(Shared),
    /// Bytes on a device, at a byte address.
    Device {
        device: DeviceId,
        address: u64,
        length: u64,
    },
}

impl ReadPart {
    /// Returns its length in the file.
    pub(crate) fn len(&self) -> u64 {
        match self {
            ReadPart::Hole(length) | ReadPart::Device { length, .. } => *length,
            ReadPart::Memory(shared) => shared.len() as u64,
        }
    }
}

/// The parts of a read, and what keeps them valid.
pub(crate) struct ReadPlan {
    pub(crate) parts: Vec<ReadPart>,
    /// The checksums of the blocks that the parts touch.
    pub(crate) checks: Checks,
    /// Keep the blocks of uncommitted data from being used again.
    _fills: Vec<Rc<()>>,
}

impl Client {
    /// Plans which bytes come from where: dirty data over committed data over holes.
    pub(crate) fn plan(
        &self,
        inode: &Inode,
        range: Range<u64>,
        committed: &HeldExtents,
    ) -> Result<ReadPlan, Errno> {
        let (mut parts, mut fills) = (Vec::new(), Vec::new());
        let mut checks = Checks::default();
        let mut at = range.start;
        let dirty = inode.dirty.borrow();
        for run in dirty.within(range.start, range.end) {
            self.plan_committed(at..run.offset, committed, &mut parts, &mut checks)?;
            let fill = dirty.fill(run.place.fill).ok_or(Errno::EIO)?;
            let bytes = run.place.at as usize..(u64::from(run.place.at) + run.length) as usize;
            match &fill.state {
                FillState::Gathering(buffer) => {
                    parts.push(ReadPart::Memory(Buffer::copy_from(&buffer[bytes]).freeze()));
                }
                FillState::Writing(shared) => parts.push(ReadPart::Memory(shared.slice(bytes))),
                FillState::Written => {
                    self.check_kept(fill)?;
                    fills.push(Rc::clone(&fill.readers));
                    dirty.add_sums(&run, &mut checks);
                    for extent in dirty.extents(&run) {
                        parts.push(self.device_part(&extent.place, u64::from(extent.length))?);
                    }
                }
            }
            at = run.end();
        }
        self.plan_committed(at..range.end, committed, &mut parts, &mut checks)?;
        checks.sort();
        let planned: u64 = parts.iter().map(ReadPart::len).sum();
        assert_eq!(
            planned,
            range.end - range.start,
            "a read of {} at {} has parts of other bytes",
            inode.id,
            range.start
        );
        Ok(ReadPlan { parts, checks, _fills: fills })
    }

    /// Plans a range without dirty data.
    fn plan_committed(
        &self,
        range: Range<u64>,
        committed: &HeldExtents,
        parts: &mut Vec<ReadPart>,
        checks: &mut Checks,
    ) -> Result<(), Errno> {
        let mut at = range.start;
        let runs = &committed.runs;
        let first = runs.partition_point(|run| run.end() <= range.start);
        for run in &runs[first..] {
            let Some(run) = run.clip(at, range.end) else { break };
            push_rest(parts, at..run.offset, &committed.head);
            let part = self.device_part(&run.place, run.length)?;
            if let ReadPart::Device { device, address, length } = part {
                let block_size = u64::from(self.block_size(device)?);
                let blocks = blocks_at(address, length, block_size);
                checks.extend_from(&committed.sums, device, blocks);
            }
            parts.push(part);
            at = run.end();
        }
        push_rest(parts, at..range.end, &committed.head);
        Ok(())
    }

    /// Fails with EIO if uncommitted data may be lost with the device's power.
    fn check_kept(&self, fill: &Fill) -> Result<(), Errno> {
        let present = self.devices.info(fill.device).map(|info| info.incarnation);
        let is_kept = |(_, piece): &(u32, Allocated)| Some(piece.incarnation) == present;
        if fill.pieces.iter().all(is_kept) {
            return Ok(());
        }
        tracing::error!(device = %fill.device, "data that was not committed yet was lost with the device's power");
        Err(Errno::EIO)
    }

    /// Returns the block size of a device, or EIO if it is not known.
    pub(crate) fn block_size(&self, device: DeviceId) -> Result<u32, Errno> {
        self.devices.block_size(device).ok_or(Errno::EIO)
    }

    /// Returns the part of a read for a place on a device. Fails with EIO if the data there was
    /// lost.
    pub(crate) fn device_part(&self, place: &Place, length: u64) -> Result<ReadPart, Errno> {
        if let Some(device) = place.lost_with() {
            tracing::error!(%device, "data that had not been flushed was lost with the device's power; write it again, or delete it");
            return Err(Errno::EIO);
        }
        let device = place.allocation.device;
        let block_size = u64::from(self.block_size(device)?);
        let address = place.allocation.block * block_size + u64::from(place.at);
        Ok(ReadPart::Device { device, address, length })
    }
}

/// Adds what no extent covers: inline bytes, then zeros.
fn push_rest(parts: &mut Vec<ReadPart>, range: Range<u64>, head: &[u8]) {
    let mut at = range.start;
    let inline_end = range.end.min(head.len() as u64);
    if at < inline_end {
        let bytes = &head[at as usize..inline_end as usize];
        parts.push(ReadPart::Memory(Buffer::copy_from(bytes).freeze()));
        at = inline_end;
    }
    if at < range.end {
        parts.push(ReadPart::Hole(range.end - at));
    }
}
