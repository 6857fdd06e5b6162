//! The node's own access to its namespaces: without a socket, but through the same admission.
//!
//! [`LocalAccess`] gives a client of the same process a device. Every command on it passes the
//! admission check, is counted in flight, and is counted in the namespace's bytes, as a remote
//! command is. So a fence works the same for local and remote hosts.

use crate::admission::{Admissions, Lane, Permit, Refusal};
use crate::counts::{Counter, Origin, Tally};
use crate::exclusion::Writer;
use crate::namespace::Namespace;
use crate::signal::Signal;
use block::{Access, Backing, Device, Error, Geometry, Incarnation, IoFuture};
use nvme::HostId;
use reactor::{Chunk, Segment, Segments, Sparse};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Limits log lines that clients can cause after the end of their admission.
static REFUSED: Sparse = Sparse::new();

/// `EACCES`: the error of a file system call whose command was refused.
const ACCESS_DENIED: i32 = 13;

/// A namespace with one local host as its user. It can be sent to the threads that need devices.
#[derive(Clone, Debug)]
pub struct LocalAccess {
    admissions: Arc<Admissions>,
    namespace: Arc<Namespace>,
    host: HostId,
}

impl LocalAccess {
    /// Gives access to the namespace for `host`, which need not be admitted yet. The namespace must
    /// have no reservations, because they would not apply to local access.
    pub fn new(admissions: &Arc<Admissions>, namespace: &Arc<Namespace>, host: HostId) -> Self {
        assert!(
            namespace.reservations().is_none(),
            "local access to {namespace:?} would ignore its reservations"
        );
        Self { admissions: Arc::clone(admissions), namespace: Arc::clone(namespace), host }
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    fn refuse(&self, access: Access, offset: u64, len: u64, refusal: Refusal) -> Error {
        if let Some(suppressed) = REFUSED.pass() {
            tracing::info!(host = %self.host, %refusal, %access, suppressed,
                "a local command is refused");
        }
        self.admissions.note_refused();
        self.namespace.count_refused();
        let source = Arc::new(io::Error::from_raw_os_error(ACCESS_DENIED));
        Error::Io { access, offset, len, source }
    }
}

impl Backing for LocalAccess {
    fn geometry(&self) -> Geometry {
        self.namespace.backing().geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.namespace.backing().incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(LocalDevice {
            inner: self.namespace.backing().attach(),
            writer: Writer::new(self.namespace.exclusion()),
            counter: self.namespace.counter(),
            access: self.clone(),
            lane: std::cell::RefCell::new(None),
            signal: Arc::default(),
        })
    }
}

/// The device of one thread. The first command opens its lane. If the admission of the lane has
/// ended and the host has a new one, the next command opens the lane again.
struct LocalDevice {
    inner: Rc<dyn Device>,
    /// Counts this thread's writes.
    writer: Writer,
    access: LocalAccess,
    counter: Counter,
    lane: std::cell::RefCell<Option<Lane>>,
    signal: Arc<Signal>,
}

impl LocalDevice {
    fn enter(&self) -> Result<Permit, Refusal> {
        let now = self.access.admissions.now();
        let mut lane = self.lane.borrow_mut();
        if let Some(open) = &*lane
            && let Ok(permit) = open.enter(now)
        {
            return Ok(permit);
        }
        let opened = self.access.admissions.open_local_lane(self.access.host, &self.signal)?;
        let permit = opened.enter(now);
        *lane = Some(opened);
        permit
    }

    /// Runs a command while it is counted as in flight, and adds its result to the counts.
    fn run<T: 'static>(
        &self,
        (access, offset, len): (Access, u64, u64),
        start: impl FnOnce(&dyn Device) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let permit = match self.enter() {
            Ok(permit) => permit,
            Err(refusal) => {
                return IoFuture::ready(Err(self.access.refuse(access, offset, len, refusal)));
            }
        };
        let counted = match access {
            Access::Read | Access::Flush => None,
            Access::Write | Access::Discard | Access::WriteZeroes => match self.writer.enter() {
                Some(counted) => Some(counted),
                None => return self.run_listed((access, offset, len), permit, start),
            },
        };
        let mut work = start(&*self.inner);
        // A memory device has completed already, so nothing has to be kept alive.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(result) = Pin::new(&mut work).poll(&mut cx) {
            self.counter.add(&tally(access, len, &result), Origin::Local);
            return IoFuture::ready(result);
        }
        let counter = self.counter.clone();
        lasting((access, offset, len), async move {
            let result = work.await;
            counter.add(&tally(access, len, &result), Origin::Local);
            drop((permit, counted));
            result
        })
    }

    /// Runs a write after the Compare and Write of a host on its blocks.
    fn run_listed<T: 'static>(
        &self,
        (access, offset, len): (Access, u64, u64),
        permit: Permit,
        start: impl FnOnce(&dyn Device) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let listed = self.writer.list(offset..offset.saturating_add(len));
        let (inner, counter) = (Rc::clone(&self.inner), self.counter.clone());
        lasting((access, offset, len), async move {
            listed.begin().await;
            let result = start(&*inner).await;
            counter.add(&tally(access, len, &result), Origin::Local);
            drop((permit, listed));
            result
        })
    }
}

/// Runs the work of a device to its end, even if the caller drops the future: the permit must last
/// as long as the work.
fn lasting<T: 'static>(
    (access, offset, len): (Access, u64, u64),
    work: impl Future<Output = Result<T, Error>> + 'static,
) -> IoFuture<T> {
    let task = reactor::spawn(work);
    IoFuture::boxed(async move {
        task.await.unwrap_or_else(|aborted| {
            let source = Arc::new(io::Error::other(aborted));
            Err(Error::Io { access, offset, len, source })
        })
    })
}

fn tally<T>(access: Access, len: u64, result: &Result<T, Error>) -> Tally {
    let bytes = if result.is_ok() { len } else { 0 };
    let is_media_error = matches!(result, Err(Error::Io { .. } | Error::Short { .. }));
    let (is_read, is_write) = (access == Access::Read, access == Access::Write);
    Tally {
        read_bytes: if is_read { bytes } else { 0 },
        written_bytes: if is_write { bytes } else { 0 },
        read_commands: u64::from(is_read),
        write_commands: u64::from(is_write || access == Access::WriteZeroes),
        commands: 1,
        media_errors: u64::from(is_media_error),
        refused: 0,
    }
}

impl Device for LocalDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.run((Access::Read, offset, len as u64), move |inner| {
            let read = inner.read(offset, len);
            IoFuture::boxed(async move {
                // A view of a memory device would be read after the permit was dropped.
                Ok(match read.await? {
                    view @ Chunk::Region(_) => Chunk::from(view.into_shared()),
                    own => own,
                })
            })
        })
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>() as u64;
        self.run((Access::Read, offset, len), move |inner| inner.read_into(offset, segments))
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let len = chunk.len() as u64;
        self.run((Access::Write, offset, len), move |inner| inner.write(offset, chunk))
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        self.run((Access::Write, offset, len), move |inner| inner.write_chunks(offset, chunks))
    }

    fn flush(&self) -> IoFuture<()> {
        self.run((Access::Flush, 0, 0), move |inner| inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run((Access::Discard, offset, len), move |inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run((Access::WriteZeroes, offset, len), move |inner| inner.write_zeroes(offset, len))
    }
}

impl fmt::Debug for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalDevice").field("host", &self.access.host).finish_non_exhaustive()
    }
}
