//! Commands to devices: reads, writes and flushes of whole blocks.

mod reach;
mod update;

use crate::client::Client;
use crate::devices::CommandKind;
use crate::devices::contact::is_of_contact;
use crate::session::life::SessionStamp;
use block::{Device, IoFuture};
use protocol::{DeviceId, Errno};
use reactor::{Chunk, RegionSlice, Segment, Segments, Shared};
use std::rc::Rc;

/// Tries of a command that the target refuses, or whose connection is given up.
const TRIES_MAX: u32 = 3;

impl Client {
    /// Reads whole blocks.
    pub(crate) async fn read_device(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        length: usize,
    ) -> Result<Shared, Errno> {
        let session = self.session.life.stamp();
        let read = |device: &dyn Device| device.read(offset, length);
        let chunk = self.command(id, session, CommandKind::Read, length as u64, read).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.read_bytes.set(pool_device.read_bytes.get() + length as u64);
        Ok(freeze(chunk))
    }

    /// Reads whole blocks straight into `room`.
    pub(crate) async fn read_device_into(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        room: &RegionSlice,
    ) -> Result<(), Errno> {
        let session = self.session.life.stamp();
        let segments = || Segments::from_iter([Segment::Region(room.clone())]);
        let read = |device: &dyn Device| device.read_into(offset, segments());
        self.command(id, session, CommandKind::Read, room.len() as u64, read).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.read_bytes.set(pool_device.read_bytes.get() + room.len() as u64);
        Ok(())
    }

    /// Writes whole blocks that `session` has leased. Returns the number of the write, for
    /// [`Client::flush_device`].
    pub(crate) async fn write_device(
        self: &Rc<Self>,
        id: DeviceId,
        offset: u64,
        bytes: Shared,
        session: SessionStamp,
    ) -> Result<u64, Errno> {
        let length = bytes.len() as u64;
        let write = |device: &dyn Device| device.write(offset, Chunk::Shared(bytes.clone()));
        self.command(id, session, CommandKind::Write, length, write).await?;
        let pool_device = self.devices.get(id)?;
        pool_device.written_bytes.set(pool_device.written_bytes.get() + length);
        let number = pool_device.writes.get() + 1;
        pool_device.writes.set(number);
        Ok(number)
    }

    /// Runs a command on a device on behalf of a session. If the target refuses it, tries again
    /// once the session is admitted anew.
    async fn command<T: 'static>(
        self: &Rc<Self>,
        id: DeviceId,
        session: SessionStamp,
        kind: CommandKind,
        bytes: u64,
        command: impl Fn(&dyn Device) -> IoFuture<T>,
    ) -> Result<T, Errno> {
        let mut tries = 0;
        loop {
            let device = self.reach(id, false).await?;
            self.session.life.check(session)?;
            let mut counted = self.devices.count(id, kind);
            let error = match counted.during(command(&*device)).await {
                Ok(done) => {
                    counted.carried(bytes);
                    counted.end(0);
                    self.devices.get(id)?.regain_contact();
                    return Ok(done);
                }
                Err(error) => error,
            };
            counted.end(error.to_errno());
            let pool_device = self.devices.get(id)?;
            tries += 1;
            if tries == TRIES_MAX || !pool_device.is_worth_retrying(&device, &error) {
                return Err(self.failed(&pool_device, kind.name(), &error, is_of_contact(&error)));
            }
            tracing::info!(device = %id, %error, "{} is tried again", kind.name());
        }
    }

    /// Makes a device's acknowledged writes up to this number durable. Calls that wait together
    /// share a flush. A write that a flush failed for stays failed.
    pub(crate) async fn flush_device(
        self: &Rc<Self>,
        id: DeviceId,
        through: u64,
    ) -> Result<(), Errno> {
        let pool_device = self.devices.get(id)?;
        let _lock = pool_device.flushing.acquire(1).await;
        if pool_device.is_lost(through) {
            return Err(Errno::EIO);
        }
        let (after, to) = pool_device.lost.get();
        let flushed = pool_device.flushed.get();
        let writes = pool_device.writes.get();
        assert!(
            through <= writes && flushed <= writes && after <= to && to <= writes,
            "{id} has made {writes} writes, flushed {flushed}, lost those after {after} to {to}, and \
             is to flush {through}"
        );
        if flushed >= through {
            return Ok(());
        }
        let covered = pool_device.writes.get();
        let device = self.reach(id, false).await;
        let result = match device {
            Ok(device) => {
                let failed = |error| {
                    self.failed(
                        &pool_device,
                        CommandKind::Flush.name(),
                        &error,
                        is_of_contact(&error),
                    )
                };
                let counted = self.devices.count(id, CommandKind::Flush);
                let flushed = counted.during(device.flush()).await;
                counted.end(flushed.as_ref().map_or_else(block::Error::to_errno, |()| 0));
                flushed.map_err(failed)
            }
            Err(errno) => Err(errno),
        };
        pool_device.flushed.set(covered);
        if result.is_err() && !reactor::mutant!("failed-flush-retried") {
            let after = if after < to { after.min(flushed) } else { flushed };
            pool_device.lost.set((after, covered));
        }
        result
    }

    /// Returns whether a device's write of this number is known to be durable.
    pub(crate) fn is_flushed(&self, id: DeviceId, number: u64) -> bool {
        self.devices
            .get(id)
            .is_ok_and(|device| device.flushed.get() >= number && !device.is_lost(number))
    }
}

/// Copies a chunk if it refers to a device's memory in this process, which may change.
fn freeze(chunk: Chunk) -> Shared {
    chunk.into_lasting().into_shared()
}
