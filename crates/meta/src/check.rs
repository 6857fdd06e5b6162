//! A check of everything that must hold between the stored records: from the tree to free space.
//!
//! It walks all records, so it is for tests, for `tsumugi check`, and for use after a crash; the
//! service itself never needs it. [`store`] checks a store that no service has open, without
//! changing it.

pub mod data;
mod finding;
mod paths;
pub mod repair;
pub mod store;

pub use finding::{Area, Finding};

use crate::records::{
    CookieEntry, Counters, Dentry, ExtentPage, Inline, Inode, Key, Record, Resting, Segment,
    SpaceLease, Xattr, decode, key_number, key_tail,
};
use crate::space::live::{CHUNK_BLOCKS, Chunk, ChunkId, blocks_of, chunks_of};
use crate::store::Error;
use crate::tree::Core;
use protocol::{DeviceId, Extent, FileKind, FreeEpoch, InodeId, SessionId};
use std::collections::BTreeMap;

/// What a check has found so far.
#[derive(Default)]
struct Check {
    problems: Vec<Finding>,
    /// The area that is being checked.
    area: Area,
    inodes: BTreeMap<InodeId, Inode>,
    /// For each inode, the number of entries that name it; for a directory, also its entries and
    /// subdirectories.
    names: BTreeMap<InodeId, u32>,
    entries: BTreeMap<InodeId, (u64, u32)>,
    cookies: u64,
    dentries: u64,
    held_bytes: BTreeMap<InodeId, u64>,
    /// For each chunk, the number of extents that touch each of its blocks.
    references: BTreeMap<ChunkId, Vec<u32>>,
    /// For each device: first block, number of blocks, and their state.
    blocks: BTreeMap<DeviceId, Vec<(u64, u64, &'static str)>>,
}

impl Core {
    /// Checks that the stored records agree with each other and with what is kept in memory.
    /// Returns a sentence for each contradiction.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        Ok(self.findings()?.into_iter().map(|finding| finding.what).collect())
    }

    /// As [`Core::check`], but returns what each contradiction concerns as well.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn findings(&self) -> Result<Vec<Finding>, Error> {
        let mut check = Check::default();
        self.each(&mut check, &Key::Inode(InodeId(0)), |check, key, inode: Inode| {
            let id = InodeId(key_number(key, 0)?);
            if let Some(fault) = inode.fault(id) {
                check.of(id, format!("{id}: {fault}"));
            }
            check.inodes.insert(id, inode);
            Ok(())
        })?;
        check.area = Area::Tree;
        self.check_names(&mut check)?;
        check.area = Area::Data;
        self.check_extents(&mut check)?;
        self.check_inline(&mut check)?;
        self.check_xattrs(&mut check)?;
        check.area = Area::Space;
        self.check_live(&mut check)?;
        self.check_space(&mut check)?;
        check.area = Area::Counts;
        self.check_inodes(&mut check)?;
        Ok(check.problems)
    }

    /// Calls `visit` with each record of a kind. A record that makes no sense is a finding.
    fn each<R: Record>(
        &self,
        check: &mut Check,
        any: &Key<'_>,
        mut visit: impl FnMut(&mut Check, &[u8], R) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.base.layers.each(&any.prefix(0), |key, value| {
            let visited = decode(key, value).and_then(|record| visit(check, key, record));
            match visited {
                Err(error @ Error::Corrupt { .. }) => {
                    check.problems.push(Finding::of_record(&error));
                    Ok(())
                }
                other => other,
            }
        })
    }

    fn check_names(&self, check: &mut Check) -> Result<(), Error> {
        self.each(check, &Key::Dentry(InodeId(0), b""), |check, key, dentry: Dentry| {
            let parent = InodeId(key_number(key, 0)?);
            let name = key_tail(key, 1);
            let cookie = Key::Cookie(parent, dentry.cookie).encode();
            let twin = self.base.layers.get(&cookie)?;
            let twin: Option<CookieEntry> = twin.map(|v| decode(&cookie, &v)).transpose()?;
            if !twin.is_some_and(|twin| twin.inode == dentry.inode && twin.name == name) {
                check.of(parent, format!("an entry of {parent} has no cookie {}", dentry.cookie));
            }
            check.dentries += 1;
            *check.names.entry(dentry.inode).or_default() += 1;
            let child = check.inodes.get(&dentry.inode);
            let is_directory = child.is_some_and(|c| c.attr.kind == FileKind::Directory);
            match child {
                None => check.of(
                    parent,
                    format!("an entry of {parent} names {}, which is not there", dentry.inode),
                ),
                Some(child) if is_directory && child.parent != parent => {
                    check.of(
                        dentry.inode,
                        format!("{} has another parent than {parent}", dentry.inode),
                    );
                }
                Some(_) => {}
            }
            let counts = check.entries.entry(parent).or_default();
            counts.0 += 1;
            counts.1 += u32::from(is_directory);
            Ok(())
        })?;
        self.each(check, &Key::Cookie(InodeId(0), 0), |check, _, _: CookieEntry| {
            check.cookies += 1;
            Ok(())
        })?;
        if check.cookies != check.dentries {
            check.problem(format!("{} cookies, {} entries", check.cookies, check.dentries));
        }
        Ok(())
    }

    fn check_extents(&self, check: &mut Check) -> Result<(), Error> {
        let mut last = (InodeId(0), 0);
        self.each(check, &Key::Extents(InodeId(0), 0), |check, key, page: ExtentPage| {
            let id = InodeId(key_number(key, 0)?);
            let start = key_number(key, 1)?;
            if last.0 == id && last.1 > start {
                check.of(id, format!("{id} has overlapping extent pages at {start}"));
            }
            last = (id, page.end);
            let mut at = start;
            for extent in &page.extents.0 {
                if extent.offset < at || extent.end() > page.end {
                    check.of(id, format!("{id} has a misplaced extent at {}", extent.offset));
                }
                at = extent.end();
                let held = check.held_bytes.entry(id).or_default();
                *held = held.saturating_add(u64::from(extent.length));
                self.count_blocks(check, extent);
            }
            if page.extents.0.is_empty() {
                check.of(id, format!("{id} has an empty extent page at {start}"));
            }
            let inode = check.inodes.get(&id);
            let is_cut = inode.is_none_or(|inode| inode.truncating.is_some() || inode.is_dead);
            if inode.is_none_or(|inode| !is_cut && at > inode.attr.size) {
                check.of(id, format!("{id} has extents past its end"));
            }
            Ok(())
        })
    }

    fn check_inline(&self, check: &mut Check) -> Result<(), Error> {
        let mut counts: BTreeMap<InodeId, u32> = BTreeMap::new();
        self.each(check, &Key::Inline(InodeId(0)), |check, key, inline: Inline| {
            let id = InodeId(key_number(key, 0)?);
            let length = inline.bytes.0.len();
            if !inline.is_whole() {
                check.of(id, format!("{id} has inline data without its checksum"));
            }
            *check.held_bytes.entry(id).or_default() += length as u64;
            counts.insert(id, length as u32);
            Ok(())
        })?;
        for (id, inode) in &check.inodes {
            let count = counts.remove(id).unwrap_or(0);
            if count != inode.inline {
                let what = format!("{id} has {count} inline bytes, not {}", inode.inline);
                check.problems.push(Finding::of(check.area, *id, what));
            }
        }
        if !counts.is_empty() {
            check.problem("inline bytes of no inode".to_owned());
        }
        Ok(())
    }

    fn check_xattrs(&self, check: &mut Check) -> Result<(), Error> {
        let mut counts: BTreeMap<InodeId, u32> = BTreeMap::new();
        self.each(check, &Key::Xattr(InodeId(0), b""), |_, key, _: Xattr| {
            *counts.entry(InodeId(key_number(key, 0)?)).or_default() += 1;
            Ok(())
        })?;
        for (id, inode) in &check.inodes {
            let count = counts.remove(id).unwrap_or(0);
            if count != inode.xattrs && !inode.is_dead {
                let what = format!("{id} has {count} xattrs, not {}", inode.xattrs);
                check.problems.push(Finding::of(check.area, *id, what));
            }
        }
        if !counts.is_empty() {
            check.problem("extended attributes of no inode".to_owned());
        }
        Ok(())
    }

    fn count_blocks(&self, check: &mut Check, extent: &Extent) {
        let id = extent.place.allocation.device;
        let device = self.base.space.devices.get(&id);
        let blocks = device.and_then(|device| blocks_of(extent, device.info.block_size));
        let Some(blocks) = blocks else {
            return check.problem(format!("an extent names {}", extent.place.allocation));
        };
        for (chunk, part) in chunks_of(id, blocks) {
            let counts = check.references.entry(chunk).or_default();
            counts.resize(CHUNK_BLOCKS as usize, 0);
            counts[part].iter_mut().for_each(|count| *count = count.saturating_add(1));
        }
    }

    /// Checks that a block is live exactly if an extent touches it, and that its count is right.
    fn check_live(&self, check: &mut Check) -> Result<(), Error> {
        self.each(check, &Key::Blocks(DeviceId(0), 0), |check, key, chunk: Chunk| {
            let device = DeviceId(key_number(key, 0)? as u32);
            let id = (device, key_number(key, 1)?);
            let mut named = check.references.remove(&id).unwrap_or_default();
            named.resize(CHUNK_BLOCKS as usize, 0);
            for (at, live) in chunk.each() {
                let block = id.1.saturating_mul(CHUNK_BLOCKS).saturating_add(at);
                let count = std::mem::take(&mut named[at as usize]);
                if u64::from(count) != live.count {
                    check.problem(format!(
                        "block {block} of {device} counts {}, has {count}",
                        live.count
                    ));
                }
                check.add_blocks(device, block, 1, "live");
            }
            check.not_live(id, &named);
            Ok(())
        })?;
        for (id, named) in std::mem::take(&mut check.references) {
            check.not_live(id, &named);
        }
        Ok(())
    }

    fn check_space(&self, check: &mut Check) -> Result<(), Error> {
        for (id, device) in &self.base.space.devices {
            let count = device.info.blocks.div_ceil(device.segment_blocks());
            for index in 0..count {
                let key = Key::Segment(*id, index).encode();
                let stored = self.base.layers.get(&key)?;
                let stored: Option<Segment> = stored.map(|v| decode(&key, &v)).transpose()?;
                let whole = [device.segment_range(index)];
                let free = stored.as_ref().map_or(&whole[..], |segment| segment.free.as_slice());
                for range in free {
                    check.add_blocks(*id, range.start, range.count, "free");
                }
            }
        }
        let any = Key::SpaceLease(SessionId(0), DeviceId(0), 0);
        self.each(check, &any, |check, key, lease: SpaceLease| {
            let device = DeviceId(key_number(key, 1)? as u32);
            if !self.base.sessions.contains_key(&SessionId(key_number(key, 0)?)) {
                check.problem("a session that has ended holds a lease on space".to_owned());
            }
            for range in lease.free.as_slice() {
                check.add_blocks(device, range.start, range.count, "leased");
            }
            Ok(())
        })?;
        self.each(check, &Key::Resting(FreeEpoch(0)), |check, key, resting: Resting| {
            if FreeEpoch(key_number(key, 0)?) < self.base.resting_from {
                check.problem("resting blocks will never be freed".to_owned());
            }
            for (allocation, blocks) in resting.freed {
                check.add_blocks(allocation.device, allocation.block, blocks.into(), "resting");
            }
            Ok(())
        })?;
        self.check_blocks(check);
        Ok(())
    }

    /// Checks that every block of every device is in exactly one state, and that the index agrees.
    fn check_blocks(&self, check: &mut Check) {
        let mut blocks = std::mem::take(&mut check.blocks);
        for (id, device) in &self.base.space.devices {
            let mut ranges = blocks.remove(id).unwrap_or_default();
            ranges.sort_unstable();
            let mut at = 0;
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            for (start, count, state) in ranges {
                if start != at {
                    check.problem(format!("{id}: blocks {at} and {start} ({state}) do not meet"));
                }
                at = start.saturating_add(count);
                let known = counts.entry(state).or_default();
                *known = known.saturating_add(count);
            }
            let count = |state| counts.get(state).copied().unwrap_or(0);
            let found = (at, count("free"), count("leased"), count("resting"));
            if let Some(usage) = self.base.space.usage(*id)
                && found != (device.info.blocks, usage.free, usage.leased, usage.resting)
            {
                check.problem(format!("{id}: found {found:?}, index has {usage:?}"));
            }
        }
    }

    fn check_inodes(&self, check: &mut Check) -> Result<(), Error> {
        let key = Key::Counters.encode();
        let stored = self.base.layers.get(&key)?;
        let stored: Option<Counters> = stored.map(|v| decode(&key, &v)).transpose()?;
        if stored != Some(self.base.counters) {
            check.problem("the stored counters are not those in memory".to_owned());
        }
        if self.base.counters.inodes != check.inodes.len() as u64 {
            check.problem(format!(
                "found {} inodes, but the stored count differs",
                check.inodes.len()
            ));
        }
        for (id, inode) in std::mem::take(&mut check.inodes) {
            let held = check.held_bytes.get(&id).copied().unwrap_or(0);
            if held != inode.attr.allocated_bytes {
                check.of(id, format!("{id} holds {held}, not {}", inode.attr.allocated_bytes));
            }
            let names = check.names.get(&id).copied().unwrap_or(0);
            let (entries, children) = check.entries.get(&id).copied().unwrap_or_default();
            let is_directory = inode.attr.kind == FileKind::Directory;
            let nlink = match (is_directory, names) {
                (true, 0) if id != InodeId::ROOT => 0,
                (true, _) => 2 + children,
                (false, _) => names,
            };
            if nlink != inode.attr.nlink {
                check.of(id, format!("{id} has nlink {}, not {nlink}", inode.attr.nlink));
            }
            if is_directory && entries != inode.attr.size {
                check.of(id, format!("{id} has {entries} entries, not {}", inode.attr.size));
            }
            let is_kept = self.base.open_orphans.contains_key(&id);
            let is_dead = self.base.dead.contains(&id);
            let is_orphan = inode.attr.nlink == 0;
            if is_dead != inode.is_dead || (is_orphan != (is_dead || is_kept)) {
                check.of(
                    id,
                    format!("{id}: link count, open sessions and the mark of death do not agree"),
                );
            }
            if !is_dead && inode.truncating.is_some() != self.base.truncating.contains(&id) {
                check.of(id, format!("{id}: its truncation is not marked"));
            }
        }
        Ok(())
    }
}

impl Check {
    fn problem(&mut self, what: String) {
        self.problems.push(Finding::general(self.area, what));
    }

    /// Adds a finding that concerns an inode.
    fn of(&mut self, inode: InodeId, what: String) {
        self.problems.push(Finding::of(self.area, inode, what));
    }

    /// Reports the blocks of a chunk that extents touch but that do not count as live.
    fn not_live(&mut self, (device, chunk): ChunkId, named: &[u32]) {
        let first = chunk.saturating_mul(CHUNK_BLOCKS);
        for (at, count) in (0..).zip(named).filter(|(_, count)| **count > 0) {
            let block = first.saturating_add(at);
            self.problem(format!(
                "block {block} of {device} is not live, but {count} extents name it"
            ));
        }
    }

    fn add_blocks(&mut self, device: DeviceId, start: u64, count: u64, state: &'static str) {
        let blocks = self.blocks.entry(device).or_default();
        match blocks.last_mut() {
            Some(last) if last.0.checked_add(last.1) == Some(start) && last.2 == state => {
                last.1 = last.1.saturating_add(count);
            }
            _ => blocks.push((start, count, state)),
        }
    }
}
