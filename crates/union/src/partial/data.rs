//! Reading and changing the data of partial files.
//!
//! A change is one call into the journal that waits for nothing, so that changes of one file never
//! mix; only reads go through the reactor.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use reactor::{Buffer, File};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Partial, failed, file_of, now};
use crate::journal::{JournalError, Source, Verifier};
use crate::node::Node;
use crate::sys::errno_of;
use crate::tree::Union;

impl Partial {
    /// Reads up to `size` bytes; fewer at the end of the file.
    pub(crate) async fn read(
        self: &Rc<Self>,
        (union, node): (&Union, &Rc<Node>),
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
                Source::Damaged => return Err(union.rotten((node, self), piece.range.start)),
                Source::Lower => (union.lower_of(node, self)?.file.clone(), piece.range.start),
                Source::Stored { handle, position, verifier, .. } => {
                    let file = file_of(&handle)?;
                    let (done, filled) =
                        read_stored((&file, position), &verifier, buffer, at).await;
                    buffer = filled;
                    if !done? {
                        return Err(union.rotten((node, self), piece.range.start));
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

    /// Stores bytes. Answers how many of them; `None` if the file must be completed first, because
    /// the maps of partial files are full.
    pub(crate) fn write(
        self: &Rc<Self>,
        (union, node): (&Union, &Rc<Node>),
        offset: u64,
        data: &[u8],
    ) -> Result<Option<usize>, Errno> {
        let range = offset..offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let plan = self.store.journal().plan_write(self.file, range.clone());
        let plan = plan.map_err(|error| failed(&error))?;
        // Storing more than was written is for the sake of order only.
        let whole = if plan == range { None } else { self.content((union, node), &plan) };
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

    /// The content of a range; beyond the file's end zeros. `None` if it cannot be read.
    fn content(
        self: &Rc<Self>,
        (union, node): (&Union, &Rc<Node>),
        range: &Range<u64>,
    ) -> Option<Vec<u8>> {
        let lower = union.lower_of(node, self).ok()?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let journal = self.store.journal();
        let lower = |at: u64, part: &mut [u8]| {
            let done = lower.with(|fd| read_whole(fd, at, part));
            done.map_err(std::io::Error::from)
        };
        journal.read(self.file, range.start, &mut bytes, lower).ok()?;
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

    /// The next data, or hole.
    pub(crate) fn seek(
        self: &Rc<Self>,
        (union, node): (&Union, &Rc<Node>),
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
                    let lower = union.lower_of(node, self)?;
                    match lower.with(|fd| rustix::fs::seek(fd, to)) {
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
    (file, position): (&File, u64),
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

impl Union {
    /// Logs that stored bytes of a partial copy cannot be read.
    pub(super) fn rotten(&self, (node, partial): (&Rc<Node>, &Partial), offset: u64) -> Errno {
        let path = crate::tree::path_of(node);
        let path = String::from_utf8_lossy(&path);
        let error = JournalError::Damaged { file: partial.file, offset };
        tracing::error!(%path, %error, "stored bytes of a partial copy are not what was written; \
            `tsumugi union check` says what else is concerned");
        self.last_error.note(&format!("reading {path}: {error}"), Errno::IO);
        Errno::IO
    }
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
