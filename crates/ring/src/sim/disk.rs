//! Simulated files: what programs see, what a flush has made durable, and what power loss leaves.

use super::moment::Seen;
use super::world::{Event, Object, World};
use crate::chunk::Chunk;
use crate::file::OpenOptions;
use crate::operation::Operation;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const PAGE_BYTES: usize = 4096;

type Page = Rc<[u8; PAGE_BYTES]>;

/// Sparse bytes; clones share pages.
#[derive(Clone, Default)]
struct Bytes(BTreeMap<u64, Page>);

impl Bytes {
    fn read(&self, mut offset: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let start = (offset % PAGE_BYTES as u64) as usize;
            let here = out.len().min(PAGE_BYTES - start);
            let (piece, rest) = out.split_at_mut(here);
            match self.0.get(&(offset / PAGE_BYTES as u64)) {
                Some(page) => piece.copy_from_slice(&page[start..start + here]),
                None => piece.fill(0),
            }
            offset += here as u64;
            out = rest;
        }
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = (offset % PAGE_BYTES as u64) as usize;
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES - start));
            let page = self.0.entry(offset / PAGE_BYTES as u64);
            let page = page.or_insert_with(|| Rc::new([0; PAGE_BYTES]));
            Rc::make_mut(page)[start..start + piece.len()].copy_from_slice(piece);
            offset += piece.len() as u64;
            bytes = rest;
        }
    }

    /// Forgets all from `size` on.
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
    bytes: Vec<u8>,
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

    /// Whether an object is a file that a node has open.
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

    /// How many pages (4096 bytes) of a file of a node were written more than `times` times.
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
                let kept = size.saturating_sub(write.offset).min(write.bytes.len() as u64);
                write.bytes.truncate(kept as usize);
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

    /// Begins a file operation.
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

    /// A file operation takes place; answers its code.
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
        let (file, can_read, can_write) = (open.file, open.can_read, open.can_write);
        let is_read = matches!(operation, Operation::Read { .. });
        let is_sync = matches!(operation, Operation::Sync { .. });
        if !is_sync && !(if is_read { can_read } else { can_write }) {
            return -libc::EBADF;
        }
        let file = &mut self.disk.all[file];
        match operation {
            Operation::Read { segments, offset } => {
                let mut at = *offset;
                let start = at;
                for segment in segments {
                    let here = (segment.len() as u64).min(file.size.saturating_sub(at));
                    let mut bytes = vec![0; here as usize];
                    file.current.read(at, &mut bytes);
                    segment.fill_from(&bytes);
                    at += here;
                }
                (at - start) as i32
            }
            Operation::Write { chunks, offset, skip } => {
                file.write(*offset + *skip as u64, gather(chunks, *skip))
            }
            Operation::WriteOne { chunk, offset, skip } => {
                let bytes = gather(std::slice::from_ref(chunk), *skip);
                file.write(*offset + *skip as u64, bytes)
            }
            Operation::Sync { .. } => {
                file.sync(covered);
                0
            }
            Operation::Allocate { mode, offset, len } => file.allocate(*mode, *offset, *len),
            _ => -libc::EINVAL,
        }
    }

    /// A node loses power: of each of its files' unflushed writes, and of `in_flight` ones (file
    /// object, offset, bytes), each unit is kept or lost by chance.
    pub(crate) fn lose_unflushed(&mut self, node: u32, in_flight: Vec<(u64, u64, Vec<u8>)>) {
        for (object, offset, bytes) in in_flight {
            if let Ok(open) = self.open_file(object) {
                let file = open.file;
                self.disk.all[file].write(offset, bytes);
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
                for (index, piece) in write.bytes.chunks(tear_bytes).enumerate() {
                    let kept = fate == 0 || fate == 2 && self.rng.below(2) == 0;
                    if kept {
                        let offset = write.offset + (index * tear_bytes) as u64;
                        file.durable.write(offset, piece);
                    }
                }
            }
            file.current = file.durable.clone();
        }
    }
}

/// All bytes of `chunks` but the first `skip`.
pub(crate) fn gather(chunks: &[Chunk], skip: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.to_bytes());
    }
    bytes.drain(..skip.min(bytes.len()));
    bytes
}

impl SimFile {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) -> i32 {
        let len = bytes.len();
        self.current.write(offset, &bytes);
        let page_bytes = PAGE_BYTES as u64;
        for page in offset / page_bytes..(offset + len as u64).div_ceil(page_bytes) {
            *self.page_writes.entry(page).or_default() += 1;
        }
        self.size = self.size.max(offset + len as u64);
        self.unflushed.push(Unflushed { number: self.next_write, offset, bytes });
        self.next_write += 1;
        len as i32
    }

    /// Makes the writes numbered below `covered` durable.
    fn sync(&mut self, covered: u64) {
        let later = self.unflushed.iter().position(|write| write.number >= covered);
        let count = later.unwrap_or(self.unflushed.len());
        for write in self.unflushed.drain(..count) {
            self.durable.write(write.offset, &write.bytes);
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
            self.write(offset, vec![0; inside as usize]);
        }
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
            self.size = self.size.max(end);
        }
        0
    }
}
