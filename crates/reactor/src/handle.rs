//! The objects of operations: a file descriptor of the kernel, or an object of the simulation.

use crate::chunk::{Chunk, Segments};
use crate::operation::{Completion, Op, Operation, Step};
use crate::relay::Runner;
use crate::sim::SimHandle;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A cheaply clonable owner of an open object; the last clone closes it.
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<HandleInner>);

#[derive(Debug)]
pub(crate) enum HandleInner {
    Fd(Descriptor),
    Sim(SimHandle),
}

/// A descriptor, with what engines have found out about it.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) fd: Arc<OwnedFd>,
    /// Distinguishes it from descriptors that had the same number before.
    pub(crate) id: u64,
    /// Bits of the epoll engine; 0 until it knows the descriptor's nature.
    pub(crate) nature: AtomicU8,
}

/// A command for [`Handle::uring_cmd`]: the arguments of `IORING_OP_URING_CMD` with a 128-byte
/// entry.
#[derive(Clone, Copy, Debug)]
pub struct UringCmd {
    /// Driver-defined operation (`sqe.cmd_op`).
    pub operation: u32,
    /// Driver-defined bytes (`sqe.cmd`, 80 bytes).
    pub command: [u8; 80],
    /// `sqe.addr`: its meaning depends on the driver. The caller keeps memory behind it valid until
    /// the operation has completed *or the runtime is gone*.
    pub address: u64,
    /// `sqe.len`.
    pub len: u32,
}

impl Handle {
    /// Takes ownership of a descriptor. It may be blocking or not: a read or write waits in any
    /// case until the descriptor is ready. (The epoll engine makes every descriptor that it reads,
    /// writes, accepts on or connects non-blocking, except files; this affects every copy of the
    /// descriptor.)
    pub fn from_fd(fd: OwnedFd) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(HandleInner::Fd(Descriptor {
            fd: Arc::new(fd),
            id,
            nature: AtomicU8::new(0),
        })))
    }

    /// Returns another owner of the same descriptor with its own reference count. Each operation
    /// clones its handle, so a thread with such an owner writes to no cache line that the
    /// operations of other threads write to.
    #[must_use]
    pub fn apart(&self) -> Self {
        let HandleInner::Fd(Descriptor { fd, id, nature }) = &*self.0 else { return self.clone() };
        let nature = AtomicU8::new(nature.load(Ordering::Relaxed));
        let descriptor = Descriptor { fd: Arc::clone(fd), id: *id, nature };
        Self(Arc::new(HandleInner::Fd(descriptor)))
    }

    /// Returns the number of clones that share this one's reference count, including running
    /// operations.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Returns the descriptor with its properties; `None` for a simulated object.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        match &*self.0 {
            HandleInner::Fd(descriptor) => Some(descriptor),
            HandleInner::Sim(_) => None,
        }
    }

    /// Returns the descriptor behind the handle.
    ///
    /// # Errors
    /// `Unsupported` for a simulated object.
    pub fn as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        match &*self.0 {
            HandleInner::Fd(descriptor) => Ok(descriptor.fd.as_fd()),
            HandleInner::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        match &*self.0 {
            HandleInner::Fd(descriptor) => descriptor.fd.as_raw_fd(),
            // The kernel answers EBADF for a simulated object outside of its simulation.
            HandleInner::Sim(_) => -1,
        }
    }

    /// Returns the number of a simulated object; 0, which no object has, for a descriptor.
    pub(crate) fn simulated(&self) -> u64 {
        match &*self.0 {
            HandleInner::Fd(_) => 0,
            HandleInner::Sim(object) => object.0,
        }
    }

    /// Completes with the poll events when the descriptor is readable, has failed or hung up.
    pub fn poll_readable(&self) -> Op<io::Result<u32>> {
        self.poll(libc::POLLIN)
    }

    /// Completes with the poll events when the descriptor is writable, has failed or hung up.
    pub fn poll_writable(&self) -> Op<io::Result<u32>> {
        self.poll(libc::POLLOUT)
    }

    fn poll(&self, event: libc::c_short) -> Op<io::Result<u32>> {
        Op::submit(self, Operation::Poll(event as u32), |completion| {
            Step::Done(completion.into_result().map(|n| n as u32))
        })
    }

    /// Reads from the current position of a stream-like descriptor (e.g. `/dev/fuse`, a pipe) into
    /// segments, and waits until there is data. Zero bytes mean the end.
    pub fn readv(&self, segments: Segments) -> Op<(io::Result<usize>, Segments)> {
        Op::submit(self, Operation::Read { segments, offset: u64::MAX }, finish_read)
    }

    /// Writes the chunks with one call at the current position of a stream-like descriptor. Returns
    /// the number of bytes written, which may be short, and the list, empty, for reuse.
    pub fn writev(&self, chunks: Vec<Chunk>) -> Op<(io::Result<usize>, Vec<Chunk>)> {
        Op::submit(self, Operation::Write { chunks, offset: u64::MAX, skip: 0 }, |completion| {
            let result = completion.result();
            let Operation::Write { mut chunks, .. } = completion.operation else {
                unreachable!("a write completes as a write")
            };
            chunks.clear();
            Step::Done((result, chunks))
        })
    }

    /// Sends a driver command. It needs a runtime on `io_uring` with
    /// [`Config::sqe128`](crate::Config::sqe128); otherwise it completes with `EINVAL` (with
    /// `EOPNOTSUPP` on epoll). Returns `cqe.res` if that is not negative.
    ///
    /// # Safety
    /// The driver may read and write memory that the command names until the operation has
    /// completed, even if the future is dropped before. The memory must stay valid until then.
    pub unsafe fn uring_cmd(&self, command: UringCmd) -> Op<io::Result<u32>> {
        Op::submit(self, Operation::Command(Box::new(command)), finish_command)
    }

    /// As [`uring_cmd`](Self::uring_cmd), on the ring of a runner, which gets the completion.
    ///
    /// # Safety
    /// As for [`uring_cmd`](Self::uring_cmd).
    pub unsafe fn uring_cmd_on(&self, runner: Runner, command: UringCmd) -> Op<io::Result<u32>> {
        Op::submit_to(runner, self, Operation::Command(Box::new(command)), finish_command)
    }
}

fn finish_command(completion: Completion) -> Step<io::Result<u32>> {
    Step::Done(completion.into_result().map(|n| n as u32))
}

pub(crate) fn finish_read(completion: Completion) -> Step<(io::Result<usize>, Segments)> {
    let result = completion.result();
    let Operation::Read { mut segments, .. } = completion.operation else {
        unreachable!("a read completes as a read")
    };
    if let Ok(n) = result {
        note_written(&mut segments, n);
    }
    Step::Done((result, segments))
}

/// Extends the buffers of `segments` over the `n` bytes that were written.
pub(crate) fn note_written(segments: &mut Segments, mut n: usize) {
    for segment in segments {
        let here = n.min(segment.len());
        segment.written(here);
        n -= here;
    }
}
