//! A device in a regular file or on a block device that bypasses the page cache.
//!
//! *One owner*: the file is held under an exclusive lock of its open file description. A block
//! device is also opened exclusively, so that a device in use by the system is refused, and this
//! one cannot be mounted later.
//!
//! *Reserved beforehand*: [`create`] reserves all space, so that a write never lacks it. On request
//! it also writes the whole file once, because the first write into an unwritten extent costs a
//! journal transaction. For such a file (`preallocated`) discard does nothing, which the geometry
//! states, and zeros are written as data: `FALLOC_FL_ZERO_RANGE` would make the extents unwritten
//! again. `fallocate` punches and zeroes other regular files, and block devices where it discards
//! and zeroes on the medium.
//!
//! *Any memory*: memory that direct I/O does not accept (e.g. a payload in the middle of a receive
//! buffer) goes through an aligned copy.

mod creation;
mod sharing;

pub use creation::{Fill, create, cut, grow};
use sharing::Sharing;

use crate::device::{Backing, Device, DiscardEffect, Geometry};
use crate::error::{Access, Error};
use crate::flush::{FlushGroup, FlushState};
use crate::future::{Command, IoFuture};
use crate::incarnation::Incarnation;
use crate::mark::FailureMark;
use crate::memory::check_block_size;
use crate::zeroes;
use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use reactor::time::{now, sleep};
use reactor::{Buffer, Chunk, File, OpenOptions, Segment, Segments};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Default block size of a device in a regular file, in bytes.
const BLOCK_SIZE_DEFAULT: u32 = 4096;

/// How long opening waits for a lock of another process.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Options for opening a file device.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Block size in bytes; `None` means 4096 for a regular file and the logical block size of a
    /// block device.
    pub block_size: Option<u32>,
    /// `O_DIRECT`, which bypasses the page cache. Without it (on a file system without support),
    /// writes stay in the page cache until a flush.
    pub direct: bool,
    /// The file's space was reserved beforehand and must stay reserved: discard is ignored.
    pub preallocated: bool,
    /// The incarnation, e.g. [`Incarnation::of_boot`].
    pub incarnation: Incarnation,
}

/// The open file that the devices of all threads share.
#[derive(Clone, Debug)]
pub struct FileBacking {
    file: File,
    geometry: Geometry,
    incarnation: Incarnation,
    preallocated: bool,
    is_block_device: bool,
    flushes: Arc<FlushState>,
    /// Required alignment of the addresses and lengths of memory.
    memory_alignment: usize,
}

/// A thread's device.
struct FileDevice {
    backing: FileBacking,
    flushes: Rc<FlushGroup>,
}

impl FileBacking {
    /// Opens `path` and locks it. A size that is not a multiple of the block size is rounded down.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Locked`], [`Error::Geometry`].
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), options, Sharing::Alone)
    }

    fn open_with(path: &Path, options: &FileOptions, sharing: Sharing) -> Result<Self, Error> {
        let failed = |action| failed(action, path);
        let open = OpenOptions { direct: options.direct, ..OpenOptions::READ_WRITE };
        let mut file = File::open(path, open).map_err(failed("open"))?;
        sharing.lock(&file, path)?;
        let is_block_device = file.is_block_device().map_err(failed("examine"))?;
        if is_block_device {
            // The other descriptor's lock must be released first.
            drop(file);
            file = sharing.open_device(path, open)?;
        }
        let minimum = file.logical_block_size().map_err(failed("examine"))?;
        let default = if is_block_device { minimum } else { BLOCK_SIZE_DEFAULT.max(minimum) };
        let block_size = options.block_size.unwrap_or(default);
        check_block_size(block_size)?;
        if options.direct && block_size < minimum {
            let expected = "is less than direct I/O on this file allows";
            let value = u64::from(block_size);
            return Err(Error::Geometry { what: "block size", value, expected });
        }
        let blocks = file.size().map_err(failed("examine"))? / u64::from(block_size);
        if blocks == 0 {
            let expected = "blocks: it is empty";
            return Err(Error::Geometry { what: "device size", value: 0, expected });
        }
        let discard =
            if options.preallocated { DiscardEffect::Ignored } else { DiscardEffect::Zeroes };
        let geometry = Geometry { block_size, blocks, discard, has_volatile_cache: true };
        let memory_alignment = if options.direct {
            file.memory_alignment().map_err(failed("examine"))? as usize
        } else {
            1
        };
        Ok(Self {
            file,
            geometry,
            incarnation: options.incarnation,
            preallocated: options.preallocated,
            is_block_device,
            flushes: Arc::default(),
            memory_alignment,
        })
    }

    /// Returns the same device in the incarnation that its [`FailureMark`] says, which is 0 before
    /// the first failure.
    #[must_use]
    pub fn after(self, mark: u128) -> Self {
        Self { incarnation: Incarnation(self.incarnation.0 ^ mark), ..self }
    }

    /// Returns the same device, which writes this mark when a flush fails. Not for a device that is
    /// attached already.
    #[must_use]
    pub fn with_mark(self, mark: FailureMark) -> Self {
        Self { flushes: Arc::new(FlushState::with_mark(mark)), ..self }
    }

    /// Returns the open file, for callers that send their own requests within the geometry.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the number of `fdatasync` calls so far: at most one per flush, fewer if flushes were
    /// shared.
    pub fn syncs(&self) -> u64 {
        self.flushes.syncs.load(Ordering::Relaxed)
    }

    /// Like [`FileBacking::open`], but retries for two seconds if the file is locked: the kernel
    /// closes the files of a killed process only after it has destroyed its ring, when the process
    /// no longer exists.
    ///
    /// # Errors
    /// As [`FileBacking::open`].
    pub async fn open_patiently(
        path: impl AsRef<Path>,
        options: &FileOptions,
    ) -> Result<Self, Error> {
        Self::open_with_patiently(path.as_ref(), options, Sharing::Alone).await
    }

    async fn open_with_patiently(
        path: &Path,
        options: &FileOptions,
        sharing: Sharing,
    ) -> Result<Self, Error> {
        let deadline = now() + LOCK_PATIENCE;
        loop {
            match Self::open_with(path, options, sharing) {
                Err(Error::Locked { .. }) if now() < deadline => sleep(LOCK_PAUSE).await,
                result => return result,
            }
        }
    }

    /// Writes `len` zero bytes as data.
    async fn write_zero_data(file: File, command: Command) -> Result<(), Error> {
        let (mut offset, end) = (command.offset, command.offset + command.len);
        while offset < end {
            let here = (end - offset).min(zeroes::WRITE_BYTES_MAX);
            let (result, _) = file.write_chunks_at(zeroes::chunks(here), offset).await;
            result.map_err(|source| command.error(source))?;
            offset += here;
        }
        Ok(())
    }
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = PathBuf::from(path);
    move |source| Error::Open { action, path: path.clone(), source: Arc::new(source) }
}

pub(crate) fn lock(file: &File, path: &Path) -> Result<(), Error> {
    locked(path, file.try_lock_exclusive())
}

fn locked(path: &Path, result: io::Result<()>) -> Result<(), Error> {
    result.map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => Error::Locked { path: path.into(), source: Arc::new(source) },
        _ => failed("lock", path)(source),
    })
}

/// Converts the error of a block device that the system uses.
fn unless_busy(path: &Path, source: io::Error) -> Error {
    if source.raw_os_error() != Some(libc::EBUSY) {
        return failed("open", path)(source);
    }
    let users = "the system has it: a mount, swap, RAID or LVM; see lsblk";
    let source = Arc::new(io::Error::new(io::ErrorKind::ResourceBusy, users));
    Error::Locked { path: path.into(), source }
}

fn is_unsupported(error: &Error) -> bool {
    matches!(error.to_errno(), libc::EOPNOTSUPP | libc::ENOSYS)
}

impl Backing for FileBacking {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn attach(&self) -> Rc<dyn Device> {
        // Each command counts a reference to the file; devices of other threads use another
        // counter.
        let file = self.file.apart();
        let flushes = FlushGroup::new(file.clone(), Arc::clone(&self.flushes));
        Rc::new(FileDevice { backing: Self { file, ..self.clone() }, flushes: Rc::new(flushes) })
    }

    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let room = self.file.size().map_err(failed("examine", Path::new("the device's file")))?;
        let geometry = self.geometry.resized(size, room)?;
        Ok(Arc::new(Self { geometry, ..self.clone() }))
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        self.backing.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.backing.incarnation
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let command = Command { access: Access::Read, offset, len: len as u64 };
        if let Err(error) = self.backing.geometry.check(command.access, offset, command.len) {
            return IoFuture::ready(Err(error));
        }
        let op = self.backing.file.read_at(Buffer::with_capacity(len), 0..len, offset);
        IoFuture::read(op, command)
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>() as u64;
        let command = Command { access: Access::Read, offset, len };
        if let Err(error) = self.backing.geometry.check(command.access, offset, len) {
            return IoFuture::ready(Err(error));
        }
        if segments.iter().all(|segment| segment.is_aligned(self.backing.memory_alignment)) {
            let op = self.backing.file.read_vectored_at(segments, offset);
            return IoFuture::read_into(op, command);
        }
        let read = self.read(offset, len as usize);
        IoFuture::boxed(async move {
            let (chunk, mut segments) = (read.await?, segments);
            reactor::scatter(&chunk, &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, mut chunk: Chunk) -> IoFuture<()> {
        let command = Command { access: Access::Write, offset, len: chunk.len() as u64 };
        if let Err(error) = self.backing.geometry.check(command.access, offset, command.len) {
            return IoFuture::ready(Err(error));
        }
        if !chunk.is_aligned(self.backing.memory_alignment) {
            chunk = chunk.copy_part(0..chunk.len()).into();
        }
        IoFuture::write(self.backing.file.write_at(chunk, offset), command)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        let command = Command { access: Access::Write, offset, len };
        if let Err(error) = self.backing.geometry.check(command.access, offset, len) {
            return IoFuture::ready(Err(error));
        }
        if chunks.iter().all(|chunk| chunk.is_aligned(self.backing.memory_alignment)) {
            let op = self.backing.file.write_chunks_at(chunks, offset);
            return IoFuture::write_chunks(op, command);
        }
        let mut buffer = Buffer::with_capacity(len as usize);
        for chunk in &chunks {
            buffer.extend_from_chunk(chunk, 0..chunk.len());
        }
        IoFuture::write(self.backing.file.write_at(buffer, offset), command)
    }

    fn flush(&self) -> IoFuture<()> {
        self.flushes.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let command = Command { access: Access::Discard, offset, len };
        let checked = self.backing.geometry.check(command.access, offset, len);
        if checked.is_err() || self.backing.preallocated || len == 0 {
            return IoFuture::ready(checked);
        }
        let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        let op = IoFuture::plain(self.backing.file.fallocate(mode, offset, len), command);
        let zeroes = self.backing.file.clone();
        IoFuture::boxed(async move {
            match op.await {
                // The geometry guarantees zeros.
                Err(error) if is_unsupported(&error) => {
                    FileBacking::write_zero_data(zeroes, command).await
                }
                result => result,
            }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        let command = Command { access: Access::WriteZeroes, offset, len };
        let checked = self.backing.geometry.check(command.access, offset, len);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked);
        }
        if self.backing.preallocated && !self.backing.is_block_device {
            return IoFuture::boxed(FileBacking::write_zero_data(
                self.backing.file.clone(),
                command,
            ));
        }
        let mode = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
        let op = IoFuture::plain(self.backing.file.fallocate(mode, offset, len), command);
        let file = self.backing.file.clone();
        IoFuture::boxed(async move {
            match op.await {
                Err(error) if is_unsupported(&error) => {
                    FileBacking::write_zero_data(file, command).await
                }
                result => result,
            }
        })
    }
}
