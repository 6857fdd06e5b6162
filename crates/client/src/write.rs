//! Taking written bytes into memory, and writing them out.
//!
//! A write returns when its bytes are gathered and blocks are reserved for them; full fills go out
//! at once, several at a time. Large buffers go out as they are, without a copy.

use crate::client::Client;
use crate::dirty::{ADOPT_BYTES, At, Dirty, FILL_BYTES, Pieces, Sealed};
use crate::files::Handle;
use crate::inode::Inode;
use crate::reservation::{Blocks, Memory, Reservation};
use crate::session::life::SessionStamp;
use protocol::attr::Layout;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::sums::Sums;
use protocol::{DeviceId, Errno, FILE_SIZE_MAX_BYTES, Rights, Timestamp};
use reactor::time::{now, timeout_at};
use reactor::{Buffer, Chunk};
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
        self.compaction.note_use();
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
    async fn check_handle(&self, handle: &Handle) -> Result<SessionStamp, Errno> {
        self.session.life.alive().await?;
        let lost_in = handle.inode.state.borrow().lost_in;
        if handle.session < lost_in && !reactor::mutant!("lost-handle-writes") {
            Err(Errno::EIO)
        } else {
            Ok(self.session.life.stamp())
        }
    }

    /// Whether the bytes of a write that began in `session` may be placed now. One that was under way
    /// when its session was lost fails: its bytes must not appear in the next session, after the
    /// error, over what others wrote meanwhile.
    fn may_place(&self, session: SessionStamp) -> Result<(), Errno> {
        if self.session.life.is_present(session) || reactor::mutant!("old-write-placed") {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }

    async fn sync_if_asked(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        if !handle.mode.sync {
            return Ok(());
        }
        let result = Box::pin(self.commit(&handle.inode, true)).await;
        handle.inode.tell(&handle.told).and(result)
    }

    /// Writes at the end of the file, of which no other session can make an append meanwhile.
    async fn append(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        bytes: Chunk,
        session: SessionStamp,
        kill_privileges: bool,
    ) -> Result<u64, Errno> {
        let _lock = inode.append_lock.acquire(1).await;
        let plan = self.reserve(bytes.len(), None).await?;
        let size =
            if reactor::mutant!("append-without-size") { Rights::NONE } else { Rights::SIZE };
        let rights = Rights::WRITE | size;
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            self.admit(inode, rights).await?;
            let attr = self.inode_attr(inode).await?;
            self.may_place(session)?;
            let may_extend = inode.state.borrow().rights.contains(rights);
            if may_extend && inode.changes.count() == 0 {
                let offset = attr.size;
                let end = offset.checked_add(bytes.len() as u64);
                if end.is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
                    return Err(Errno::EFBIG);
                }
                // No await from here: the size holds.
                self.place(inode, offset, bytes, plan, kill_privileges);
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
        session: SessionStamp,
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
            let plan = self.reserve(bytes.len(), None).await?;
            // WRITE may have been recalled while space was sought.
            self.admit(inode, Rights::WRITE).await?;
            self.may_place(session)?;
            self.place(inode, offset, bytes, plan, kill_privileges);
            return Ok(());
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let stripe = u64::from(layout.stripe_size_bytes);
            let left = (stripe - at % stripe) as usize;
            let part = done..(done + left).min(bytes.len());
            let device = self.devices.of_stripe(at / stripe, layout.stripe_count, inode.id);
            let plan = self.reserve(part.len(), device).await?;
            self.admit(inode, Rights::WRITE).await?;
            self.may_place(session)?;
            done = part.end;
            let piece = Chunk::from(bytes.copy_part(part));
            self.place(inode, at, piece, plan, kill_privileges);
        }
        Ok(())
    }

    pub(crate) async fn layout(self: &Rc<Self>, inode: &Inode) -> Result<Layout, Errno> {
        Ok(self.inode_attr(inode).await?.layout)
    }

    /// Sets memory and blocks aside for `length` bytes, on the given device or the nearest with
    /// room.
    async fn reserve(
        self: &Rc<Self>,
        length: usize,
        wanted: Option<DeviceId>,
    ) -> Result<Plan, Errno> {
        let permit = if let Some(permit) = self.dirty_budget.try_acquire(length) {
            permit
        } else {
            self.write_out_everything();
            self.dirty_budget.acquire(length).await
        };
        let memory = Memory::acquired(&self.dirty_budget, permit, length);
        let deadline = now() + self.session.times().request_deadline;
        loop {
            let changed = self.devices.changed.notified();
            let mut last = Errno::EIO;
            for device in self.devices.preferred(wanted) {
                match self.reserve_on(length, device).await {
                    Ok((block_size, blocks)) => {
                        return Ok(Plan {
                            block_size,
                            reservation: Reservation::new(memory, blocks),
                        });
                    }
                    Err(_) if last == Errno::ENOSPC => {}
                    Err(errno) => last = errno,
                }
            }
            // With no device at all, as right after a restart of the metadata service, some are
            // awaited.
            if self.devices.is_any_online() || timeout_at(deadline, changed).await.is_err() {
                return Err(last);
            }
        }
    }

    /// Reserves as many blocks of a device as `length` more bytes may need; of the one that the
    /// service grants space on, if that has none. Returns them with their size. Grants that do not suffice are held on to
    /// meanwhile: before the service says that there is no more it has unused space returned, and
    /// would grant the same blocks for ever.
    async fn reserve_on(
        self: &Rc<Self>,
        length: usize,
        mut device: DeviceId,
    ) -> Result<(u32, Blocks), Errno> {
        // Set aside while more are asked for.
        let mut hoard: SmallVec<[Blocks; 2]> = SmallVec::new();
        loop {
            let info = self.devices.usable(device).ok_or(Errno::EIO)?;
            let block_size = info.block_size;
            // All, though bytes that join a fill use up what is left of its last block first: another write
            // may have used that by then. A fill that lacks a block would ask for it while it is written
            // out, and those who free blocks may wait for that.
            let blocks = if reactor::mutant!("last-block-uncounted") {
                length / block_size as usize
            } else {
                length.div_ceil(block_size as usize)
            } as u64;
            hoard.retain(|held| held.device() != device);
            if let Some(reserved) = self.space.borrow().reserve(device, blocks) {
                return Ok((block_size, reserved));
            }
            hoard.push(self.space.borrow().reserve_up_to(device, blocks));
            device = self.lease_space(device, blocks * u64::from(block_size)).await?;
        }
    }

    /// Leases more space, on a device or, if that is full, another. Answers which.
    pub(crate) async fn lease_space(
        self: &Rc<Self>,
        device: DeviceId,
        bytes: u64,
    ) -> Result<DeviceId, Errno> {
        let wanted_bytes = bytes.max(LEASE_BYTES_MIN);
        match self
            .session
            .call(Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes }))
            .await?
        {
            Answer::Space(grant) => {
                if !self.space.borrow_mut().add(&grant) {
                    tracing::error!(device = %grant.device, "space was granted that is leased here already");
                    return Err(Errno::EPROTO);
                }
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
        plan: Plan,
        kill_privileges: bool,
    ) {
        let rights = inode.state.borrow().rights;
        assert!(
            rights.contains(Rights::WRITE) && inode.changes.count() == 0,
            "{} bytes are written to {} at {offset} under {rights:?}, beside {} changes",
            bytes.len(),
            inode.id,
            inode.changes.count()
        );
        assert!(
            offset + bytes.len() as u64 <= FILE_SIZE_MAX_BYTES,
            "{} bytes at {offset} of {} lie past the end of all files",
            bytes.len(),
            inode.id
        );
        let mut dirty = inode.dirty.borrow_mut();
        dirty.touch(Timestamp(reactor::time::system_time() as i64), kill_privileges);
        let mut full = Vec::new();
        if bytes.len() >= ADOPT_BYTES {
            let length = bytes.len() as u64;
            let id = dirty.begin(plan.block_size, bytes.into_buffer(), plan.reservation);
            dirty.place(offset, length, At { fill: id, at: 0 });
            full.extend(dirty.seal(id));
        } else {
            gather(&mut dirty, offset, &bytes, plan, &mut full);
        }
        drop(dirty);
        self.dirty_inodes.borrow_mut().insert(inode.id, Rc::clone(inode));
        for sealed in full {
            reactor::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
        }
    }

    /// Seals every gathering fill of an inode and begins to write it out.
    pub(crate) fn write_out_inode(self: &Rc<Self>, inode: &Rc<Inode>) {
        let gathering = inode.dirty.borrow().gathering_fills();
        for id in gathering {
            let sealed = inode.dirty.borrow_mut().seal(id);
            if let Some(sealed) = sealed {
                reactor::spawn(Rc::clone(self).write_out(Rc::clone(inode), sealed));
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
    async fn write_out(self: Rc<Self>, inode: Rc<Inode>, mut sealed: Sealed) {
        let session = self.session.life.stamp();
        let sums = self.make_sums(&sealed.bytes, sealed.block_size);
        let result = self.write_pieces(&mut sealed, session).await;
        let mut dirty = inode.dirty.borrow_mut();
        if dirty.fill(sealed.id).is_none() {
            // The loss of the session has dropped the fill and told the inode's users.
            return;
        }
        let (pieces, number) = match result {
            Ok(written) => written,
            Err(errno) => {
                tracing::error!(inode = inode.id.0, device = sealed.device.0, %errno, "write-out failed");
                dirty.lose(sealed.id, errno);
                // The kernel may have them.
                self.tell_kernel(&inode);
                (SmallVec::new(), 0)
            }
        };
        dirty.written(sealed.id, pieces, sums.0, number);
        inode.written.notify();
    }

    /// The sums of blocks that are about to be written; none if none are made.
    pub(crate) fn make_sums(&self, bytes: &[u8], block_size: u32) -> Sums {
        if self.checksum { Sums::of_blocks(bytes, block_size as usize) } else { Sums::default() }
    }

    /// Answers where the fill went, and the number of the last write to the device.
    async fn write_pieces(
        self: &Rc<Self>,
        sealed: &mut Sealed,
        session: SessionStamp,
    ) -> Result<(Pieces, u64), Errno> {
        let block_size = sealed.block_size;
        let mut left = (sealed.bytes.len() / block_size as usize) as u32;
        let mut pieces = Pieces::new();
        let mut start = 0;
        while left > 0 {
            let reserved = &mut sealed.reservation.blocks;
            if !self.space.borrow().is_present(reserved) {
                // The blocks went with the session.
                return Err(Errno::EIO);
            }
            let allocated = self.space.borrow_mut().allocate(reserved, left, block_size);
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
            writes.push(reactor::spawn(write));
        }
        let mut result = Ok(0);
        for write in writes {
            let is_hasty = reactor::mutant!("commit-before-write");
            let number = if is_hasty { Ok(0) } else { write.await.unwrap_or(Err(Errno::EIO)) };
            result = result.and_then(|newest| number.map(|number| number.max(newest)));
        }
        if result.is_err() && reactor::mutant!("failed-write-blocks-reused") {
            let mut space = self.space.borrow_mut();
            pieces.iter().for_each(|(_, allocated)| space.give_back(allocated));
        }
        // Blocks of a failed write stay out of use until the session returns its space at its end:
        // the device may still carry the write out.
        result.map(|number| (pieces, number))
    }
}

/// Appends bytes to gathering fills, beginning new ones as they become full.
fn gather(dirty: &mut Dirty, offset: u64, bytes: &Chunk, plan: Plan, full: &mut Vec<Sealed>) {
    let Plan { block_size, mut reservation } = plan;
    let device = reservation.blocks.device();
    let mut done = 0;
    while done < bytes.len() {
        let (id, room) = dirty.gathering(device, block_size).unwrap_or_else(|| {
            let buffer = Buffer::with_capacity(FILL_BYTES);
            (dirty.begin(block_size, buffer, reservation.empty()), FILL_BYTES)
        });
        let part = done..(done + room).min(bytes.len());
        let taken = reservation.take(part.len());
        let is_full = dirty.append(id, offset + part.start as u64, (bytes, part.clone()), taken);
        done = part.end;
        if is_full && let Some(mut sealed) = dirty.seal(id) {
            // What was reserved beyond this fill serves the next.
            let needed = (sealed.bytes.len() / block_size as usize) as u64;
            reservation.add_blocks(sealed.reservation.spare(needed));
            full.push(sealed);
        }
    }
    assert_eq!(reservation.bytes(), 0, "memory is left of a write at {offset} on {device}");
    let spare = reservation.spare(0);
    if let Some((id, _)) = dirty.gathering(device, block_size) {
        dirty.keep_needed(id, spare);
    }
}

/// What is set aside for bytes, and the size of the device's blocks.
struct Plan {
    block_size: u32,
    reservation: Reservation,
}
