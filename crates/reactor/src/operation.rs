//! The one enum through which all I/O goes, and the future of an operation.
//!
//! An operation owns its memory and its handle. It is queued when its future is *made* and
//! submitted with all others of the loop turn. Dropping the future requests cancellation and leaves
//! memory and handle with the reactor until the completion has come.

use crate::buffer::Buffer;
use crate::chunk::{Chunk, Segment, Segments};
use crate::context::{Context, with_context};
use crate::handle::{Handle, UringCmd};
use crate::relay::Runner;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};

/// The operations of the reactor. `skip` counts bytes of the chunks that are done already.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Accept a connection on a listening socket.
    Accept,
    /// Connect a socket.
    Connect(SocketAddr),
    /// Receive at least a byte into the segments.
    Receive(Segments),
    /// Send the chunks.
    Send { chunks: Vec<Chunk>, skip: usize },
    /// Shut a socket down.
    Shutdown(Shutdown),
    /// Read at an offset, or at the current position for `u64::MAX`.
    Read { segments: Segments, offset: u64 },
    /// Write chunks at an offset, or at the current position for `u64::MAX`.
    Write { chunks: Vec<Chunk>, offset: u64, skip: usize },
    /// Write one chunk at an offset.
    WriteOne { chunk: Chunk, offset: u64, skip: usize },
    /// Make data durable; with `data` only the metadata that reading needs.
    Sync { data: bool },
    /// Write dirty pages to the device and wait for that, without making them durable.
    WriteBack,
    /// `fallocate(2)`.
    Allocate { mode: i32, offset: u64, len: u64 },
    /// Wait for poll events.
    Poll(u32),
    /// A driver command.
    Command(Box<UringCmd>),
}

impl Operation {
    /// Whether it moves data of a file or device, which ends soon.
    pub(crate) fn is_transfer(&self) -> bool {
        match self {
            Self::Read { offset, .. } | Self::Write { offset, .. } => *offset != u64::MAX,
            Self::WriteOne { .. } => true,
            _ => false,
        }
    }

    /// Returns the only buffer of a read or receive.
    pub(crate) fn into_buffer(self) -> Buffer {
        let (Self::Receive(mut segments) | Self::Read { mut segments, .. }) = self else {
            unreachable!("only reads and receives end in a buffer")
        };
        segments.pop().and_then(Segment::into_buffer).expect("made with one buffer")
    }
}

/// The result of an operation.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Not negative, or a negated errno.
    pub(crate) code: i32,
    pub(crate) operation: Operation,
    pub(crate) accepted: Option<(Handle, SocketAddr)>,
}

impl Completion {
    /// Returns the number in `code`, or the error.
    pub(crate) fn result(&self) -> io::Result<usize> {
        if self.code < 0 {
            Err(io::Error::from_raw_os_error(-self.code))
        } else {
            Ok(self.code as usize)
        }
    }

    /// As `result`, and releases everything else.
    pub(crate) fn into_result(self) -> io::Result<usize> {
        self.result()
    }
}

/// The next step after a completion.
pub(crate) enum Step<T> {
    /// The operation is done.
    Done(T),
    /// Some work is left, on the same handle.
    Again(Operation),
}

pub(crate) type Finish<T> = fn(Completion) -> Step<T>;

/// The future of an I/O operation. It is `Unpin`, may be polled by `&mut` in a race without loss,
/// and cancels the operation when dropped.
#[must_use = "dropping an operation cancels it"]
pub struct Op<T> {
    state: State<T>,
}

enum State<T> {
    Running { context: Rc<Context>, key: u32, finish: Finish<T> },
    Ready(T),
    Over,
}

impl<T> Unpin for Op<T> {}

impl<T> Op<T> {
    /// Queues an operation on this thread's reactor.
    ///
    /// # Panics
    /// If the thread has no reactor.
    pub(crate) fn submit(handle: &Handle, operation: Operation, finish: Finish<T>) -> Self {
        with_context(|context| {
            let key = context.submit(handle.clone(), operation);
            Self { state: State::Running { context: Rc::clone(context), key, finish } }
        })
    }

    /// As `submit`, on the ring of a runner.
    pub(crate) fn submit_to(
        runner: Runner,
        handle: &Handle,
        operation: Operation,
        finish: Finish<T>,
    ) -> Self {
        with_context(|context| {
            let key = context.submit_to(runner, handle.clone(), operation);
            Self { state: State::Running { context: Rc::clone(context), key, finish } }
        })
    }

    /// Returns an operation that has ended already.
    pub fn ready(value: T) -> Self {
        Self { state: State::Ready(value) }
    }
}

impl<T> Future for Op<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<T> {
        if let State::Running { context, key, finish } = &mut self.state {
            loop {
                let (handle, completion) = ready!(context.poll(*key, cx.waker()));
                match finish(completion) {
                    Step::Done(value) => {
                        self.state = State::Over;
                        return Poll::Ready(value);
                    }
                    Step::Again(operation) => *key = context.submit(handle, operation),
                }
            }
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(value) => Poll::Ready(value),
            _ => panic!("an operation was polled after it had ended"),
        }
    }
}

impl<T> Drop for Op<T> {
    fn drop(&mut self) {
        if let State::Running { context, key, .. } = &self.state {
            context.cancel(*key);
        }
    }
}

impl<T> fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Running { .. } => "running",
            State::Ready(_) => "ready",
            State::Over => "over",
        };
        f.debug_struct("Op").field("state", &state).finish_non_exhaustive()
    }
}
