//! The content of files, as far as it can be read. Counts are corrected by it; it is not changed
//! itself.

use super::Repair;
use crate::records::{Device, ExtentPage, Inline, Key, Xattr, key_number};
use crate::space::live::{CHUNK_BLOCKS, ChunkId, blocks_of, chunks_of};
use crate::space::{SpaceIndex, is_sound};
use crate::store::Error;
use protocol::{DeviceId, Extent, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The content of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Bytes of extents.
    pub(super) bytes: u64,
    /// One past the last byte of the extents.
    pub(super) end: u64,
    /// Number of inline bytes, if there is a record of them.
    pub(super) inline: Option<u32>,
    pub(super) xattrs: u32,
    /// Some of it cannot be read, or lies at an impossible offset: the inode's counts stay as they
    /// are.
    pub(super) is_damaged: bool,
}

/// The content of all files.
#[derive(Default)]
pub(super) struct Data {
    pub(super) held: BTreeMap<InodeId, Held>,
    /// For each block of a chunk, the number of extents that touch it.
    pub(super) references: BTreeMap<ChunkId, Vec<u32>>,
    /// The blocks of some extents are not known, so no block may be taken as unused.
    pub(super) is_partly_unknown: bool,
}

impl Repair {
    /// Reads the devices; `None` if one of them makes no sense or is missing, so that its blocks
    /// are not known.
    pub(super) fn devices(&mut self) -> Result<Option<SpaceIndex>, Error> {
        let records = self.all::<Device>(&Key::Device(DeviceId(0)), 1)?;
        let mut devices = SpaceIndex::default();
        if !records.bad.is_empty() {
            return Ok(None);
        }
        for (key, Device { info, durability }) in records.sound {
            let id = key_number(&key, 0)?;
            if !is_sound(&info) || !durability.is_sound() || u64::from(info.device.0) != id {
                return Ok(None);
            }
            self.found.devices = self.found.devices.max(info.device.0 + 1);
            // Otherwise the service would treat later commits as flushed already.
            let epoch = durability.flushed_through.saturating_add(1);
            self.found.flush_epoch = self.found.flush_epoch.max(epoch);
            devices.add_device(info, durability);
        }
        // A single record may be a stray with a damaged key.
        let mut unknown: BTreeMap<u64, u32> = BTreeMap::new();
        for any in [Key::Blocks(DeviceId(0), 0), Key::Segment(DeviceId(0), 0)] {
            self.layers.each(&any.prefix(0), |key, _| {
                let id = key_number(key, 0).unwrap_or(u64::MAX);
                if !devices.devices.contains_key(&DeviceId(id as u32)) {
                    *unknown.entry(id).or_default() += 1;
                }
                Ok(())
            })?;
        }
        Ok(unknown.values().all(|records| *records == 1).then_some(devices))
    }

    /// Reads the content of files.
    pub(super) fn data(&mut self, devices: &SpaceIndex) -> Result<Data, Error> {
        let mut data = Data::default();
        let pages = self.all::<ExtentPage>(&Key::Extents(InodeId(0), 0), 2)?;
        data.is_partly_unknown = !pages.bad.is_empty();
        for key in &pages.bad {
            if let Ok(id) = key_number(key, 0) {
                data.held.entry(InodeId(id)).or_default().is_damaged = true;
            }
        }
        let mut last = (InodeId(0), 0);
        for (key, page) in pages.sound {
            let (id, start) = (InodeId(key_number(&key, 0)?), key_number(&key, 1)?);
            if page.extents.0.is_empty() {
                self.remove(&key)?;
                self.note(format!("an extent page of {id} without extents was removed"));
                continue;
            }
            let overlaps = last.0 == id && last.1 > start;
            let held = data.held.entry(id).or_default();
            held.is_damaged |= overlaps || !page.is_sound(start);
            last = (id, page.end);
            for extent in &page.extents.0 {
                let held = data.held.entry(id).or_default();
                held.bytes = held.bytes.saturating_add(u64::from(extent.length));
                held.end = held.end.max(extent.end());
                held.is_damaged |= !count(devices, &mut data.references, extent);
            }
        }
        self.small(&mut data)?;
        Ok(data)
    }

    /// Reads inline data and extended attributes.
    fn small(&mut self, data: &mut Data) -> Result<(), Error> {
        let inline = self.all::<Inline>(&Key::Inline(InodeId(0)), 1)?;
        for (key, inline) in &inline.sound {
            let held = data.held.entry(InodeId(key_number(key, 0)?)).or_default();
            held.inline = Some(inline.bytes.0.len() as u32);
        }
        let xattrs = self.all::<Xattr>(&Key::Xattr(InodeId(0), b""), 1)?;
        for (key, _) in &xattrs.sound {
            data.held.entry(InodeId(key_number(key, 0)?)).or_default().xattrs += 1;
        }
        for key in inline.bad.iter().chain(&xattrs.bad) {
            if let Ok(id) = key_number(key, 0) {
                data.held.entry(InodeId(id)).or_default().is_damaged = true;
            }
        }
        Ok(())
    }

    /// Finds the inodes whose extents touch some blocks.
    pub(super) fn owners(
        &self,
        devices: &SpaceIndex,
        wanted: &BTreeSet<(DeviceId, u64)>,
    ) -> Result<BTreeMap<(DeviceId, u64), InodeId>, Error> {
        let mut owners = BTreeMap::new();
        if wanted.is_empty() {
            return Ok(owners);
        }
        for (key, page) in self.all::<ExtentPage>(&Key::Extents(InodeId(0), 0), 2)?.sound {
            let inode = InodeId(key_number(&key, 0)?);
            for extent in &page.extents.0 {
                let id = extent.place.allocation.device;
                let device = devices.devices.get(&id);
                let blocks = device.and_then(|it| blocks_of(extent, it.info.block_size));
                let Some(blocks) = blocks else { continue };
                for block in wanted.range((id, blocks.start)..(id, blocks.end)) {
                    owners.entry(*block).or_insert(inode);
                }
            }
        }
        Ok(owners)
    }
}

/// Counts the blocks of an extent; false if they lie on no device.
fn count(
    devices: &SpaceIndex,
    references: &mut BTreeMap<ChunkId, Vec<u32>>,
    extent: &Extent,
) -> bool {
    let id = extent.place.allocation.device;
    let blocks = devices.devices.get(&id).and_then(|device| {
        let blocks = blocks_of(extent, device.info.block_size)?;
        (blocks.end <= device.info.blocks).then_some(blocks)
    });
    let Some(blocks) = blocks else { return false };
    for (chunk, part) in chunks_of(id, blocks) {
        let counts = references.entry(chunk).or_default();
        counts.resize(CHUNK_BLOCKS as usize, 0);
        counts[part].iter_mut().for_each(|count| *count = count.saturating_add(1));
    }
    true
}
