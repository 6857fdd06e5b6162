//! The state that the tasks of one session share: the handler, the requests in flight, the
//! receiver, and the result at the end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use metrics::{Family, Point};
use reactor::Handle;

use super::write_room::WriteRoom;
use super::{FileSystem, Negotiated, Session, SessionOptions};
use crate::abi::{InHeader, RESENT};
use crate::cancellation::Registry;
use crate::error::{DecodeError, FuseError};
use crate::mount::Mounter;
use crate::reply::{Encoded, Response, encode, encode_error};
use crate::request::{Decoder, Message, Request};
use crate::transport::fetch_error_is_transient;
use crate::types::{Errno, NodeId, Unique};

/// The next step for a received message. Requests are by far the most frequent, so boxing them to
/// make the other variants smaller would cost time.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "lives for one turn of the receiving loop")]
pub(crate) enum Incoming {
    /// Pass it to the file system and send its answer.
    Request(Request),
    /// Send this answer at once.
    Answer(Encoded),
    /// Nothing: it needs no answer.
    Nothing,
}

/// The shared state of one session's tasks.
pub(crate) struct Connection<F> {
    pub(crate) device: Handle,
    pub(crate) file_system: Rc<F>,
    pub(crate) decoder: Decoder,
    pub(crate) negotiated: Negotiated,
    pub(crate) options: SessionOptions,
    /// The mount point.
    pub(crate) mountpoint: PathBuf,
    /// The process that made the mount, if it is another.
    pub(crate) mounter: Option<Arc<Mounter>>,
    requests: Registry,
    pub(super) write_room: WriteRoom,
    /// Number of tasks of the session that are alive.
    tasks: Cell<usize>,
    has_ended: Cell<bool>,
    error: RefCell<Option<FuseError>>,
    end_waker: RefCell<Option<Waker>>,
    /// Receivers that wait until another request may be received.
    room_wakers: RefCell<Vec<Waker>>,
}

impl<F: FileSystem> Connection<F> {
    pub(crate) fn new(
        session: &Session,
        file_system: Rc<F>,
        decoder: Decoder,
        negotiated: Negotiated,
    ) -> Self {
        Self {
            device: session.device.clone(),
            file_system,
            decoder,
            negotiated,
            options: session.options.clone(),
            mountpoint: session.mountpoint().into(),
            mounter: session.unmounter().mounter(),
            requests: Registry::default(),
            write_room: WriteRoom::new(&session.options),
            tasks: Cell::new(0),
            has_ended: Cell::new(false),
            error: RefCell::new(None),
            end_waker: RefCell::new(None),
            room_wakers: RefCell::new(Vec::new()),
        }
    }

    /// Starts a task that the session waits for at its end.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let guard = TaskGuard::new(Rc::clone(self));
        drop(reactor::spawn(async move {
            task.await;
            drop(guard);
        }));
    }

    /// Returns whether the connection is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Records the end, clean or with an error, and cancels all requests in flight.
    pub(crate) fn end(&self, error: Option<FuseError>) {
        if !self.has_ended.replace(true) {
            *self.error.borrow_mut() = error;
            self.requests.end();
        }
        self.wake_receivers();
        self.wake_end();
    }

    /// Completes when the connection is over and all its tasks have ended.
    pub(crate) async fn ended(&self) -> Result<(), FuseError> {
        poll_fn(|context| {
            if self.has_ended.get() && self.tasks.get() == 0 {
                return Poll::Ready(());
            }
            *self.end_waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.error.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn wake_end(&self) {
        if let Some(waker) = self.end_waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(super) fn wake_receivers(&self) {
        for waker in self.room_wakers.borrow_mut().drain(..) {
            waker.wake();
        }
    }

    /// Waits until another request may be received.
    pub(crate) async fn room(&self) {
        poll_fn(|context| {
            let has_room = self.requests.len() < self.options.requests_in_flight_max
                && self.write_room.is_left();
            if has_room || self.has_ended.get() {
                return Poll::Ready(());
            }
            self.room_wakers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Sorts a decoded message; handles forgets and interrupts itself.
    pub(crate) fn receive(
        &self,
        header: &InHeader,
        message: Result<Message, DecodeError>,
    ) -> Incoming {
        match message {
            Ok(Message::Operation(operation)) => Incoming::Request(Request {
                unique: Unique(header.unique),
                node: NodeId(header.nodeid),
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
                is_resent: header.unique & RESENT != 0,
                operation,
                cancellation: self.requests.enter(Unique(header.unique)),
            }),
            Ok(Message::Forget(forgets)) => {
                self.file_system.forget(&forgets);
                Incoming::Nothing
            }
            Ok(Message::Interrupt(unique)) => {
                self.requests.interrupt(unique);
                Incoming::Nothing
            }
            Ok(Message::Destroy) => Incoming::Answer(encode(Response::Done, header.opcode)),
            Err(DecodeError::Unknown { .. }) => Incoming::Answer(encode_error(Errno::NOSYS)),
            Err(error) => {
                tracing::error!(%error, unique = header.unique, "FUSE request refused");
                Incoming::Answer(encode_error(Errno::IO))
            }
        }
    }

    /// Runs the file system's handler. Calls `when_waiting` once if the answer does not come at
    /// once.
    pub(crate) async fn answer(
        &self,
        code: u32,
        request: Request,
        when_waiting: impl FnOnce(),
    ) -> Encoded {
        let counted = count(code, &request);
        let in_flight = InFlight { connection: self, key: request.cancellation.key() };
        let future = Rc::clone(&self.file_system).handle(request);
        let response = notice_waiting(std::pin::pin!(future), &counted, when_waiting).await;
        drop(in_flight);
        end(counted, &response);
        encode(response, code)
    }
}

/// Starts counting a request.
fn count(code: u32, request: &Request) -> metrics::Operation {
    let point = Point::new(Family::Fuse, code as u8, request.operation.opcode_name());
    metrics::start_at(point, request.node.0, request.pid, reactor::time::now())
}

/// Ends counting a request when its answer is there.
fn end(mut counted: metrics::Operation, response: &Response) {
    let errno = match response {
        Response::Error(errno) => errno.raw_os_error(),
        response => {
            counted.carried(response.data_bytes());
            0
        }
    };
    counted.end(errno);
}

/// Removes a request from the registry when it is answered or its task is dropped.
struct InFlight<'a, F: FileSystem> {
    connection: &'a Connection<F>,
    key: usize,
}

impl<F: FileSystem> Drop for InFlight<'_, F> {
    fn drop(&mut self) {
        self.connection.requests.leave(self.key);
        self.connection.wake_receivers();
    }
}

/// Runs a future and calls `when_waiting` once if its first poll does not complete it.
async fn notice_waiting<T>(
    mut future: Pin<&mut impl Future<Output = T>>,
    counted: &metrics::Operation,
    when_waiting: impl FnOnce(),
) -> T {
    let mut when_waiting = Some(when_waiting);
    poll_fn(|context| {
        let inside = counted.enter();
        let poll = future.as_mut().poll(context);
        drop(inside);
        if poll.is_pending()
            && let Some(when_waiting) = when_waiting.take()
        {
            when_waiting();
        }
        poll
    })
    .await
}

/// Counts a task while it lives.
struct TaskGuard<F: FileSystem>(Rc<Connection<F>>);

impl<F: FileSystem> TaskGuard<F> {
    fn new(connection: Rc<Connection<F>>) -> Self {
        connection.tasks.set(connection.tasks.get() + 1);
        Self(connection)
    }
}

impl<F: FileSystem> Drop for TaskGuard<F> {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get() - 1);
        self.0.wake_end();
    }
}

/// The meaning of an error of receiving.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// Try again.
    Transient,
    /// Unmounted or aborted: the regular end.
    Ended,
    /// The end, because of this error.
    Broken(FuseError),
}

/// Sorts the error of a receive.
pub(crate) fn sort_fetch_error(error: io::Error) -> FetchError {
    if fetch_error_is_transient(&error) {
        return FetchError::Transient;
    }
    let is_clean = matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
    );
    if is_clean {
        return FetchError::Ended;
    }
    FetchError::Broken(FuseError::Transport { action: "receive requests", source: error })
}
