//! A handle to a namespace for reads, writes and flushes, which outlives connections.
//!
//! A request is split at the controller's transfer limit into commands that run in parallel. A
//! command whose connection ends is repeated on the next one: reads and flushes always, writes
//! according to [`InterruptedWrites`](crate::InterruptedWrites). Before commands use a new
//! connection, the handle checks that the namespace behind it is still the same *incarnation* of
//! the same namespace. If it is not, acknowledged writes may be lost, and every request fails with
//! [`Error::WritesLost`] until the owner of the handle adopts the new incarnation. So a flush on
//! the new incarnation is never taken for one that made writes to the old incarnation durable.
//!
//! Only Tsumugi's target reports incarnations. With another target, a power failure of the target
//! looks like any lost connection, to this host as to Linux's.

mod commands;
mod device;
mod paths;
mod policy;
mod request;
mod split;

pub use paths::{PATHS_MAX, PathStatus};
pub use policy::IoPolicy;

use crate::controller::{Controller, Link, NamespaceIdentity, NvmLimits, Sight};
use crate::error::Error;
use crate::queue_pair::{Data, Destination};
use block::{DiscardEffect, Geometry};
use nvme::command::ReadWrite;
use nvme::identify::{IdentifyController, IdentifyNamespace};
use nvme::opcode::NvmOpcode;
use nvme::{Nsid, SubmissionQueueEntry};
use paths::{Paths, Trouble};
use reactor::local::Semaphore;
use reactor::time::{self, Instant};
use reactor::{Buffer, Shared};
use request::Request;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A namespace of a connected controller; clones refer to the same handle.
#[derive(Clone, Debug)]
pub struct Namespace(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    controller: Controller,
    nsid: Nsid,
    identity: NamespaceIdentity,
    incarnation: Cell<Option<u128>>,
    geometry: Geometry,
    block_shift: u8,
    transfer_bytes_max: u32,
    limits: NvmLimits,
    is_write_zeroes_supported: bool,
    /// Whether a flush is sent. Once true it stays true: another life of the target may cache writes
    /// that were durable at once before.
    must_flush: Cell<bool>,
    /// Number of the link on which the namespace was last verified.
    checked: Cell<Sight>,
    check_turn: Semaphore,
    failed: RefCell<Option<Error>>,
    next_lane: Cell<usize>,
    /// All paths, if there may be several.
    paths: Option<Paths>,
}

/// The properties of a namespace according to one controller.
#[derive(Clone, Copy, Debug)]
struct Found {
    identity: NamespaceIdentity,
    geometry: Geometry,
    block_shift: u8,
    transfer_bytes_max: u32,
    limits: NvmLimits,
    is_write_zeroes_supported: bool,
    /// ANAGRPID; 0 means none.
    ana_group: u32,
}

impl Namespace {
    /// Opens a namespace by its identifier.
    ///
    /// Fails with [`Error::NoSuchNamespace`] if there is none, and with [`Error::Unsupported`] if
    /// its blocks carry metadata.
    pub async fn open(controller: &Controller, nsid: Nsid) -> Result<Self, Error> {
        let link = controller.link(None).await?;
        let sight = controller.inner().sight(&link);
        let found = Found::look(&link, nsid).await?;
        Ok(Self(Rc::new(Inner::new(controller, nsid, found, sight, None))))
    }

    /// Returns the controller; with several paths, the first one.
    pub fn controller(&self) -> &Controller {
        &self.0.controller
    }

    /// Returns the identifier.
    pub fn nsid(&self) -> Nsid {
        self.0.nsid
    }

    /// Returns the identity: UUID, NGUID, EUI64 and incarnation.
    pub fn identity(&self) -> NamespaceIdentity {
        self.0.identity
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Returns the incarnation that the handle accepts, if the target reports one.
    pub fn incarnation(&self) -> Option<u128> {
        self.0.incarnation.get()
    }

    /// Returns the most bytes of one command.
    pub fn transfer_bytes_max(&self) -> u32 {
        self.0.transfer_bytes_max
    }

    /// Ends the failed state after [`Error::WritesLost`]: the caller accepts the loss and uses the
    /// device in its present state.
    pub fn adopt_incarnation(&self) {
        let mut failed = self.0.failed.borrow_mut();
        if let Some(Error::WritesLost { was, now }) = &*failed {
            if let Some(paths) = &self.0.paths {
                paths.adopt(was.as_u128(), now.as_u128());
            }
            self.0.incarnation.set(Some(now.as_u128()));
            *failed = None;
            self.0.checked.set(Sight::default());
        }
    }

    /// Reads from `offset_bytes` on until all visible bytes of `buffer` are filled.
    pub async fn read(&self, offset_bytes: u64, buffer: Buffer) -> Result<Buffer, Error> {
        let len = buffer.len();
        self.check("read", offset_bytes, len as u64)?;
        if len as u64 > u64::from(self.0.transfer_bytes_max) {
            return self.read_split(offset_bytes, buffer).await;
        }
        if len == 0 {
            return Ok(buffer);
        }
        let request = self.read_write(NvmOpcode::READ, offset_bytes, len as u64)?;
        let data = self.run(&request, Data::Read(Destination::whole(buffer)), self.lane()).await?;
        data.into_buffer().ok_or(Error::ConnectionLost(crate::ConnectionEnd::Closed))
    }

    /// Writes `bytes` to `offset_bytes`.
    pub async fn write(&self, offset_bytes: u64, bytes: Shared) -> Result<(), Error> {
        let len = bytes.len() as u64;
        self.check("write", offset_bytes, len)?;
        if len > u64::from(self.0.transfer_bytes_max) {
            return self.write_split(offset_bytes, bytes).await;
        }
        if len == 0 {
            return Ok(());
        }
        let request = self.read_write(NvmOpcode::WRITE, offset_bytes, len)?;
        self.run(&request, Data::Write(bytes), self.lane()).await.map(drop)
    }

    /// Makes all completed writes durable.
    pub async fn flush(&self) -> Result<(), Error> {
        let sqe = SubmissionQueueEntry::flush(self.0.nsid);
        let request = Request { command: "Flush", sqe, start_lba: 0, blocks: 0, is_write: false };
        if !self.0.must_flush.get() {
            // There is nothing to flush, unless the handle has failed or a new link shows a cache.
            self.route(self.deadline(), &mut Trouble::default()).await?;
            if !self.0.must_flush.get() {
                return Ok(());
            }
        }
        self.run(&request, Data::None, self.lane()).await.map(drop)
    }

    /// Deallocates `bytes` from `offset_bytes` on, if the target supports that (see
    /// [`Geometry::discard`]).
    pub async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check("discard", offset_bytes, bytes)?;
        if self.0.geometry.discard == DiscardEffect::Ignored || bytes == 0 {
            return Ok(());
        }
        self.discard_split(offset_bytes, bytes).await
    }

    /// Makes `bytes` from `offset_bytes` on read as zeros: by Write Zeroes if the target supports
    /// it, otherwise by writing zeros.
    pub async fn write_zeroes(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check("write zeroes", offset_bytes, bytes)?;
        self.zero_split(offset_bytes, bytes).await
    }

    fn check(&self, what: &'static str, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        let geometry = &self.0.geometry;
        let is_aligned = (offset_bytes | bytes) & u64::from(geometry.block_size - 1) == 0;
        let is_within = offset_bytes.checked_add(bytes).is_some_and(|end| end <= geometry.size());
        if is_aligned && is_within {
            return Ok(());
        }
        let why = if is_aligned { "past the end" } else { "not aligned to blocks" };
        Err(Error::InvalidRequest { what, offset_bytes, bytes, why })
    }

    fn read_write(
        &self,
        opcode: NvmOpcode,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<Request, Error> {
        let start_lba = offset_bytes >> self.0.block_shift;
        let blocks = bytes >> self.0.block_shift;
        let fields = ReadWrite { start_lba, blocks: blocks as u32, ..ReadWrite::default() };
        let sqe = fields.encode(opcode, self.0.nsid).map_err(|_| Error::InvalidRequest {
            what: "transfer",
            offset_bytes,
            bytes,
            why: "more than 65536 blocks in one command",
        })?;
        let command = opcode.name().unwrap_or("I/O command");
        let is_write = opcode != NvmOpcode::READ;
        Ok(Request { command, sqe, start_lba, blocks, is_write })
    }

    /// Returns the number of the link's queue pair for the next request.
    fn lane(&self) -> usize {
        let lane = self.0.next_lane.get();
        self.0.next_lane.set(lane.wrapping_add(1));
        lane
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.controller.options().fast_io_fail_tmo.map(|total| time::now() + total)
    }

    /// Returns the live link, after the namespace behind it was verified.
    async fn link(&self, deadline: Option<Instant>) -> Result<Rc<Link>, Error> {
        loop {
            if let Some(error) = &*self.0.failed.borrow() {
                return Err(error.clone());
            }
            let controller = self.0.controller.inner();
            match controller.live_link_now()? {
                Some(link) if controller.sight(&link) == self.0.checked.get() => return Ok(link),
                Some(link) => self.check_link(&link, deadline).await?,
                None => drop(self.0.controller.link(deadline).await?),
            }
        }
    }

    async fn check_link(&self, link: &Rc<Link>, deadline: Option<Instant>) -> Result<(), Error> {
        let _turn = self.0.check_turn.acquire(1).await;
        let sight = self.0.controller.inner().sight(link);
        if self.0.checked.get() == sight {
            return Ok(());
        }
        let found = Found::look(link, self.0.nsid);
        let found = match deadline {
            None => found.await,
            Some(deadline) => time::timeout_at(deadline, found).await.map_err(|_| {
                let total = self.0.controller.options().fast_io_fail_tmo;
                Error::DeadlineExceeded(total.unwrap_or_default())
            })?,
        };
        match found {
            Ok(found) => {
                let verdict = self.check_found(&found);
                if let Err(error) = &verdict {
                    *self.0.failed.borrow_mut() = Some(error.clone());
                }
                self.0.checked.set(sight);
                verdict
            }
            // That link has ended too: the check repeats on the next one.
            Err(error) if error.is_connection_error() => {
                link.admin.ended().await;
                reactor::yield_now().await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Compares what a link shows with what the handle relies on. The block size may change under
    /// the same UUID, if the target's configuration does; commands with ranges of blocks would then
    /// hit other bytes.
    fn check_found(&self, found: &Found) -> Result<(), Error> {
        self.0.must_flush.set(self.0.must_flush.get() || found.geometry.has_volatile_cache);
        let (known, now) = (&self.0.identity, &found.identity);
        let is_same = (known.uuid, known.nguid, known.eui64) == (now.uuid, now.nguid, now.eui64);
        if !is_same || found.block_shift != self.0.block_shift {
            return Err(Error::NamespaceReplaced(self.0.nsid));
        }
        match (self.0.incarnation.get(), now.incarnation) {
            (Some(was), Some(now)) if was != now => Err(Error::WritesLost {
                was: uuid::Uuid::from_u128(was),
                now: uuid::Uuid::from_u128(now),
            }),
            _ => Ok(()),
        }
    }
}

impl Found {
    async fn look(link: &Link, nsid: Nsid) -> Result<Self, Error> {
        let identify = link.identify_namespace(nsid).await?;
        let identity = link.namespace_identity(nsid, &identify).await?;
        if identify.format().ms.get() != 0 {
            return Err(Error::Unsupported("metadata in blocks"));
        }
        let block_shift = identify.block_shift().map_err(|source| Error::InvalidResponse {
            structure: "Identify Namespace",
            fault: source,
        })?;
        let limits = link.nvm_limits().await?;
        let oncs = link.info.identify.oncs.get();
        let geometry = geometry(&identify, block_shift, &link.info.identify)?;
        let transfer_bytes_max = link.transfer_bytes_max.max(geometry.block_size);
        Ok(Self {
            identity,
            geometry,
            block_shift,
            transfer_bytes_max,
            limits,
            is_write_zeroes_supported: oncs & IdentifyController::ONCS_WRITE_ZEROES != 0,
            ana_group: identify.anagrpid.get(),
        })
    }

    /// Returns properties that hold for both paths, or the difference that makes this impossible.
    fn merge(mut self, other: Self) -> Result<Self, &'static str> {
        let names = |it: &Self| (it.identity.uuid, it.identity.nguid, it.identity.eui64);
        if names(&self) != names(&other) {
            return Err("it leads to a namespace with another UUID, NGUID or EUI64");
        }
        let shape = |it: &Self| (it.geometry.block_size, it.geometry.blocks, it.geometry.discard);
        if shape(&self) != shape(&other) {
            return Err("its block size, size or effect of discarding is different");
        }
        self.geometry.has_volatile_cache |= other.geometry.has_volatile_cache;
        self.transfer_bytes_max = self.transfer_bytes_max.min(other.transfer_bytes_max);
        self.limits = self.limits.merge(other.limits);
        self.is_write_zeroes_supported &= other.is_write_zeroes_supported;
        Ok(self)
    }
}

impl Inner {
    fn new(
        controller: &Controller,
        nsid: Nsid,
        found: Found,
        sight: Sight,
        paths: Option<Paths>,
    ) -> Self {
        Self {
            controller: controller.clone(),
            nsid,
            identity: found.identity,
            incarnation: Cell::new(found.identity.incarnation),
            geometry: found.geometry,
            block_shift: found.block_shift,
            transfer_bytes_max: found.transfer_bytes_max,
            limits: found.limits,
            is_write_zeroes_supported: found.is_write_zeroes_supported,
            must_flush: Cell::new(found.geometry.has_volatile_cache),
            checked: Cell::new(sight),
            check_turn: Semaphore::new(1),
            failed: RefCell::new(None),
            next_lane: Cell::new(0),
            paths,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Ends the tasks that watch the paths.
        for path in self.paths.iter().flat_map(|paths| &paths.all) {
            path.controller.inner().link_changed.notify();
        }
    }
}

fn geometry(
    identify: &IdentifyNamespace,
    block_shift: u8,
    controller: &IdentifyController,
) -> Result<Geometry, Error> {
    let oncs = controller.oncs.get();
    let blocks = identify.nsze.get();
    let is_sane = block_shift <= 24 && blocks.checked_shl(u32::from(block_shift)).is_some();
    if !is_sane || blocks.leading_zeros() < u32::from(block_shift) {
        let source = nvme::Error::InvalidField { field: "nsze", value: blocks };
        return Err(Error::InvalidResponse { structure: "Identify Namespace", fault: source });
    }
    let discard = if oncs & IdentifyController::ONCS_DATASET_MANAGEMENT == 0 {
        DiscardEffect::Ignored
    } else if identify.dlfeat & 7 == IdentifyNamespace::DLFEAT_READS_ZERO {
        DiscardEffect::Zeroes
    } else {
        DiscardEffect::Arbitrary
    };
    let has_volatile_cache = controller.vwc & IdentifyController::VWC_PRESENT != 0;
    Ok(Geometry { block_size: 1 << block_shift, blocks, discard, has_volatile_cache })
}
