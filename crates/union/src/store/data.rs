//! Reading and changing the data of partial files.
//!
//! A change is one call into the journal, which does not wait, so changes of one file never mix.
//! Only reads go through the reactor.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use reactor::{Buffer, File};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Partial, failed, file_of, now};
use crate::backing::Backing;
use crate::journal::{JournalError, Source, Verifier};
use crate::sys::errno_of;

/// The lower file of a partial one, as its data is needed.
pub(crate) trait Lower {
    /// Returns the file, open for reading.
    ///
    /// # Errors
    /// `EIO` if it is not the one that was copied up, or not as it was.
    fn file(&self) -> Result<Rc<Backing>, Errno>;

    /// Reports that stored bytes are not what was written, and gives the error of the read.
    fn damaged(&self, offset: u64) -> Errno;
}

impl Partial {
    /// Reads up to `size` bytes; fewer at the end of the file.
    pub(crate) async fn read(
        &self,
        lower: &impl Lower,
        offset: u64,
        size: usize,
    ) -> Result<Buffer, Errno> {
        let range = offset..offset.saturating_add(size as u64);
        let pieces = self.store.journal().pieces(self.file, range);
        let pieces = pieces.map_err(|error| failed(&error))?;
        let end = pieces.last().map_or(offset, |piece| piece.range.end);
        let mut buffer = Buffer::zeroed((end - offset) as usize);
        for piece in pieces {
            let at = (piece.range.start - offset) as usize..(piece.range.end - offset) as usize;
            let (file, position) = match piece.source {
                Source::Zero => continue,
                Source::Damaged => return Err(lower.damaged(piece.range.start)),
                Source::Lower => (lower.file()?.file.clone(), piece.range.start),
                Source::Stored { handle, position, verifier, .. } => {
                    let file = file_of(&handle)?;
                    let (done, filled) = read_stored(&file, position, &verifier, buffer, at).await;
                    buffer = filled;
                    if !done? {
                        return Err(lower.damaged(piece.range.start));
                    }
                    continue;
                }
            };
            let wanted = at.len();
            let (result, filled) = file.read_at(buffer, at, position).await;
            buffer = filled;
            if result.map_err(errno_of)? < wanted {
                // Cut meanwhile: the lower file below the union, or a segment.
                return Err(Errno::IO);
            }
        }
        Ok(buffer)
    }

    /// Stores bytes. Returns how many of them; `None` if the file must be completed first, because
    /// the maps of partial files are full.
    pub(crate) fn write(
        &self,
        lower: &impl Lower,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>, Errno> {
        let range = offset..offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let plan = self.store.journal().plan_write(self.file, range.clone());
        let plan = plan.map_err(|error| failed(&error))?;
        // Storing more than was written only keeps the file in fewer pieces; a failure to read is
        // no error.
        let whole = if plan == range { None } else { self.bytes_of(lower, &plan) };
        let written = match whole {
            None => self.store.journal_mut().write(self.file, offset, data, now()),
            Some(mut whole) => {
                let before = (offset - plan.start) as usize;
                whole[before..before + data.len()].copy_from_slice(data);
                let written = self.store.journal_mut().write(self.file, plan.start, &whole, now());
                match written {
                    Ok(count) if count <= before as u64 => return Err(Errno::NOSPC),
                    other => other.map(|count| (count - before as u64).min(data.len() as u64)),
                }
            }
        };
        match written {
            Ok(count) => Ok(Some(count as usize)),
            Err(JournalError::MapsFull(_)) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Returns the content of a range; beyond the file's end zeros. `None` if it cannot be read.
    fn bytes_of(&self, lower: &impl Lower, range: &Range<u64>) -> Option<Vec<u8>> {
        let file = lower.file().ok()?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let journal = self.store.journal();
        let read = |at: u64, part: &mut [u8]| {
            let done = file.with(|fd| read_whole(fd, at, part));
            done.map_err(std::io::Error::from)
        };
        journal.read(self.file, range.start, &mut bytes, read).ok()?;
        Some(bytes)
    }

    /// Sets the size.
    pub(crate) fn truncate(&self, size_bytes: u64) -> Result<(), Errno> {
        let result = self.store.journal_mut().truncate(self.file, size_bytes, now());
        result.map_err(|error| failed(&error))
    }

    /// Carries out a fallocate(2) that makes zeros. `false` if the file must be completed first.
    pub(crate) fn fallocate(&self, mode: i32, offset: u64, length: u64) -> Result<bool, Errno> {
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE => {}
            _ => return Ok(false),
        }
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        let mut journal = self.store.journal_mut();
        let size = journal.file(self.file).ok_or(Errno::STALE)?.size_bytes();
        match journal.zero(self.file, offset.min(size)..end.min(size), now()) {
            Ok(()) => {}
            Err(JournalError::MapsFull(_)) => return Ok(false),
            Err(error) => return Err(failed(&error)),
        }
        if !keeps_size && end > size {
            let grown = journal.truncate(self.file, end, now());
            grown.map_err(|error| failed(&error))?;
        }
        Ok(true)
    }

    /// Returns the next data, or hole.
    pub(crate) fn seek(
        &self,
        lower: &impl Lower,
        offset: u64,
        for_data: bool,
    ) -> Result<u64, Errno> {
        let journal = self.store.journal();
        let size = journal.file(self.file).ok_or(Errno::STALE)?.size_bytes();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let pieces = journal.pieces(self.file, offset..size).map_err(|error| failed(&error))?;
        for piece in pieces {
            let Range { start, end } = piece.range;
            let found = match piece.source {
                Source::Zero if for_data => continue,
                Source::Zero => start,
                Source::Lower => {
                    let to = if for_data { SeekFrom::Data(start) } else { SeekFrom::Hole(start) };
                    let file = lower.file()?;
                    match file.with(|fd| rustix::fs::seek(fd, to)) {
                        Ok(found) => found,
                        Err(Errno::NXIO) => continue,
                        Err(errno) => return Err(errno),
                    }
                }
                _ if for_data => start,
                _ => continue,
            };
            if found < end {
                return Ok(found);
            }
        }
        if for_data { Err(Errno::NXIO) } else { Ok(size) }
    }
}

/// Reads stored bytes into a part of a buffer; `false` if they are not what was written.
async fn read_stored(
    file: &File,
    position: u64,
    verifier: &Verifier,
    mut buffer: Buffer,
    at: Range<usize>,
) -> (Result<bool, Errno>, Buffer) {
    let wanted = position..position + at.len() as u64;
    let covered = verifier.cover(&wanted);
    if covered == wanted {
        let (result, buffer) = file.read_at(buffer, at.clone(), position).await;
        let read = match result {
            Ok(read) => read,
            Err(error) => return (Err(errno_of(error)), buffer),
        };
        let is_intact = verifier.is_intact(&covered, &buffer[at.start..at.start + read]);
        return (Ok(is_intact), buffer);
    }
    let length = (covered.end - covered.start) as usize;
    let (result, whole) = file.read_at(Buffer::zeroed(length), 0..length, covered.start).await;
    let is_intact = match result {
        Ok(read) => verifier.is_intact(&covered, &whole[..read]),
        Err(error) => return (Err(errno_of(error)), buffer),
    };
    if is_intact {
        let skip = (wanted.start - covered.start) as usize;
        buffer[at.clone()].copy_from_slice(&whole[skip..skip + at.len()]);
    }
    (Ok(is_intact), buffer)
}

fn read_whole(file: BorrowedFd<'_>, mut at: u64, mut part: &mut [u8]) -> Result<(), Errno> {
    while !part.is_empty() {
        match rustix::io::pread(file, &mut *part, at) {
            // It has become shorter.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                at += count as u64;
                part = &mut part[count..];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
