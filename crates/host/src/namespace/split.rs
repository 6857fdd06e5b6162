//! Requests larger than one command.

use super::Namespace;
use super::request::Request;
use crate::error::Error;
use crate::options::Transport;
use crate::queue_pair::{Data, Destination};
use nvme::command::{DatasetManagement, DsmRange, ReadWrite};
use nvme::opcode::NvmOpcode;
use reactor::{Buffer, Shared};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// Maximum number of commands of one request under way at a time.
const PARALLEL_MAX: usize = 64;
/// Most blocks of one Write Zeroes command.
const ZERO_BLOCKS_MAX: u64 = 1 << 16;

type Part<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Runs all parts to their ends, at most [`PARALLEL_MAX`] at a time, and returns the first error.
async fn run_all<'a>(mut parts: impl Iterator<Item = Part<'a>>) -> Result<(), Error> {
    let mut running: Vec<Part<'a>> = parts.by_ref().take(PARALLEL_MAX).collect();
    let mut result = Ok(());
    poll_fn(|cx| {
        let mut index = 0;
        while index < running.len() {
            match running[index].as_mut().poll(cx) {
                Poll::Pending => index += 1,
                Poll::Ready(ended) => {
                    drop(running.swap_remove(index));
                    if result.is_ok() && !reactor::mutant!("part-failure-dropped") {
                        result = ended;
                    }
                    // After an error no new part begins.
                    if result.is_ok()
                        && let Some(next) = parts.next()
                    {
                        running.push(next);
                    }
                }
            }
        }
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

/// Cuts `bytes` into ranges of at most `piece_bytes`.
fn pieces(bytes: u64, piece_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let piece_bytes = piece_bytes.max(1);
    (0..bytes.div_ceil(piece_bytes))
        .map(move |index| index * piece_bytes..((index + 1) * piece_bytes).min(bytes))
}

impl Namespace {
    fn piece_bytes(&self) -> u64 {
        let block_size = u64::from(self.0.geometry.block_size);
        let limit = u64::from(self.0.transfer_bytes_max).min(block_size << 16);
        limit / block_size * block_size
    }

    pub(super) async fn read_split(
        &self,
        offset_bytes: u64,
        buffer: Buffer,
    ) -> Result<Buffer, Error> {
        let bytes = buffer.len();
        let shared = Rc::new(RefCell::new(Some(buffer)));
        self.read_parts(offset_bytes, &shared, 0, bytes).await?;
        shared.take().ok_or(Error::ConnectionLost(crate::ConnectionEnd::Closed))
    }

    /// Reads `bytes` into the shared buffer from byte `start` on. The buffer's visible part is long
    /// enough.
    pub(super) async fn read_parts(
        &self,
        offset_bytes: u64,
        buffer: &Rc<RefCell<Option<Buffer>>>,
        start: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        // Over RDMA several transfers run at a time, and each has its memory to itself.
        let is_apart =
            self.0.paths.is_some() || self.0.controller.options().transport == Transport::Rdma;
        if is_apart && bytes as u64 > self.piece_bytes() {
            return self.read_parts_apart(offset_bytes, buffer, start, bytes).await;
        }
        // All on one queue pair: only one receive at a time may use the buffer.
        let lane = self.lane();
        run_all(pieces(bytes as u64, self.piece_bytes()).map(|range| -> Part<'_> {
            let len = range.end - range.start;
            let destination =
                Destination::part(Rc::clone(buffer), start + range.start as usize, len as u32);
            Box::pin(async move {
                let request = self.read_write(NvmOpcode::READ, offset_bytes + range.start, len)?;
                self.run(&request, Data::Read(destination), lane).await.map(drop)
            })
        }))
        .await
    }

    /// Reads as [`Self::read_parts`] does, for parts that may arrive at a time: each part has a buffer of its own, which is copied.
    async fn read_parts_apart(
        &self,
        offset_bytes: u64,
        buffer: &Rc<RefCell<Option<Buffer>>>,
        start: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        let lost = || Error::ConnectionLost(crate::ConnectionEnd::Closed);
        run_all(pieces(bytes as u64, self.piece_bytes()).map(|range| -> Part<'_> {
            let len = (range.end - range.start) as usize;
            let at = start + range.start as usize;
            Box::pin(async move {
                let mut part = Buffer::with_capacity(len);
                part.set_len(len);
                let part = self.read(offset_bytes + range.start, part).await?;
                let mut whole = buffer.borrow_mut();
                let whole = whole.as_mut().ok_or_else(lost)?;
                whole.get_mut(at..at + len).ok_or_else(lost)?.copy_from_slice(&part);
                Ok(())
            })
        }))
        .await
    }

    pub(super) async fn write_split(&self, offset_bytes: u64, bytes: Shared) -> Result<(), Error> {
        let lane = self.lane();
        run_all(pieces(bytes.len() as u64, self.piece_bytes()).map(|range| -> Part<'_> {
            let payload = bytes.slice(range.start as usize..range.end as usize);
            Box::pin(async move {
                let len = range.end - range.start;
                let start = if reactor::mutant!("split-misplaced") { 0 } else { range.start };
                let request = self.read_write(NvmOpcode::WRITE, offset_bytes + start, len)?;
                self.run(&request, Data::Write(payload), lane).await.map(drop)
            })
        }))
        .await
    }

    pub(super) async fn zero_split(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        if !self.0.is_write_zeroes_supported {
            return self.write_zero_bytes(offset_bytes, bytes).await;
        }
        let limit = self.0.limits.zero_bytes_max.max(u64::from(self.0.geometry.block_size));
        let piece_blocks = ZERO_BLOCKS_MAX.min(limit >> self.0.block_shift);
        let piece_bytes = piece_blocks << self.0.block_shift;
        let lane = self.lane();
        run_all(pieces(bytes, piece_bytes).map(|range| -> Part<'_> {
            Box::pin(async move {
                let start_lba = (offset_bytes + range.start) >> self.0.block_shift;
                let blocks = (range.end - range.start) >> self.0.block_shift;
                let fields = ReadWrite {
                    start_lba,
                    blocks: blocks as u32,
                    is_deallocate: true,
                    ..ReadWrite::default()
                };
                let sqe =
                    fields.encode(NvmOpcode::WRITE_ZEROES, self.0.nsid).map_err(|source| {
                        Error::InvalidResponse { structure: "request", fault: source }
                    })?;
                let command = "Write Zeroes";
                let request = Request { command, sqe, start_lba, blocks, is_write: true };
                self.run(&request, Data::None, lane).await.map(drop)
            })
        }))
        .await
    }

    async fn write_zero_bytes(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        let piece_bytes = self.piece_bytes();
        let zeros = Buffer::zeroed(bytes.min(piece_bytes) as usize).freeze();
        run_all(pieces(bytes, piece_bytes).map(|range| -> Part<'_> {
            let payload = zeros.slice(..(range.end - range.start) as usize);
            Box::pin(self.write(offset_bytes + range.start, payload))
        }))
        .await
    }

    pub(super) async fn discard_split(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        let start_lba = offset_bytes >> self.0.block_shift;
        let blocks = bytes >> self.0.block_shift;
        let (range_blocks, ranges_max) = self.0.limits.discard();
        let mut ranges = pieces(blocks, range_blocks)
            .map(|piece| DsmRange::new(start_lba + piece.start, (piece.end - piece.start) as u32))
            .peekable();
        // A controller may state limits that make this many commands: no more than one is prepared.
        while ranges.peek().is_some() {
            let ranges: Vec<DsmRange> = ranges.by_ref().take(ranges_max).collect();
            let fields = DatasetManagement {
                ranges: ranges.len() as u16,
                is_deallocate: true,
                ..DatasetManagement::default()
            };
            let sqe = fields
                .encode(self.0.nsid)
                .map_err(|source| Error::InvalidResponse { structure: "request", fault: source })?;
            let mut list = Buffer::with_capacity(ranges.len() * DsmRange::BYTES);
            for range in ranges {
                list.extend_from_slice(range.bytes());
            }
            let command = "Dataset Management";
            let request = Request { command, sqe, start_lba, blocks, is_write: true };
            self.run(&request, Data::Write(list.freeze()), self.lane()).await?;
        }
        Ok(())
    }
}
