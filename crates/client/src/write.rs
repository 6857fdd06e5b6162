//! Taking written bytes into memory, and writing them out.
//!
//! A write returns when its bytes are gathered and blocks are reserved for them; full fills go out
//! at once, several at a time. Large buffers go out as they are, without a copy.

use crate::client::Client;
use crate::dirty::{ADOPT_BYTES, At, Dirty, FILL_BYTES, Pieces, Sealed};
use crate::files::Handle;
use crate::inode::Inode;
use protocol::attr::Layout;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::{DeviceId, Errno, FILE_SIZE_MAX_BYTES, Rights, Timestamp};
use ring::time::{now, timeout_at};
use ring::{Buffer, Chunk};
use smallvec::SmallVec;
use std::rc::Rc;

/// Bytes of space asked for at once at least.
const LEASE_BYTES_MIN: u64 = 1 << 20;

impl Client {
    /// Writes bytes at an offset (ignored if the handle appends). `kill_privileges` says that the
    /// writer may not keep suid and sgid. Answers the offset written to.
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EIO, ESTALE, those of a call.
    pub async fn write(
        self: &Rc<Self>,
        handle: &Handle,
        offset: u64,
        bytes: Chunk,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        if !handle.mode.append {
            self.write_at(handle, offset, bytes, kill_privileges).await?;
            return Ok(offset);
        }
        let session = self.check_handle(handle).await?;
        let offset = self.append(&handle.inode, bytes, session, kill_privileges).await?;
        self.sync_if_asked(handle).await?;
        Ok(offset)
    }

    /// Writes bytes at an offset, also through a handle that appends (as stores through a mapping
    /// do).
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn write_at(
        self: &Rc<Self>,
        handle: &Handle,
        offset: u64,
        bytes: Chunk,
        kill_privileges: bool,
    ) -> Result<(), Errno> {
        let session = self.check_handle(handle).await?;
        self.acquire(&handle.inode, Rights::WRITE).await?;
        self.take(&handle.inode, offset, bytes, session, kill_privileges).await?;
        self.sync_if_asked(handle).await
    }

    /// What was uncommitted when a session was lost is lost: handles from before stay broken. Answers
    /// the session that a write through the handle belongs to from here on.
    async fn check_handle(&self, handle: &Handle) -> Result<u64, Errno> {
        self.session.life.alive().await?;
        let lost_in = handle.inode.state.borrow().lost_in;
        if handle.session < lost_in { Err(Errno::EIO) } else { Ok(self.session.life.generation()) }
    }

    /// Whether the bytes of a write that began in `session` may be placed now. One that was under way
    /// when its session was lost fails: its bytes must not appear in the next session, after the
    /// error, over what others wrote meanwhile. What was set aside for a write that fails is given
    /// back.
    fn may_place(
        &self,
        session: u64,
        (plan, planned_in, length): (&Plan, u64, usize),
        acquired: Result<(), Errno>,
    ) -> Result<(), Errno> {
        let present = self.session.life.generation();
        let result = acquired.and(if session == present { Ok(()) } else { Err(Errno::EIO) });
        if result.is_err() {
            self.dirty_budget.add(length);
            if planned_in == present {
                self.space.borrow_mut().unreserve(plan.device, plan.blocks);
            }
        }
        result
    }

    async fn sync_if_asked(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        if !handle.mode.sync {
            return Ok(());
        }
        let result = self.commit(&handle.inode, true).await;
        handle.inode.tell(&handle.told).and(result)
    }

    /// Writes at the end of the file, of which no other session can make an append meanwhile.
    async fn append(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        bytes: Chunk,
        session: u64,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        let _lock = inode.append_lock.acquire(1).await;
        let length = bytes.len();
        let plan = self.reserve(inode, length, None).await?;
        let planned_in = self.session.life.generation();
        let rounds = self.rounds();
        loop {
            let attr = async {
                rounds.begin()?;
                self.admit(inode, Rights::WRITE | Rights::SIZE).await?;
                self.inode_attr(inode).await
            };
            let attr = attr.await;
            let acquired = attr.as_ref().map(drop).map_err(|errno| *errno);
            self.may_place(session, (&plan, planned_in, length), acquired)?;
            let attr = attr?;
            let may_extend = inode.state.borrow().rights.contains(Rights::WRITE | Rights::SIZE);
            if may_extend && inode.changes.count() == 0 {
                let offset = attr.size;
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
                    self.may_place(session, (&plan, planned_in, length), Err(Errno::EFBIG))?;
                }
                // No await from here: the size holds.
                self.place(inode, offset, bytes, &plan, kill_privileges);
                return Ok(offset);
            }
        }
    }

    /// Waits until rights over an inode are held and bytes may be placed in it.
    async fn admit(self: &Rc<Self>, inode: &Inode, rights: Rights) -> Result<(), Errno> {
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            inode.changes.wait_zero().await;
            self.acquire(inode, rights).await?;
            if inode.changes.count() == 0 {
                return Ok(());
            }
        }
    }

    async fn take(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        bytes: Chunk,
        session: u64,
        kill_privileges: bool,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
            return Err(Errno::EFBIG);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let layout = self.layout(inode).await?;
        if layout.stripe_count == 0 || bytes.len() <= 1 {
            let plan = self.reserve(inode, bytes.len(), None).await?;
            let planned = (&plan, self.session.life.generation(), bytes.len());
            // WRITE may have been recalled while space was sought.
            let acquired = self.admit(inode, Rights::WRITE).await;
            self.may_place(session, planned, acquired)?;
            self.place(inode, offset, bytes, &plan, kill_privileges);
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let stripe = u64::from(layout.stripe_size_bytes);
            let left = (stripe - at % stripe) as usize;
            let part = done..(done + left).min(bytes.len());
            let device = self.devices.of_stripe(at / stripe, layout.stripe_count, inode.id);
            let plan = self.reserve(inode, part.len(), device).await?;
            let planned = (&plan, self.session.life.generation(), part.len());
            let acquired = self.admit(inode, Rights::WRITE).await;
            self.may_place(session, planned, acquired)?;
            done = part.end;
            let piece = Chunk::from(bytes.copy_part(part));
            self.place(inode, at, piece, &plan, kill_privileges);
        }
        Ok(())
    }

    async fn layout(self: &Rc<Self>, inode: &Inode) -> Result<Layout, Errno> {
        Ok(self.inode_attr(inode).await?.layout)
    }

    /// Sets memory and blocks aside for `length` bytes, on the given device or the nearest with
    /// room.
    async fn reserve(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        length: usize,
        wanted: Option<DeviceId>,
    ) -> Result<Plan, Errno> {
        if let Some(permit) = self.dirty_budget.try_acquire(length) {
            permit.forget();
        } else {
            self.write_out_everything();
            self.dirty_budget.acquire(length).await.forget();
        }
        let deadline = now() + self.session.times().request_deadline;
        let errno = loop {
            let changed = self.devices.changed.notified();
            let mut last = Errno::EIO;
            for device in self.devices.preferred(wanted) {
                match self.reserve_on(inode, length, device).await {
                    Ok(plan) => return Ok(plan),
                    Err(_) if last == Errno::ENOSPC => {}
                    Err(errno) => last = errno,
                }
            }
            // With no device at all, as right after a restart of the metadata service, some are
            // awaited.
            if self.devices.is_any_online() || timeout_at(deadline, changed).await.is_err() {
                break last;
            }
        };
        self.dirty_budget.add(length);
        Err(errno)
    }

    /// Reserves as many blocks of a device as `length` more bytes may need; of the one that the
    /// service grants space on, if that has none. Grants that do not suffice are held on to
    /// meanwhile: before the service says that there is no more it has unused space returned, and
    /// would grant the same blocks for ever.
    async fn reserve_on(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        length: usize,
        mut device: DeviceId,
    ) -> Result<Plan, Errno> {
        let mut hoard = Hoard::new(self);
        loop {
            let info = self.devices.info(device).filter(|info| info.online).ok_or(Errno::EIO)?;
            let block_size = info.block_size;
            // Bytes that join a fill use up what is left of its last block first.
            let slack = if length < ADOPT_BYTES {
                inode.dirty.borrow().slack_bytes(device, block_size)
            } else {
                0
            };
            let blocks = length.saturating_sub(slack).div_ceil(block_size as usize) as u64;
            hoard.release(device);
            if self.space.borrow_mut().reserve(device, blocks) {
                return Ok(Plan { device, block_size, blocks });
            }
            hoard.hold(device, blocks);
            device = self.lease_space(device, blocks * u64::from(block_size)).await?;
        }
    }

    /// Leases more space, on a device or, if that is full, another. Answers which.
    async fn lease_space(self: &Rc<Self>, device: DeviceId, bytes: u64) -> Result<DeviceId, Errno> {
        let wanted_bytes = bytes.max(LEASE_BYTES_MIN);
        match self
            .session
            .call(Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes }))
            .await?
        {
            Answer::Space(grant) => {
                self.space.borrow_mut().add(&grant);
                Ok(grant.device)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Makes bytes part of the inode's dirty data. Synchronous: what it relies on cannot change.
    fn place(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        bytes: Chunk,
        plan: &Plan,
        kill_privileges: bool,
    ) {
        let mut dirty = inode.dirty.borrow_mut();
        dirty.touch(Timestamp(ring::time::system_time() as i64));
        dirty.kill_privileges |= kill_privileges;
        let mut full = Vec::new();
        if bytes.len() >= ADOPT_BYTES {
            let length = bytes.len() as u64;
            let id = dirty.begin(plan.device, bytes.into_buffer());
            dirty.place(offset, length, At { fill: id, at: 0 });
            dirty.add_reserved(id, plan.blocks);
            full.extend(dirty.seal(id, plan.block_size));
        } else {
            gather(&mut dirty, offset, &bytes, plan, &mut full);
        }
        drop(dirty);
        self.dirty_inodes.borrow_mut().insert(inode.id, Rc::clone(inode));
        for sealed in full {
            ring::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
        }
    }

    /// Seals every gathering fill of an inode and begins to write it out.
    pub(crate) fn write_out_inode(self: &Rc<Self>, inode: &Rc<Inode>) {
        let gathering = inode.dirty.borrow().gathering_fills();
        for (id, device) in gathering {
            let block_size = self.devices.info(device).map_or(4096, |info| info.block_size);
            let sealed = inode.dirty.borrow_mut().seal(id, block_size);
            if let Some(sealed) = sealed {
                ring::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
            }
        }
    }

    fn write_out_everything(self: &Rc<Self>) {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        for inode in &dirty {
            self.write_out_inode(inode);
        }
    }

    /// Gives a sealed fill its blocks and writes it to them.
    async fn write_out(self: Rc<Self>, inode: Rc<Inode>, sealed: Sealed) {
        let session = self.session.life.generation();
        let result = self.write_pieces(&sealed, session).await;
        self.dirty_budget.add(sealed.used as usize);
        if session != self.session.life.generation() {
            // The loss of the session has dropped the fill and told the inode's users.
            return;
        }
        let mut space = self.space.borrow_mut();
        let mut dirty = inode.dirty.borrow_mut();
        let (pieces, number) = match result {
            Ok(written) => written,
            Err(errno) => {
                tracing::error!(inode = inode.id.0, device = sealed.device.0, %errno, "write-out failed");
                dirty.lose(sealed.id, errno);
                (SmallVec::new(), 0)
            }
        };
        // What was set aside and not allocated.
        let allocated: u64 = pieces.iter().map(|(_, piece)| u64::from(piece.blocks)).sum();
        space.unreserve(sealed.device, sealed.reserved_blocks.saturating_sub(allocated));
        dirty.written(sealed.id, pieces, number);
        inode.written.notify();
    }

    /// Answers where the fill went, and the number of the last write to the device.
    async fn write_pieces(
        self: &Rc<Self>,
        sealed: &Sealed,
        session: u64,
    ) -> Result<(Pieces, u64), Errno> {
        let block_size = sealed.block_size;
        let mut left = (sealed.bytes.len() / block_size as usize) as u32;
        let mut pieces = Pieces::new();
        let mut start = 0;
        while left > 0 {
            let allocated = self.space.borrow_mut().allocate(sealed.device, left, block_size);
            let Some(allocated) = allocated else {
                self.lease_space(sealed.device, u64::from(left) * u64::from(block_size)).await?;
                continue;
            };
            pieces.push((start, allocated));
            start += allocated.blocks * block_size;
            left -= allocated.blocks;
        }
        let mut writes = Vec::with_capacity(pieces.len());
        for (start, allocated) in &pieces {
            let start = *start as usize;
            let length = (allocated.blocks * block_size) as usize;
            let chunk = sealed.bytes.slice(start..start + length);
            let at = allocated.allocation.block * u64::from(block_size);
            let client = Rc::clone(self);
            let device = sealed.device;
            let write = async move { client.write_device(device, at, chunk, session).await };
            writes.push(ring::spawn(write));
        }
        let mut result = Ok(0);
        for write in writes {
            let number = write.await.unwrap_or(Err(Errno::EIO));
            result = result.and_then(|newest| number.map(|number| number.max(newest)));
        }
        // Blocks of a failed write stay out of use until the session returns its space at its end:
        // the device may still carry the write out.
        result.map(|number| (pieces, number))
    }
}

/// Appends bytes to gathering fills, beginning new ones as they become full.
fn gather(dirty: &mut Dirty, offset: u64, bytes: &Chunk, plan: &Plan, full: &mut Vec<Sealed>) {
    let mut done = 0;
    let mut spare_blocks = plan.blocks;
    while done < bytes.len() {
        let (id, room) = match dirty.gathering(plan.device) {
            Some(found) => found,
            None => (dirty.begin(plan.device, Buffer::with_capacity(FILL_BYTES)), FILL_BYTES),
        };
        let part = done..(done + room).min(bytes.len());
        dirty.add_reserved(id, std::mem::take(&mut spare_blocks));
        let is_full = dirty.append(id, offset + part.start as u64, (bytes, part.clone()));
        done = part.end;
        if is_full && let Some(mut sealed) = dirty.seal(id, plan.block_size) {
            // What was reserved beyond this fill serves the next.
            let needed = (sealed.bytes.len() / plan.block_size as usize) as u64;
            spare_blocks = sealed.reserved_blocks.saturating_sub(needed);
            sealed.reserved_blocks -= spare_blocks;
            full.push(sealed);
        }
    }
    if spare_blocks > 0 {
        match dirty.gathering(plan.device) {
            Some((id, _)) => dirty.add_reserved(id, spare_blocks),
            None => {
                if let Some(sealed) = full.last_mut() {
                    sealed.reserved_blocks += spare_blocks;
                }
            }
        }
    }
}

/// Where bytes will go, with the blocks set aside for them.
struct Plan {
    device: DeviceId,
    block_size: u32,
    blocks: u64,
}

/// Blocks set aside while more are asked for; given back at the end.
struct Hoard<'a> {
    client: &'a Client,
    session: u64,
    held: SmallVec<[(DeviceId, u64); 2]>,
}

impl<'a> Hoard<'a> {
    fn new(client: &'a Client) -> Self {
        Hoard { client, session: client.session.life.generation(), held: SmallVec::new() }
    }

    /// Sets aside at most `blocks` of a device of which nothing is held.
    fn hold(&mut self, device: DeviceId, blocks: u64) {
        self.forget_if_lost();
        let blocks = self.client.space.borrow_mut().reserve_up_to(device, blocks);
        self.held.push((device, blocks));
    }

    /// Gives back what is held of a device.
    fn release(&mut self, device: DeviceId) {
        self.forget_if_lost();
        let mut space = self.client.space.borrow_mut();
        self.held.retain(|(held, blocks)| {
            if *held == device {
                space.unreserve(device, *blocks);
            }
            *held != device
        });
    }

    /// With a session all that it had reserved is gone.
    fn forget_if_lost(&mut self) {
        let present = self.client.session.life.generation();
        if self.session != present {
            self.session = present;
            self.held.clear();
        }
    }
}

impl Drop for Hoard<'_> {
    fn drop(&mut self) {
        while let Some(&(device, _)) = self.held.last() {
            self.release(device);
        }
    }
}
