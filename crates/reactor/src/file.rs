//! Files and block devices over the reactor.
//!
//! Opening, sizes and locks are plain calls (they are rare and need little I/O). Reads, writes,
//! syncs and allocation go through the reactor.

mod identity;
mod open;

pub use identity::{FileHandle, file_system_uuid, verity_digest};

use crate::buffer::Buffer;
use crate::chunk::{Chunk, Segment, Segments};
use crate::handle::{Handle, finish_read};
use crate::operation::{Completion, Op, Operation, Step};
use smallvec::smallvec;
use std::io;
use std::ops::Range;
use std::path::Path;

/// The options of opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Make the file if it is missing (mode 0600).
    pub create: bool,
    /// Make the file, or fail if it exists.
    pub create_new: bool,
    /// Empty the file.
    pub truncate: bool,
    /// Open a block device exclusively: an error (`EBUSY`) while the system uses it, as a mount,
    /// swap, RAID or LVM, or another process has opened it so (`O_EXCL`, open(2)). For block
    /// devices only.
    pub exclusive: bool,
    /// `O_DIRECT`: bypass the page cache; memory, offsets and lengths must be aligned to the
    /// logical block size.
    pub direct: bool,
}

impl OpenOptions {
    /// Open for reading.
    pub const READ: Self = Self {
        read: true,
        write: false,
        create: false,
        create_new: false,
        truncate: false,
        exclusive: false,
        direct: false,
    };
    /// Open for reading and writing.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
}

/// An open file or block device. Clones share the open file description, also between threads. Each
/// operation runs on the reactor of the thread that starts it.
#[derive(Clone, Debug)]
pub struct File {
    handle: Handle,
}

impl File {
    /// Opens `path`.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        open::open(path.as_ref(), options).map(|handle| Self { handle })
    }

    /// Makes a file of an open handle.
    pub fn from_handle(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns the same open file with its own reference count; see [`Handle::apart`].
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { handle: self.handle.apart() }
    }

    /// Returns the handle, for operations that this type lacks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Reads into a range of the buffer's capacity from `offset`. Reads fewer bytes only at the end
    /// of the file or before an error. The buffer's visible length grows to cover the bytes that
    /// were read.
    pub fn read_at(
        &self,
        buffer: Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Op<(io::Result<usize>, Buffer)> {
        let segments = smallvec![Segment::Buffer(buffer, range)];
        Op::submit(&self.handle, Operation::Read { segments, offset }, |completion| {
            match finish_read(completion) {
                Step::Done((result, segments)) => {
                    let buffer = Operation::Receive(segments).into_buffer();
                    Step::Done((result, buffer))
                }
                Step::Again(operation) => Step::Again(operation),
            }
        })
    }

    /// Reads into segments, in order, from `offset`. May be short.
    pub fn read_vectored_at(
        &self,
        segments: Segments,
        offset: u64,
    ) -> Op<(io::Result<usize>, Segments)> {
        Op::submit(&self.handle, Operation::Read { segments, offset }, finish_read)
    }

    /// Writes all of a chunk at `offset` and returns the chunk.
    pub fn write_at(&self, chunk: impl Into<Chunk>, offset: u64) -> Op<(io::Result<()>, Chunk)> {
        let chunk = chunk.into();
        if chunk.is_empty() {
            return Op::ready((Ok(()), chunk));
        }
        Op::submit(&self.handle, Operation::WriteOne { chunk, offset, skip: 0 }, finish_write_one)
    }

    /// Writes all chunks, one after the other, from `offset` on. Returns the list empty, for reuse.
    pub fn write_chunks_at(
        &self,
        chunks: Vec<Chunk>,
        offset: u64,
    ) -> Op<(io::Result<()>, Vec<Chunk>)> {
        if chunks.iter().all(Chunk::is_empty) {
            return Op::ready((Ok(()), emptied(chunks)));
        }
        Op::submit(&self.handle, Operation::Write { chunks, offset, skip: 0 }, finish_write)
    }

    /// Makes written data durable, with the metadata needed to read it (`fdatasync`).
    pub fn sync_data(&self) -> Op<io::Result<()>> {
        self.sync(true)
    }

    /// Makes data and all metadata durable (`fsync`).
    pub fn sync_all(&self) -> Op<io::Result<()>> {
        self.sync(false)
    }

    fn sync(&self, data: bool) -> Op<io::Result<()>> {
        Op::submit(&self.handle, Operation::Sync { data }, |completion| {
            Step::Done(completion.into_result().map(drop))
        })
    }

    /// Writes dirty pages to the device and waits for that. It makes nothing durable, but a sync
    /// afterwards has only metadata left to write, so the syncs of many files meet in one commit of
    /// the file system. Does nothing in a simulation.
    ///
    /// Reports errors of writing, **and a sync of this file afterwards does not**: the kernel
    /// reports an error to an open file description once.
    pub fn write_back(&self) -> Op<io::Result<()>> {
        Op::submit(&self.handle, Operation::WriteBack, |completion| {
            Step::Done(completion.into_result().map(drop))
        })
    }

    /// `fallocate(2)` with its `FALLOC_FL_*` mode; on a block device it discards or zeroes.
    pub fn fallocate(&self, mode: i32, offset: u64, len: u64) -> Op<io::Result<()>> {
        Op::submit(&self.handle, Operation::Allocate { mode, offset, len }, |completion| {
            Step::Done(completion.into_result().map(drop))
        })
    }

    /// Starts to write the dirty pages of a range to the device, so that a later sync has less to
    /// wait for. It makes nothing durable. Does nothing in a simulation.
    pub fn start_write_back(&self, offset: u64, len: u64) {
        if let Ok(fd) = self.handle.as_fd() {
            identity::start_write_back(fd, offset, len);
        }
    }

    /// As [`File::write_back`], but blocks this thread: for threads without other work.
    ///
    /// # Errors
    /// Errors of writing; a sync of this file afterwards does not report them again.
    pub fn write_back_blocking(&self) -> io::Result<()> {
        identity::write_back(self.handle.as_fd()?)
    }

    /// Returns the size in bytes, also of a block device.
    ///
    /// # Errors
    /// Errors of `fstat` or `BLKGETSIZE64`.
    pub fn size(&self) -> io::Result<u64> {
        open::size(&self.handle)
    }

    /// Sets the size of a regular file.
    ///
    /// # Errors
    /// Errors of `ftruncate`.
    pub fn set_size(&self, size: u64) -> io::Result<()> {
        open::set_size(&self.handle, size)
    }

    /// Returns whether it is a block device.
    ///
    /// # Errors
    /// Errors of `fstat`.
    pub fn is_block_device(&self) -> io::Result<bool> {
        open::is_block_device(&self.handle)
    }

    /// Returns the logical block size in bytes: that of a block device (`BLKSSZGET`), or the
    /// alignment that `O_DIRECT` needs on a regular file.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn logical_block_size(&self) -> io::Result<u32> {
        open::logical_block_size(&self.handle)
    }

    /// Returns the alignment of memory that `O_DIRECT` requires, in bytes (1: none).
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn memory_alignment(&self) -> io::Result<u32> {
        open::memory_alignment(&self.handle)
    }

    /// Takes an exclusive lock on the whole file for this open file description (`F_OFD_SETLK`); it
    /// ends when the last clone is closed.
    ///
    /// # Errors
    /// `WouldBlock` if another has it; the error names the holder if the kernel knows it.
    pub fn try_lock_exclusive(&self) -> io::Result<()> {
        open::try_lock_exclusive(&self.handle)
    }

    /// Takes a shared lock in the same way: others may hold shared locks too, but not an exclusive
    /// one.
    ///
    /// # Errors
    /// `WouldBlock` if another has an exclusive lock; `Unsupported` in the simulation.
    pub fn try_lock_shared(&self) -> io::Result<()> {
        open::try_lock_shared(&self.handle)
    }
}

fn emptied(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
    chunks.clear();
    chunks
}

fn finish_write_one(completion: Completion) -> Step<(io::Result<()>, Chunk)> {
    let result = completion.result();
    let Operation::WriteOne { chunk, offset, skip } = completion.operation else {
        unreachable!("a write completes as a write")
    };
    match progress(result, skip, chunk.len()) {
        Ok(Some(skip)) => Step::Again(Operation::WriteOne { chunk, offset, skip }),
        Ok(None) => Step::Done((Ok(()), chunk)),
        Err(error) => Step::Done((Err(error), chunk)),
    }
}

fn finish_write(completion: Completion) -> Step<(io::Result<()>, Vec<Chunk>)> {
    let result = completion.result();
    let Operation::Write { chunks, offset, skip } = completion.operation else {
        unreachable!("a write completes as a write")
    };
    match progress(result, skip, chunks.iter().map(Chunk::len).sum()) {
        Ok(Some(skip)) => Step::Again(Operation::Write { chunks, offset, skip }),
        Ok(None) => Step::Done((Ok(()), emptied(chunks))),
        Err(error) => Step::Done((Err(error), emptied(chunks))),
    }
}

/// Returns the new `skip` after a write, if bytes are left.
fn progress(result: io::Result<usize>, skip: usize, total: usize) -> io::Result<Option<usize>> {
    match result? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        n if skip + n < total => Ok(Some(skip + n)),
        _ => Ok(None),
    }
}
