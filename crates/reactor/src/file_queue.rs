//! Reads and writes of equal blocks of files without futures. This is for loads that measure the
//! cost of an operation, where tasks, wakers and pools would be a large part of it.
//!
//! The queue has an engine of its own. On `io_uring`, files and (if the limit of locked memory
//! allows it) the memory of all requests are registered once. So a request is one entry of the
//! submission queue and one of the completion queue, and nothing is allocated. Submitting and
//! waiting are one system call, which carries the wake-up time. Without `io_uring`, a pool of
//! threads makes a system call for each request.
//!
//! A running request is identified by its slot, 0 up to the depth.

mod ring;
mod threads;

use crate::buffer::Buffer;
use crate::engine::{Kind, choice};
use crate::file::File;
use crate::time::{Instant, now};
use ring::Ring;
use std::io;
use std::time::Duration;
use threads::Threads;

/// How long a queue that is dropped waits for its last requests.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read a block.
    Read,
    /// Write the payload.
    Write,
}

/// The configuration of a [`FileQueue`].
#[derive(Debug)]
pub struct FileQueueConfig {
    /// Most requests that can be under way.
    pub depth: u32,
    /// Most requests that can be queued between two [`FileQueue::submit`] or [`FileQueue::wait`].
    pub batch: u32,
    /// The data that writes write; its length is that of every request.
    pub payload: Buffer,
    /// The engine; `None` for the process's choice.
    pub engine: Option<Kind>,
}

/// The engine that executes requests.
enum Engine {
    Ring(Ring),
    Threads(Threads),
}

/// Requests of one thread, on an engine of their own.
pub struct FileQueue {
    engine: Engine,
    /// Slots that no request uses; the last one was used last, so its memory is warm.
    free: Vec<u32>,
    depth: u32,
    batch: usize,
    /// Requests queued since the last [`FileQueue::submit`] or [`FileQueue::wait`].
    queued: usize,
    /// System calls by the number of requests that they submitted.
    submissions: Vec<u64>,
}

impl FileQueue {
    /// Makes a queue for these files, which requests name by their index.
    ///
    /// # Errors
    /// If the required engine does not work here; errors of `io_uring_setup` or
    /// `io_uring_register`.
    ///
    /// # Panics
    /// If depth, batch or block is zero.
    pub fn new(files: Vec<File>, config: FileQueueConfig) -> io::Result<Self> {
        let FileQueueConfig { depth, batch, payload, engine } = config;
        assert!(depth > 0 && batch > 0 && !payload.is_empty(), "nothing can be queued");
        let kind = match engine {
            Some(kind) => kind,
            None => choice()?.kind,
        };
        let engine = match kind {
            Kind::Uring => Engine::Ring(Ring::new(files, depth, batch, payload)?),
            Kind::Epoll => Engine::Threads(Threads::new(files, depth, payload)?),
        };
        Ok(Self {
            engine,
            free: (0..depth).rev().collect(),
            depth,
            batch: batch as usize,
            queued: 0,
            submissions: vec![0; batch as usize + 1],
        })
    }

    /// Returns the number of requests that can be under way.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns whether the memory of requests is registered.
    pub fn has_registered_memory(&self) -> bool {
        match &self.engine {
            Engine::Ring(ring) => ring.has_registered_memory(),
            Engine::Threads(_) => false,
        }
    }

    /// Returns the number of requests that are queued or under way.
    pub fn in_flight(&self) -> u32 {
        self.depth - self.free.len() as u32
    }

    /// Returns the histogram of batch sizes so far: for each number of requests, the number of
    /// system calls that submitted it.
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
        assert!(self.queued < self.batch, "no more requests between two calls than the batch");
        self.queued += 1;
        match &mut self.engine {
            Engine::Ring(ring) => ring.push(direction, file, offset, slot),
            Engine::Threads(threads) => threads.push(direction, file, offset, slot),
        }
        slot
    }

    /// Submits the queued requests.
    ///
    /// # Errors
    /// Errors of `io_uring_enter`, if the ring is broken.
    pub fn submit(&mut self) -> io::Result<()> {
        self.count_submission();
        match &mut self.engine {
            Engine::Ring(ring) => ring.submit(),
            // The threads have begun already.
            Engine::Threads(_) => Ok(()),
        }
    }

    /// Submits the queued requests and sleeps until a request completes, a signal comes or it is
    /// `until`.
    ///
    /// # Errors
    /// As [`FileQueue::submit`].
    pub fn wait(&mut self, until: Instant) -> io::Result<()> {
        self.count_submission();
        match &mut self.engine {
            Engine::Ring(ring) => ring.wait(until.since(now())),
            Engine::Threads(threads) => threads.wait(until.since(now())),
        }
    }

    fn count_submission(&mut self) {
        match &self.engine {
            Engine::Ring(_) if self.queued > 0 => self.submissions[self.queued] += 1,
            Engine::Ring(_) => {}
            Engine::Threads(_) => self.submissions[1] += self.queued as u64,
        }
        self.queued = 0;
    }

    /// Calls `completed` with the slots and results (bytes or a negated errno) of all requests that
    /// have completed.
    pub fn reap(&mut self, mut completed: impl FnMut(u32, i32)) {
        let free = &mut self.free;
        let note = |slot, result| {
            free.push(slot);
            completed(slot, result);
        };
        match &mut self.engine {
            Engine::Ring(ring) => ring.reap(note),
            Engine::Threads(threads) => threads.reap(note),
        }
        debug_assert!(self.free.len() <= self.depth as usize, "a slot is given back once");
    }
}

impl Drop for FileQueue {
    /// Waits until the kernel or the threads no longer use the memory. If that takes more than ten
    /// seconds (a disk that does not answer), the memory is leaked and not reused.
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
            match &mut self.engine {
                Engine::Ring(ring) => ring.leak(),
                Engine::Threads(threads) => threads.leak(),
            }
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
    use crate::engine::{Kind, usable};
    use crate::file::{File, OpenOptions};
    use crate::time::now;
    use crate::{Buffer, buffer};
    use std::time::Duration;

    const BLOCK: usize = 4096;

    fn queue(file: File, depth: u32, block: usize, kind: Kind) -> FileQueue {
        let mut payload = Buffer::zeroed(block);
        payload.fill(7);
        let config = FileQueueConfig { depth, batch: 2, payload, engine: Some(kind) };
        FileQueue::new(vec![file], config).unwrap()
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

    /// Goal: writes put the payload in the right place, with registered memory and without; reads
    /// and errors are reported by slot; system calls are counted by the requests that they submit.
    #[test]
    fn requests_are_done_and_reported() {
        let sizes = [(4, BLOCK), (2, 33 << 20)];
        let cases = sizes.into_iter().flat_map(|size| usable().map(move |kind| (size, kind)));
        for ((depth, block), kind) in cases {
            let file = file();
            let mut queue = queue(file.clone(), depth, block, kind);
            assert_eq!(queue.has_registered_memory(), block == BLOCK && kind == Kind::Uring);
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
            match kind {
                Kind::Uring => assert_eq!(queue.submissions(), [(1, 2), (2, 1)]),
                Kind::Epoll => assert_eq!(queue.submissions(), [(1, 4)]),
            }
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
        for kind in usable() {
            let mut queue = queue(file(), 1, buffer::ALIGNMENT_BYTES, kind);
            let (begin, time) = (now(), Duration::from_millis(20));
            queue.wait(begin + time).unwrap();
            let waited = begin.elapsed();
            assert!(waited >= time && waited < Duration::from_secs(5), "{waited:?}");
            // A time in the past causes no wait.
            queue.wait(begin).unwrap();
        }
    }
}
