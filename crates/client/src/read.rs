//! Reading: dirty data from memory, committed data from the devices, holes as zeros.
//!
//! A read is planned without waiting once its extents are known: which bytes come from where. Ranges
//! that lie near each other on a device become one command; all commands go out together. The
//! result is a list of chunks that refer to what was read, not a copy of it.
//!
//! A caller may offer memory for the result (a FUSE request's payload). What lies on a device in the
//! same order as in the file is then read straight to its place there, which saves a copy.

mod ahead;
mod check;
mod command;
mod committed;
mod scrub;

use crate::client::Client;
use crate::dirty::{Fill, FillState};
use crate::extent_map::Run;
use crate::inode::Inode;
use crate::session::life::{ReadGuard, SessionStamp};
use crate::space::Allocated;
use crate::sums::{Checks, KnownSums, blocks_at};
pub use ahead::AheadCounts;
pub(crate) use ahead::{Ahead, Memory};
pub(crate) use check::Unread;
use command::{Command, Fetched};
pub(crate) use committed::Committed;
use protocol::client::{Answer, Call, ReadCall};
use protocol::inline::INLINE_MAX_BYTES;
use protocol::sums::BlockSums;
use protocol::{
    AllocationId, Attr, DeviceId, Errno, Extent, FILE_SIZE_MAX_BYTES, InodeId, Place, Rights,
};
use reactor::local::InFlight;
use reactor::{Buffer, Chunk, RegionSlice, Shared};
pub use scrub::{Scrubbed, WrongPlace};
use std::ops::Range;
use std::rc::Rc;

/// Extents asked for beyond what a read needs, so that reading on needs no further call.
const AHEAD_BYTES: u64 = 64 << 20;

thread_local! {
    static ZEROS: Shared = Buffer::zeroed(1 << 20).freeze();
}

/// A part of the file that a read covers.
enum Part {
    Hole(u64),
    Memory(Shared),
    /// Bytes on a device, at a byte address.
    Device {
        device: DeviceId,
        address: u64,
        length: u64,
    },
}

impl Part {
    /// Bytes of the file.
    fn len(&self) -> u64 {
        match self {
            Part::Hole(length) | Part::Device { length, .. } => *length,
            Part::Memory(shared) => shared.len() as u64,
        }
    }
}

/// What must not change while bytes are read: the session, and the devices' incarnations. Else the
/// session may have been fenced meanwhile, or a device have lost data that the extents name: the
/// bytes may be somebody else's.
struct Validity {
    session: SessionStamp,
    losses: u64,
}

/// Extents for one read, and what makes them hold until it ends.
struct Held {
    size: u64,
    runs: Vec<Run<Place>>,
    /// The sums of their blocks, of those that have one.
    sums: Checks,
    /// The file's first bytes where no run is.
    head: Rc<[u8]>,
    _epoch: ReadGuard,
    _lease: Option<InFlight>,
}

/// What a read consists of.
struct Planned {
    parts: Vec<Part>,
    /// The sums of the blocks that the parts touch.
    checks: Checks,
    /// Hold the blocks of data that is not committed.
    _fills: Vec<Rc<()>>,
}

/// What the service says of a range of a file.
pub(crate) struct Asked {
    pub(crate) extents: Vec<Extent>,
    /// They are complete up to here.
    pub(crate) covered_to: u64,
    pub(crate) inline: Vec<u8>,
    /// The sums of the blocks that the extents touch.
    pub(crate) sums: BlockSums,
    pub(crate) attr: Attr,
}

impl Client {
    /// Reads up to `length` bytes at an offset; fewer only at the end of the file.
    ///
    /// Bytes may be put into `room`, each where it belongs if the answer were to begin there; its
    /// other bytes are arbitrary afterwards. The chunks of the answer tell what lies there.
    ///
    /// # Errors
    /// EIO, also where the bytes do not have their checksum; ETIMEDOUT, ESTALE, those of a call.
    pub async fn read(
        self: &Rc<Self>,
        id: InodeId,
        offset: u64,
        length: usize,
        room: Option<&RegionSlice>,
    ) -> Result<Vec<Chunk>, Errno> {
        let inode = self.inode(id);
        self.compaction.note_use();
        if offset >= FILE_SIZE_MAX_BYTES {
            return Ok(Vec::new());
        }
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            self.session.life.alive().await?;
            inode.pages.note_read();
            let validity = self.validity();
            let last_commit = inode.last_commit.get();
            let held = self.hold_extents(&inode, offset, length as u64).await?;
            if inode.last_commit.get() != last_commit && !reactor::mutant!("own-commit-unseen") {
                // What was dirty may be committed since, after these extents: it would be in neither.
                continue;
            }
            let size = held.size.max(inode.dirty.borrow().end());
            let end = offset.saturating_add(length as u64).min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let chunks = if let Some(chunks) = self.take_ahead(&inode, &(offset..end)).await {
                Ok(chunks)
            } else {
                let planned = self.plan(&inode, offset..end, &held)?;
                self.carry_out(&planned.parts, &planned.checks, room).await
            };
            if matches!(chunks, Err(Unread::Failed(_))) {
                let places = held.runs.iter().map(|run| &run.place);
                self.name_unreadable(id, places.map(|place| place.allocation.device));
            }
            drop(held);
            if !inode.state.borrow().rights.contains(Rights::READ) {
                // No recall says when these bytes become old.
                inode.pages.fill();
                inode.pages.expire();
                if inode.pages.have_writers() {
                    self.tell_of_pages(&inode);
                }
            }
            let is_same = validity.losses == self.devices.losses();
            let still_holds = self.still_holds(&validity);
            match chunks {
                Ok(chunks) if still_holds => return Ok(chunks),
                Err(Unread::Failed(errno)) if still_holds || is_same => return Err(errno),
                Err(Unread::Wrong(wrong))
                    if still_holds
                        || reactor::mutant!("wrong-without-session")
                        || !is_same && reactor::mutant!("wrong-of-reborn-device") =>
                {
                    inode.state.borrow_mut().ahead.clear();
                    self.note_wrong(id, wrong);
                    return Err(Errno::EIO);
                }
                // What was read by holds no more.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// To be taken before the extents are, for [`Client::still_holds`] after the bytes are read.
    fn validity(&self) -> Validity {
        Validity { session: self.session.life.stamp(), losses: self.devices.losses() }
    }

    fn still_holds(&self, validity: &Validity) -> bool {
        if reactor::mutant!("dead-session-reads") {
            return true;
        }
        self.session.life.is_alive()
            && (self.session.life.is_present(validity.session)
                || reactor::mutant!("read-outlives-session"))
            && (validity.losses == self.devices.losses() || reactor::mutant!("loss-unseen-by-read"))
    }

    /// Cached extents of a range, held until the read ends.
    fn hold_cached(&self, inode: &Inode, offset: u64, end: u64) -> Option<Held> {
        let state = inode.state.borrow();
        if !state.rights.contains(Rights::READ) {
            return None;
        }
        let (attr, runs) = state.extents(offset, end)?;
        let epoch = self.session.life.hold();
        let lease = Some(inode.lease_reads.enter());
        let sums = self.sums_of(&state.sums, &runs);
        Some(Held { size: attr.size, runs, sums, head: state.head(), _epoch: epoch, _lease: lease })
    }

    /// Committed extents of a range, held until the read ends.
    async fn hold_extents(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        length: u64,
    ) -> Result<Held, Errno> {
        let end = offset.saturating_add(length);
        if let Some(held) = self.hold_cached(inode, offset, end) {
            return Ok(held);
        }
        if offset < INLINE_MAX_BYTES {
            self.fetch_neighbours(inode).await?;
            if let Some(held) = self.hold_cached(inode, offset, end) {
                return Ok(held);
            }
        }
        let mut at = offset;
        let mut runs = Vec::new();
        let mut sums = Checks::default();
        let mut head: Rc<[u8]> = Rc::default();
        // Held from before the first answer, so from an epoch no later than any of them.
        let epoch = self.session.life.hold();
        loop {
            let wanted = (end - at).max(AHEAD_BYTES);
            let Asked { extents, covered_to, inline, sums: more, attr } =
                self.ask_extents(inode, at, wanted).await?;
            if !inline.is_empty() {
                head = inline.into();
            }
            sums.extend(self.checks_of(&more));
            runs.extend(extents.iter().filter_map(|extent| {
                let extent = extent.clip(at, end.min(covered_to))?;
                let length = u64::from(extent.length);
                Some(Run { offset: extent.offset, length, place: extent.place })
            }));
            at = covered_to;
            if at >= end.min(attr.size) {
                let lease = inode
                    .state
                    .borrow()
                    .rights
                    .contains(Rights::READ)
                    .then(|| inode.lease_reads.enter());
                sums.sort();
                return Ok(Held {
                    size: attr.size,
                    runs,
                    sums,
                    head,
                    _epoch: epoch,
                    _lease: lease,
                });
            }
        }
    }

    /// What is to be checked of an answer.
    fn checks_of(&self, sums: &BlockSums) -> Checks {
        let mut checks = Checks::default();
        if self.checksum {
            sums.each().for_each(|(device, block, sum)| checks.push(device, block, sum));
            checks.sort();
        }
        checks
    }

    /// The known sums of the blocks that runs touch.
    fn sums_of(&self, known: &KnownSums, runs: &[Run<Place>]) -> Checks {
        let mut checks = Checks::default();
        if !self.checksum {
            return checks;
        }
        for run in runs {
            let AllocationId { device, block } = run.place.allocation;
            let Some(block_size) = self.devices.block_size(device).map(u64::from) else { continue };
            let address = block * block_size + u64::from(run.place.at);
            known.add_to(&mut checks, device, blocks_at(address, run.length, block_size));
        }
        checks.sort();
        checks
    }

    /// Extents from the service: complete from `offset` to the second part of the answer. Inline bytes without
    /// their sum are asked for once more.
    pub(crate) async fn ask_extents(
        self: &Rc<Self>,
        inode: &Inode,
        offset: u64,
        length: u64,
    ) -> Result<Asked, Errno> {
        let length = length.min(FILE_SIZE_MAX_BYTES - offset);
        let mut is_again = false;
        loop {
            let call = Call::Read(ReadCall::ReadExtents { inode: inode.id, offset, length });
            match self.session.call(call).await? {
                Answer::Extents { extents, covered_to, inline, inline_sum, sums, attr, .. }
                    if covered_to > offset =>
                {
                    let is_right = self.is_right(inode.id, &inline, inline_sum);
                    if is_again {
                        self.note_inline(inode.id, is_right);
                    }
                    if is_right {
                        let (extents, inline) = (extents.0, inline.0);
                        return Ok(Asked { extents, covered_to, inline, sums, attr });
                    }
                    if std::mem::replace(&mut is_again, true) {
                        return Err(Errno::EIO);
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    /// Which bytes come from where: dirty data over committed data over holes.
    fn plan(&self, inode: &Inode, range: Range<u64>, committed: &Held) -> Result<Planned, Errno> {
        let (mut parts, mut fills) = (Vec::new(), Vec::new());
        let mut checks = Checks::default();
        let mut at = range.start;
        let dirty = inode.dirty.borrow();
        for run in dirty.within(range.start, range.end) {
            self.plan_committed(at..run.offset, committed, (&mut parts, &mut checks))?;
            let fill = dirty.fill(run.place.fill).ok_or(Errno::EIO)?;
            let bytes = run.place.at as usize..(u64::from(run.place.at) + run.length) as usize;
            match &fill.state {
                FillState::Gathering(buffer) => {
                    parts.push(Part::Memory(Buffer::copy_from(&buffer[bytes]).freeze()));
                }
                FillState::Writing(shared) => parts.push(Part::Memory(shared.slice(bytes))),
                FillState::Written => {
                    self.check_kept(fill)?;
                    fills.push(Rc::clone(&fill.readers));
                    dirty.add_sums(&run, &mut checks);
                    for extent in dirty.extents(&run) {
                        parts.push(self.device_part(&extent.place, u64::from(extent.length))?);
                    }
                }
            }
            at = run.end();
        }
        self.plan_committed(at..range.end, committed, (&mut parts, &mut checks))?;
        checks.sort();
        let planned: u64 = parts.iter().map(Part::len).sum();
        assert_eq!(
            planned,
            range.end - range.start,
            "a read of {} at {} has parts of other bytes",
            inode.id,
            range.start
        );
        Ok(Planned { parts, checks, _fills: fills })
    }

    fn plan_committed(
        &self,
        range: Range<u64>,
        committed: &Held,
        (parts, checks): (&mut Vec<Part>, &mut Checks),
    ) -> Result<(), Errno> {
        let mut at = range.start;
        let runs = &committed.runs;
        let first = runs.partition_point(|run| run.end() <= range.start);
        for run in &runs[first..] {
            let Some(run) = run.clip(at, range.end) else { break };
            push_rest(parts, at..run.offset, &committed.head);
            let part = self.device_part(&run.place, run.length)?;
            if let Part::Device { device, address, length } = part {
                let block_size = u64::from(self.block_size(device)?);
                let blocks = blocks_at(address, length, block_size);
                checks.extend_from(&committed.sums, device, blocks);
            }
            parts.push(part);
            at = run.end();
        }
        push_rest(parts, at..range.end, &committed.head);
        Ok(())
    }

    /// EIO if what was written and not committed yet may be lost with the device's power.
    fn check_kept(&self, fill: &Fill) -> Result<(), Errno> {
        let present = self.devices.info(fill.device).map(|info| info.incarnation);
        let is_kept = |(_, piece): &(u32, Allocated)| Some(piece.incarnation) == present;
        if fill.pieces.iter().all(is_kept) {
            return Ok(());
        }
        tracing::error!(device = %fill.device, "data that was not committed yet was lost with the device's power");
        Err(Errno::EIO)
    }

    fn block_size(&self, device: DeviceId) -> Result<u32, Errno> {
        self.devices.block_size(device).ok_or(Errno::EIO)
    }

    fn device_part(&self, place: &Place, length: u64) -> Result<Part, Errno> {
        if let Some(device) = place.lost_with() {
            tracing::error!(%device, "data that had not been flushed was lost with the device's power; write it again, or delete it");
            return Err(Errno::EIO);
        }
        let device = place.allocation.device;
        let block_size = u64::from(self.block_size(device)?);
        let address = place.allocation.block * block_size + u64::from(place.at);
        Ok(Part::Device { device, address, length })
    }

    /// Reads what lies on devices, checks it, and puts everything together.
    async fn carry_out(
        self: &Rc<Self>,
        parts: &[Part],
        checks: &Checks,
        room: Option<&RegionSlice>,
    ) -> Result<Vec<Chunk>, Unread> {
        let mut commands = command::of_parts(parts, |device| self.block_size(device))?;
        if let Some(room) = room {
            command::place(&mut commands, parts, room);
        }
        if commands.is_empty() {
            return Ok(assemble(parts, &[], &[]));
        }
        // Boxed: a read of what is in memory does not carry the state that devices need.
        let fetched = Box::pin(self.fetch_all(&commands, checks)).await?;
        Ok(assemble(parts, &commands, &fetched))
    }

    async fn fetch_all(
        self: &Rc<Self>,
        commands: &[Command],
        checks: &Checks,
    ) -> Result<Vec<Fetched>, Unread> {
        let mut fetched = Vec::with_capacity(commands.len());
        if let [command] = commands {
            fetched.push(self.fetch(command, checks).await?);
        } else {
            let checks = Rc::new(checks.clone());
            let mut tasks = Vec::with_capacity(commands.len());
            for command in commands {
                let (client, command) = (Rc::clone(self), command.clone());
                let checks = Rc::clone(&checks);
                tasks.push(reactor::spawn(async move { client.fetch(&command, &checks).await }));
            }
            let mut failed = None;
            for task in tasks {
                // All are waited for, so that none outlives the read.
                match task.await.unwrap_or(Err(Unread::Failed(Errno::EIO))) {
                    Ok(bytes) => fetched.push(bytes),
                    Err(unread) => failed = Some(unread),
                }
            }
            if let Some(unread) = failed {
                return Err(unread);
            }
        }
        Ok(fetched)
    }

    async fn fetch(self: &Rc<Self>, command: &Command, checks: &Checks) -> Result<Fetched, Unread> {
        let Command { device, range, room } = command;
        let fetched = if let Some(room) = room {
            self.read_device_into(*device, range.start, room).await?;
            Fetched::Placed(room.clone())
        } else {
            let length = (range.end - range.start) as usize;
            Fetched::Own(self.read_device(*device, range.start, length).await?)
        };
        self.checked(command, fetched, checks).await
    }
}

/// What no extent covers: inline bytes, then zeros.
fn push_rest(parts: &mut Vec<Part>, range: Range<u64>, head: &[u8]) {
    let mut at = range.start;
    let inline_end = range.end.min(head.len() as u64);
    if at < inline_end {
        let bytes = &head[at as usize..inline_end as usize];
        parts.push(Part::Memory(Buffer::copy_from(bytes).freeze()));
        at = inline_end;
    }
    if at < range.end {
        parts.push(Part::Hole(range.end - at));
    }
}

/// Chunks of all parts in the order of the file.
fn assemble(parts: &[Part], commands: &[Command], fetched: &[Fetched]) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(parts.len());
    assert_eq!(commands.len(), fetched.len(), "a read has answers to other commands");
    for part in parts {
        match part {
            Part::Memory(shared) => chunks.push(Chunk::Shared(shared.clone())),
            Part::Hole(length) => ZEROS.with(|zeros| {
                let mut left = *length as usize;
                while left > 0 {
                    let now = left.min(zeros.len());
                    chunks.push(Chunk::Shared(zeros.slice(..now)));
                    left -= now;
                }
            }),
            Part::Device { device, address, length } => {
                let index = command::index_of(commands, *device, *address);
                let start = (address - commands[index].range.start) as usize;
                chunks.push(fetched[index].range(start, *length as usize));
            }
        }
    }
    chunks
}
