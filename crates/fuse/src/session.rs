//! A mounted file system: from mounting through serving to unmounting.
//!
//! [`Session::mount`] makes the mount and holds it; dropping the session removes it.
//! [`Session::run`] serves it on the current `reactor` runtime until it is unmounted. The futures
//! of [`FileSystem::handle`] answer the requests. The task that receives a request polls its
//! future: an answer that needs no waiting costs no task, no allocation and no switch. Only when a
//! future has to wait does another task continue to receive. Nothing is boxed per operation.

mod connection;
mod init;
mod write_room;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use reactor::Handle;

use crate::error::FuseError;
use crate::mount::{Mount, MountOptions, Mounter, Unmounter, set_nonblocking};
use crate::notify::Notifier;
use crate::passthrough::Backings;
use crate::reply::Response;
use crate::request::Request;
use crate::transport::{device, uring};
use crate::types::{Capabilities, NodeId};

pub(crate) use connection::{Connection, FetchError, Incoming, sort_fetch_error};
pub(crate) use write_room::{Held, Kept};

/// A file system that answers requests.
pub trait FileSystem: 'static {
    /// Called once, before the first request, with what was agreed with the kernel.
    fn init(&self, _negotiated: &Negotiated) {}

    /// Answers one request. Write it as `async fn`. Requests are answered in any order. If the
    /// kernel needs an order (such as for two writes of one thread), it sends the requests one
    /// after the other.
    ///
    /// Never notify the kernel (see [`Notifier`]) before the answer, from within this call.
    fn handle(self: Rc<Self>, request: Request) -> impl Future<Output = Response>;

    /// Takes back lookup counts: each answered [`Entry`](crate::Entry) counts one for its node.
    fn forget(&self, _forgets: &[(NodeId, u64)]) {}

    /// Ends the file system after it was unmounted; called once, after the last request. All lookup
    /// counts are gone.
    fn destroy(&self) {}
}

/// The transport that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// `io_uring` if the kernel has it enabled and the runtime can carry it, otherwise `/dev/fuse`.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Device,
    /// `io_uring`; `run` fails if it is not available.
    IoUring,
}

/// Limits and options of a session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Most bytes of one READ or WRITE: 4096 … 16 MiB, a multiple of 4096. The kernel reduces it to
    /// the sysctl `fs.fuse.max_pages_limit`, 1 MiB by default.
    pub max_write_bytes: u32,
    /// Most bytes that the kernel reads ahead.
    pub max_readahead_bytes: u32,
    /// Most background requests (read-ahead, asynchronous direct I/O, releases) in flight.
    pub max_background: u16,
    /// The number of background requests from which on the mount counts as congested.
    pub congestion_threshold: u16,
    /// The capabilities to request; those that the kernel does not have are left out.
    pub capabilities: Capabilities,
    /// File systems that may be stacked beneath for passthrough: 0 … 2.
    pub max_stack_depth: u32,
    /// Most requests in flight. Blocking locks count while they wait, so this must exceed the
    /// number of tasks that may wait for one. At the limit the session reads no more requests, not
    /// even an unlock.
    pub requests_in_flight_max: usize,
    /// `/dev/fuse`: most WRITEs in flight that keep the buffer of `max_write_bytes` that they were
    /// received into. The data of further ones is copied to memory of its own size.
    pub writes_in_flight_max: usize,
    /// `/dev/fuse`: most bytes of such copies, exceeded by less than one WRITE. At this limit the
    /// session reads no more requests.
    pub copied_write_bytes_max: usize,
    /// The transport to use.
    pub transport: TransportChoice,
    /// What an earlier process has agreed with the kernel, if this one continues its connection.
    /// Then there is no handshake, and the kernel is asked to send unanswered requests again. Only
    /// with `/dev/fuse`, and only if `HAS_RESEND` was agreed.
    pub agreed: Option<Negotiated>,
    /// `io_uring`: entries at the start of each CPU's queue (1 or more).
    pub ring_entries_per_queue: usize,
    /// `io_uring`: most bytes of address space for payload over all queues. A queue whose entries
    /// all wait for the file system gets another one until this is reached. Pages count towards
    /// memory only once they were used.
    pub ring_payload_bytes_max: usize,
    /// `io_uring`: most bytes of address space beyond that, for queues without a free entry for 20
    /// ms: many requests of one CPU wait, for locks or for a device that does not answer.
    pub ring_reserve_bytes_max: usize,
    /// `io_uring`: payload lies in huge pages, if the system offers them. Useful for file systems
    /// that read from devices straight into it: one page is one transfer. Costs 2 MiB for each CPU
    /// that sends requests, even small ones.
    pub ring_payload_in_huge_pages: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            max_write_bytes: 1 << 20,
            max_readahead_bytes: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            capabilities: Capabilities::ASYNC_READ
                | Capabilities::BIG_WRITES
                | Capabilities::ASYNC_DIO
                | Capabilities::PARALLEL_DIROPS
                | Capabilities::ATOMIC_O_TRUNC
                | Capabilities::MAX_PAGES
                | Capabilities::HANDLE_KILLPRIV_V2
                | Capabilities::SETXATTR_EXT
                | Capabilities::HAS_EXPIRE_ONLY,
            max_stack_depth: 0,
            requests_in_flight_max: 4096,
            writes_in_flight_max: 64,
            copied_write_bytes_max: 256 << 20,
            transport: TransportChoice::Auto,
            agreed: None,
            ring_entries_per_queue: 8,
            ring_payload_bytes_max: 1 << 30,
            ring_reserve_bytes_max: 1 << 30,
            ring_payload_in_huge_pages: false,
        }
    }
}

/// The result of the negotiation with the kernel.
#[derive(Debug, Clone)]
pub struct Negotiated {
    /// The protocol's minor version in use.
    pub minor: u32,
    /// The capabilities in use.
    pub capabilities: Capabilities,
    /// Most bytes of one WRITE.
    pub max_write_bytes: u32,
    /// Most bytes of read-ahead.
    pub max_readahead_bytes: u32,
    /// The transport in use.
    pub transport: Transport,
    /// The reason for this transport.
    pub transport_reason: String,
}

impl Negotiated {
    /// The first minor version with `FUSE_NOTIFY_INC_EPOCH` (Linux 6.16).
    pub const EPOCH_MINOR: u32 = 44;

    /// Returns whether [`Notifier::increase_epoch`] works.
    pub fn has_epochs(&self) -> bool {
        self.minor >= Self::EPOCH_MINOR
    }
}

/// The transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Read and write of `/dev/fuse`.
    Device,
    /// Commands of an `io_uring`; FORGET and INTERRUPT still come through `/dev/fuse`.
    IoUring,
}

/// A mounted file system.
#[derive(Debug)]
pub struct Session {
    device: Handle,
    mount: Mount,
    options: SessionOptions,
}

impl Session {
    /// Mounts at `mountpoint`: with mount(2) as root, through `fusermount3` otherwise.
    ///
    /// Calls to the file system block until [`Session::run`] answers them. So the thread that runs
    /// it must not touch the mount point.
    pub fn mount(
        mountpoint: &Path,
        mount_options: &MountOptions,
        options: SessionOptions,
    ) -> Result<Self, FuseError> {
        Self::mount_by(None, mountpoint, mount_options, options)
    }

    /// As [`Session::mount`], through a process that was started for this. The options of the mount
    /// are those that it was started with, and `mount_options` must be the same.
    pub fn mount_by(
        mounter: Option<Arc<Mounter>>,
        mountpoint: &Path,
        mount_options: &MountOptions,
        options: SessionOptions,
    ) -> Result<Self, FuseError> {
        options.check()?;
        let (mount, device) = Mount::new(mountpoint, mount_options, mounter)?;
        Ok(Self { device: Handle::from_fd(device), mount, options })
    }

    /// Adopts a device that another process has mounted. That process stays responsible for the
    /// mount: dropping this session does not unmount.
    ///
    /// # Errors
    /// If an option is out of bounds, or the device cannot be set up.
    pub fn adopt(
        device: OwnedFd,
        unmounter: Unmounter,
        options: SessionOptions,
    ) -> Result<Self, FuseError> {
        options.check()?;
        set_nonblocking(&device).map_err(|errno| FuseError::Device(errno.into()))?;
        Ok(Self { device: Handle::from_fd(device), mount: Mount::of_another(unmounter), options })
    }

    /// Serves requests until the file system is unmounted or its connection aborted, on the current
    /// `reactor` runtime. Returns when all requests in flight are answered.
    pub async fn run<F: FileSystem>(&self, file_system: Rc<F>) -> Result<(), FuseError> {
        let (decoder, negotiated) = match &self.options.agreed {
            Some(agreed) => (init::decoder(agreed), agreed.clone()),
            None => init::handshake(&self.device, &self.options).await?,
        };
        tracing::debug!(
            minor = negotiated.minor,
            transport = ?negotiated.transport,
            reason = negotiated.transport_reason,
            "FUSE session starts"
        );
        file_system.init(&negotiated);
        let transport = negotiated.transport;
        let connection = Connection::new(self, file_system, decoder, negotiated);
        let connection = Rc::new(connection);
        device::start(&connection);
        if transport == Transport::IoUring {
            uring::start(&connection);
        }
        if self.options.agreed.is_some()
            && let Err(error) = self.notifier().resend()
        {
            // The connection may be over by now; then receiving reports it. A kernel before Linux
            // 6.9 leaves the callers of these requests waiting.
            tracing::warn!(%error, "the kernel does not send unanswered requests again");
        }
        let result = connection.ended().await;
        connection.file_system.destroy();
        result
    }

    /// Returns a sender of notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone())
    }

    /// Returns the registry of open files for passthrough.
    pub fn backings(&self) -> Backings {
        Backings::new(self.device.clone())
    }

    /// Returns a handle that unmounts from another thread (such as one that waits for signals).
    pub fn unmounter(&self) -> Unmounter {
        self.mount.unmounter()
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the connection's number under `/sys/fs/fuse/connections`.
    pub fn connection_number(&self) -> Option<u32> {
        self.mount.connection_number()
    }
}

impl SessionOptions {
    fn check(&self) -> Result<(), FuseError> {
        let limits: [(&'static str, u64, u64, u64, &'static str); 5] = [
            ("max_write_bytes", self.max_write_bytes.into(), 4096, 16 << 20, "4096 to 16 MiB"),
            ("requests_in_flight_max", self.requests_in_flight_max as u64, 1, 1 << 20, "1 to 2^20"),
            ("writes_in_flight_max", self.writes_in_flight_max as u64, 1, 1 << 20, "1 to 2^20"),
            ("ring_entries_per_queue", self.ring_entries_per_queue as u64, 1, 4096, "1 to 4096"),
            ("max_stack_depth", self.max_stack_depth.into(), 0, 2, "0 to 2"),
        ];
        for (name, value, min, max, range) in limits {
            if !(min..=max).contains(&value) {
                return Err(FuseError::Limit { name, value, range });
            }
        }
        if !self.max_write_bytes.is_multiple_of(4096) {
            let (name, value) = ("max_write_bytes", self.max_write_bytes.into());
            return Err(FuseError::Limit { name, value, range: "a multiple of 4096" });
        }
        Ok(())
    }
}
