//! Comparing what devices hold of a file with its checksums, without any cache.
//!
//! A scrub reads as a reader does: by the extents that the service returns, and from the devices on
//! the path of other nodes' reads. Unlike a read it continues after a wrong block, and returns no
//! bytes. It does not look at uncommitted data.

use crate::client::Client;
use crate::extent_map::Run;
use crate::read::command;
use crate::read::command::Command;
use crate::read::committed::FoundRuns;
use crate::read::extents::AHEAD_BYTES;
use crate::read::plan::ReadPart;
use crate::sums::mismatches::WrongBlock;
use crate::sums::{Checks, blocks_at};
use protocol::sums::checksum;
use protocol::{DeviceId, Errno, InodeId, Place};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// Most pieces of a part.
const PIECES_MAX: usize = 1024;

/// A block whose bytes did not have their checksum, twice, and the bytes of the file that lie in
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongPlace {
    /// The device.
    pub device: DeviceId,
    /// The device's node.
    pub node: String,
    /// The block, counted from the device's start.
    pub block: u64,
    /// First and last byte of the file that lie there.
    pub bytes: (u64, u64),
}

/// The outcome for a part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Where the next part begins.
    pub end: u64,
    /// Bytes that were read from devices.
    pub read_bytes: u64,
    /// Blocks that were compared with their checksum.
    pub compared: u64,
    /// Blocks without a checksum, which were only read.
    pub unsummed: u64,
    /// Blocks that were wrong at first and right when read again: they were changed on the way.
    pub repaired: u64,
    /// Blocks that are wrong.
    pub wrong: Vec<WrongPlace>,
    /// Pieces that were lost with the power of a device: first and last byte of the file.
    pub lost: Vec<(DeviceId, (u64, u64))>,
    /// Devices that some of it could not be read from.
    pub unread: Vec<(DeviceId, Errno)>,
}

/// The outcome of a command.
#[derive(Debug, Default)]
struct Compared {
    wrong: Vec<u64>,
    repaired: u64,
}

/// The pieces of a part that lie on devices, and the blocks that they touch.
#[derive(Default)]
struct Pieces {
    runs: Vec<Run<Place>>,
    parts: Vec<ReadPart>,
    blocks: BTreeSet<(DeviceId, u64)>,
}

impl Client {
    /// Reads the committed data of a range of a file, from its start on about `bytes_max` bytes of
    /// it, and compares it with its checksums. Wrong blocks are counted and logged as for a read.
    ///
    /// # Errors
    /// ENOENT or ESTALE if the file is gone; EIO if its records or its inline data are damaged;
    /// ETIMEDOUT, those of a call. Errors of devices are in the result.
    pub async fn scrub(
        self: &Rc<Self>,
        id: InodeId,
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Scrubbed, Errno> {
        let inode = self.inode(id);
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            self.session.life.alive().await?;
            let end = range.end.min(range.start.saturating_add(AHEAD_BYTES));
            let mut found = self.find_runs(&inode, range.start..end).await?;
            cut(&mut found, bytes_max);
            let scrubbed = self.compare(&found).await;
            if !self.still_holds(&found.validity) {
                // The blocks may belong to another file by now.
                continue;
            }
            for wrong in &scrubbed.wrong {
                self.note_wrong(id, WrongBlock { device: wrong.device, block: wrong.block });
            }
            return Ok(scrubbed);
        }
    }

    /// Reads the blocks that were found, with all commands at once.
    async fn compare(self: &Rc<Self>, found: &FoundRuns) -> Scrubbed {
        let mut scrubbed = Scrubbed { end: found.end, ..Scrubbed::default() };
        let pieces = self.pieces_of(found, &mut scrubbed);
        let mut checks = Checks::default();
        for (device, block) in &pieces.blocks {
            checks.extend_from(&found.sums, *device, *block..*block + 1);
        }
        checks.sort();
        scrubbed.compared = checks.len() as u64;
        scrubbed.unsummed = pieces.blocks.len() as u64 - scrubbed.compared;
        let commands = command::of_parts(&pieces.parts, |device| self.block_size(device));
        // The block sizes of all of these devices were known just now.
        let Ok(commands) = commands else { return scrubbed };
        let checks = Rc::new(checks);
        let start = |command: Command| {
            let (client, checks) = (Rc::clone(self), Rc::clone(&checks));
            let task = command.clone();
            (command, reactor::spawn(async move { client.compare_command(&task, &checks).await }))
        };
        let tasks: Vec<_> = commands.into_iter().map(start).collect();
        for (command, task) in tasks {
            match task.await.unwrap_or(Err(Errno::EIO)) {
                Ok(compared) => {
                    scrubbed.read_bytes += command.range.end - command.range.start;
                    scrubbed.repaired += compared.repaired;
                    let place = |block| self.wrong_place(command.device, block, &pieces.runs);
                    scrubbed.wrong.extend(compared.wrong.into_iter().map(place));
                }
                Err(errno) => scrubbed.unread.push((command.device, errno)),
            }
        }
        scrubbed.unread.dedup();
        scrubbed
    }

    /// Returns the pieces that can be read, and notes the others in `scrubbed`.
    fn pieces_of(&self, found: &FoundRuns, scrubbed: &mut Scrubbed) -> Pieces {
        let mut pieces = Pieces::default();
        for run in &found.runs {
            if let Some(device) = run.place.lost_with() {
                scrubbed.lost.push((device, (run.offset, run.end() - 1)));
                continue;
            }
            let device = run.place.allocation.device;
            let Ok(block_size) = self.block_size(device).map(u64::from) else {
                scrubbed.unread.push((device, Errno::ENODEV));
                continue;
            };
            let address = run.place.allocation.block * block_size + u64::from(run.place.at);
            let blocks = blocks_at(address, run.length, block_size);
            pieces.blocks.extend(blocks.map(|block| (device, block)));
            pieces.parts.push(ReadPart::Device { device, address, length: run.length });
            pieces.runs.push(*run);
        }
        pieces
    }

    /// Reads a command's blocks, and once more those that do not have their checksum.
    async fn compare_command(
        self: &Rc<Self>,
        command: &Command,
        checks: &Checks,
    ) -> Result<Compared, Errno> {
        let Command { device, range, .. } = command;
        let block_size = u64::from(self.block_size(*device)?);
        let length = range.end - range.start;
        let blocks = blocks_at(range.start, length, block_size);
        let bytes = self.read_device(*device, range.start, length as usize).await?;
        let mut compared = Compared::default();
        for &(_, block, sum) in checks.within(*device, blocks.clone()) {
            let at = ((block - blocks.start) * block_size) as usize;
            if checksum(&bytes[at..at + block_size as usize]) == sum {
                continue;
            }
            let address = block * block_size;
            let again = self.read_device(*device, address, block_size as usize).await?;
            if checksum(&again) == sum {
                self.note_repaired(*device, block);
                compared.repaired += 1;
            } else {
                compared.wrong.push(block);
            }
        }
        Ok(compared)
    }

    /// Returns which bytes of a file lie in a block.
    fn wrong_place(&self, device: DeviceId, block: u64, runs: &[Run<Place>]) -> WrongPlace {
        let info = self.devices.info(device);
        let block_size = info.as_ref().map_or(1, |info| u64::from(info.block_size));
        let node = info.map(|info| info.node).unwrap_or_default();
        let (from, to) = (block * block_size, (block + 1) * block_size);
        let bytes = runs.iter().find_map(|run| {
            let address = run.place.allocation.block * block_size + u64::from(run.place.at);
            let (first, end) = (from.max(address), to.min(address + run.length));
            let is_here = run.place.allocation.device == device && first < end;
            is_here.then(|| (run.offset + (first - address), run.offset + (end - 1 - address)))
        });
        WrongPlace { device, node, block, bytes: bytes.unwrap_or_default() }
    }
}

/// Keeps the first runs: about `bytes_max` bytes, and at most `PIECES_MAX` of them.
fn cut(found: &mut FoundRuns, bytes_max: u64) {
    let mut bytes = 0;
    let mut is_taken = |run: &Run<Place>| {
        let is_first = bytes == 0;
        bytes += run.length;
        is_first || bytes <= bytes_max
    };
    let count = found.runs.iter().take(PIECES_MAX).take_while(|run| is_taken(run)).count();
    if let Some(next) = found.runs.get(count) {
        found.end = next.offset;
        found.runs.truncate(count);
    }
    // A run may be as long as a file that was written in sequence.
    if let [first] = &mut found.runs[..]
        && first.length > bytes_max
    {
        first.length = bytes_max;
        found.end = first.end();
    }
}
