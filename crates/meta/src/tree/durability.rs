//! Committed data and the loss of its device's power: which data survives, and the handling of lost
//! data.
//!
//! [`crate::space::Durability`] explains flush epochs. Nothing here searches files while there is
//! no loss: a commit stamps its allocations, a flush changes one record of the device. Allocations
//! are looked up at reads only on a device that has lost data. A file is walked when it is made
//! durable only if it may contain data that was lost since its last walk.

use super::core::Core;
use super::references::LastChunk;
use super::transaction::Transaction;
use crate::records::{Device, ExtentPage, Inode, Key, decode};
use crate::space::live::blocks_of;
use crate::space::{DeviceSpace, Durability, SpaceEffect};
use crate::store::Error;
use protocol::space::{DeviceInfo, NewAllocation};
use protocol::{DeviceId, Extent, FreeEpoch, Incarnation, InodeId, Place};
use std::collections::{BTreeMap, BTreeSet};

/// Most inodes whose last walk is remembered.
const WALKED_MAX: usize = 1 << 16;

/// The inodes that were walked and had lost nothing, with the flush epoch of that time. Commits
/// since then have it or a later one.
#[derive(Default)]
pub(super) struct Walked(BTreeMap<InodeId, u64>);

impl Walked {
    fn note(&mut self, id: InodeId, epoch: u64) {
        if self.0.len() >= WALKED_MAX {
            self.0.clear();
        }
        self.0.insert(id, epoch);
    }

    /// Forgets an inode: it gets data of earlier epochs.
    pub(super) fn forget(&mut self, id: InodeId) {
        self.0.remove(&id);
    }

    /// Returns the first epoch whose commits to an inode were not looked at.
    fn since(&self, id: InodeId) -> u64 {
        self.0.get(&id).copied().unwrap_or(0)
    }
}

/// Whether all commits to an inode survive a loss of power.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durable {
    /// It does, once the store is synced.
    Yes,
    /// They do once these devices are flushed.
    After(Vec<DeviceId>),
    /// Some of them are lost.
    Lost,
}

impl Transaction<'_> {
    /// Returns the flush epoch for a new allocation: 0 if it is durable already.
    pub(super) fn flush_epoch_of(&mut self, new: &NewAllocation) -> u64 {
        let id = new.allocation.device;
        let Some(device) = self.base.space.devices.get(&id) else { return 0 };
        let is_flushed = new.is_flushed || reactor::mutant!("commit-counts-as-flushed");
        if is_flushed && !device.info.is_volatile {
            return 0;
        }
        let epoch = self.counters.flush_epoch;
        assert!(
            epoch > 0 && device.durability.newest <= epoch,
            "data of {id} would be committed in flush epoch {epoch}, after {:?}",
            device.durability
        );
        if device.durability.newest != epoch {
            self.space_effect(SpaceEffect::Unflushed { device: id, epoch });
        }
        epoch
    }

    /// Replaces the parts of extents whose data is lost by lost extents.
    pub(super) fn mark_lost(&self, extents: &mut Vec<Extent>) -> Result<(), Error> {
        let devices = &self.base.space.devices;
        let has_lost = devices.values().any(|device| device.durability.has_lost());
        if !has_lost || reactor::mutant!("lost-read-as-it-is") {
            return Ok(());
        }
        let mut last = LastChunk::default();
        let mut marked = Vec::with_capacity(extents.len());
        for extent in extents.iter() {
            self.mark_lost_parts(extent, &mut last, &mut marked)?;
        }
        *extents = marked;
        Ok(())
    }

    /// Adds an extent's parts, the lost ones marked. Mostly there is one part: the blocks of one
    /// extent have different epochs only where parts of a fill were committed at different times.
    fn mark_lost_parts(
        &self,
        extent: &Extent,
        last: &mut LastChunk,
        marked: &mut Vec<Extent>,
    ) -> Result<(), Error> {
        let id = extent.place.allocation.device;
        let device = self.base.space.devices.get(&id).filter(|d| d.durability.has_lost());
        let sized = device.map(|device| (device, device.info.block_size));
        let blocks = sized.and_then(|(_, block_size)| blocks_of(extent, block_size));
        let (Some((device, block_size)), Some(blocks)) = (sized, blocks) else {
            marked.push(*extent);
            return Ok(());
        };
        let in_block = u64::from(extent.place.at % block_size);
        let mut from = extent.offset;
        let mut was_lost = None;
        for block in blocks.clone() {
            let live = self.live_block(last, id, block)?;
            let is_lost = live.is_some_and(|live| device.durability.is_lost(live.flush_epoch));
            let begin = (extent.offset + (block - blocks.start) * u64::from(block_size))
                .saturating_sub(in_block)
                .max(extent.offset);
            if let Some(was_lost) = was_lost.replace(is_lost)
                && was_lost != is_lost
            {
                marked.extend(part_of(extent, from, begin, was_lost));
                from = begin;
            }
        }
        marked.extend(part_of(extent, from, extent.end(), was_lost == Some(true)));
        Ok(())
    }

    fn put_durability(
        &mut self,
        device: &DeviceSpace,
        durability: &Durability,
    ) -> Result<(), Error> {
        let (info, durability) = (device.info.clone(), durability.clone());
        self.put(&Key::Device(info.device), &Device { info, durability })
    }
}

/// Returns a part of an extent, marked if it is lost.
fn part_of(extent: &Extent, from: u64, to: u64, is_lost: bool) -> Option<Extent> {
    let part = extent.clip(from, to)?;
    let place = if is_lost { Place::lost(extent.place.allocation.device) } else { part.place };
    Some(Extent { place, ..part })
}

impl Core {
    /// Returns the durability of a device after its registration as `info`.
    pub(super) fn durability_of_registration(
        &self,
        known: Option<&DeviceSpace>,
        info: &DeviceInfo,
    ) -> Durability {
        let Some(known) = known else { return Durability::default() };
        let mut durability = known.durability.clone();
        let is_reborn = known.info.incarnation != info.incarnation;
        if is_reborn && !reactor::mutant!("reborn-lost-nothing") {
            let epoch = self.base.counters.flush_epoch;
            if info.is_volatile || known.info.is_volatile {
                durability.lose_all(epoch);
            } else {
                durability.lose(durability.newest.min(epoch));
            }
            if durability != known.durability {
                let (device, node) = (known.info.device, &known.info.node);
                tracing::error!(%device, node, "a device lost what it had not flushed: files with such data give EIO there until it is written again");
            }
        }
        durability
    }

    /// Returns the devices with commits that no flush covers.
    pub fn unflushed_devices(&self) -> Vec<DeviceId> {
        let devices = self.base.space.devices.iter();
        devices.filter(|(_, device)| device.is_unflushed()).map(|(id, _)| *id).collect()
    }

    /// Ends the present flush epoch and returns its number. A flush that is requested from now on
    /// covers all commits in it and before.
    pub fn end_flush_epoch(&mut self) -> Result<u64, Error> {
        self.transact(|transaction| {
            let ended = transaction.counters.flush_epoch;
            transaction.counters.flush_epoch += u64::from(!reactor::mutant!("flush-epoch-stands"));
            Ok(ended)
        })
    }

    /// Records the result of a flush that was requested at the end of a flush epoch, for a device
    /// with an incarnation. If it failed, the commits that it would have covered are lost.
    pub fn flushed(
        &mut self,
        id: DeviceId,
        incarnation: Incarnation,
        through: u64,
        is_durable: bool,
    ) -> Result<(), Error> {
        let Some(device) = self.base.space.devices.get(&id) else { return Ok(()) };
        if device.info.incarnation != incarnation {
            // The commits that the flush covered already count as lost.
            return Ok(());
        }
        let mut durability = device.durability.clone();
        assert!(
            through <= self.base.counters.flush_epoch,
            "a flush of {id} covers epoch {through}, before it begins: {:?}",
            self.base.counters
        );
        let present = self.base.counters.flush_epoch;
        let through = if reactor::mutant!("flush-covers-later") { present } else { through };
        if is_durable || reactor::mutant!("failed-flush-counts") {
            durability.flush(through);
        } else {
            durability.lose(through);
        }
        if durability == device.durability {
            return Ok(());
        }
        self.transact(|transaction| {
            let device = &transaction.base.space.devices[&id];
            transaction.put_durability(device, &durability)
        })?;
        if let Some(device) = self.base.space.devices.get_mut(&id) {
            device.durability = durability;
        }
        Ok(())
    }

    /// Returns the incarnation of a device.
    pub fn incarnation(&self, device: DeviceId) -> Option<Incarnation> {
        self.base.space.devices.get(&device).map(|device| device.info.incarnation)
    }

    /// Returns whether all commits to an inode survive a loss of power. An inode that is gone has
    /// nothing to lose. The result names devices that perhaps need a flush, because a flush costs
    /// less than checking all extents.
    pub fn durable(&mut self, id: InodeId) -> Result<Durable, Error> {
        let inode = Transaction::begin(&self.base).stored_inode(id)?;
        let Some(inode) = inode.filter(|inode| inode.flush_epoch > 0) else {
            return Ok(Durable::Yes);
        };
        let epoch = inode.flush_epoch;
        let devices = || self.base.space.devices.values();
        let waits = |device: &&DeviceSpace| device.is_unflushed() && device.awaits_flush(epoch);
        let online = devices().filter(waits).filter(|device| device.info.online);
        let online: Vec<DeviceId> = online.map(|device| device.info.device).collect();
        if !online.is_empty() {
            return Ok(Durable::After(online));
        }
        let epochs = self.walked.since(id)..=epoch;
        let has_lost = |device: &DeviceSpace| device.durability.has_lost_in(epochs.clone());
        if !devices().any(|device| waits(&device) || has_lost(device)) {
            return Ok(Durable::Yes);
        }
        self.durable_closely(id)
    }

    /// As [`Core::durable`], but names only devices that contain data of the inode. It walks over
    /// all its extents.
    pub fn durable_closely(&mut self, id: InodeId) -> Result<Durable, Error> {
        let inode = Transaction::begin(&self.base).stored_inode(id)?;
        let Some(inode) = inode.filter(|inode| inode.flush_epoch > 0) else {
            return Ok(Durable::Yes);
        };
        let durable = self.walk_durable(&inode)?;
        self.walks += 1;
        if durable == Durable::Yes {
            self.walked.note(id, self.base.counters.flush_epoch);
            // The next call has nothing to search.
            self.transact(|transaction| transaction.put_inode(&Inode { flush_epoch: 0, ..inode }))?;
        }
        Ok(durable)
    }

    /// Returns the number of files whose extents were all looked at, since the core was opened.
    pub fn walks(&self) -> u64 {
        self.walks
    }

    /// As [`Core::durable`], but checks all extents.
    fn walk_durable(&self, inode: &Inode) -> Result<Durable, Error> {
        let id = inode.attr.inode;
        let cut = inode.truncating.map_or(0..0, |removal| removal.from..removal.to);
        let transaction = Transaction::begin(&self.base);
        let mut waiting = BTreeSet::new();
        let mut is_lost = false;
        let mut last = LastChunk::default();
        self.base.layers.each(&Key::Extents(id, 0).prefix(1), |key, value| {
            let page: ExtentPage = decode(key, value)?;
            for extent in &page.extents.0 {
                if extent.offset >= cut.start && extent.end() <= cut.end {
                    continue;
                }
                let on = extent.place.allocation.device;
                let Some(device) = self.base.space.devices.get(&on) else { continue };
                let blocks = blocks_of(extent, device.info.block_size).unwrap_or_default();
                for block in blocks {
                    let live = transaction.live_block(&mut last, on, block)?;
                    let epoch = live.map_or(0, |live| live.flush_epoch);
                    is_lost |= device.durability.is_lost(epoch);
                    if epoch > 0 && device.awaits_flush(epoch) {
                        waiting.insert(on);
                    }
                }
            }
            Ok(())
        })?;
        Ok(match (is_lost, waiting.is_empty()) {
            (true, _) => Durable::Lost,
            (false, true) => Durable::Yes,
            (false, false) => Durable::After(waiting.into_iter().collect()),
        })
    }

    /// Returns the free epoch of the last [`Core::flush`].
    pub fn stored_free_epoch(&self) -> FreeEpoch {
        self.stored_free_epoch
    }

    /// Records that the store is synced as of a free epoch: blocks that were freed by then may be
    /// used again. If they were used before, a store that loses the freeing would name blocks with
    /// other data.
    pub fn synced(&mut self, through: FreeEpoch) {
        assert!(
            through <= self.stored_free_epoch,
            "the store is synced as of {through:?}, and has {:?}",
            self.stored_free_epoch
        );
        self.synced_free_epoch = self.synced_free_epoch.max(through);
    }

    /// Flushes and syncs the store while nothing else runs.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        let syncer = self.syncer();
        syncer.sync()?;
        syncer.remember();
        self.synced(self.stored_free_epoch);
        Ok(())
    }

    /// Returns whether some blocks rest only because the store was not synced since they were
    /// freed.
    pub fn awaits_sync(&self) -> bool {
        self.synced_free_epoch < self.base.counters.free_epoch
    }

    pub(super) fn synced_free_epoch(&self) -> FreeEpoch {
        self.synced_free_epoch
    }
}
