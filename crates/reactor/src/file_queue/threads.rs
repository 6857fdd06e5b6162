//! Requests on a separate pool of threads.

use super::Direction;
use crate::buffer::Buffer;
use crate::engine::Reaped;
use crate::engine::file_call::FileCall;
use crate::engine::pool::Pool;
use crate::file::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Most threads, and so most requests on the device at a time.
const THREADS_MAX: usize = 64;

/// Memory of requests.
struct Memory {
    /// A block for each slot that was ever used.
    blocks: Vec<Option<Buffer>>,
    payload: Buffer,
    /// The vector of each slot's request; never moved.
    vectors: Box<[libc::iovec]>,
}

pub(super) struct Threads {
    /// Dropped before the memory that its calls name.
    pool: Option<Pool<FileCall>>,
    kick: Arc<OwnedFd>,
    /// Keeps the files open.
    files: Vec<File>,
    fds: Vec<RawFd>,
    memory: Option<Memory>,
    reaped: Vec<Reaped>,
}

impl Threads {
    pub(super) fn new(files: Vec<File>, depth: u32, payload: Buffer) -> io::Result<Self> {
        use rustix::event::EventfdFlags;
        let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kick = Arc::new(kick);
        let fds = files.iter().map(|file| file.handle().as_fd().map(|fd| fd.as_raw_fd()));
        let fds = fds.collect::<io::Result<_>>()?;
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let depth = depth as usize;
        let memory = Memory {
            blocks: (0..depth).map(|_| None).collect(),
            payload,
            vectors: vec![nothing; depth].into(),
        };
        let pool = Some(Pool::new(depth.min(THREADS_MAX), Arc::clone(&kick)));
        Ok(Self { pool, kick, files, fds, memory: Some(memory), reaped: Vec::new() })
    }

    pub(super) fn push(&mut self, direction: Direction, file: usize, offset: u64, slot: u32) {
        let (Some(memory), Some(pool)) = (&mut self.memory, &mut self.pool) else {
            unreachable!("memory is let go of at the end")
        };
        // A missing file is refused, as by a ring.
        let fd = self.fds.get(file).copied().unwrap_or(-1);
        let (index, bytes) = (slot as usize, memory.payload.len());
        let base = match direction {
            Direction::Read => {
                memory.blocks[index].get_or_insert_with(|| Buffer::zeroed(bytes)).as_ptr_raw()
            }
            Direction::Write => memory.payload.as_ptr_raw(),
        };
        memory.vectors[index] = libc::iovec { iov_base: base.cast(), iov_len: bytes };
        let vectors = &raw const memory.vectors[index];
        let call = match direction {
            Direction::Read => FileCall::Read { fd, vectors, count: 1, offset },
            Direction::Write => FileCall::Write { fd, vectors, count: 1, offset },
        };
        pool.push(slot, call);
    }

    /// Sleeps until a request completes, a signal comes or the time has passed.
    pub(super) fn wait(&mut self, time: Duration) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let Some(pool) = &self.pool else { return Ok(()) };
        if !pool.prepare_sleep() {
            return Ok(());
        }
        let time = Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        let mut one = [PollFd::from_borrowed_fd(self.kick.as_fd(), PollFlags::IN)];
        let polled = rustix::event::poll(&mut one, Some(&time));
        pool.end_sleep();
        // The count is of no interest, and may be zero.
        let _ = rustix::io::read(&*self.kick, &mut [0_u8; 8]);
        match polled {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn reap(&mut self, mut completed: impl FnMut(u32, i32)) {
        if let Some(pool) = &self.pool {
            pool.take_done(&mut self.reaped);
        }
        self.reaped.drain(..).for_each(|(slot, result)| completed(slot, result));
    }

    /// Abandons memory and threads for ever, because some threads still work.
    pub(super) fn leak(&mut self) {
        let files = std::mem::take(&mut self.files);
        std::mem::forget((self.pool.take(), self.memory.take(), files));
    }
}
