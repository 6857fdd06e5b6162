//! A thread of the load: its operations, with FFSB's system calls in FFSB's order.

use super::FfsbError;
use super::account::Part;
use super::files::{Files, Held};
use super::fileset::{Set, fill, size};
use super::operation::{Call, Operation};
use super::profile::{Access, Profile, ThreadGroup};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use stats::random::Random;
use std::path::Path;
use std::time::{Duration, Instant};

/// What direct I/O wants, and `alignio` makes of offsets.
const ALIGNMENT: u64 = 4096;

/// A thread of a group.
pub(super) struct Worker<'a> {
    group: &'a ThreadGroup,
    sets: &'a [Set],
    is_direct: bool,
    is_aligned: bool,
    /// Works on the files that age a file system.
    is_aging: bool,
    random: Random,
    memory: Vec<u8>,
    /// Where in the memory the aligned buffer begins.
    start: usize,
    weight_sum: u64,
    /// What it has counted.
    pub(super) part: Part,
}

/// What an operation came to.
struct Done {
    transactions: u64,
    bytes: u64,
    is_first_write: bool,
}

impl Done {
    fn one() -> Self {
        Self { transactions: 1, bytes: 0, is_first_write: false }
    }
}

impl<'a> Worker<'a> {
    /// A thread of the load.
    pub(super) fn new(
        profile: &Profile,
        group: &'a ThreadGroup,
        sets: &'a [Set],
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let len = group.read.block_bytes.max(group.write.block_bytes) as usize;
        let mut memory = vec![0; len + ALIGNMENT as usize];
        fill(&mut memory, &mut random);
        let start = memory.as_ptr().align_offset(ALIGNMENT as usize).min(ALIGNMENT as usize);
        Self {
            group,
            sets,
            is_direct: profile.is_direct,
            is_aligned: profile.is_aligned,
            is_aging: false,
            random,
            memory,
            start,
            weight_sum: group.mix().map(|(_, weight)| u64::from(weight)).sum(),
            part: Part::default(),
        }
    }

    /// A thread that ages a file system.
    pub(super) fn aging(
        profile: &Profile,
        group: &'a ThreadGroup,
        set: &'a Set,
        seed: u64,
    ) -> Self {
        Self { is_aging: true, ..Self::new(profile, group, std::slice::from_ref(set), seed) }
    }

    /// Does one operation, and the pause after it; gives when it ended.
    pub(super) fn step(&mut self) -> Result<Instant, FfsbError> {
        let mut place = self.random.next_u64() % self.weight_sum.max(1);
        let operation = self.group.mix().find(|(_, weight)| {
            let weight = u64::from(*weight);
            let is_it = place < weight;
            place = place.saturating_sub(weight);
            is_it
        });
        let (operation, _) = operation.ok_or(FfsbError::NoOperation)?;
        let set = self.group.bound.unwrap_or_else(|| self.random.below(self.sets.len()));
        let sets = self.sets;
        let begun = Instant::now();
        let done = self.operate(operation, &sets[set])?;
        let ended = Instant::now();
        let time = ended - begun;
        self.part.tally.count(operation, done.transactions, done.bytes);
        self.part.latencies.record(time);
        if done.is_first_write {
            self.part.first_writes.record(time);
        }
        if self.group.delay_ms > 0 {
            std::thread::sleep(Duration::from_millis(self.group.delay_ms.into()));
        }
        Ok(ended)
    }

    fn operate(&mut self, operation: Operation, set: &'a Set) -> Result<Done, FfsbError> {
        use Operation as Op;
        let files = if self.is_aging { &set.fill } else { &set.data };
        match operation {
            Op::Read => self.read(files),
            Op::Readall => self.read_all(files),
            Op::Write | Op::WriteFsync => self.write(files, operation == Op::WriteFsync),
            Op::Writeall | Op::WriteallFsync => {
                self.write_all(files, operation == Op::WriteallFsync)
            }
            Op::Create | Op::CreateFsync => self.create(set, operation == Op::CreateFsync),
            Op::Append | Op::AppendFsync => self.append(files, operation == Op::AppendFsync),
            Op::Delete => self.delete(files),
            Op::Metaop => self.metadata(&set.meta),
            Op::Createdir => create_directory(files),
            Op::Stat => {
                let held = files.share(&mut self.random)?;
                let name = held.name();
                self.timed(Call::Stat, &name, "cannot look at", || rustix::fs::stat(&*name))?;
                Ok(Done::one())
            }
            Op::OpenClose => {
                let held = files.share(&mut self.random)?;
                let file = self.open(&held, OFlags::RDONLY)?;
                self.close(file);
                Ok(Done::one())
            }
        }
    }

    fn read(&mut self, files: &Files) -> Result<Done, FfsbError> {
        let held = files.share(&mut self.random)?;
        let name = held.name();
        let file = self.open(&held, OFlags::RDONLY)?;
        let Access { is_random, size_bytes, block_bytes } = self.group.read;
        let block = u64::from(block_bytes);
        let bytes = file_bytes(&name, size_bytes, "read_size")?;
        let (transactions, moved) = if is_random {
            let blocks = size_bytes / block;
            self.at_random(&file, &name, blocks, bytes.saturating_sub(block), Call::Read)?;
            (blocks, blocks * block)
        } else if self.group.read_skip_bytes > 0 {
            (self.read_skipping(&file, &name, bytes)?, size_bytes)
        } else {
            self.seek_to_part(&file, &name, bytes - size_bytes)?;
            self.move_all(&file, &name, size_bytes, Call::Read)?;
            // FFSB does not count a last block that is smaller.
            (size_bytes / block, size_bytes)
        };
        drop(name);
        drop(held);
        self.close(file);
        Ok(Done { transactions, bytes: moved, is_first_write: false })
    }

    /// Reads from the start, a block and then a gap.
    fn read_skipping(&mut self, file: &OwnedFd, name: &Path, bytes: u64) -> Result<u64, FfsbError> {
        let Access { size_bytes, block_bytes, .. } = self.group.read;
        let (block, skip) = (u64::from(block_bytes), u64::from(self.group.read_skip_bytes));
        let (blocks, last) = (size_bytes / block, size_bytes % block);
        // The gap after the last block need not be there.
        let needed = size_bytes + skip * (blocks + u64::from(last > 0)).saturating_sub(1);
        if bytes < needed {
            return Err(FfsbError::too_small(name, bytes, needed, "read_size with read_skipsize"));
        }
        for _ in 0..blocks {
            self.move_block(file, name, block, Call::Read)?;
            self.seek(file, name, SeekFrom::Current(skip as i64))?;
        }
        if last > 0 {
            self.move_block(file, name, last, Call::Read)?;
        }
        Ok(blocks + u64::from(last > 0))
    }

    fn read_all(&mut self, files: &Files) -> Result<Done, FfsbError> {
        let held = files.share(&mut self.random)?;
        let name = held.name();
        let file = self.open(&held, OFlags::RDONLY)?;
        let bytes = file_bytes(&name, 0, "")?;
        self.move_all(&file, &name, bytes, Call::Read)?;
        drop(name);
        drop(held);
        self.close(file);
        let transactions = bytes / u64::from(self.group.read.block_bytes);
        Ok(Done { transactions, bytes, is_first_write: false })
    }

    fn write(&mut self, files: &Files, syncs: bool) -> Result<Done, FfsbError> {
        let held = files.share(&mut self.random)?;
        let is_first_write = held.is_first_write();
        let name = held.name();
        let file = self.open(&held, OFlags::WRONLY)?;
        let Access { is_random, size_bytes, block_bytes } = self.group.write;
        let block = u64::from(block_bytes);
        let bytes = file_bytes(&name, size_bytes, "write_size")?;
        let (transactions, moved) = if is_random {
            let blocks = size_bytes / block;
            self.at_random(&file, &name, blocks, bytes.saturating_sub(block), Call::Write)?;
            (blocks, blocks * block)
        } else {
            self.seek_to_part(&file, &name, bytes - size_bytes)?;
            (self.move_all(&file, &name, size_bytes, Call::Write)?, size_bytes)
        };
        sync(&file, &name, syncs)?;
        drop(name);
        drop(held);
        self.close(file);
        Ok(Done { transactions, bytes: moved, is_first_write })
    }

    fn write_all(&mut self, files: &Files, syncs: bool) -> Result<Done, FfsbError> {
        let held = files.share(&mut self.random)?;
        let is_first_write = held.is_first_write();
        let name = held.name();
        let file = self.open(&held, OFlags::WRONLY)?;
        let bytes = file_bytes(&name, 0, "")?;
        let transactions = self.move_all(&file, &name, bytes, Call::Write)?;
        sync(&file, &name, syncs)?;
        drop(name);
        drop(held);
        self.close(file);
        Ok(Done { transactions, bytes, is_first_write })
    }

    fn append(&mut self, files: &Files, syncs: bool) -> Result<Done, FfsbError> {
        let held = files.share(&mut self.random)?;
        let is_first_write = held.is_first_write();
        let name = held.name().clone();
        let file = self.open(&held, OFlags::WRONLY | OFlags::APPEND)?;
        // As FFSB: from here on it may be removed.
        drop(held);
        let bytes = self.group.write.size_bytes;
        let transactions = self.move_all(&file, &name, bytes, Call::Write)?;
        sync(&file, &name, syncs)?;
        self.close(file);
        Ok(Done { transactions, bytes, is_first_write })
    }

    fn create(&mut self, set: &Set, syncs: bool) -> Result<Done, FfsbError> {
        let files = if self.is_aging { &set.fill } else { &set.data };
        let bytes = size(&set.file_system, &mut self.random);
        let held = files.add(&mut self.random);
        let name = held.name();
        // FFSB truncates a file of this name; none can be here.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = self.open(&held, flags)?;
        let transactions = self.move_all(&file, &name, bytes, Call::Write)?;
        sync(&file, &name, syncs)?;
        self.close(file);
        Ok(Done { transactions, bytes, is_first_write: false })
    }

    fn delete(&mut self, files: &Files) -> Result<Done, FfsbError> {
        let held = files.take(&mut self.random)?;
        files.remove(held, |name| {
            self.timed(Call::Unlink, name, "cannot remove", || rustix::fs::unlink(name))
        })?;
        Ok(Done::one())
    }

    /// Two new directories, one fewer, one with another name.
    fn metadata(&mut self, files: &Files) -> Result<Done, FfsbError> {
        for _ in 0..2 {
            let held = files.add(&mut self.random);
            make_directory(&held.name())?;
        }
        let held = files.take(&mut self.random)?;
        files.remove(held, |name| {
            rustix::fs::rmdir(name).map_err(|errno| failed("cannot remove", name, errno))
        })?;
        let held = files.take(&mut self.random)?;
        let (old, new) = held.rename();
        rustix::fs::rename(&old, &new).map_err(|errno| failed("cannot rename", &old, errno))?;
        Ok(Done::one())
    }

    fn open(&mut self, held: &Held, flags: OFlags) -> Result<OwnedFd, FfsbError> {
        let name = held.name();
        let direct = if self.is_direct { OFlags::DIRECT } else { OFlags::empty() };
        self.timed(Call::Open, &name, "cannot open", || {
            rustix::fs::open(&*name, flags | direct | OFlags::CLOEXEC, Mode::RWXU)
        })
    }

    fn close(&mut self, file: OwnedFd) {
        let begun = self.now();
        drop(file);
        self.count(Call::Close, begun);
    }

    /// Goes to a random place from which on all of the size lies in the file.
    fn seek_to_part(&mut self, file: &OwnedFd, name: &Path, range: u64) -> Result<(), FfsbError> {
        if range == 0 {
            return Ok(());
        }
        let offset = self.offset(range);
        self.seek(file, name, SeekFrom::Start(offset))
    }

    /// Moves so many blocks at random places below `range`.
    fn at_random(
        &mut self,
        file: &OwnedFd,
        name: &Path,
        blocks: u64,
        range: u64,
        call: Call,
    ) -> Result<(), FfsbError> {
        let access = if call == Call::Read { self.group.read } else { self.group.write };
        for _ in 0..blocks {
            let offset = self.offset(range);
            self.seek(file, name, SeekFrom::Start(offset))?;
            self.move_block(file, name, access.block_bytes.into(), call)?;
        }
        Ok(())
    }

    /// A random offset; FFSB's are below 4 GiB, here they are of all of the file.
    fn offset(&mut self, range: u64) -> u64 {
        if self.is_aligned {
            let units = range / ALIGNMENT;
            return self.random.next_u64() % units.max(1) * ALIGNMENT;
        }
        self.random.next_u64() % range.max(1)
    }

    /// Moves so many bytes in blocks one after the other; gives the number of blocks, a smaller last one
    /// included.
    fn move_all(
        &mut self,
        file: &OwnedFd,
        name: &Path,
        bytes: u64,
        call: Call,
    ) -> Result<u64, FfsbError> {
        let access = if call == Call::Read { self.group.read } else { self.group.write };
        let block = u64::from(access.block_bytes);
        let (mut left, mut blocks) = (bytes, 0);
        while left > 0 {
            let part = left.min(block);
            self.move_block(file, name, part, call)?;
            left -= part;
            blocks += 1;
        }
        Ok(blocks)
    }

    fn move_block(
        &mut self,
        file: &OwnedFd,
        name: &Path,
        bytes: u64,
        call: Call,
    ) -> Result<(), FfsbError> {
        let begun = self.now();
        let buffer = &mut self.memory[self.start..self.start + bytes as usize];
        let (what, moved) = if call == Call::Read {
            ("cannot read", rustix::io::read(file, buffer))
        } else {
            ("cannot write", rustix::io::write(file, buffer))
        };
        self.count(call, begun);
        let moved = moved.map_err(|errno| self.moving(what, name, errno))?;
        if moved as u64 == bytes {
            Ok(())
        } else {
            Err(FfsbError::Short(name.into(), moved, bytes))
        }
    }

    fn moving(&self, what: &'static str, name: &Path, errno: Errno) -> FfsbError {
        if errno == Errno::INVAL && self.is_direct {
            return FfsbError::Unaligned(name.into());
        }
        failed(what, name, errno)
    }

    fn seek(&mut self, file: &OwnedFd, name: &Path, to: SeekFrom) -> Result<(), FfsbError> {
        self.timed(Call::Lseek, name, "cannot seek in", || rustix::fs::seek(file, to)).map(drop)
    }

    fn timed<T>(
        &mut self,
        call: Call,
        name: &Path,
        what: &'static str,
        act: impl FnOnce() -> rustix::io::Result<T>,
    ) -> Result<T, FfsbError> {
        let begun = self.now();
        let result = act();
        self.count(call, begun);
        result.map_err(|errno| failed(what, name, errno))
    }

    /// The time, if times of calls are kept.
    fn now(&self) -> Option<Instant> {
        self.group.statistics.as_ref().map(|_| Instant::now())
    }

    fn count(&mut self, call: Call, begun: Option<Instant>) {
        if let (Some(statistics), Some(begun)) = (&self.group.statistics, begun) {
            self.part.calls.count(statistics, call, begun.elapsed());
        }
    }
}

fn failed(what: &'static str, name: &Path, errno: Errno) -> FfsbError {
    FfsbError::file(what, name)(errno.into())
}

fn make_directory(path: &Path) -> Result<(), FfsbError> {
    rustix::fs::mkdir(path, Mode::RWXU).map_err(|errno| failed("cannot make", path, errno))
}

fn create_directory(files: &Files) -> Result<Done, FfsbError> {
    let (number, path) = files.new_directory();
    make_directory(&path)?;
    // Nobody makes a file in it before it is there.
    files.open_directory(number);
    Ok(Done::one())
}

fn sync(file: &OwnedFd, name: &Path, syncs: bool) -> Result<(), FfsbError> {
    if !syncs {
        return Ok(());
    }
    rustix::fs::fsync(file).map_err(|errno| failed("cannot flush", name, errno))
}

/// A file's size, by its name as FFSB asks for it; an error if it is less than needed.
fn file_bytes(name: &Path, needed: u64, key: &'static str) -> Result<u64, FfsbError> {
    let found = rustix::fs::stat(name).map_err(|errno| failed("cannot look at", name, errno))?;
    let bytes = found.st_size as u64;
    if bytes < needed { Err(FfsbError::too_small(name, bytes, needed, key)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests;
