//! Simulated files: their visible content, their durable content, and what power loss leaves of
//! them.

use super::moment::Seen;
use super::node::DiskFault;
use super::world::{Event, Object, World};
use crate::chunk::Chunk;
use crate::file::OpenOptions;
use crate::operation::Operation;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const PAGE_BYTES: usize = 4096;

type Page = Rc<[u8; PAGE_BYTES]>;

/// Sparse bytes; clones share pages.
#[derive(Clone, Default)]
struct Bytes(BTreeMap<u64, Page>);

impl Bytes {
    fn read(&self, mut offset: u64, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let start = (offset % PAGE_BYTES as u64) as usize;
            let here = (len - out.len()).min(PAGE_BYTES - start);
            match self.0.get(&(offset / PAGE_BYTES as u64)) {
                Some(page) => out.extend_from_slice(&page[start..start + here]),
                None => out.resize(out.len() + here, 0),
            }
            offset += here as u64;
        }
        out
    }

    /// Writes bytes. Returns the resulting pages.
    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Vec<Page> {
        let mut pages: Vec<Page> = Vec::with_capacity(bytes.len() / PAGE_BYTES + 2);
        while !bytes.is_empty() {
            let start = (offset % PAGE_BYTES as u64) as usize;
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - start));
            // Equal pages, such as zeros, share one page.
            let same = pages.last().filter(|page| page[..] == *piece).map(Rc::clone);
            let whole = same.or_else(|| <[u8; PAGE_BYTES]>::try_from(piece).ok().map(Rc::new));
            pages.push(self.put(offset / PAGE_BYTES as u64, start, piece, whole));
            offset += piece.len() as u64;
            bytes = rest;
        }
        pages
    }

    /// Replaces a page by a whole one, or a part of it. Returns the page.
    fn put(&mut self, number: u64, start: usize, piece: &[u8], whole: Option<Page>) -> Page {
        if let Some(page) = whole {
            self.0.insert(number, Rc::clone(&page));
            return page;
        }
        let page = self.0.entry(number).or_insert_with(|| Rc::new([0; PAGE_BYTES]));
        Rc::make_mut(page)[start..start + piece.len()].copy_from_slice(piece);
        Rc::clone(page)
    }

    /// Removes all bytes from `size` on.
    fn truncate(&mut self, size: u64) {
        self.0.retain(|&page, _| page * (PAGE_BYTES as u64) < size);
        let start = (size % PAGE_BYTES as u64) as usize;
        if let Some(page) = self.0.get_mut(&(size / PAGE_BYTES as u64)) {
            Rc::make_mut(page)[start..].fill(0);
        }
    }
}

/// A write that no flush covers.
struct Unflushed {
    number: u64,
    offset: u64,
    len: u64,
    /// The pages that it touched, as they were after it.
    pages: Vec<Page>,
}

impl Unflushed {
    /// Returns its parts within pages: the page's number, the page, and the range in it.
    fn parts(&self) -> impl Iterator<Item = (u64, &Page, Range<usize>)> {
        let page_bytes = PAGE_BYTES as u64;
        let (offset, end) = (self.offset, self.offset + self.len);
        let covered = offset / page_bytes..end.div_ceil(page_bytes);
        covered.zip(&self.pages).map(move |(number, page)| {
            let first = number * page_bytes;
            let start = offset.max(first) - first;
            (number, page, start as usize..(end.min(first + page_bytes) - first) as usize)
        })
    }
}

#[derive(Default)]
struct SimFile {
    current: Bytes,
    durable: Bytes,
    unflushed: Vec<Unflushed>,
    /// Number of the next write.
    next_write: u64,
    size: u64,
    /// How often each page was written.
    page_writes: BTreeMap<u64, u32>,
    /// The open file that holds the lock.
    locked_by: Option<u64>,
}

/// All files of all nodes.
#[derive(Default)]
pub(crate) struct Disk {
    files: BTreeMap<(u32, PathBuf), usize>,
    all: Vec<SimFile>,
}

/// An open file description.
pub(crate) struct OpenFile {
    pub(crate) node: u32,
    file: usize,
    can_read: bool,
    can_write: bool,
}

impl Disk {
    pub(crate) fn close(&mut self, object: u64, open: &OpenFile) {
        self.all[open.file].locked_by.take_if(|holder| *holder == object);
    }
}

impl World {
    /// Opens a file of a node.
    pub(crate) fn open(&mut self, node: u32, path: &Path, options: OpenOptions) -> io::Result<u64> {
        let known = self.disk.files.get(&(node, path.into())).copied();
        let file = match known {
            Some(_) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(file) => file,
            None if !(options.create || options.create_new) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            None => {
                self.disk.all.push(SimFile::default());
                let file = self.disk.all.len() - 1;
                self.disk.files.insert((node, path.into()), file);
                file
            }
        };
        if options.truncate {
            self.resize(file, 0);
        }
        let (can_read, can_write) = (options.read || !options.write, options.write);
        Ok(self.add(Object::File(OpenFile { node, file, can_read, can_write })))
    }

    fn open_file(&self, object: u64) -> io::Result<&OpenFile> {
        match self.objects.get(&object) {
            Some(Object::File(open)) => Ok(open),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// Returns whether an object is a file that a node has open.
    pub(crate) fn is_of(&self, object: u64, node: u32) -> bool {
        self.open_file(object).is_ok_and(|open| open.node == node)
    }

    pub(crate) fn file_size(&self, object: u64) -> io::Result<u64> {
        Ok(self.disk.all[self.open_file(object)?.file].size)
    }

    pub(crate) fn set_file_size(&mut self, object: u64, size: u64) -> io::Result<()> {
        let file = self.open_file(object)?.file;
        self.resize(file, size);
        Ok(())
    }

    /// Returns the number of pages (4096 bytes) of a node's file that were written more than
    /// `times` times.
    pub(crate) fn pages_written(&self, node: u32, path: &Path, times: u32) -> usize {
        let file = self.disk.files.get(&(node, path.into())).map(|&file| &self.disk.all[file]);
        file.map_or(0, |file| file.page_writes.values().filter(|count| **count > times).count())
    }

    fn resize(&mut self, file: usize, size: u64) {
        let file = &mut self.disk.all[file];
        if size < file.size {
            file.current.truncate(size);
            file.durable.truncate(size);
            for write in &mut file.unflushed {
                write.len = size.saturating_sub(write.offset).min(write.len);
            }
        }
        file.size = size;
    }

    pub(crate) fn lock_file(&mut self, object: u64) -> io::Result<()> {
        let file = self.open_file(object)?.file;
        let holder = &mut self.disk.all[file].locked_by;
        if holder.is_some_and(|holder| holder != object) {
            let message = "locked by another process";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
        }
        *holder = Some(object);
        Ok(())
    }

    /// Starts a file operation.
    pub(crate) fn start_disk(&mut self, key: u32, object: u64, operation: &Operation) {
        let Ok(open) = self.open_file(object) else { return self.fail(key, libc::EBADF) };
        let (node, file) = (open.node, open.file);
        let config = &self.config;
        let usual = (config.read_latency, config.write_latency, config.sync_latency);
        let pace = self.nodes[node as usize].pace;
        let (read, write, sync) = pace.map_or(usual, |pace| (pace.read, pace.write, pace.sync));
        let (latency, seen) = match operation {
            Operation::Read { .. } => (read, Seen::Read(node)),
            Operation::Sync { .. } => (sync, Seen::Flush(node)),
            _ => (write, Seen::Write(node)),
        };
        self.see(seen);
        let delay = self.rng.ns(latency);
        let epoch = self.nodes[node as usize].epoch;
        let covered = self.disk.all[file].next_write;
        self.plan(delay, Event::Disk { key, object, epoch, covered });
    }

    /// Carries out a file operation and returns its code.
    pub(crate) fn run_disk(
        &mut self,
        object: u64,
        epoch: u64,
        covered: u64,
        operation: &mut Operation,
    ) -> i32 {
        let Ok(open) = self.open_file(object) else { return -libc::EBADF };
        if self.nodes[open.node as usize].epoch != epoch {
            return -libc::EIO;
        }
        let (node, file, can_read, can_write) =
            (open.node, open.file, open.can_read, open.can_write);
        let is_read = matches!(operation, Operation::Read { .. });
        let is_sync = matches!(operation, Operation::Sync { .. });
        if !is_sync && !(if is_read { can_read } else { can_write }) {
            return -libc::EBADF;
        }
        let fault = self.nodes[node as usize].disk_fault;
        let failed = if is_read {
            fault.read
        } else if is_sync {
            fault.sync
        } else {
            fault.write
        };
        if let Some(error) = failed {
            self.note(19, object, 0);
            if is_sync && fault.forgets {
                self.disk.all[file].forget(covered);
            }
            return error.code();
        }
        let flipped = (is_read && fault.flips_percent > 0).then(|| self.flipped(operation, fault));
        let file = &mut self.disk.all[file];
        match operation {
            Operation::Read { segments, offset } => {
                let mut at = *offset;
                let start = at;
                for segment in segments {
                    let here = (segment.len() as u64).min(file.size.saturating_sub(at));
                    let mut bytes = file.current.read(at, here as usize);
                    if let Some(Some((flipped, bit))) = flipped
                        && let Some(byte) = flipped.checked_sub(at - start)
                        && let Some(byte) = bytes.get_mut(byte as usize)
                    {
                        *byte ^= bit;
                    }
                    segment.fill_from(&bytes);
                    at += here;
                }
                (at - start) as i32
            }
            Operation::Write { chunks, offset, skip } => {
                file.write(*offset + *skip as u64, &gather(chunks, *skip))
            }
            Operation::WriteOne { chunk, offset, skip } => {
                file.write(*offset + *skip as u64, &chunk.to_bytes()[*skip..])
            }
            Operation::Sync { .. } => {
                file.sync(covered);
                0
            }
            Operation::Allocate { mode, offset, len } => file.allocate(*mode, *offset, *len),
            _ => -libc::EINVAL,
        }
    }

    /// Returns the byte and the bit of a read that is flipped, if one is.
    fn flipped(&mut self, operation: &Operation, fault: DiskFault) -> Option<(u64, u8)> {
        let Operation::Read { segments, .. } = operation else { return None };
        let length: u64 = segments.iter().map(|segment| segment.len() as u64).sum();
        let is_flipped = self.rng.below(100) < u64::from(fault.flips_percent);
        is_flipped.then(|| (self.rng.below(length), 1 << self.rng.below(8)))
    }

    /// Takes a node's power away: of each of its files' unflushed writes, and of the writes in
    /// `in_flight` (file object, offset, bytes), each unit is kept or lost by chance.
    pub(crate) fn lose_unflushed(&mut self, node: u32, in_flight: Vec<(u64, u64, Vec<u8>)>) {
        for (object, offset, bytes) in in_flight {
            if let Ok(open) = self.open_file(object) {
                let file = open.file;
                self.disk.all[file].write(offset, &bytes);
            }
        }
        let tear_bytes = self.config.tear_bytes.max(1);
        let files: Vec<usize> = self
            .disk
            .files
            .iter()
            .filter(|((owner, _), _)| *owner == node)
            .map(|(_, &file)| file)
            .collect();
        for file in files {
            let file = &mut self.disk.all[file];
            for write in std::mem::take(&mut file.unflushed) {
                // A third each: whole, lost, torn.
                let fate = self.rng.below(3);
                for (number, page, range) in write.parts() {
                    let mut start = range.start;
                    while start < range.end {
                        let end = range.end.min(start + tear_bytes);
                        let kept = fate == 0 || fate == 2 && self.rng.below(2) == 0;
                        if kept {
                            file.durable.put(number, start, &page[start..end], None);
                        }
                        start = end;
                    }
                }
            }
            file.current = file.durable.clone();
        }
    }
}

/// Returns all bytes of `chunks` except the first `skip`.
pub(crate) fn gather(chunks: &[Chunk], skip: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(chunks.iter().map(Chunk::len).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.to_bytes());
    }
    bytes.drain(..skip.min(bytes.len()));
    bytes
}

impl SimFile {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> i32 {
        let len = bytes.len() as u64;
        let pages = self.current.write(offset, bytes);
        for page in (offset / PAGE_BYTES as u64..).take(pages.len()) {
            *self.page_writes.entry(page).or_default() += 1;
        }
        self.size = self.size.max(offset + len);
        self.unflushed.push(Unflushed { number: self.next_write, offset, len, pages });
        self.next_write += 1;
        len as i32
    }

    /// Returns the writes numbered below `covered`, in order; they no longer count as unflushed.
    fn take_unflushed(&mut self, covered: u64) -> Vec<Unflushed> {
        let later = self.unflushed.iter().position(|write| write.number >= covered);
        let count = later.unwrap_or(self.unflushed.len());
        self.unflushed.drain(..count).collect()
    }

    /// Treats the writes numbered below `covered` as flushed, though they are not.
    fn forget(&mut self, covered: u64) {
        self.take_unflushed(covered);
    }

    /// Makes the writes numbered below `covered` durable.
    fn sync(&mut self, covered: u64) {
        for write in self.take_unflushed(covered) {
            for (number, page, range) in write.parts() {
                let whole = (range.len() == PAGE_BYTES).then(|| Rc::clone(page));
                self.durable.put(number, range.start, &page[range], whole);
            }
        }
    }

    fn allocate(&mut self, mode: i32, offset: u64, len: u64) -> i32 {
        const ZEROING: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !(ZEROING | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return -libc::EOPNOTSUPP;
        }
        let end = offset + len;
        if mode & ZEROING != 0 {
            let inside = end.min(self.size).saturating_sub(offset);
            self.write(offset, &vec![0; inside as usize]);
        }
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            self.size = self.size.max(end);
        }
        0
    }
}
