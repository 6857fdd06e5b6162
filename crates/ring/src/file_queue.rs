//! Reads and writes of equal blocks of files without futures: for loads that measure what an operation
//! costs, where tasks, wakers and pools would be a good part of it.
//!
//! The queue has a ring of its own. Files and (where the limit of locked memory allows it) the memory
//! of all requests are registered with it once, so that a request is one entry
//! of the submission queue and one of the completion queue, and nothing is allocated. Submitting and
//! waiting are one system call, which carries the time to wake up at.
//!
//! Requests that run are named by slots, 0 up to the depth.

use crate::buffer::Buffer;
use crate::file::File;
use crate::time::{Instant, now};
use crate::uring::{build, tolerate};
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Most bytes that are registered; more are taken from the pool as they are needed.
const REGISTERED_BYTES_MAX: usize = 64 << 20;
/// How long a queue that is dropped waits for the kernel to give up its last requests.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read a block.
    Read,
    /// Write the payload.
    Write,
}

/// How a [`FileQueue`] is made.
#[derive(Debug)]
pub struct FileQueueConfig {
    /// Requests that can be under way.
    pub depth: u32,
    /// Requests that can be queued between two [`FileQueue::submit`] or [`FileQueue::wait`].
    pub batch: u32,
    /// What writes write; its length is that of every request.
    pub payload: Buffer,
}

/// Where blocks are read to, and written from.
enum Memory {
    /// Registered: a block for each slot, then the payload.
    Registered(Buffer),
    /// A block for each slot that was ever used, and the payload.
    Loose(Vec<Option<Buffer>>, Buffer),
}

/// Requests of one thread, on a ring of their own.
pub struct FileQueue {
    ring: IoUring,
    /// Keeps the files open.
    _files: Vec<File>,
    memory: Memory,
    block_bytes: usize,
    /// Slots that no request uses; the last was used last, so that its memory is warm.
    free: Vec<u32>,
    depth: u32,
    /// Requests that were queued since the last system call.
    queued: usize,
    /// System calls by the number of requests that they submitted.
    submissions: Vec<u64>,
}

impl FileQueue {
    /// A queue for these files, which requests name by their index.
    ///
    /// # Errors
    /// What `io_uring_setup` or `io_uring_register` answers.
    ///
    /// # Panics
    /// If depth, batch or block is zero.
    pub fn new(files: Vec<File>, config: FileQueueConfig) -> io::Result<Self> {
        let FileQueueConfig { depth, batch, payload } = config;
        assert!(depth > 0 && batch > 0 && !payload.is_empty(), "nothing can be queued");
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
        Ok(Self {
            ring,
            _files: files,
            memory,
            block_bytes,
            free: (0..depth).rev().collect(),
            depth,
            queued: 0,
            submissions: vec![0; batch as usize + 1],
        })
    }

    /// Requests that can be under way.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether the memory of requests is registered.
    pub fn has_registered_memory(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
    }

    /// Requests that are queued or under way.
    pub fn in_flight(&self) -> u32 {
        self.depth - self.free.len() as u32
    }

    /// System calls so far that submitted something: requests, and how often it were so many.
    pub fn submissions(&self) -> Vec<(usize, u64)> {
        let counts = self.submissions.iter().copied().enumerate();
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Queues a request for a block at `offset` of a file and returns its slot.
    ///
    /// # Panics
    /// If more are queued than the batch, or under way than the depth.
    pub fn push(&mut self, direction: Direction, file: usize, offset: u64) -> u32 {
        let slot = self.free.pop().expect("no more requests than the depth");
        let entry = self.entry(direction, Fixed(file as u32), offset, slot);
        // SAFETY: the memory is this slot's until its completion, or the payload, which nobody writes;
        // `drop` keeps both until the kernel has let go of them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "no more requests between two system calls than the batch");
        self.queued += 1;
        slot
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
                // SAFETY: behind the blocks of all slots there is the payload.
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

    /// Submits what is queued.
    ///
    /// # Errors
    /// What `io_uring_enter` answers, if the ring is broken.
    pub fn submit(&mut self) -> io::Result<()> {
        self.count_submission();
        tolerate(self.ring.submit())
    }

    /// Submits what is queued and sleeps until something has completed, a signal came or it is `until`.
    ///
    /// # Errors
    /// As [`FileQueue::submit`].
    pub fn wait(&mut self, until: Instant) -> io::Result<()> {
        self.count_submission();
        let time = Timespec::from(until.since(now()));
        tolerate(self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)))
    }

    fn count_submission(&mut self) {
        if self.queued > 0 {
            self.submissions[self.queued] += 1;
            self.queued = 0;
        }
    }

    /// Hands out the slots and results (bytes or a negated errno) of all requests that have completed.
    pub fn reap(&mut self, mut completed: impl FnMut(u32, i32)) {
        for completion in self.ring.completion() {
            let slot = completion.user_data() as u32;
            self.free.push(slot);
            completed(slot, completion.result());
        }
        debug_assert!(self.free.len() <= self.depth as usize, "a slot is given back once");
    }
}

/// Registers memory for all requests, if it is not too much.
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
    // SAFETY: the buffer lives as long as the ring, see `FileQueue::drop`.
    match unsafe { ring.submitter().register_buffers(&[vector]) } {
        Ok(()) => Memory::Registered(buffer),
        // The limit of locked memory, of which the caller is told by `has_registered_memory`.
        Err(_) => loose(payload),
    }
}

impl Drop for FileQueue {
    /// Waits until the kernel has let go of the memory. Should it not within ten seconds (a disk that
    /// does not answer), that memory is leaked rather than reused.
    fn drop(&mut self) {
        let deadline = now() + DRAIN_TIME_MAX;
        while self.in_flight() > 0 {
            let waited = self.wait(deadline);
            self.reap(|_, _| {});
            if waited.is_err() || now() >= deadline {
                break;
            }
        }
        if self.in_flight() > 0 {
            let nothing = Memory::Loose(Vec::new(), Buffer::with_capacity(0));
            std::mem::forget(std::mem::replace(&mut self.memory, nothing));
        }
    }
}

impl std::fmt::Debug for FileQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileQueue").field("depth", &self.depth).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, FileQueue, FileQueueConfig};
    use crate::file::{File, OpenOptions};
    use crate::time::now;
    use crate::{Buffer, buffer};
    use std::time::Duration;

    const BLOCK: usize = 4096;

    fn queue(file: File, depth: u32, block: usize) -> FileQueue {
        let mut payload = Buffer::zeroed(block);
        payload.fill(7);
        FileQueue::new(vec![file], FileQueueConfig { depth, batch: 2, payload }).unwrap()
    }

    fn file() -> File {
        let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
        let directory = tempfile::tempdir().unwrap();
        File::open(directory.path().join("file"), options).unwrap()
    }

    fn drain(queue: &mut FileQueue) -> Vec<(u32, i32)> {
        let mut all = Vec::new();
        while queue.in_flight() > 0 {
            queue.wait(now() + Duration::from_secs(5)).unwrap();
            queue.reap(|slot, result| all.push((slot, result)));
        }
        all
    }

    /// Goal: writes put the payload where they should, with registered memory and without, reads and
    /// errors are told by slot, and system calls are counted by what they submit.
    #[test]
    fn requests_are_done_and_told() {
        for (depth, block) in [(4, BLOCK), (2, 33 << 20)] {
            let file = file();
            let mut queue = queue(file.clone(), depth, block);
            assert_eq!(queue.has_registered_memory(), block == BLOCK);
            queue.push(Direction::Write, 0, block as u64);
            let written = drain(&mut queue);
            assert_eq!(written.iter().map(|it| it.1).collect::<Vec<_>>(), [block as i32]);
            assert_eq!(file.size().unwrap(), 2 * block as u64);
            let first = queue.push(Direction::Read, 0, 0);
            let second = queue.push(Direction::Read, 0, 2 * block as u64);
            assert_ne!(first, second);
            let mut read = drain(&mut queue);
            read.sort_by_key(|it| it.0 != first);
            assert_eq!(read, [(first, block as i32), (second, 0)]);
            queue.push(Direction::Read, 1, 0);
            assert_eq!(drain(&mut queue)[0].1, -libc::EBADF);
            assert_eq!(queue.submissions(), [(1, 2), (2, 1)]);
            let mut runtime = crate::Runtime::new(&crate::Config::default()).unwrap();
            let (result, bytes) = runtime.block_on(async {
                file.read_at(Buffer::with_capacity(2), 0..2, block as u64 - 1).await
            });
            assert_eq!((result.unwrap(), &bytes[..]), (2, &[0, 7][..]));
        }
    }

    /// Goal: a wait ends at its time if nothing completes.
    #[test]
    fn a_wait_ends_in_time() {
        let mut queue = queue(file(), 1, buffer::ALIGNMENT_BYTES);
        let (begin, time) = (now(), Duration::from_millis(20));
        queue.wait(begin + time).unwrap();
        let waited = begin.elapsed();
        assert!(waited >= time && waited < Duration::from_secs(5), "{waited:?}");
        // A time that has passed is no wait.
        queue.wait(begin).unwrap();
    }
}
