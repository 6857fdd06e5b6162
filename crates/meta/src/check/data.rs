//! The live blocks of a store that no service has open, with their checksums. `tsumugi check
//! --data` compares the devices with them.

use super::store::open_frozen;
use super::{Area, Finding, paths};
use crate::records::{ExtentPage, Key, decode, key_number};
use crate::space::live::{CHUNK_BLOCKS, Chunk, blocks_of};
use crate::store::{Direction, Error, FjallStore, Scan, Store};
use crate::tree::Core;
use protocol::space::DeviceInfo;
use protocol::{DeviceId, InodeId};
use std::collections::BTreeSet;
use std::path::Path;

/// A live block and its expected checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummedBlock {
    /// The block's number, counted from the device's start.
    pub block: u64,
    /// The CRC-32C of its bytes.
    pub sum: u32,
    /// No known flush covers it, so a loss of power may have taken it.
    pub is_unflushed: bool,
}

/// The live blocks of a part of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The blocks that have a checksum, ascending, within 256 blocks.
    pub blocks: Vec<SummedBlock>,
    /// The number of blocks without a checksum.
    pub unsummed: u64,
    /// The number of blocks that the device lost with its power. The service knows them: they read
    /// as EIO.
    pub lost: u64,
    /// Where the next part begins.
    pub next: u64,
}

/// The live blocks of a store.
#[derive(Debug)]
pub struct LiveBlocks {
    core: Core,
}

impl LiveBlocks {
    /// Opens the store in a directory without writing to it.
    ///
    /// # Errors
    /// If there is no store, a service has it open, or it is damaged.
    pub fn open(directory: &Path) -> Result<LiveBlocks, Error> {
        let failed = |source| Error::Store {
            operation: "read /proc/sys/kernel/random/boot_id",
            source: Box::new(source),
        };
        let boot = crate::store::boot_id().map_err(failed)?;
        LiveBlocks::of(FjallStore::read(directory, boot)?.0)
    }

    /// Takes a store that is open already, and does not write to it.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn of(store: Box<dyn Store>) -> Result<LiveBlocks, Error> {
        Ok(LiveBlocks { core: open_frozen(store)? })
    }

    /// Returns the devices.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.core.base.space.devices.values().map(|device| device.info.clone()).collect()
    }

    /// Returns the next part of a device that has live blocks, starting at `from`: 0, or a value of
    /// [`Part::next`].
    ///
    /// # Errors
    /// If a record cannot be read.
    pub fn part(&self, device: DeviceId, from: u64) -> Result<Option<Part>, Error> {
        let start = Key::Blocks(device, from).encode();
        let prefix = Key::Blocks(device, 0).prefix(1);
        let (direction, limit) = (Direction::Forward, 1);
        let scan = Scan { prefix: &prefix, from: Some(&start), direction, limit };
        let found = self.core.base.layers.scan(scan)?;
        let Some((key, value)) = found.first() else { return Ok(None) };
        let chunk: Chunk = decode(key, value)?;
        let index = key_number(key, 1)?;
        let mut part =
            Part { blocks: Vec::new(), unsummed: 0, lost: 0, next: index.saturating_add(1) };
        let durability = self.core.base.space.devices.get(&device).map(|it| &it.durability);
        for (at, live) in chunk.each() {
            if durability.is_some_and(|it| it.is_lost(live.flush_epoch)) {
                part.lost += 1;
                continue;
            }
            let Some(sum) = live.sum else {
                part.unsummed += 1;
                continue;
            };
            let block = index.saturating_mul(CHUNK_BLOCKS).saturating_add(at);
            let is_unflushed = durability.is_some_and(|it| it.awaits(live.flush_epoch));
            part.blocks.push(SummedBlock { block, sum, is_unflushed });
        }
        Ok(Some(part))
    }

    /// Returns a finding for each file that contains one of these faulty blocks.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn damage(
        &self,
        wrong: &BTreeSet<(DeviceId, u64)>,
        wrongness: Wrongness,
    ) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        let mut without: BTreeSet<_> = wrong.clone();
        let any = Key::Extents(InodeId(0), 0).prefix(0);
        self.core.base.layers.each(&any, |key, value| {
            // A page that makes no sense is a finding of the check of records.
            let Ok(page) = decode::<ExtentPage>(key, value) else { return Ok(()) };
            let inode = InodeId(key_number(key, 0)?);
            for extent in &page.extents.0 {
                let id = extent.place.allocation.device;
                let Some(device) = self.core.base.space.devices.get(&id) else { continue };
                let size = u64::from(device.info.block_size);
                let Some(blocks) = blocks_of(extent, device.info.block_size) else { continue };
                for hit in wrong.range((id, blocks.start)..(id, blocks.end)) {
                    without.remove(hit);
                    let place = extent.place.allocation.block * size + u64::from(extent.place.at);
                    let skipped = (hit.1 * size).saturating_sub(place);
                    let past = ((hit.1 + 1) * size).saturating_sub(place).min(extent.length.into());
                    let bytes = (extent.offset + skipped, extent.offset + past.saturating_sub(1));
                    let what = wrongness.of_file(*hit, &device.info.node, bytes);
                    let block = Some(*hit);
                    findings.push(Finding { block, ..Finding::of(Area::Damage, inode, what) });
                }
            }
            Ok(())
        })?;
        for (device, block) in without {
            let what = wrongness.of_block((device, block));
            let block = Some((device, block));
            findings.push(Finding { block, ..Finding::general(Area::Damage, what) });
        }
        paths::fill(&self.core, &mut findings)?;
        Ok(findings)
    }
}

/// A fault of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrongness {
    /// Its bytes are not those that were written.
    Sum,
    /// The device returns an error.
    Unreadable,
}

impl Wrongness {
    fn words(self) -> &'static str {
        match self {
            Wrongness::Sum => "does not have its checksum",
            Wrongness::Unreadable => "cannot be read",
        }
    }

    fn of_block(self, (device, block): (DeviceId, u64)) -> String {
        format!("block {block} of {device} {}", self.words())
    }

    /// Returns the sentence about a block that holds these bytes of a file, first and last.
    pub fn of_file(self, block: (DeviceId, u64), node: &str, (from, to): (u64, u64)) -> String {
        let (device, block) = block;
        let words = self.words();
        format!("block {block} of {device} on {node} {words}: bytes {from} to {to} of the file")
    }
}
