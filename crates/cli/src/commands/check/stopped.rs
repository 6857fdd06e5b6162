//! Compares the devices of stopped nodes with the checksums of a stopped store.

use crate::deploy::size::human;
use crate::scrub::Progress;
use ::meta::check::data::{LiveBlocks, Part, SummedBlock, Wrongness};
use ::meta::check::{Area, Finding};
use ::node::{NodeConfig, NodeDevice, open_device};
use anyhow::Context;
use block::{Device, IoFuture};
use protocol::DeviceId;
use protocol::space::DeviceInfo;
use protocol::sums::checksum;
use reactor::{Chunk, Runtime, Shared};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Largest read.
const READ_BYTES: u64 = 1 << 20;

/// Reads in flight, at least.
const READS_AT_ONCE: usize = 4;

/// What was read and found.
pub(super) struct Data {
    pub(super) tally: Tally,
    pub(super) findings: Vec<Finding>,
}

/// Amounts that were read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    devices: u64,
    read_bytes: u64,
    compared: u64,
    unsummed: u64,
    lost: u64,
    unflushed: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { devices, read_bytes, compared, unsummed, lost, unflushed } = self;
        let read = human(*read_bytes);
        write!(f, "{devices} devices, {read} read, {compared} blocks compared")?;
        if *unsummed > 0 {
            write!(f, ", {unsummed} without a checksum")?;
        }
        if *lost + *unflushed > 0 {
            let count = lost + unflushed;
            write!(f, ", {count} lost with a device's power before they were flushed")?;
        }
        Ok(())
    }
}

/// Blocks with a wrong content.
#[derive(Default)]
struct Wrong {
    sums: BTreeSet<(DeviceId, u64)>,
    unreadable: BTreeSet<(DeviceId, u64)>,
}

/// Compares all devices in these configurations with the checksums.
pub(super) fn compare(directory: &Path, configs: &[PathBuf]) -> anyhow::Result<Data> {
    let live = LiveBlocks::open(directory)
        .with_context(|| format!("the metadata store {} cannot be read", directory.display()))?;
    let mut runtime = Runtime::new(&reactor::Config::default())?;
    runtime.block_on(async {
        let opened = open(configs).await?;
        let mut data = Data { tally: Tally::default(), findings: Vec::new() };
        let mut wrong = Wrong::default();
        let all = bytes_of(&live)?;
        let mut progress = Progress::new();
        for info in live.devices() {
            let Some(device) = opened.iter().find(|device| device.uuid == info.uuid) else {
                data.findings.extend(unread(&live, &info)?);
                continue;
            };
            let is_reborn = device.incarnation.0 != info.incarnation.0;
            let reading =
                Reading { live: &live, info: &info, is_reborn, device: device.backing.attach() };
            data.tally.devices += 1;
            let mut show = |tally: &Tally, wrong: &Wrong| {
                let count = wrong.sums.len() + wrong.unreadable.len();
                progress.show(tally.read_bytes, all, count as u64);
            };
            reading.run(&mut data.tally, &mut wrong, &mut show).await?;
        }
        progress.end();
        data.findings.extend(live.damage(&wrong.sums, Wrongness::Sum)?);
        data.findings.extend(live.damage(&wrong.unreadable, Wrongness::Unreadable)?);
        Ok(data)
    })
}

/// Opens the files of all devices exclusively, which fails while their node runs.
async fn open(configs: &[PathBuf]) -> anyhow::Result<Vec<NodeDevice>> {
    let mut opened = Vec::new();
    for path in configs {
        let config = NodeConfig::read(path)?;
        for (index, device) in config.devices.iter().enumerate() {
            // The content of a memory device went with its node.
            if device.path.as_ref().is_some_and(|path| path.exists()) {
                let device = open_device(&config, index).await.with_context(|| {
                    format!("cannot read a device of {} (is its node still running?)", config.name)
                })?;
                opened.push(device);
            }
        }
    }
    Ok(opened)
}

/// Returns the bytes of all blocks that have a checksum.
fn bytes_of(live: &LiveBlocks) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for info in live.devices() {
        let mut from = 0;
        while let Some(part) = live.part(info.device, from)? {
            bytes += part.blocks.len() as u64 * u64::from(info.block_size);
            from = part.next;
        }
    }
    Ok(bytes)
}

/// Returns a finding for a device with data that was not read.
fn unread(live: &LiveBlocks, info: &DeviceInfo) -> anyhow::Result<Option<Finding>> {
    if live.part(info.device, 0)?.is_none() {
        return Ok(None);
    }
    let (device, node) = (info.device, &info.node);
    let what = if info.is_volatile {
        format!("{device} on {node} was in memory: its data was lost when the node ended")
    } else {
        format!(
            "{device} on {node} was not read: run this on the node's machine, with its \
            configuration as --node"
        )
    };
    Ok(Some(Finding::general(Area::Unread, what)))
}

/// Adjacent blocks that one read covers.
struct Span {
    blocks: Vec<SummedBlock>,
    read: IoFuture<Chunk>,
}

/// A device during the comparison.
struct Reading<'a> {
    live: &'a LiveBlocks,
    info: &'a DeviceInfo,
    /// The machine has booted since the device's last report to the service: unflushed data may be
    /// lost.
    is_reborn: bool,
    device: Rc<dyn Device>,
}

impl Reading<'_> {
    async fn run(
        &self,
        tally: &mut Tally,
        wrong: &mut Wrong,
        show: &mut impl FnMut(&Tally, &Wrong),
    ) -> anyhow::Result<()> {
        let mut from = Some(0);
        let mut waiting = VecDeque::new();
        loop {
            while waiting.len() < READS_AT_ONCE
                && let Some(at) = from
            {
                let part = self.live.part(self.info.device, at)?;
                from = part.as_ref().map(|part| part.next);
                let Some(part) = part else { break };
                tally.unsummed += part.unsummed;
                tally.lost += part.lost;
                let spans = spans(&part, u64::from(self.info.block_size));
                waiting.extend(spans.into_iter().map(|blocks| self.start(blocks)));
            }
            let Some(span) = waiting.pop_front() else { return Ok(()) };
            self.finish(span, tally, wrong).await;
            show(tally, wrong);
        }
    }

    fn start(&self, blocks: Vec<SummedBlock>) -> Span {
        let size = self.info.block_size as usize;
        let read = self.device.read(blocks[0].block * size as u64, blocks.len() * size);
        Span { blocks, read }
    }

    async fn finish(&self, span: Span, tally: &mut Tally, wrong: &mut Wrong) {
        let size = self.info.block_size as usize;
        let Ok(chunk) = span.read.await else {
            // At least one block is bad: find out which.
            for block in span.blocks {
                self.compare_alone(block, tally, wrong).await;
            }
            return;
        };
        let bytes = lasting(chunk);
        tally.read_bytes += bytes.len() as u64;
        for (block, bytes) in span.blocks.into_iter().zip(bytes.chunks(size)) {
            if checksum(bytes) == block.sum {
                tally.compared += 1;
            } else {
                self.compare_alone(block, tally, wrong).await;
            }
        }
    }

    /// Reads one block alone.
    async fn compare_alone(&self, block: SummedBlock, tally: &mut Tally, wrong: &mut Wrong) {
        let SummedBlock { block, sum, is_unflushed } = block;
        let (id, size) = (self.info.device, self.info.block_size as usize);
        let read = self.device.read(block * size as u64, size).await.map(lasting);
        tally.compared += 1;
        match read {
            Ok(bytes) if checksum(&bytes) == sum => {}
            // The service reports it when the node is back.
            Ok(_) if is_unflushed && self.is_reborn => tally.unflushed += 1,
            Ok(_) => {
                wrong.sums.insert((id, block));
            }
            Err(error) => {
                tracing::error!(device = %id, block, %error, "a block cannot be read");
                wrong.unreadable.insert((id, block));
            }
        }
    }
}

fn lasting(chunk: Chunk) -> Shared {
    chunk.into_lasting().into_shared()
}

/// Groups adjacent blocks, each group at most as long as one read.
fn spans(part: &Part, block_size: u64) -> Vec<Vec<SummedBlock>> {
    let most = (READ_BYTES / block_size).max(1) as usize;
    let are_near = |a: &SummedBlock, b: &SummedBlock| a.block + 1 == b.block;
    let near = part.blocks.chunk_by(are_near);
    near.flat_map(|near| near.chunks(most)).map(<[SummedBlock]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each block is read once, adjacent blocks together, and no read exceeds the maximum.
    #[test]
    fn blocks_are_read_together() {
        let block = |block| SummedBlock { block, sum: 0, is_unflushed: false };
        let blocks = [1, 2, 3, 7, 9, 10].map(block).to_vec();
        let part = Part { blocks, unsummed: 0, lost: 0, next: 1 };
        let read = |size| -> Vec<Vec<u64>> {
            let blocks = |span: Vec<SummedBlock>| span.iter().map(|it| it.block).collect();
            spans(&part, size).into_iter().map(blocks).collect()
        };
        assert_eq!(read(4096), [vec![1, 2, 3], vec![7], vec![9, 10]]);
        assert_eq!(read(READ_BYTES / 2), [vec![1, 2], vec![3], vec![7], vec![9, 10]]);
        assert_eq!(read(READ_BYTES * 4), [vec![1], vec![2], vec![3], vec![7], vec![9], vec![10]]);
    }
}
