//! Reading committed data from devices for a copy, without dirty data and read-ahead.

use crate::client::Client;
use crate::extent_map::Run;
use crate::inode::Inode;
use crate::read::check::Unread;
use crate::read::command;
use crate::read::extents::{AHEAD_BYTES, ExtentsAnswer, Validity};
use crate::read::plan::ReadPart;
use crate::session::life::ReadGuard;
use crate::sums::Checks;
use protocol::{DeviceId, Errno, Place, Rights};
use reactor::{Buffer, Chunk, Shared};
use std::ops::Range;
use std::rc::Rc;

/// The pieces that hold a range of a file.
pub(crate) struct CommittedPieces {
    /// In the order of the file.
    pub(crate) runs: Vec<Run<Place>>,
    /// The checksums of their blocks, and perhaps of others.
    sums: Checks,
    /// They are all the pieces up to here.
    pub(crate) end: u64,
    /// Number of commands to read them.
    pub(crate) commands: usize,
    /// Bytes of the blocks that they touch.
    pub(crate) held_bytes: u64,
    /// Taken before the pieces were found; while it lives their blocks hold nothing else.
    pub(crate) epoch: ReadGuard,
    validity: Validity,
}

/// The runs that hold the committed data of a range.
pub(super) struct FoundRuns {
    /// In the order of the file.
    pub(super) runs: Vec<Run<Place>>,
    /// The checksums of their blocks, and perhaps of others.
    pub(super) sums: Checks,
    /// They are all the runs up to here.
    pub(super) end: u64,
    /// Taken before they were found; while it lives their blocks hold nothing else.
    epoch: ReadGuard,
    pub(super) validity: Validity,
}

impl CommittedPieces {
    /// Returns the bytes of all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.length).sum()
    }
}

impl Client {
    /// Finds the pieces of a range, the first `count_max` of them.
    ///
    /// # Errors
    /// EIO if some of it is lost or on a device that is not known, those of a call.
    pub(crate) async fn find_pieces(
        self: &Rc<Self>,
        inode: &Inode,
        range: Range<u64>,
        count_max: usize,
    ) -> Result<CommittedPieces, Errno> {
        let FoundRuns { mut runs, sums, mut end, epoch, validity } =
            self.find_runs(inode, range).await?;
        if let Some(next) = runs.get(count_max) {
            end = next.offset;
            runs.truncate(count_max);
        }
        let parts = self.parts_of(&runs)?;
        let commands = command::of_parts(&parts, |device| self.block_size(device))?.len();
        let held_bytes = self.held_by(&runs)?;
        Ok(CommittedPieces { runs, sums, end, commands, held_bytes, epoch, validity })
    }

    /// Finds the committed data of a range, from its start on.
    ///
    /// # Errors
    /// Those of a call.
    pub(super) async fn find_runs(
        self: &Rc<Self>,
        inode: &Inode,
        range: Range<u64>,
    ) -> Result<FoundRuns, Errno> {
        let (validity, epoch) = (self.validity(), self.session.life.hold());
        let cached = {
            let state = inode.state.borrow();
            let may_use = state.rights.contains(Rights::READ);
            let known = may_use.then(|| state.extents(range.start, range.end)).flatten();
            known.map(|(_, runs)| (self.sums_of(&state.sums, &runs), runs))
        };
        let (runs, end, sums) = if let Some((sums, runs)) = cached {
            (runs, range.end, sums)
        } else {
            let ExtentsAnswer { extents, covered_to, sums, .. } =
                self.ask_extents(inode, range.start, AHEAD_BYTES).await?;
            let end = covered_to.min(range.end);
            let clipped = extents.iter().filter_map(|extent| extent.clip(range.start, end));
            let run = |extent: protocol::Extent| {
                let length = u64::from(extent.length);
                Run { offset: extent.offset, length, place: extent.place }
            };
            (clipped.map(run).collect(), end, self.checks_of(&sums))
        };
        Ok(FoundRuns { runs, sums, end, epoch, validity })
    }

    /// Returns runs as parts of a read.
    fn parts_of(&self, runs: &[Run<Place>]) -> Result<Vec<ReadPart>, Errno> {
        runs.iter().map(|run| self.device_part(&run.place, run.length)).collect()
    }

    /// Returns the bytes of the blocks that runs touch, each block once.
    fn held_by(&self, runs: &[Run<Place>]) -> Result<u64, Errno> {
        let mut blocks: Vec<(DeviceId, u64, u64)> = Vec::with_capacity(runs.len());
        for run in runs {
            let device = run.place.allocation.device;
            let block_size = u64::from(self.block_size(device)?);
            let start = run.place.allocation.block * block_size + u64::from(run.place.at);
            let end = (start + run.length).next_multiple_of(block_size);
            blocks.push((device, start / block_size * block_size, end));
        }
        blocks.sort_unstable();
        let mut held = 0;
        let mut done = (DeviceId(0), 0);
        for (device, start, end) in blocks {
            let start = if done.0 == device { start.max(done.1) } else { start };
            held += end.saturating_sub(start);
            done = (device, if done.0 == device { end.max(done.1) } else { end });
        }
        Ok(held)
    }

    /// Reads pieces, one after the other, padded with zeros to a multiple of `block_size`.
    ///
    /// # Errors
    /// EAGAIN if their blocks may hold other data by now; EIO, also where they do not have their
    /// checksum.
    pub(crate) async fn read_pieces(
        self: &Rc<Self>,
        inode: &Inode,
        pieces: &CommittedPieces,
        block_size: usize,
    ) -> Result<Shared, Errno> {
        let unchecked = Checks::default();
        let checks = if reactor::mutant!("copy-unchecked") { &unchecked } else { &pieces.sums };
        let parts = self.parts_of(&pieces.runs)?;
        let chunks = self.carry_out(&parts, checks, None).await;
        if !self.still_holds(&pieces.validity) {
            return Err(Errno::EAGAIN);
        }
        match chunks {
            Ok(chunks) => Ok(gather(&chunks, block_size)),
            Err(Unread::Failed(errno)) => Err(errno),
            Err(Unread::Wrong(wrong)) => {
                self.note_wrong(inode.id, wrong);
                Err(Errno::EIO)
            }
        }
    }
}

/// Copies chunks into one buffer, padded with zeros to a multiple of `block_size`.
fn gather(chunks: &[Chunk], block_size: usize) -> Shared {
    let used: usize = chunks.iter().map(Chunk::len).sum();
    let padded = used.next_multiple_of(block_size);
    let mut buffer = Buffer::with_capacity(padded);
    for chunk in chunks {
        buffer.extend_from_chunk(chunk, 0..chunk.len());
    }
    buffer.set_len(padded);
    buffer[used..].fill(0);
    buffer.freeze()
}
