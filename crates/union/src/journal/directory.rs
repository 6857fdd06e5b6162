//! The store in a directory: `WORKDIR/tsumugi/`, a file per segment, and the marker
//! `WORKDIR/work/incompat/tsumugi`.
//!
//! Segments get their space when they are made (`fallocate`), so that a full disk shows there and
//! not in the middle of a record. An unused segment is deleted, not used again: on the disk this
//! was measured on a flush costs the same in both, and fresh space reads as zeros.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::error::JournalError;
use super::mark;
use super::storage::{SegmentFile, Storage};
use super::types::SegmentId;

const DIRECTORY: &str = "tsumugi";
const MARKER: &str = "tsumugi";
const SUFFIX: &str = ".log";
/// A file that a user of the store may keep beside the segments. It becomes durable with the
/// marker.
pub(crate) const RECORD: &str = "union";
/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): the number of a mount, never used again until reboot.
const MOUNT_ID_UNIQUE: u32 = 0x4000;

/// A directory of segment files, held under an exclusive lock.
#[derive(Debug)]
pub struct Directory {
    work: Arc<OwnedFd>,
    /// The store's directory; its open file description holds the lock.
    locked: OwnedFd,
    /// The same, for flushes that may outlive the lock.
    names: Arc<OwnedFd>,
    segments: BTreeMap<SegmentId, Arc<OwnedFd>>,
    /// The file of marks, if there is one.
    marks: Option<Arc<OwnedFd>>,
    /// Whether the name and the length of the file of marks may not be durable yet.
    has_new_marks: bool,
    /// The upper directory, if its attributes are to become durable with the marker.
    upper: Option<Arc<OwnedFd>>,
    /// Whether the directory's own name may not be durable yet.
    is_new: bool,
    witness: u64,
}

impl Directory {
    /// Opens, and makes if needed, the store in the work directory `work` of an overlay.
    pub fn open(work: OwnedFd) -> Result<Self, JournalError> {
        let failed = |error: Errno| JournalError::io("opening the copy-up store", error.into());
        let is_new = match fs::mkdirat(&work, DIRECTORY, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(failed(error)),
        };
        let directory = open_directory(&work, DIRECTORY).map_err(failed)?;
        match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(JournalError::Locked),
            other => other.map_err(failed)?,
        }
        let witness = witness(&directory);
        let names = Arc::new(open_directory(&directory, ".").map_err(failed)?);
        let (work, segments) = (Arc::new(work), BTreeMap::new());
        let (locked, upper) = (directory, None);
        let (marks, has_new_marks) = (None, false);
        let mut store =
            Self { work, locked, names, segments, marks, has_new_marks, upper, is_new, witness };
        store
            .open_files(OFlags::RDWR)
            .map_err(|error| JournalError::io("opening the segments", error))?;
        Ok(store)
    }

    /// Lets the attributes of an upper directory become durable with the marker.
    #[must_use]
    pub fn with_upper(self, upper: OwnedFd) -> Self {
        Self { upper: Some(Arc::new(upper)), ..self }
    }

    /// Opens the store for reading only; `None` if there is none. Nothing can be changed through
    /// it.
    pub fn inspect(work: OwnedFd) -> Result<Option<Self>, JournalError> {
        let failed = |error: Errno| JournalError::io("opening the copy-up store", error.into());
        let directory = match open_directory(&work, DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(JournalError::Locked),
            other => other.map_err(failed)?,
        }
        let witness = witness(&directory);
        let names = Arc::new(open_directory(&directory, ".").map_err(failed)?);
        let (work, segments) = (Arc::new(work), BTreeMap::new());
        let (locked, upper, is_new) = (directory, None, false);
        let (marks, has_new_marks) = (None, false);
        let mut store =
            Self { work, locked, names, segments, marks, has_new_marks, upper, is_new, witness };
        let opened = store.open_files(OFlags::RDONLY);
        opened.map_err(|error| JournalError::io("opening the segments", error))?;
        Ok(Some(store))
    }

    /// Returns whether the store of this work directory exists, without making it.
    pub fn exists(work: impl AsFd) -> io::Result<bool> {
        match fs::statat(work, DIRECTORY, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn open_files(&mut self, access: OFlags) -> io::Result<()> {
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        for entry in fs::Dir::read_from(&self.locked)? {
            let entry = entry?;
            let Some(segment) = entry.file_name().to_str().ok().and_then(parse_name) else {
                continue;
            };
            let file = fs::openat(&self.locked, entry.file_name(), flags, Mode::empty())?;
            self.segments.insert(segment, Arc::new(file));
        }
        match fs::openat(&self.locked, mark::NAME, flags, Mode::empty()) {
            Ok(file) => self.marks = Some(Arc::new(file)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Makes the file of marks.
    fn make_marks(&mut self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(&self.locked, mark::NAME, flags, Mode::RUSR | Mode::WUSR)?;
        // Written, so that marks find their room.
        if let Err(errno) = crate::sys::write_all_at(file.as_fd(), &[0; mark::FILE_BYTES], 0) {
            fs::unlinkat(&self.locked, mark::NAME, AtFlags::empty())?;
            return Err(errno.into());
        }
        (self.marks, self.has_new_marks) = (Some(Arc::new(file)), true);
        Ok(())
    }

    fn file(&self, segment: SegmentId) -> io::Result<&Arc<OwnedFd>> {
        self.segments.get(&segment).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Reads until `buffer` is full or the file ends.
fn read_full(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Returns the name of a segment's file.
fn name(segment: SegmentId) -> String {
    format!("{segment}{SUFFIX}")
}

fn parse_name(name: &str) -> Option<SegmentId> {
    let number = name.strip_suffix(SUFFIX)?;
    let is_canonical = number.len() == 8 && number.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(number, 16).ok().filter(|_| is_canonical).map(SegmentId)
}

fn open_directory(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(parent, name, flags, Mode::empty())
}

fn make_directory(parent: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    match fs::mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(open_directory(parent, name)?),
        Err(error) => Err(error.into()),
    }
}

/// Boot and mount of a directory, as one number; 0 if the kernel does not report them. While that
/// mount lives, so does the page cache of its files: equal numbers prove that only a process ended.
/// The boot alone proves nothing for a detachable disk, or a file system that was shut down.
pub fn witness(directory: impl AsFd) -> u64 {
    let flags = StatxFlags::from_bits_retain(MOUNT_ID_UNIQUE);
    let statx = fs::statx(directory, "", AtFlags::EMPTY_PATH, flags);
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
    let (Ok(statx), Ok(boot)) = (statx, boot) else { return 0 };
    if statx.stx_mask & MOUNT_ID_UNIQUE == 0 {
        return 0;
    }
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&boot);
    digest.update(&statx.stx_mnt_id.to_le_bytes());
    digest.finalize() | 1
}

impl Storage for Directory {
    type Handle = Arc<OwnedFd>;

    fn list(&self) -> io::Result<Vec<SegmentFile>> {
        let size = |(&segment, file): (&SegmentId, &Arc<OwnedFd>)| {
            let size_bytes = fs::fstat(file)?.st_size as u64;
            Ok(SegmentFile { segment, size_bytes })
        };
        self.segments.iter().map(size).collect()
    }

    fn create(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if self.marks.is_none() {
            self.make_marks()?;
        }
        // A leftover of that name is removed rather than cut, so that its handles stay readable.
        self.segments.remove(&segment);
        let name = name(segment);
        match fs::unlinkat(&self.locked, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let file = fs::openat(&self.locked, &name, flags | OFlags::EXCL, mode)?;
        let result = match fs::fallocate(&file, FallocateFlags::empty(), 0, size_bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fs::ftruncate(&file, size_bytes),
            other => other,
        };
        if let Err(error) = result {
            fs::unlinkat(&self.locked, &name, AtFlags::empty())?;
            return Err(error.into());
        }
        self.segments.insert(segment, Arc::new(file));
        Ok(())
    }

    fn write_at(&mut self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let file = self.file(segment)?;
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let (mut slices, mut at) = (&mut slices[..], offset);
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            match rustix::io::pwritev(file, slices, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut slices, count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        read_full(self.file(segment)?, buffer, offset)
    }

    fn sync(&mut self, segment: SegmentId) -> io::Result<()> {
        Ok(fs::fdatasync(self.file(segment)?)?)
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        for handle in self.directory_handles()? {
            fs::fsync(handle)?;
        }
        (self.is_new, self.has_new_marks) = (false, false);
        Ok(())
    }

    fn truncate(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        Ok(fs::ftruncate(self.file(segment)?, size_bytes)?)
    }

    fn delete(&mut self, segment: SegmentId) -> io::Result<()> {
        match fs::unlinkat(&self.locked, name(segment), AtFlags::empty()) {
            // It was missing before.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        self.segments.remove(&segment);
        Ok(())
    }

    fn handle(&self, segment: SegmentId) -> io::Result<Self::Handle> {
        self.file(segment).cloned()
    }

    fn directory_handles(&self) -> io::Result<Vec<Self::Handle>> {
        let mut handles = vec![self.names.clone()];
        handles.extend(self.marks.clone().filter(|_| self.has_new_marks));
        if self.is_new {
            handles.push(self.work.clone());
        }
        Ok(handles)
    }

    fn write_mark(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.marks {
            Some(file) => Ok(crate::sys::write_all_at(file.as_fd(), bytes, offset)?),
            None => Ok(()),
        }
    }

    fn marks_handle(&self) -> Option<Self::Handle> {
        self.marks.clone()
    }

    fn read_marks(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = &self.marks else { return Ok(None) };
        let mut bytes = vec![0; mark::FILE_BYTES];
        let count = read_full(file, &mut bytes, 0)?;
        bytes.truncate(count);
        Ok(Some(bytes))
    }

    fn set_marker(&mut self, present: bool) -> io::Result<()> {
        if present {
            let incompat = make_directory(make_directory(&self.work, "work")?, "incompat")?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            fs::openat(&incompat, MARKER, flags, Mode::RUSR | Mode::WUSR)?;
            return Ok(());
        }
        for (path, flags) in [
            (format!("work/incompat/{MARKER}"), AtFlags::empty()),
            ("work/incompat".to_owned(), AtFlags::REMOVEDIR),
        ] {
            match fs::unlinkat(&self.work, path, flags) {
                // Another feature's marker may lie beside ours.
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_marker(&mut self) -> io::Result<()> {
        for handle in self.marker_data()?.into_iter().chain(self.marker_handles()?) {
            fs::fsync(handle)?;
        }
        Ok(())
    }

    fn marker_handles(&self) -> io::Result<Vec<Self::Handle>> {
        let work = open_directory(&self.work, "work")?;
        let incompat = open_directory(&work, "incompat")?;
        let mut handles = vec![Arc::new(incompat), Arc::new(work), self.work.clone()];
        handles.extend(self.upper.clone());
        Ok(handles)
    }

    fn marker_data(&self) -> io::Result<Vec<Self::Handle>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(&self.locked, RECORD, flags, Mode::empty()) {
            Ok(record) => Ok(vec![Arc::new(record)]),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn marker(&self) -> io::Result<bool> {
        let path = format!("work/incompat/{MARKER}");
        match fs::statat(&self.work, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn witness(&self) -> u64 {
        self.witness
    }

    fn random(&mut self) -> u64 {
        reactor::random::u64()
    }
}
