//! Steps that write and read files.

use super::{Doing, Worker};
use crate::history::{Effect, FileKey, Fresh, Life, Read, SizeSeen, Tick};
use crate::kernel::{OpenFile, Path};
use crate::pattern;
use protocol::{Errno, InodeId, SessionId};
use reactor::time::sleep;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of one read when a step reads a whole file.
const READ_BYTES: u64 = 1 << 20;
/// Largest start of copies that are meant to be long, and their least and largest number of bytes.
const COPY_START_MAX: u64 = 8_000;
const COPY_BYTES_MIN: u64 = client::COPIED_HERE_BYTES + 1;
const COPY_BYTES_MAX: u64 = 200_000;
/// Least number of bytes of an append: enough to find it again.
const APPEND_BYTES_MIN: u64 = 16;
/// Bytes at the end of a file that are searched first for an append.
const TAIL_BYTES: u64 = 8_192;

/// A file that fills most of an empty pool, in percent, and the bytes of one write to it.
const ROOM: &str = "room";
const ROOM_PERCENT: u64 = 75;
const ROOM_PIECE_BYTES: u64 = 64 << 10;

/// A file that a worker has open.
pub(crate) struct Open {
    pub(crate) file: Rc<OpenFile>,
    pub(super) key: FileKey,
    /// When the open began: pages may be as old as this.
    opened: Tick,
    session: Option<SessionId>,
}

impl Open {
    pub(super) fn new(file: Rc<OpenFile>, key: FileKey, life: &Life) -> Open {
        Open { file, key, opened: life.start, session: life.session }
    }

    /// Returns the same file with the guarantee that no page is older than a moment.
    pub(super) fn since(&self, opened: Tick, session: Option<SessionId>) -> Open {
        Open { file: Rc::clone(&self.file), key: self.key, opened, session }
    }
}

impl Worker {
    /// Opens a file, creates it if it does not exist, writes some pieces and closes it.
    pub(super) async fn write_file(&mut self) {
        let (parent, name) = self.file_place();
        let append = if self.random.chance(25) { libc::O_APPEND } else { 0 };
        // Files that are created with O_NOFOLLOW are written through pages.
        let flags = libc::O_RDWR | append | *self.random.of(&[0, libc::O_NOFOLLOW]);
        let open = match self.random.below(10) {
            // A worker that looks the name up first knows the file that it opens. Otherwise it may
            // race with others for the name.
            0..4 => match self.lookup(parent, &name).await {
                Some(found) if !found.is_file => return,
                Some(_) => self.open(parent, &name, flags).await,
                None => self.open(parent, &name, flags | libc::O_CREAT | libc::O_EXCL).await,
            },
            _ => self.open(parent, &name, flags | libc::O_CREAT).await,
        };
        let Some(open) = open else { return };
        for _ in 0..self.pieces(1, 4) {
            self.write(&open).await;
            self.does(Doing::Wrote);
            self.dawdle().await;
            match self.random.below(10) {
                0 => {
                    self.fsync(&open).await;
                }
                1 => self.read(&open).await,
                _ => {}
            }
        }
        let fsyncs = if self.shared.plan.may_lose_data() { 60 } else { 15 };
        if self.random.chance(fsyncs) && !self.fsync(&open).await && self.random.chance(70) {
            // After a retry the file has the new bytes, and not those that were lost.
            self.write(&open).await;
            self.fsync(&open).await;
        }
        self.close(&open).await;
    }

    /// Returns the number of pieces to write or read.
    fn pieces(&mut self, least: u64, most: u64) -> u64 {
        let pieces = self.random.between(least, most);
        self.shared.plan.pieces(pieces)
    }

    /// Pauses now and then while data is written and not committed.
    async fn dawdle(&mut self) {
        if self.random.chance(40) {
            let most_us = *self.random.of(&[100, 2_000, 300_000]);
            sleep(Duration::from_micros(self.random.between(1, most_us))).await;
        }
    }

    /// Appends a little to a file to which all workers append, some of them concurrently.
    pub(super) async fn append_together(&mut self) {
        self.append_to(InodeId::ROOT, "a").await;
    }

    /// Appends a little to a file.
    pub(super) async fn append_to(&mut self, parent: InodeId, name: &str) {
        let flags = libc::O_RDWR | libc::O_APPEND | libc::O_CREAT;
        let Some(open) = self.open(parent, name, flags).await else { return };
        for _ in 0..self.pieces(2, 5) {
            let length = self.random.between(APPEND_BYTES_MIN, 3_000);
            self.append(&open, length).await;
            self.does(Doing::Wrote);
            self.dawdle().await;
        }
        self.close(&open).await;
    }

    /// Removes a file and immediately writes another, so that its blocks are used again.
    pub(super) async fn replace(&mut self) {
        let (parent, name) = self.any_place();
        self.unlink_name(parent, &name).await;
        self.write_file().await;
    }

    /// Writes at a random offset. Returns whether that succeeded.
    pub(super) async fn write(&mut self, open: &Open) -> bool {
        let length = self.random.between(1, self.shared.plan.write_max);
        if open.file.is_appending() {
            return self.append(open, length.max(APPEND_BYTES_MIN)).await;
        }
        let mut offset = self.random.below(self.shared.plan.offset_max());
        if self.random.chance(30) {
            offset &= !4095;
        }
        let stamp = self.history().stamp();
        let life = self.begin("write");
        let bytes = pattern::bytes(stamp, 0, length as usize);
        let inode = open.file.inode.number().0;
        self.log(|| format!("write {stamp} to {inode} at {offset}, {length}"));
        self.on(|| format!(" {stamp}: {length} bytes to inode {inode} at {offset}"));
        let index = self.history().change(open.key, Effect::Write { offset, length, stamp }, life);
        let result = self.kernel.write(self.caller(), &open.file, offset, &bytes).await;
        self.answered("write", &result);
        let mut history = self.history();
        let tick = history.tick();
        history.counts.written_bytes += length;
        let life = &mut history.changes[index].life;
        life.returned = Some(tick);
        if result.is_err() {
            life.doubt();
        }
        result.is_ok()
    }

    /// Appends. write(2) does not return the offset, so the function searches for the bytes
    /// immediately.
    async fn append(&self, open: &Open, length: u64) -> bool {
        let stamp = self.history().stamp();
        let mut life = self.begin("write");
        let bytes = pattern::bytes(stamp, 0, length as usize);
        let inode = open.file.inode.number().0;
        self.log(|| format!("append {stamp} to {inode}, {length}"));
        self.on(|| format!(" {stamp}: {length} bytes to the end of inode {inode}"));
        self.history().unplaced.push((open.key, stamp, length));
        let result = self.kernel.write(self.caller(), &open.file, 0, &bytes).await;
        self.answered("write", &result);
        {
            let mut history = self.history();
            life.returned = Some(history.tick());
            history.counts.written_bytes += length;
        }
        if result.is_err() {
            return false;
        }
        let Some(offset) = self.find_append(open, &bytes).await else { return true };
        self.log(|| format!("append {stamp} is at {offset}"));
        let mut history = self.history();
        history.unplaced.retain(|(_, other, _)| *other != stamp);
        let index = history.change(open.key, Effect::Write { offset, length, stamp }, life);
        history.changes[index].is_append = true;
        true
    }

    /// Returns the offset of bytes that were just appended: at the end of the file, or near it.
    async fn find_append(&self, open: &Open, bytes: &[u8]) -> Option<u64> {
        let size = self.kernel.fstat(self.caller(), &open.file).await.ok()?.size;
        let wanted = &bytes[..bytes.len().min(64)];
        for tail in [bytes.len() as u64 + TAIL_BYTES, u64::MAX] {
            let start = size.saturating_sub(tail);
            let found =
                self.kernel.read(self.caller(), &open.file, start, size - start).await.ok()?;
            let at = found.windows(wanted.len()).rposition(|window| window == wanted);
            if let Some(at) = at {
                return Some(start + at as u64);
            }
        }
        None
    }

    /// Returns whether the fsync succeeded.
    pub(super) async fn fsync(&self, open: &Open) -> bool {
        let asked = self.history().tick();
        self.note("fsync");
        self.log(|| format!("fsync of {} begins", open.file.inode.number().0));
        self.on(|| format!(" of inode {}", open.file.inode.number().0));
        self.does(Doing::Commits);
        let result = self.kernel.fsync(self.caller(), &open.file).await;
        self.flushed("fsync", open.key, asked, result, true);
        result.is_ok()
    }

    pub(super) async fn close(&self, open: &Open) {
        self.close_published(open, &[]).await;
    }

    /// Closes a file. Returns whether that succeeded. Each pair in `published` stands for an
    /// unlock: writes from before the first tick were published by the second at the latest, unless
    /// the close returns their failure.
    pub(super) async fn close_published(&self, open: &Open, published: &[(Tick, Tick)]) -> bool {
        let asked = self.history().tick();
        self.note("close");
        self.log(|| format!("close of {} begins", open.file.inode.number().0));
        self.on(|| format!(" of inode {}", open.file.inode.number().0));
        let closing = self.kernel.close(self.caller(), &open.file);
        // A client that only reads commits nothing, not even the writes of others on its node.
        if !open.file.is_writable() {
            let result = closing.await;
            self.answered("close", &result);
            return result.is_ok();
        }
        self.does(Doing::Commits);
        let result = closing.await;
        if result.is_ok() {
            for (asked, done) in published {
                self.history().published(open.key, self.actor, *asked, *done);
            }
        }
        self.flushed("close", open.key, asked, result, false);
        result.is_ok()
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
            Ok(()) => {
                self.history().committed(file, self.actor, asked, durable);
                if durable {
                    self.history().synced(file, asked);
                }
            }
            Err(_) => self.history().lost(file, self.actor),
        }
    }

    pub(super) async fn read_file(&mut self) {
        let flags = *self.random.of(&[0, 0, libc::O_DIRECT]);
        let Some(open) = self.some_open_file(libc::O_RDONLY | flags).await else { return };
        for _ in 0..self.pieces(1, 3) {
            self.read(&open).await;
        }
        if self.shared.plan.may_lose_data() && self.random.chance(40) {
            // An fsync also makes the writes of others durable.
            self.fsync(&open).await;
        }
        self.close(&open).await;
    }

    pub(super) async fn read(&mut self, open: &Open) {
        let offset_max = self.shared.plan.offset_max();
        let (offset, length) = match self.random.below(3) {
            0 => (0, offset_max * 4),
            _ => (self.random.below(offset_max), self.random.between(1, offset_max * 3 / 10)),
        };
        // The function called has already judged any error.
        let _ = self.read_range(open, offset, length).await;
    }

    pub(crate) async fn read_range(
        &self,
        open: &Open,
        offset: u64,
        asked: u64,
    ) -> Result<(), Errno> {
        let mut session = self.session();
        let begun = self.history().tick();
        let mut start = begun;
        // Late notifications leave old pages until the next open.
        let is_prompt = self.shared.plan.late_pages().0 == 0;
        let filled = open.file.inode.filled().filter(|_| is_prompt);
        let fresh = filled.map(|since_ns| Fresh { since_ns, start: begun });
        self.note("read");
        let inode = open.file.inode.number().0;
        self.log(|| format!("read of {inode} begins"));
        self.on(|| format!(" of inode {inode}, {asked} bytes at {offset}"));
        self.does(Doing::Reads);
        let result = self.kernel.read(self.caller(), &open.file, offset, asked).await;
        if let Ok(bytes) = &result {
            self.on(|| format!(" = {} bytes", bytes.len()));
        }
        self.answered("read", &result);
        let bytes = result?;
        let is_cached = open.file.is_cached();
        if is_cached {
            // Pages may be as old as the open, but no older, if they were locked at a change.
            start = open.opened;
            session = session.filter(|present| open.session == Some(*present));
        }
        let session = session.filter(|before| self.session() == Some(*before));
        let (file, actor) = (open.key, self.actor);
        let mut history = self.history();
        let end = history.tick();
        history.counts.read_bytes += bytes.len() as u64;
        let ends_since = if open.file.is_end_old.take() { open.opened } else { start };
        let read = Read {
            file,
            actor,
            session,
            start,
            end,
            ends_since,
            offset,
            asked,
            bytes,
            is_cached,
            fresh,
        };
        history.reads.push(read);
        Ok(())
    }

    /// Asks for the size of an open file.
    pub(super) async fn see_size(&self, open: &Open) {
        let (session, start) = (self.session(), self.history().tick());
        self.note("fstat");
        self.on(|| format!(" of inode {}", open.file.inode.number().0));
        let result = self.kernel.fstat_seen(self.caller(), &open.file).await;
        self.answered("fstat", &result);
        if let Ok((attributes, true)) = result {
            self.saw_size(open.key, attributes.size, (session, start));
        }
    }

    /// Records the size of a file that was asked for at a tick of a session.
    pub(super) fn saw_size(
        &self,
        file: FileKey,
        size: u64,
        (session, start): (Option<SessionId>, Tick),
    ) {
        self.on(|| format!(" = {size} bytes"));
        let session = session.filter(|before| self.session() == Some(*before));
        let mut history = self.history();
        let end = history.tick();
        history.sizes.push(SizeSeen { file, actor: self.actor, session, start, end, size });
    }

    /// Returns a random file, open.
    pub(super) async fn some_open_file(&mut self, flags: i32) -> Option<Open> {
        let (parent, name) = self.file_place();
        self.open(parent, &name, flags).await
    }

    pub(super) async fn truncate(&mut self) {
        let (parent, name) = self.file_place();
        let offset_max = self.shared.plan.offset_max();
        let size = if self.random.chance(40) { 0 } else { self.random.below(offset_max) };
        self.truncate_to((parent, &name), size).await;
    }

    /// Empties a file that others may be reading, and immediately writes to another file or to this
    /// one.
    pub(super) async fn rewrite(&mut self) {
        let (parent, name) = self.any_place();
        self.truncate_to((parent, &name), 0).await;
        self.write_file().await;
    }

    pub(super) async fn truncate_to(&self, (parent, name): (InodeId, &str), size: u64) {
        let life = self.begin("truncate");
        self.log(|| format!("truncate of {name} to {size}"));
        self.on_name(parent, name);
        self.on(|| format!(" to {size}"));
        self.does(Doing::Changes);
        let index = std::cell::Cell::new(None);
        let acts = |inode| {
            let file = self.file(inode);
            self.on(|| format!(" of inode {}", inode.0));
            let change = || self.history().change(file, Effect::Truncate { size }, life.clone());
            let at = index.get().unwrap_or_else(change);
            self.history().changes[at].file = file;
            index.set(Some(at));
        };
        let path = self.path(parent, name);
        let result = self.kernel.truncate(self.caller(), path, size, acts).await;
        match index.get() {
            Some(index) => self.end_change("truncate", index, &result),
            None => self.answered("truncate", &result),
        }
    }

    pub(super) async fn punch(&mut self) {
        let Some(open) = self.some_open_file(libc::O_RDWR).await else { return };
        let offset_max = self.shared.plan.offset_max();
        let offset = self.random.below(offset_max);
        let length = self.random.between(1, offset_max / 4);
        let (effect, mode) = if self.random.chance(70) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            (Effect::Punch { offset, length }, mode)
        } else {
            let size = offset + length;
            (Effect::Extend { size }, 0)
        };
        let index = self.begin_change("fallocate", &open, effect);
        let range = (offset, length);
        let result = self.kernel.fallocate(self.caller(), &open.file, range, mode).await;
        self.end_change("fallocate", index, &result);
        self.close(&open).await;
    }

    pub(super) async fn copy(&mut self) {
        let Some(from) = self.some_open_file(libc::O_RDONLY).await else { return };
        if let Some(to) = self.some_open_file(libc::O_RDWR).await {
            if from.key != to.key {
                self.copy_range(&from, &to).await;
            }
            self.close(&to).await;
        }
        self.close(&from).await;
    }

    async fn copy_range(&mut self, from: &Open, to: &Open) {
        let offset_max = self.shared.plan.offset_max();
        let offset = self.random.below(offset_max);
        let (source_offset, length) = if self.random.chance(50) {
            // Long enough that the service shares blocks, if the source is that long.
            (self.random.below(COPY_START_MAX), self.random.between(COPY_BYTES_MIN, COPY_BYTES_MAX))
        } else {
            let length_max = *self.random.of(&[80_000, 200_000]);
            (self.random.below(offset_max), self.random.between(1, length_max))
        };
        let source = from.key;
        let effect = Effect::Copy { source, source_offset, offset, length };
        let index = self.begin_change("copy", to, effect);
        let (source_at, at) = ((&from.file, source_offset), (&to.file, offset));
        let result = self.kernel.copy(self.caller(), source_at, at, length).await;
        if let Ok(copied) = result {
            let effect = Effect::Copy { source, source_offset, offset, length: copied };
            self.history().changes[index].effect = effect;
        }
        // A copy commits the source first, and returns errors of that commit.
        if result.is_err() {
            self.history().lost(source, self.actor);
        }
        let is_committed = matches!(result, Ok(copied) if copied > client::COPIED_HERE_BYTES);
        if is_committed || result.is_err() {
            return self.end_change("copy", index, &result);
        }
        // A small amount is copied by reading and writing: the close commits it.
        self.answered("copy", &result);
        let mut history = self.history();
        let tick = history.tick();
        history.changes[index].life.returned = Some(tick);
    }

    fn begin_change(&self, what: &'static str, open: &Open, effect: Effect) -> usize {
        let life = self.begin(what);
        let inode = open.file.inode.number().0;
        self.log(|| format!("{what} of {inode}: {effect:?}"));
        self.on(|| format!(" of inode {inode}: {effect:?}"));
        self.does(Doing::Changes);
        self.history().change(open.key, effect, life)
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
        // The call began by committing earlier writes, and returns the error of that commit.
        history.lost(file, self.actor);
    }
}

/// Steps for the end of a run.
impl Worker {
    pub(crate) fn directories(&self) -> Vec<InodeId> {
        self.shared.directories.borrow().clone()
    }

    pub(crate) async fn lookup_again(&self, parent: InodeId, name: &str) -> Option<super::Found> {
        // The history does not cover other names, such as a killed worker's symbolic link.
        let is_known = super::NAMES.contains(&name) || super::LINK_NAMES.contains(&name);
        if !is_known && name != super::SHARED {
            return None;
        }
        self.lookup(parent, name).await
    }

    pub(crate) async fn read_whole(&self, parent: InodeId, name: &str) {
        let Some(open) = self.open(parent, name, libc::O_RDONLY).await else { return };
        if self.read_range(&open, 0, 4 << 20).await == Err(Errno::EIO) {
            self.history().unreadable.push(open.key);
        }
        self.close(&open).await;
    }

    /// Returns whether all of a file can be read; `None` if there is no such file.
    pub(crate) async fn is_readable(&self, parent: InodeId, name: &str) -> Option<bool> {
        let path = self.path(parent, name);
        let attributes = self.kernel.stat(self.caller(), path).await.ok()?;
        if attributes.mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        Some(self.read_pieces(path, attributes.size).await.is_ok())
    }

    /// Reads a file from its devices.
    async fn read_pieces(&self, path: Path<'_>, size: u64) -> Result<(), Errno> {
        let flags = libc::O_RDONLY | libc::O_DIRECT;
        let file = self.kernel.open(self.caller(), path, flags).await?;
        let mut result = Ok(());
        for offset in (0..size).step_by(READ_BYTES as usize) {
            let read = self.kernel.read(self.caller(), &file, offset, READ_BYTES).await.map(drop);
            self.log(|| format!("{path:?} at {offset}: {read:?}"));
            result = result.and(read);
        }
        self.kernel.close(self.caller(), &file).await.and(result)
    }

    pub(crate) fn reads_ballast(&self) -> bool {
        self.shared.plan.reads_ballast()
    }

    pub(crate) fn has_ballast(&self) -> bool {
        self.shared.plan.spare_bytes.is_some()
    }

    pub(crate) async fn remove(&self, parent: InodeId, name: &str) {
        if crate::worker::DIRECTORIES.contains(&name) {
            return;
        }
        let path = self.path(parent, name);
        let result = match self.kernel.unlink(self.caller(), path).await {
            Err(Errno::EISDIR) => self.kernel.rmdir(self.caller(), path).await,
            result => result,
        };
        if let Err(errno) = result {
            self.history().violations.push(format!("{name} cannot be removed: {errno}"));
        }
    }

    /// Checks that this worker can write most of an empty pool. Other sessions may lease parts of it.
    pub(crate) async fn expect_room(self) {
        let caller = self.caller();
        let Ok(pool) = self.kernel.statfs(caller).await else { return };
        let bytes = pool.blocks * u64::from(pool.fragment_size) * ROOM_PERCENT / 100;
        let path = self.path(InodeId::ROOT, ROOM);
        let piece = vec![1; ROOM_PIECE_BYTES as usize];
        let Ok(file) = self.kernel.open(caller, path, libc::O_RDWR | libc::O_CREAT).await else {
            return;
        };
        for offset in (0..bytes).step_by(ROOM_PIECE_BYTES as usize) {
            if let Err(errno) = self.kernel.write(caller, &file, offset, &piece).await {
                let text =
                    format!("an empty pool is full after {offset} of {bytes} bytes: {errno}");
                self.history().violations.push(text);
                break;
            }
        }
        if let Err(errno) = self.kernel.close(caller, &file).await {
            self.history().violations.push(format!("an empty pool cannot be written: {errno}"));
        }
        self.remove(InodeId::ROOT, ROOM).await;
    }

    /// Returns the numbers of used bytes and inodes.
    pub(crate) async fn pool(&self) -> Option<(u64, u64)> {
        let pool = self.kernel.statfs(self.caller()).await.ok()?;
        let used = (pool.blocks - pool.blocks_free) * u64::from(pool.fragment_size);
        Some((used, pool.files - pool.files_free))
    }
}
