//! A disk in memory that forgets, tears, reorders and garbles what was not synced.
//!
//! Sectors of 512 bytes are atomic, as on real disks. After a power loss each sector that was
//! written since its file's last sync shows any of its versions since then; where nothing synced
//! lies in it, also garbage, or what another sector held. Names come and go in any order unless the
//! directory was synced, and new space shows bytes of deleted files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use union::journal::{SegmentFile, SegmentId, Storage};

pub(crate) const SECTOR: usize = 512;

/// A small deterministic generator (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }
}

#[derive(Clone, Debug, Default)]
struct Inode {
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// The versions of each sector since the last sync.
    versions: BTreeMap<usize, Vec<Vec<u8>>>,
    synced_end: usize,
    written_end: usize,
    is_size_durable: bool,
}

#[derive(Clone, Copy, Debug)]
enum NameOp {
    Add(SegmentId, usize),
    Remove(SegmentId),
}

/// All that outlives a journal.
#[derive(Clone, Debug)]
pub(crate) struct World {
    inodes: Vec<Inode>,
    names: BTreeMap<SegmentId, usize>,
    durable_names: BTreeMap<SegmentId, usize>,
    name_ops: Vec<NameOp>,
    marker: bool,
    pub(crate) durable_marker: bool,
    stale: Vec<u8>,
    /// The file of marks, and of each slot what the disk may have.
    pub(crate) marks: Option<Vec<u8>>,
    has_durable_marks: bool,
    slots: [Vec<Vec<u8>>; 2],
    random: Random,
    boot: u64,
    /// Changing calls so far, and the one at which the power goes.
    pub(crate) steps: u64,
    pub(crate) crash_at: Option<u64>,
    pub(crate) is_down: bool,
    pub(crate) space_left: Option<u64>,
    pub(crate) fails_sync: bool,
}

/// A handle on the world; clones see the same one.
#[derive(Clone, Debug)]
pub(crate) struct Disk(pub(crate) Rc<RefCell<World>>);

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rc::new(RefCell::new(World {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_ops: Vec::new(),
            marker: false,
            durable_marker: false,
            stale: Vec::new(),
            marks: None,
            has_durable_marks: false,
            slots: [vec![vec![0; SLOT]], vec![vec![0; SLOT]]],
            random: Random::new(seed),
            boot: 1,
            steps: 0,
            crash_at: None,
            is_down: false,
            space_left: None,
            fails_sync: false,
        })))
    }

    /// The power goes and comes: decides what survived.
    pub(crate) fn lose_power(&self, seed: u64) {
        let world = &mut *self.0.borrow_mut();
        let mut random = Random::new(seed);
        for op in std::mem::take(&mut world.name_ops) {
            if random.below(2) == 0 {
                apply(&mut world.durable_names, op);
            }
        }
        world.names = world.durable_names.clone();
        if world.marker != world.durable_marker && random.below(2) == 0 {
            world.durable_marker = world.marker;
        }
        world.marker = world.durable_marker;
        // Some losses take everything unsynced, some nothing, most a part.
        let keep_percent = [0, 50, 90, 100][random.below(4) as usize];
        let all: Vec<u8> = world.stale.clone();
        for inode in &mut world.inodes {
            inode.lose(&mut random, keep_percent, &all);
        }
        world.lose_marks(&mut random);
        world.boot += 1;
        world.revive();
    }

    /// The process is killed; the page cache lives.
    pub(crate) fn kill(&self) {
        self.0.borrow_mut().revive();
    }

    /// The bytes of a segment, to damage them.
    pub(crate) fn damage(&self, segment: SegmentId, change: impl FnOnce(&mut Vec<u8>)) {
        let world = &mut *self.0.borrow_mut();
        let inode = &mut world.inodes[world.names[&segment]];
        change(&mut inode.cache);
        inode.disk = inode.cache.clone();
    }

    /// Removes a segment, as no crash does.
    pub(crate) fn remove(&self, segment: SegmentId) {
        let world = &mut *self.0.borrow_mut();
        world.names.remove(&segment);
        world.durable_names.remove(&segment);
    }

    /// Returns whether all files have the same content.
    pub(crate) fn has_same_files(&self, other: &Self) -> bool {
        let content = |disk: &Self| {
            let world = disk.0.borrow();
            let files =
                world.names.iter().map(|(id, inode)| (*id, world.inodes[*inode].cache.clone()));
            (files.collect::<Vec<_>>(), world.marks.clone(), world.marker)
        };
        content(self) == content(other)
    }

    /// A disk of its own with the same content.
    pub(crate) fn copy(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    /// Adds a file, of any content.
    pub(crate) fn plant(&self, segment: SegmentId, bytes: Vec<u8>) {
        let world = &mut *self.0.borrow_mut();
        let inode = Inode { disk: bytes.clone(), cache: bytes, ..Inode::default() };
        world.inodes.push(inode);
        world.names.insert(segment, world.inodes.len() - 1);
        world.durable_names = world.names.clone();
    }
}

/// Bytes of half of the file of marks.
const SLOT: usize = 4096;

impl World {
    /// Each slot shows one of its versions; the name is there if it was synced, else perhaps.
    fn lose_marks(&mut self, random: &mut Random) {
        let Some(marks) = &mut self.marks else { return };
        if !self.has_durable_marks && random.below(2) == 0 {
            self.marks = None;
            return;
        }
        for (slot, versions) in self.slots.iter_mut().enumerate() {
            let version = versions.swap_remove(random.below(versions.len() as u64) as usize);
            marks[slot * SLOT..(slot + 1) * SLOT].copy_from_slice(&version);
            *versions = vec![version];
        }
    }

    fn revive(&mut self) {
        (self.crash_at, self.is_down) = (None, false);
        (self.space_left, self.fails_sync) = (None, false);
    }

    /// Counts a changing call; `false` if the power is gone before it. At the very step, a write
    /// is still made, and then anything of it may survive.
    fn step(&mut self) -> io::Result<()> {
        if self.is_down {
            return Err(io::Error::other("the power is gone"));
        }
        self.steps += 1;
        if self.crash_at.is_some_and(|at| self.steps >= at) {
            self.is_down = true;
        }
        Ok(())
    }

    fn inode(&self, segment: SegmentId) -> io::Result<usize> {
        self.names.get(&segment).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns a sync at the last step does nothing: the power goes in it.
    fn after(&self) -> io::Result<()> {
        if self.is_down { Err(io::Error::other("the power went")) } else { Ok(()) }
    }
}

fn apply(names: &mut BTreeMap<SegmentId, usize>, op: NameOp) {
    match op {
        NameOp::Add(segment, inode) => names.insert(segment, inode),
        NameOp::Remove(segment) => names.remove(&segment),
    };
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if self.cache.len() < offset + bytes.len() {
            self.cache.resize(offset + bytes.len(), 0);
        }
        self.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.written_end = self.written_end.max(offset + bytes.len());
        for sector in offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR) {
            let end = self.cache.len().min((sector + 1) * SECTOR);
            let version = self.cache[sector * SECTOR..end].to_vec();
            self.versions.entry(sector).or_default().push(version);
        }
    }

    fn sync(&mut self) {
        self.disk = self.cache.clone();
        self.versions.clear();
        self.synced_end = self.written_end;
        self.is_size_durable = true;
    }

    fn lose(&mut self, random: &mut Random, keep_percent: u64, stale: &[u8]) {
        if !self.is_size_durable && random.below(3) == 0 {
            self.disk.clear();
        } else {
            self.disk.resize(self.cache.len(), 0);
        }
        for (sector, versions) in std::mem::take(&mut self.versions) {
            let at = sector * SECTOR;
            if at >= self.disk.len() {
                continue;
            }
            let is_fresh = at >= self.synced_end;
            let mut bytes = versions[random.below(versions.len() as u64) as usize].clone();
            if random.below(100) >= keep_percent {
                match random.below(4) {
                    0 if is_fresh => bytes.fill_with(|| random.next() as u8),
                    1 if is_fresh && !stale.is_empty() => {
                        let from = random.below(stale.len() as u64) as usize;
                        bytes = stale[from..stale.len().min(from + bytes.len())].to_vec();
                    }
                    2 if is_fresh && !bytes.is_empty() => {
                        let flip = random.below(bytes.len() as u64) as usize;
                        bytes[flip] ^= 1 << random.below(8);
                    }
                    _ => continue,
                }
            }
            let end = self.disk.len().min(at + bytes.len());
            self.disk[at..end].copy_from_slice(&bytes[..end - at]);
        }
        self.cache = self.disk.clone();
        self.written_end = self.written_end.min(self.disk.len());
        self.synced_end = self.written_end;
        self.is_size_durable = true;
    }
}

impl Storage for Disk {
    type Handle = SegmentId;

    fn list(&self) -> io::Result<Vec<SegmentFile>> {
        let world = self.0.borrow();
        let file = |(&segment, &inode): (&SegmentId, &usize)| SegmentFile {
            segment,
            size_bytes: world.inodes[inode].cache.len() as u64,
        };
        Ok(world.names.iter().map(file).collect())
    }

    fn create(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        if world.space_left.is_some_and(|left| left < size_bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        world.marks.get_or_insert_with(|| vec![0; 2 * SLOT]);
        let mut cache = vec![0; size_bytes as usize];
        if world.random.below(2) == 0 {
            let count = cache.len().min(world.stale.len());
            cache[..count].copy_from_slice(&world.stale[..count]);
        }
        world.inodes.push(Inode { disk: cache.clone(), cache, ..Inode::default() });
        let op = NameOp::Add(segment, world.inodes.len() - 1);
        apply(&mut world.names, op);
        world.name_ops.push(op);
        world.after()
    }

    fn write_at(&mut self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        let inode = world.inode(segment)?;
        world.inodes[inode].write(offset as usize, &parts.concat());
        world.after()
    }

    fn read_at(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let world = self.0.borrow();
        let cache = &world.inodes[world.inode(segment)?].cache;
        let start = cache.len().min(offset as usize);
        let count = buffer.len().min(cache.len() - start);
        buffer[..count].copy_from_slice(&cache[start..start + count]);
        Ok(count)
    }

    fn sync(&mut self, segment: SegmentId) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        world.after()?;
        if world.fails_sync {
            return Err(io::Error::other("the disk refuses"));
        }
        let inode = world.inode(segment)?;
        world.inodes[inode].sync();
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        world.after()?;
        world.durable_names = world.names.clone();
        world.has_durable_marks = world.marks.is_some();
        world.name_ops.clear();
        Ok(())
    }

    fn truncate(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        let inode = world.inode(segment)?;
        let inode = &mut world.inodes[inode];
        inode.cache.truncate(size_bytes as usize);
        inode.disk.truncate(size_bytes as usize);
        world.after()
    }

    fn delete(&mut self, segment: SegmentId) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        let Ok(inode) = world.inode(segment) else { return world.after() };
        world.stale = world.inodes[inode].cache.clone();
        apply(&mut world.names, NameOp::Remove(segment));
        world.name_ops.push(NameOp::Remove(segment));
        world.after()
    }

    fn handle(&self, segment: SegmentId) -> io::Result<SegmentId> {
        Ok(segment)
    }

    fn directory_handles(&self) -> io::Result<Vec<SegmentId>> {
        Ok(Vec::new())
    }

    fn write_mark(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        let (at, slot) = (offset as usize, offset as usize / SLOT);
        if let Some(marks) = &mut world.marks {
            marks.resize(2 * SLOT, 0);
            marks[at..at + bytes.len()].copy_from_slice(bytes);
            world.slots[slot].push(marks[slot * SLOT..(slot + 1) * SLOT].to_vec());
        }
        world.after()
    }

    fn marks_handle(&self) -> Option<SegmentId> {
        None
    }

    fn read_marks(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.borrow().marks.clone())
    }

    fn set_marker(&mut self, present: bool) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        world.marker = present;
        world.after()
    }

    fn sync_marker(&mut self) -> io::Result<()> {
        let world = &mut *self.0.borrow_mut();
        world.step()?;
        world.after()?;
        world.durable_marker = world.marker;
        Ok(())
    }

    fn marker_handles(&self) -> io::Result<Vec<SegmentId>> {
        Ok(Vec::new())
    }

    fn marker(&self) -> io::Result<bool> {
        Ok(self.0.borrow().marker)
    }

    fn witness(&self) -> u64 {
        self.0.borrow().boot
    }

    fn random(&mut self) -> u64 {
        self.0.borrow_mut().random.next()
    }
}
