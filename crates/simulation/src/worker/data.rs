//! Steps that write and read files.

use super::{Doing, Worker};
use crate::history::{Effect, FileKey, Read};
use crate::pattern;
use client::{Handle, OpenMode};
use protocol::attr::AttrChanges;
use protocol::client::FallocateMode;
use protocol::{Errno, FileKind, InodeId};
use ring::time::sleep;
use ring::{Buffer, Chunk, Region};
use std::time::Duration;

const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
/// Offsets at which writes begin are below this, but for appends.
const OFFSET_MAX: u64 = 200_000;
/// Bytes of one read where all of a file is read.
const READ_BYTES: usize = 1 << 20;

impl Worker {
    /// Opens a file, makes it if it is not there, writes some pieces and closes it.
    pub(super) async fn write_file(&mut self) {
        let (parent, name) = self.any_place();
        let mode = OpenMode { append: self.random.chance(25), ..WRITE };
        let handle = match self.lookup(parent, &name).await {
            Some(attr) if attr.kind != FileKind::File => return self.client.forget(attr.inode, 1),
            Some(attr) => self.open(attr.inode, mode).await,
            None => self.create(parent, &name, mode).await.map(|(handle, _)| handle),
        };
        let Some(handle) = handle else { return };
        let inode = handle.inode();
        let file = self.file(inode);
        for _ in 0..self.pieces(1, 4) {
            self.write(&handle, file).await;
            self.does(Doing::Wrote);
            self.dawdle().await;
            match self.random.below(10) {
                0 => self.fsync(inode, file).await,
                1 => self.read(inode, file).await,
                _ => {}
            }
        }
        if self.random.chance(15) {
            self.fsync(inode, file).await;
        }
        self.close(&handle, file).await;
        self.client.forget(inode, 1);
    }

    /// How many pieces to write or read.
    fn pieces(&mut self, least: u64, most: u64) -> u64 {
        let pieces = self.random.between(least, most);
        self.shared.plan.pieces(pieces)
    }

    /// Now and then a while passes with data that is written and not committed.
    async fn dawdle(&mut self) {
        if self.random.chance(40) {
            let most_us = *self.random.of(&[100, 2_000, 300_000]);
            sleep(Duration::from_micros(self.random.between(1, most_us))).await;
        }
    }

    /// Appends a little to a file to which all append, some of them at this moment.
    pub(super) async fn append_together(&mut self) {
        let parent = InodeId::ROOT;
        let mode = OpenMode { append: true, ..WRITE };
        let handle = match self.lookup(parent, "a").await {
            Some(attr) if attr.kind != FileKind::File => return self.client.forget(attr.inode, 1),
            Some(attr) => self.open(attr.inode, mode).await,
            None => self.create(parent, "a", mode).await.map(|(handle, _)| handle),
        };
        let Some(handle) = handle else { return };
        let file = self.file(handle.inode());
        for _ in 0..self.pieces(2, 5) {
            let length = self.random.between(1, 3_000);
            self.write_piece(&handle, file, 0, length).await;
            self.does(Doing::Wrote);
            self.dawdle().await;
        }
        self.close(&handle, file).await;
        self.client.forget(handle.inode(), 1);
    }

    /// Removes a file and writes another at once, so that its blocks are wanted.
    pub(super) async fn replace(&mut self) {
        let (parent, name) = self.any_place();
        self.unlink_name(parent, &name).await;
        self.write_file().await;
    }

    pub(super) async fn open(&self, inode: InodeId, mode: OpenMode) -> Option<Handle> {
        self.note("open");
        self.log(|| format!("open of {} begins", inode.0));
        self.on(|| format!(" inode {}, {mode:?}", inode.0));
        let result = self.client.open(inode, mode).await;
        self.answered("open", &result);
        if result.is_err() {
            self.client.forget(inode, 1);
        }
        result.ok().map(|(handle, _)| handle)
    }

    async fn write(&mut self, handle: &Handle, file: FileKey) {
        let length = self.random.between(1, self.shared.plan.write_max);
        let mut offset = self.random.below(OFFSET_MAX);
        if self.random.chance(30) {
            offset &= !4095;
        }
        self.write_piece(handle, file, offset, length).await;
    }

    async fn write_piece(&self, handle: &Handle, file: FileKey, offset: u64, length: u64) {
        let stamp = self.history().stamp();
        let life = self.begin("write");
        let bytes = pattern::bytes(stamp, 0, length as usize);
        let chunk = Chunk::from(Buffer::copy_from(&bytes));
        // Where an append goes is known only when it returns; nothing of it can be read before.
        self.log(|| format!("write {stamp} to {} at {offset}, {length}", handle.inode().0));
        let inode = handle.inode().0;
        self.on(|| format!(" {stamp}: {length} bytes to inode {inode}"));
        let index = (!handle.mode.append).then(|| {
            let effect = Effect::Write { offset, length, stamp };
            self.history().change(file, effect, life.clone())
        });
        let result = self.client.write(handle, offset, chunk, false).await;
        self.on(|| format!(" at {}", result.unwrap_or(offset)));
        self.answered("write", &result);
        let mut history = self.history();
        let tick = history.tick();
        history.counts.written_bytes += length;
        match (result, index) {
            (Ok(offset), None) => {
                let effect = Effect::Write { offset, length, stamp };
                let index = history.change(file, effect, life);
                history.changes[index].life.returned = Some(tick);
                history.changes[index].is_append = true;
            }
            (Ok(_), Some(index)) => history.changes[index].life.returned = Some(tick),
            (Err(_), Some(index)) => {
                history.changes[index].life.returned = Some(tick);
                history.changes[index].life.doubt();
            }
            (Err(_), None) => {}
        }
    }

    async fn fsync(&self, inode: InodeId, file: FileKey) {
        let asked = self.history().tick();
        self.note("fsync");
        self.log(|| format!("fsync of {} begins", inode.0));
        self.on(|| format!(" of inode {}", inode.0));
        self.does(Doing::Commits);
        let result = self.client.fsync(inode).await;
        self.flushed("fsync", file, asked, result, true);
    }

    async fn close(&self, handle: &Handle, file: FileKey) {
        let asked = self.history().tick();
        self.note("close");
        self.log(|| format!("close of {} begins", handle.inode().0));
        self.on(|| format!(" of inode {}", handle.inode().0));
        // Who only reads commits nothing, not even what others on its node have written.
        if !handle.mode.write {
            return self.answered("close", &self.client.release(handle).await);
        }
        self.does(Doing::Commits);
        let result = self.client.release(handle).await;
        self.flushed("close", file, asked, result, false);
    }

    fn flushed(
        &self,
        what: &str,
        file: FileKey,
        asked: u64,
        result: Result<(), Errno>,
        durable: bool,
    ) {
        self.answered(what, &result);
        match result {
            Ok(()) => self.history().committed(file, self.actor, asked, durable),
            Err(_) => self.history().lost(file, self.actor),
        }
    }

    pub(super) async fn read_file(&mut self) {
        let (parent, name) = self.any_place();
        let Some(attr) = self.lookup(parent, &name).await else { return };
        let inode = attr.inode;
        if attr.kind != FileKind::File {
            return self.client.forget(inode, 1);
        }
        let Some(handle) = self.open(inode, OpenMode::default()).await else { return };
        let file = self.file(inode);
        for _ in 0..self.pieces(1, 3) {
            self.read(inode, file).await;
        }
        self.close(&handle, file).await;
        self.client.forget(inode, 1);
    }

    async fn read(&mut self, inode: InodeId, file: FileKey) {
        let (offset, length) = match self.random.below(3) {
            0 => (0, OFFSET_MAX * 4),
            _ => (self.random.below(OFFSET_MAX), self.random.between(1, 60_000)),
        };
        self.read_range(inode, file, offset, length).await;
    }

    pub(crate) async fn read_range(&self, inode: InodeId, file: FileKey, offset: u64, asked: u64) {
        let session = self.session();
        let start = self.history().tick();
        self.note("read");
        self.log(|| format!("read of {} begins", inode.0));
        self.on(|| format!(" of inode {}, {asked} bytes at {offset}", inode.0));
        self.does(Doing::Reads);
        // Every second read offers memory, as a FUSE request over io_uring does.
        let room =
            start.is_multiple_of(2).then(|| Region::new(asked.max(1) as usize).ok()).flatten();
        let room = room.map(|region| region.range(0, region.len()));
        // As the mount does for O_DIRECT.
        self.client.look_ahead(inode, offset, asked as usize);
        let result = self.client.read(inode, offset, asked as usize, room.as_ref()).await;
        if let Ok(chunks) = &result {
            self.on(|| format!(" = {} bytes", chunks.iter().map(Chunk::len).sum::<usize>()));
        }
        self.answered("read", &result);
        let Ok(chunks) = result else { return };
        let mut bytes = Vec::with_capacity(chunks.iter().map(Chunk::len).sum());
        for chunk in &chunks {
            bytes.extend_from_slice(&chunk.to_bytes());
        }
        let session = session.filter(|before| self.session() == Some(*before));
        let actor = self.actor;
        let mut history = self.history();
        let end = history.tick();
        history.counts.read_bytes += bytes.len() as u64;
        history.reads.push(Read { file, actor, session, start, end, offset, asked, bytes });
    }

    /// A file to change other than by writing.
    pub(super) async fn some_file(&mut self) -> Option<InodeId> {
        let (parent, name) = self.any_place();
        let attr = self.lookup(parent, &name).await?;
        // The calls below go by the number: they need no reference.
        self.client.forget(attr.inode, 1);
        (attr.kind == FileKind::File).then_some(attr.inode)
    }

    pub(super) async fn truncate(&mut self) {
        let Some(inode) = self.some_file().await else { return };
        let size = if self.random.chance(40) { 0 } else { self.random.below(OFFSET_MAX) };
        self.truncate_to(inode, size).await;
    }

    /// Empties a file, which others may read just then, and writes to another at once, or to this one.
    pub(super) async fn rewrite(&mut self) {
        if let Some(inode) = self.some_file().await {
            self.truncate_to(inode, 0).await;
        }
        self.write_file().await;
    }

    async fn truncate_to(&self, inode: InodeId, size: u64) {
        let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
        let index = self.begin_change("truncate", inode, Effect::Truncate { size });
        let result = self.client.truncate(inode, changes).await;
        self.end_change("truncate", index, &result);
    }

    pub(super) async fn punch(&mut self) {
        let Some(inode) = self.some_file().await else { return };
        let (offset, length) = (self.random.below(OFFSET_MAX), self.random.between(1, 50_000));
        let (effect, mode) = if self.random.chance(70) {
            (Effect::Punch { offset, length }, FallocateMode::Punch)
        } else {
            let size = offset + length;
            (Effect::Extend { size }, FallocateMode::Allocate { keep_size: false })
        };
        let index = self.begin_change("fallocate", inode, effect);
        let result = self.client.fallocate(inode, offset, length, mode).await;
        self.end_change("fallocate", index, &result);
    }

    pub(super) async fn copy(&mut self) {
        let Some(from) = self.some_file().await else { return };
        let Some(to) = self.some_file().await else { return };
        if from == to {
            return;
        }
        let (source_offset, offset) =
            (self.random.below(OFFSET_MAX), self.random.below(OFFSET_MAX));
        let length = self.random.between(1, 80_000);
        let source = self.file(from);
        let effect = Effect::Copy { source, source_offset, offset, length };
        let index = self.begin_change("copy", to, effect);
        let result = self.client.copy_range((from, source_offset), (to, offset), length).await;
        if let Ok(copied) = result {
            let effect = Effect::Copy { source, source_offset, offset, length: copied };
            self.history().changes[index].effect = effect;
        }
        // A copy commits the source first, and tells its failures.
        if result.is_err() {
            self.history().lost(source, self.actor);
        }
        self.end_change("copy", index, &result);
    }

    fn begin_change(&self, what: &'static str, inode: InodeId, effect: Effect) -> usize {
        let file = self.file(inode);
        let life = self.begin(what);
        self.log(|| format!("{what} of {}: {effect:?}", inode.0));
        self.on(|| format!(" of inode {}: {effect:?}", inode.0));
        self.does(Doing::Changes);
        self.history().change(file, effect, life)
    }

    fn end_change<T>(&self, what: &str, index: usize, result: &Result<T, Errno>) {
        self.answered(what, result);
        let mut history = self.history();
        let tick = history.tick();
        let file = history.changes[index].file;
        let life = &mut history.changes[index].life;
        life.returned = Some(tick);
        if result.is_ok() {
            return life.apply(tick);
        }
        life.doubt();
        // It began by committing what was written, and tells that this failed.
        history.lost(file, self.actor);
    }
}

/// What the end of a run needs.
impl Worker {
    pub(crate) fn directories(&self) -> Vec<InodeId> {
        self.shared.directories.borrow().clone()
    }

    pub(crate) async fn lookup_again(&self, parent: InodeId, name: &str) -> Option<protocol::Attr> {
        // Of other names, such as a killed worker's symbolic link, no history is kept.
        if !super::NAMES.contains(&name) && !super::LINK_NAMES.contains(&name) {
            return None;
        }
        self.lookup(parent, name).await
    }

    pub(crate) async fn read_whole(&self, inode: InodeId) {
        let file = self.file(inode);
        self.read_range(inode, file, 0, 4 << 20).await;
    }

    /// Whether all of a file can be read; `None` if there is no such file.
    pub(crate) async fn is_readable(&self, parent: InodeId, name: &str) -> Option<bool> {
        let attr = self.client.lookup(parent, name.as_bytes()).await.ok()?;
        let mut is_readable = true;
        if attr.kind == FileKind::File {
            for offset in (0..attr.size).step_by(READ_BYTES) {
                let read = self.client.read(attr.inode, offset, READ_BYTES, None).await;
                is_readable &= read.is_ok();
                self.log(|| format!("{name} at {offset}: {:?}", read.map(drop)));
            }
        }
        self.client.forget(attr.inode, 1);
        (attr.kind == FileKind::File).then_some(is_readable)
    }

    pub(crate) fn has_ballast(&self) -> bool {
        self.shared.plan.spare_bytes.is_some()
    }

    pub(crate) async fn remove(&self, parent: InodeId, name: &str) {
        if crate::worker::DIRECTORIES.contains(&name) {
            return;
        }
        let result = match self.client.unlink(parent, name.as_bytes()).await {
            Err(Errno::EISDIR) => self.client.rmdir(parent, name.as_bytes()).await,
            result => result,
        };
        if let Err(errno) = result {
            self.history().violations.push(format!("{name} cannot be removed: {errno}"));
        }
    }

    /// Bytes that are free, and inodes.
    pub(crate) async fn pool(&self) -> Option<(u64, u64)> {
        self.client
            .pool_use()
            .await
            .ok()
            .map(|pool| (pool.total_bytes - pool.free_bytes, pool.inodes))
    }
}
