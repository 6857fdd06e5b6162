//! Requests on an `io_uring` of their own.

use super::Direction;
use crate::buffer::Buffer;
use crate::engine::uring::{setup::build, tolerate};
use crate::file::File;
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Most bytes that are registered; more memory comes from the pool as it is needed.
const REGISTERED_BYTES_MAX: usize = 64 << 20;

/// The memory of blocks for reads, and of the payload.
enum Memory {
    /// Registered: a block for each slot, then the payload.
    Registered(Buffer),
    /// A block for each slot that was ever used, and the payload.
    Loose(Vec<Option<Buffer>>, Buffer),
}

pub(super) struct Ring {
    inner: IoUring,
    /// Keeps the files open.
    _files: Vec<File>,
    memory: Memory,
    block_bytes: usize,
    depth: u32,
}

impl Ring {
    pub(super) fn new(
        files: Vec<File>,
        depth: u32,
        batch: u32,
        payload: Buffer,
    ) -> io::Result<Self> {
        let entries = batch.max(depth.div_ceil(4)).next_power_of_two().clamp(8, 32_768);
        let mut ring = build(IoUring::builder(), entries)?;
        let fds: Vec<RawFd> = files
            .iter()
            .map(|file| file.handle().as_fd().map(|fd| fd.as_raw_fd()))
            .collect::<io::Result<_>>()?;
        if !fds.is_empty() {
            ring.submitter().register_files(&fds)?;
        }
        let block_bytes = payload.len();
        let memory = memory(&mut ring, depth as usize, payload, !files.is_empty());
        Ok(Self { inner: ring, _files: files, memory, block_bytes, depth })
    }

    pub(super) fn has_registered_memory(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
    }

    pub(super) fn push(&mut self, direction: Direction, file: usize, offset: u64, slot: u32) {
        let entry = self.entry(direction, Fixed(file as u32), offset, slot);
        // SAFETY: the memory belongs to this slot until its completion, or is the payload, which is
        // never written; the queue keeps both until the kernel no longer uses them.
        let pushed = unsafe { self.inner.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for a batch");
    }

    fn entry(&mut self, direction: Direction, file: Fixed, at: u64, slot: u32) -> squeue::Entry {
        let (bytes, len) = (self.block_bytes, self.block_bytes as u32);
        let entry = match (&mut self.memory, direction) {
            (Memory::Registered(buffer), Direction::Read) => {
                // SAFETY: the buffer has a block for each slot.
                let block = unsafe { buffer.as_ptr_raw().add(slot as usize * bytes) };
                opcode::ReadFixed::new(file, block, len, 0).offset(at).build()
            }
            (Memory::Registered(buffer), Direction::Write) => {
                // SAFETY: the payload lies behind the blocks of all slots.
                let payload = unsafe { buffer.as_ptr_raw().add(self.depth as usize * bytes) };
                opcode::WriteFixed::new(file, payload, len, 0).offset(at).build()
            }
            (Memory::Loose(blocks, _), Direction::Read) => {
                let block = blocks[slot as usize].get_or_insert_with(|| Buffer::zeroed(bytes));
                opcode::Read::new(file, block.as_ptr_raw(), len).offset(at).build()
            }
            (Memory::Loose(_, payload), Direction::Write) => {
                opcode::Write::new(file, payload.as_ptr_raw(), len).offset(at).build()
            }
        };
        entry.user_data(slot.into())
    }

    pub(super) fn submit(&mut self) -> io::Result<()> {
        tolerate(self.inner.submit())
    }

    pub(super) fn wait(&mut self, time: Duration) -> io::Result<()> {
        let time = Timespec::from(time);
        tolerate(self.inner.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)))
    }

    pub(super) fn reap(&mut self, mut completed: impl FnMut(u32, i32)) {
        for completion in self.inner.completion() {
            completed(completion.user_data() as u32, completion.result());
        }
    }

    /// Leaves the memory to the kernel for ever.
    pub(super) fn leak(&mut self) {
        let nothing = Memory::Loose(Vec::new(), Buffer::with_capacity(0));
        std::mem::forget(std::mem::replace(&mut self.memory, nothing));
    }
}

/// Registers memory for all requests, unless it is too much.
fn memory(ring: &mut IoUring, depth: usize, payload: Buffer, is_used: bool) -> Memory {
    let block = payload.len();
    let loose = |payload| Memory::Loose((0..depth).map(|_| None).collect(), payload);
    let bytes = (depth + 1).saturating_mul(block);
    if bytes > REGISTERED_BYTES_MAX || !is_used {
        return loose(payload);
    }
    let mut buffer = Buffer::zeroed(bytes);
    buffer[depth * block..].copy_from_slice(&payload);
    let vector = libc::iovec { iov_base: buffer.as_ptr_raw().cast(), iov_len: bytes };
    // SAFETY: the buffer lives as long as the ring, see `FileQueue`'s `drop`.
    match unsafe { ring.submitter().register_buffers(&[vector]) } {
        Ok(()) => Memory::Registered(buffer),
        // The limit of locked memory; `has_registered_memory` reports it to the caller.
        Err(_) => loose(payload),
    }
}
