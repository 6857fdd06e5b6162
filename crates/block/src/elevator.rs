//! A queue policy: one request queue for all threads, sorted and merged under a lock, like the
//! stacks for rotating disks.
//!
//! The queue collects a thread's requests of one loop turn and dispatches them together (plugging):
//! in the order of the medium from the end of the last request (C-LOOK), neighbours as one request,
//! at most `depth_max` at the device, and overdue requests first. A thread that adds a request or
//! sees one end dispatches for all threads. Each thread issues its own requests on its own reactor;
//! the first waiting thread issues a merged request. So all threads use one lock. That is right
//! where sorting saves seeks; the policy `direct`, without any such layer, is compared with it.
//!
//! When a thread ends while it waits for its own requests, requests of others that were merged with
//! them may fail.
//!
//! A failed read is repeated part by part, so that one bad block does not fail its neighbours;
//! merged writes fail together. Flushes, discards and zeroing bypass the queue, because they
//! concern what has completed before.
//! completed before.

mod bell;
mod queue;
mod reply;

use crate::device::{Backing, Device, Geometry};
use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use bell::Bell;
use queue::{Limits, Part, Queue, Request};
use reactor::{Chunk, RegionSlice, Segments, Shared};
use reply::{Receiver, reply};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// The parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct ElevatorOptions {
    /// Number of requests at the device at a time, at least 1. A disk that sorts requests itself
    /// needs several, other disks one.
    pub depth_max: usize,
    /// Bytes up to which neighbours are merged.
    pub merge_bytes_max: u64,
    /// How long a read may wait for requests with better places.
    pub read_patience: Duration,
    /// How long a write may wait.
    pub write_patience: Duration,
}

impl Default for ElevatorOptions {
    /// Returns the values of Linux's `deadline`: 500 ms and 5 s; 32 requests, as for a SATA disk.
    fn default() -> Self {
        Self {
            depth_max: 32,
            merge_bytes_max: 512 << 10,
            read_patience: Duration::from_millis(500),
            write_patience: Duration::from_secs(5),
        }
    }
}

/// A backing behind one queue; clones share it.
#[derive(Clone)]
pub struct Elevator {
    inner: Arc<dyn Backing>,
    queue: Arc<Mutex<Queue>>,
    options: ElevatorOptions,
}

impl Elevator {
    /// Puts the queue over `inner`.
    pub fn new(inner: Arc<dyn Backing>, options: ElevatorOptions) -> Self {
        let options = ElevatorOptions { depth_max: options.depth_max.max(1), ..options };
        Self { inner, queue: Arc::default(), options }
    }

    /// Returns the number of requests that were merged into others so far.
    pub fn merges(&self) -> u64 {
        self.lock().merges
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> Limits {
        let ElevatorOptions { depth_max, merge_bytes_max, .. } = self.options;
        Limits { depth_max, merge_bytes_max }
    }
}

impl fmt::Debug for Elevator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elevator").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Backing for Elevator {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        let state = State {
            inner: self.inner.attach(),
            elevator: self.clone(),
            bell: Bell::default(),
            is_served: Cell::new(false),
        };
        Rc::new(ElevatorDevice(Rc::new(state)))
    }
}

/// A thread's state of the queue.
struct State {
    inner: Rc<dyn Device>,
    elevator: Elevator,
    /// Wakes our dispatching task. It runs after the task that rings, and so after all requests
    /// that this one makes at once.
    bell: Bell,
    /// Whether that task exists.
    is_served: Cell<bool>,
}

struct ElevatorDevice(Rc<State>);

impl State {
    /// Adds a request. The future completes when all of it is done.
    fn submit(self: &Rc<Self>, offset: u64, len: usize, write: Option<Vec<Chunk>>) -> Waiting {
        let (sender, receiver) = reply();
        let options = &self.elevator.options;
        let is_write = write.is_some();
        let patience = if is_write { options.write_patience } else { options.read_patience };
        let deadline_ns = (reactor::time::now() + patience).as_ns();
        let bell = self.bell.clone();
        let part = Part { bell, len, chunks: write.unwrap_or_default(), reply: sender };
        let request = Request::new(is_write, offset, part, deadline_ns);
        self.elevator.lock().insert(request, self.elevator.limits());
        if !self.is_served.replace(true) {
            drop(reactor::spawn(serve(self.bell.clone(), Rc::downgrade(self))));
        }
        self.bell.ring();
        Waiting { state: Rc::clone(self), receiver, is_done: false, what: (is_write, offset, len) }
    }

    /// Fills the device's queue, and issues our requests.
    fn dispatch(self: &Rc<Self>) {
        let limits = self.elevator.limits();
        let now = Duration::from_nanos(reactor::time::now().as_ns());
        let mine = self.elevator.lock().dispatch(&self.bell, now, limits);
        for request in mine {
            self.issue(request);
        }
    }

    fn issue(self: &Rc<Self>, mut request: Request) {
        let guard = Dispatched { elevator: self.elevator.clone(), is_done: false };
        let state = Rc::clone(self);
        // I/O starts here, not when the task first runs.
        if request.is_write {
            let chunks: Vec<Chunk> = request
                .parts
                .iter_mut()
                .flat_map(|part| std::mem::take(&mut part.chunks))
                .collect();
            let io = self.inner.write_chunks(request.offset, chunks);
            drop(reactor::spawn(async move {
                let result = io.await;
                guard.done(&state);
                for part in request.parts {
                    part.reply.send(result.clone().map(|()| Chunk::copy_from(&[])));
                }
            }));
        } else {
            let io = self.inner.read(request.offset, request.len as usize);
            drop(reactor::spawn(async move {
                let result = io.await;
                guard.done(&state);
                match result {
                    Ok(chunk) => answer(request.parts, chunk),
                    Err(error) if request.parts.len() == 1 => {
                        request
                            .parts
                            .into_iter()
                            .for_each(|part| part.reply.send(Err(error.clone())));
                    }
                    Err(_) => state.read_parts(request).await,
                }
            }));
        }
    }

    /// Reads the parts of a request one by one.
    async fn read_parts(&self, request: Request) {
        let mut offset = request.offset;
        for part in request.parts {
            part.reply.send(self.inner.read(offset, part.len).await);
            offset += part.len as u64;
        }
    }
}

/// Dispatches whenever the bell rings, as long as the device exists.
async fn serve(bell: Bell, state: Weak<State>) {
    loop {
        bell.rung().await;
        match state.upgrade() {
            Some(state) => state.dispatch(),
            None => return,
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.bell.ring();
    }
}

/// Gives each part its bytes.
fn answer(parts: Vec<Part>, chunk: Chunk) {
    let mut start = 0;
    let pieces = Pieces::of(chunk);
    for part in parts {
        let piece = pieces.piece(start, part.len);
        start += part.len;
        part.reply.send(Ok(piece));
    }
}

/// The bytes that were read, to distribute in pieces.
enum Pieces {
    Region(RegionSlice),
    Shared(Shared),
}

impl Pieces {
    fn of(chunk: Chunk) -> Self {
        match chunk {
            Chunk::Region(slice) => Self::Region(slice),
            other => Self::Shared(other.into_shared()),
        }
    }

    fn piece(&self, start: usize, len: usize) -> Chunk {
        match self {
            Self::Region(slice) => Chunk::Region(slice.range(start, len)),
            Self::Shared(shared) => Chunk::Shared(shared.slice(start..start + len)),
        }
    }
}

/// A request at the device. If it is dropped before its end (because its thread's reactor ends), it
/// releases its place, and wakes others to dispatch.
struct Dispatched {
    elevator: Elevator,
    is_done: bool,
}

impl Dispatched {
    fn done(mut self, state: &Rc<State>) {
        self.is_done = true;
        self.elevator.lock().ended();
        state.dispatch();
    }
}

impl Drop for Dispatched {
    fn drop(&mut self) {
        if !self.is_done {
            let mut queue = self.elevator.lock();
            queue.ended();
            queue.ring_all();
        }
    }
}

/// A future that waits for a part of a request.
struct Waiting {
    state: Rc<State>,
    receiver: Receiver<Result<Chunk, Error>>,
    is_done: bool,
    what: (bool, u64, usize),
}

impl Future for Waiting {
    type Output = Result<Chunk, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.receiver).poll(cx);
        self.is_done = polled.is_ready();
        match polled {
            Poll::Ready(Some(result)) => Poll::Ready(result),
            Poll::Ready(None) => {
                let (is_write, offset, len) = self.what;
                let access = if is_write { Access::Write } else { Access::Read };
                let gone = io::Error::from(io::ErrorKind::Interrupted);
                Poll::Ready(Err(Error::io(access, offset, len as u64, gone)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_done {
            self.receiver.close();
            self.state.elevator.lock().abandoned();
        }
    }
}

impl ElevatorDevice {
    fn checked(&self, access: Access, offset: u64, len: usize) -> Result<(), Error> {
        self.0.inner.geometry().check(access, offset, len as u64)
    }
}

impl Device for ElevatorDevice {
    fn geometry(&self) -> Geometry {
        self.0.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.0.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        match self.checked(Access::Read, offset, len) {
            Ok(()) if len > 0 => IoFuture::boxed(self.0.submit(offset, len, None)),
            _ => self.0.inner.read(offset, len),
        }
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(reactor::Segment::len).sum();
        let read = self.read(offset, len);
        IoFuture::boxed(async move {
            let chunk = read.await?;
            reactor::scatter(&chunk, &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.write_chunks(offset, vec![chunk])
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum();
        match self.checked(Access::Write, offset, len) {
            Ok(()) if len > 0 => {
                let done = self.0.submit(offset, len, Some(chunks));
                IoFuture::boxed(async move { done.await.map(drop) })
            }
            _ => self.0.inner.write_chunks(offset, chunks),
        }
    }

    fn flush(&self) -> IoFuture<()> {
        self.0.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.inner.write_zeroes(offset, len)
    }
}
