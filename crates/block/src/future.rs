//! The future of a device command: an enum, so that common devices need no box.

use crate::error::{Access, Error};
use reactor::{Buffer, Chunk, Op, Segments};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The command of an operation, for its error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) access: Access,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Command {
    pub(crate) fn error(self, source: io::Error) -> Error {
        Error::io(self.access, self.offset, self.len, source)
    }

    fn whole(self, result: io::Result<usize>) -> Result<(), Error> {
        match result {
            Ok(n) if n as u64 == self.len => Ok(()),
            Ok(n) => Err(Error::Short {
                access: self.access,
                offset: self.offset,
                len: self.len,
                done: n as u64,
            }),
            Err(source) => Err(self.error(source)),
        }
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

enum State<T> {
    Ready(Result<T, Error>),
    Read(Op<(io::Result<usize>, Buffer)>, Command, fn(Buffer) -> T),
    ReadInto(Op<(io::Result<usize>, Segments)>, Command, fn(Segments) -> T),
    Write(Op<(io::Result<()>, Chunk)>, Command, fn() -> T),
    WriteChunks(Op<(io::Result<()>, Vec<Chunk>)>, Command, fn() -> T),
    Plain(Op<io::Result<()>>, Command, fn() -> T),
    Boxed(BoxFuture<T>),
    Over,
}

/// An observer of commands that learns when the device no longer accesses their memory or blocks.
pub trait Watch {
    /// Reports the end of a command that was started with `token`.
    fn ended(&self, token: usize);
}

/// The future of a device command. It is `Unpin` and may be polled by `&mut` in a race.
#[must_use = "futures do nothing unless polled"]
pub struct IoFuture<T: 'static> {
    state: State<T>,
    watch: Option<(Rc<dyn Watch>, usize)>,
}

impl<T> IoFuture<T> {
    /// Returns a completed future.
    pub fn ready(result: Result<T, Error>) -> Self {
        Self::of(State::Ready(result))
    }

    /// Returns any other future, boxed.
    pub fn boxed(future: impl Future<Output = Result<T, Error>> + 'static) -> Self {
        Self::of(State::Boxed(Box::pin(future)))
    }

    fn of(state: State<T>) -> Self {
        Self { state, watch: None }
    }

    /// Makes the future report to `watch` when the device is done with the command, even if the
    /// future is dropped before. If the thread's reactor ends before the command, `watch` gets no
    /// report. A future has at most one watch.
    #[inline]
    pub fn watched(mut self, watch: &Rc<impl Watch + 'static>, token: usize) -> Self {
        debug_assert!(self.watch.is_none(), "the first watch would be lost");
        if matches!(self.state, State::Ready(_)) {
            watch.ended(token);
        } else {
            self.watch = Some((Rc::clone(watch) as Rc<dyn Watch>, token));
        }
        self
    }
}

impl<T> Drop for IoFuture<T> {
    /// The device continues a command after its future is dropped, so the watch must wait for it.
    fn drop(&mut self) {
        let Some((watch, token)) = self.watch.take() else { return };
        let state = std::mem::replace(&mut self.state, State::Over);
        if reactor::has_reactor() {
            drop(reactor::spawn(async move {
                // The caller was dropped, and its result concerns no other code.
                let _ = Self::of(state).await;
                watch.ended(token);
            }));
        }
    }
}

impl IoFuture<Chunk> {
    /// Returns the same read with a chunk that is not a view of the device: a view is copied.
    #[inline]
    pub fn lasting(mut self) -> Self {
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(result) => State::Ready(result.map(Chunk::into_lasting)),
            State::Boxed(future) => {
                State::Boxed(Box::pin(async { Ok(future.await?.into_lasting()) }))
            }
            // The chunks of a file device are buffers, not views.
            state => state,
        };
        self
    }

    pub(crate) fn read(op: Op<(io::Result<usize>, Buffer)>, command: Command) -> Self {
        Self::of(State::Read(op, command, Chunk::from))
    }
}

impl IoFuture<Segments> {
    pub(crate) fn read_into(op: Op<(io::Result<usize>, Segments)>, command: Command) -> Self {
        Self::of(State::ReadInto(op, command, |segments| segments))
    }
}

impl IoFuture<()> {
    pub(crate) fn write(op: Op<(io::Result<()>, Chunk)>, command: Command) -> Self {
        Self::of(State::Write(op, command, || ()))
    }

    pub(crate) fn write_chunks(op: Op<(io::Result<()>, Vec<Chunk>)>, command: Command) -> Self {
        Self::of(State::WriteChunks(op, command, || ()))
    }

    pub(crate) fn plain(op: Op<io::Result<()>>, command: Command) -> Self {
        Self::of(State::Plain(op, command, || ()))
    }
}

impl<T> Unpin for IoFuture<T> {}

impl<T> Future for IoFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            State::Read(op, command, finish) => {
                let (result, buffer) = ready!(Pin::new(op).poll(cx));
                command.whole(result).map(|()| finish(buffer))
            }
            State::ReadInto(op, command, finish) => {
                let (result, segments) = ready!(Pin::new(op).poll(cx));
                command.whole(result).map(|()| finish(segments))
            }
            State::Write(op, command, finish) => {
                let (result, _) = ready!(Pin::new(op).poll(cx));
                result.map(|()| finish()).map_err(|source| command.error(source))
            }
            State::WriteChunks(op, command, finish) => {
                let (result, _) = ready!(Pin::new(op).poll(cx));
                result.map(|()| finish()).map_err(|source| command.error(source))
            }
            State::Plain(op, command, finish) => {
                let result = ready!(Pin::new(op).poll(cx));
                result.map(|()| finish()).map_err(|source| command.error(source))
            }
            State::Boxed(future) => ready!(future.as_mut().poll(cx)),
            State::Ready(_) | State::Over => {
                match std::mem::replace(&mut self.state, State::Over) {
                    State::Ready(result) => result,
                    _ => panic!("a device command was polled after it had ended"),
                }
            }
        };
        self.state = State::Over;
        if let Some((watch, token)) = self.watch.take() {
            watch.ended(token);
        }
        Poll::Ready(result)
    }
}

impl<T> fmt::Debug for IoFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ready(_) => "ready",
            State::Over => "over",
            _ => "running",
        };
        f.debug_struct("IoFuture").field("state", &state).finish_non_exhaustive()
    }
}
