//! The start of commands on the namespaces' devices. Commands that change blocks are counted, or wait
//! for a Compare and Write on their blocks, see [`crate::exclusion`].

use super::execute::{Executor, Open};
use super::io_command::{Extent, IoCommand, VERIFY_STEP_BYTES, ranges, sources};
use super::pace::{Pace, STEP_BYTES_ELSEWHERE};
use super::reserve::report;
use super::work::{FusedFault, Work, status_of};
use crate::exclusion::Counted;
use block::{Device, DiscardEffect, IoFuture};
use nvme::Status;
use nvme::command::{CopyRange, DsmRange};
use reactor::{Buffer, Chunk};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// A change of blocks, checked, with its data.
enum Change {
    Write { offset: u64, chunk: Chunk },
    Discard(Vec<Extent>),
    Zero(Extent),
    Mark(Extent),
    Copy { sources: Vec<Extent>, offset: u64 },
}

/// What a command that runs in steps needs of its executor.
struct Ground {
    device: Rc<dyn Device>,
    pace: Rc<Pace>,
    is_elsewhere: Rc<Cell<bool>>,
    /// Whether the device is flushed at the end of a command.
    is_flushed: bool,
}

impl Executor {
    /// Starts a checked command. The second part of the result lasts as long as the command.
    pub(super) fn start(
        &self,
        open: usize,
        command: IoCommand,
        data: Option<Buffer>,
    ) -> (Work, Option<Counted>) {
        let Some(Some(open)) = self.open.get(open) else {
            return (self.flush_all(), None);
        };
        let Open { device, namespace, .. } = open;
        let work = match command {
            IoCommand::Read(extent) => {
                Work::Read(device.read(extent.offset, extent.bytes as usize))
            }
            IoCommand::Compare(extent) => {
                let data = data.unwrap_or_else(|| Buffer::with_capacity(0));
                let comparison = compare(device, extent, data);
                Work::Steps(Box::pin(comparison))
            }
            IoCommand::Verify(extent) => self.verify(open, extent),
            IoCommand::Manage { is_deallocate: false, .. } => Work::Write(IoFuture::ready(Ok(()))),
            IoCommand::Flush if reactor::mutant!("target-flush-noop") => {
                Work::Write(IoFuture::ready(Ok(())))
            }
            IoCommand::Flush => Work::Write(device.flush()),
            IoCommand::Reserve(reserve) => self.reserve(namespace, reserve, data.as_deref()),
            IoCommand::Report { bytes } => report(namespace, bytes),
            IoCommand::Write { extent, is_fua } => {
                let chunk = Chunk::from(data.unwrap_or_else(|| Buffer::with_capacity(0)));
                return self.change(open, Change::Write { offset: extent.offset, chunk }, is_fua);
            }
            IoCommand::WriteZeroes { extent, is_fua, is_deallocate } => {
                let can_discard = device.geometry().discard == DiscardEffect::Zeroes;
                // Only zeros that are written end the marks of uncorrectable blocks.
                let is_discard =
                    is_deallocate && can_discard && !namespace.allows_write_uncorrectable();
                let change =
                    if is_discard { Change::Discard(vec![extent]) } else { Change::Zero(extent) };
                return self.change(open, change, is_fua);
            }
            IoCommand::WriteUncorrectable(extent) => {
                return self.change(open, Change::Mark(extent), false);
            }
            IoCommand::Manage { list_bytes, .. } => {
                let list = listed(data.as_deref(), list_bytes);
                match ranges(namespace, DsmRange::list(list), &self.limits) {
                    Ok(extents) => return self.change(open, Change::Discard(extents), false),
                    Err(status) => Work::failed(status),
                }
            }
            IoCommand::Copy { destination_lba, list_bytes, is_fua, .. } => {
                let list = CopyRange::list(listed(data.as_deref(), list_bytes));
                match sources(namespace, list, destination_lba, &self.limits) {
                    Ok(sources) => {
                        let offset = destination_lba << namespace.block_shift();
                        return self.change(open, Change::Copy { sources, offset }, is_fua);
                    }
                    Err(status) => Work::failed(status),
                }
            }
            IoCommand::CompareAndWrite { .. } => Work::failed(Status::INTERNAL_ERROR),
        };
        (work, None)
    }

    /// Starts a change of blocks, or lets it wait for a Compare and Write on them.
    fn change(&self, open: &Open, change: Change, is_fua: bool) -> (Work, Option<Counted>) {
        let ground = Ground {
            device: Rc::clone(&open.device),
            pace: Rc::clone(&self.pace),
            is_elsewhere: Rc::clone(&open.is_elsewhere),
            is_flushed: is_fua && open.namespace.has_write_cache(),
        };
        if let Some(counted) = open.writer.enter() {
            return (ground.start(change), Some(counted));
        }
        let listed = open.writer.list(change.bytes());
        let work = Work::Steps(Box::pin(async move {
            listed.begin().await;
            let result = ground.start(change).end().await;
            drop(listed);
            result
        }));
        (work, None)
    }

    /// Starts the comparison of a fused pair, and then its write if the stored data is `expected`.
    pub(super) fn compare_and_write(
        open: &Open,
        (extent, is_fua): (Extent, bool),
        expected: Buffer,
        data: Buffer,
    ) -> Work {
        let device = Rc::clone(&open.device);
        let is_flushed = is_fua && open.namespace.has_write_cache();
        let listed = open.writer.hold(extent.offset..extent.offset + extent.bytes);
        Work::Fused(Box::pin(async move {
            listed.begin().await;
            compare(&device, extent, expected).await.map_err(FusedFault::Compare)?;
            let failed = |error: block::Error| FusedFault::Write(status_of(&error));
            device.write(extent.offset, Chunk::from(data)).await.map_err(failed)?;
            if is_flushed {
                device.flush().await.map_err(failed)?;
            }
            drop(listed);
            Ok(())
        }))
    }

    /// Reads blocks and drops them, in steps between which other connections get their turns.
    fn verify(&self, open: &Open, extent: Extent) -> Work {
        let (pace, device) = (Rc::clone(&self.pace), Rc::clone(&open.device));
        let is_elsewhere = Rc::clone(&open.is_elsewhere);
        Work::Steps(Box::pin(async move {
            let step = |offset, bytes| {
                let read = device.read(offset, bytes as usize);
                IoFuture::boxed(async move { read.await.map(drop) })
            };
            let range = (extent.offset, extent.bytes);
            pace.in_steps(range, VERIFY_STEP_BYTES, &is_elsewhere, step).await
        }))
    }

    /// Flushes all namespaces. Fails if one of the flushes fails.
    fn flush_all(&self) -> Work {
        // Includes removed namespaces: their caches may hold writes from before this flush.
        let open = self.open.iter().flatten();
        let flushes: Vec<IoFuture<()>> = open.map(|open| open.device.flush()).collect();
        Work::Write(IoFuture::boxed(async move {
            let mut result = Ok(());
            for flush in flushes {
                result = result.and(flush.await);
            }
            result
        }))
    }
}

impl Change {
    /// Returns the range of all bytes that change.
    fn bytes(&self) -> Range<u64> {
        let of = |extent: &Extent| extent.offset..extent.offset + extent.bytes;
        match self {
            Self::Write { offset, chunk } => *offset..*offset + chunk.len() as u64,
            Self::Zero(extent) | Self::Mark(extent) => of(extent),
            Self::Discard(extents) => {
                let start = extents.iter().map(|it| it.offset).min().unwrap_or_default();
                start..extents.iter().map(|it| of(it).end).max().unwrap_or_default()
            }
            Self::Copy { sources, offset } => *offset..*offset + total(sources),
        }
    }
}

impl Ground {
    fn start(self, change: Change) -> Work {
        match change {
            Change::Write { offset, chunk } => {
                let write = self.device.write(offset, chunk);
                if self.is_flushed { then_flush(write, &self.device) } else { Work::Write(write) }
            }
            Change::Mark(Extent { offset, bytes }) => {
                Work::Write(self.device.mark_uncorrectable(offset, bytes))
            }
            Change::Zero(extent) => {
                self.long(vec![extent], |device, offset, bytes| device.write_zeroes(offset, bytes))
            }
            Change::Discard(extents) => {
                self.long(extents, |device, offset, bytes| device.discard(offset, bytes))
            }
            Change::Copy { sources, offset } => self.copy(sources, offset),
        }
    }

    /// Changes ranges without data, in steps between which other connections get their turns.
    fn long(self, extents: Vec<Extent>, step: fn(&dyn Device, u64, u64) -> IoFuture<()>) -> Work {
        let Self { device, pace, is_elsewhere, is_flushed } = self;
        Work::Steps(Box::pin(async move {
            for Extent { offset, bytes } in extents {
                let step = |offset, bytes| step(&*device, offset, bytes);
                pace.in_steps((offset, bytes), STEP_BYTES_ELSEWHERE, &is_elsewhere, step).await?;
            }
            if is_flushed {
                device.flush().await.map_err(|error| status_of(&error))?;
            }
            Ok(())
        }))
    }

    /// Reads all sources, then writes the destination, which may overlap them.
    fn copy(self, sources: Vec<Extent>, offset: u64) -> Work {
        let device = self.device;
        let is_flushed = self.is_flushed;
        Work::Steps(Box::pin(async move {
            let mut whole = Buffer::with_capacity(total(&sources) as usize);
            for Extent { offset, bytes } in sources {
                let read = device.read(offset, bytes as usize).await;
                let part = read.map_err(|error| status_of(&error))?;
                whole.extend_from_chunk(&part, 0..part.len());
            }
            let write = device.write(offset, Chunk::from(whole));
            let work = if is_flushed { then_flush(write, &device) } else { Work::Write(write) };
            work.end().await
        }))
    }
}

fn total(extents: &[Extent]) -> u64 {
    extents.iter().map(|it| it.bytes).sum()
}

/// Returns the list of ranges at the start of a command's data.
fn listed(data: Option<&[u8]>, list_bytes: u32) -> &[u8] {
    let data = data.unwrap_or_default();
    &data[..data.len().min(list_bytes as usize)]
}

fn then_flush(write: IoFuture<()>, device: &Rc<dyn Device>) -> Work {
    let device = Rc::clone(device);
    Work::Write(IoFuture::boxed(async move {
        write.await?;
        device.flush().await
    }))
}

/// Compares stored blocks with data.
fn compare(
    device: &Rc<dyn Device>,
    extent: Extent,
    data: Buffer,
) -> impl Future<Output = Result<(), Status>> + use<> {
    let read = device.read(extent.offset, extent.bytes as usize);
    async move {
        let stored = read.await.map_err(|error| status_of(&error))?;
        if *stored.to_bytes() == *data {
            Ok(())
        } else {
            Err(Status::COMPARE_FAILURE.do_not_retry())
        }
    }
}
