//! Operations without a mount: the list of partial files, and whole files from stored and lower
//! bytes, for `tsumugi union status|complete UPPER` (and for the background filler, which does the
//! same).

use std::io;
use std::ops::Range;

use super::Journal;
use super::error::JournalError;
use super::read::Source;
use super::storage::Storage;
use super::sums::Verifier;
use super::types::{FileId, Kind, LowerIdentity, Name, SegmentId, Stage};

/// Most bytes that are copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// One line of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// The copy-up's number.
    pub file: FileId,
    /// Its names, by parent directory of the upper.
    pub names: Vec<Name>,
    /// The lower file it comes from.
    pub lower: Option<LowerIdentity>,
    /// Partial or pending.
    pub kind: Kind,
    /// How far it has come.
    pub stage: Stage,
    /// The file's size.
    pub size_bytes: u64,
    /// Bytes in segments.
    pub stored_bytes: u64,
    /// Bytes that only the lower has.
    pub unfilled_bytes: u64,
    /// Whether some of it was lost.
    pub is_damaged: bool,
}

/// The space that the store uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Copy-ups.
    pub files: usize,
    /// Runs in their maps.
    pub runs: usize,
    /// Segment files.
    pub segments: usize,
    /// Bytes of the segment files.
    pub size_bytes: u64,
    /// Bytes of records in them.
    pub used_bytes: u64,
    /// Bytes of file data that are still needed.
    pub live_bytes: u64,
}

impl<S: Storage> Journal<S> {
    /// Returns every copy-up that is not in the upper yet.
    pub fn status(&self) -> Vec<FileStatus> {
        let status = |(file, copy_up): (FileId, super::CopyUp<'_>)| FileStatus {
            file,
            names: copy_up.names().to_vec(),
            lower: copy_up.lower().cloned(),
            kind: copy_up.kind().clone(),
            stage: copy_up.stage().clone(),
            size_bytes: copy_up.size_bytes(),
            stored_bytes: copy_up.stored_bytes(),
            unfilled_bytes: copy_up.unfilled_bytes(),
            is_damaged: copy_up.is_damaged(),
        };
        self.files().map(status).collect()
    }

    /// Returns the space that the store uses.
    pub fn usage(&self) -> Usage {
        Usage {
            files: self.state.files.len(),
            runs: self.state.runs,
            segments: self.log.segments.len(),
            size_bytes: self.log.size_bytes(),
            used_bytes: self.log.used_bytes(),
            live_bytes: self.state.live_data_bytes(),
        }
    }

    /// Reads `buffer.len()` bytes from `offset`, or up to the file's end; what is not stored comes
    /// from `lower`, which fills its buffer from that offset of the lower file or fails. Returns
    /// the number of bytes. The caller has checked that the lower is the recorded one.
    pub fn read(
        &self,
        file: FileId,
        offset: u64,
        buffer: &mut [u8],
        mut lower: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<usize, JournalError> {
        let pieces = self.pieces(file, offset..offset.saturating_add(buffer.len() as u64))?;
        let mut count = 0;
        for piece in pieces {
            let end = (piece.range.end - offset) as usize;
            let part = &mut buffer[(piece.range.start - offset) as usize..end];
            match piece.source {
                Source::Zero => part.fill(0),
                Source::Damaged => {
                    return Err(JournalError::Damaged { file, offset: piece.range.start });
                }
                Source::Lower => lower(piece.range.start, part)
                    .map_err(|error| JournalError::io("reading the lower file", error))?,
                Source::Stored { segment, position, verifier, .. } => {
                    if !self.read_stored(segment, position, &verifier, part)? {
                        return Err(JournalError::Damaged { file, offset: piece.range.start });
                    }
                }
            }
            count = end;
        }
        Ok(count)
    }

    /// Reads stored bytes; `false` if they are not what was written.
    pub(super) fn read_stored(
        &self,
        segment: SegmentId,
        position: u64,
        verifier: &Verifier,
        part: &mut [u8],
    ) -> Result<bool, JournalError> {
        let covered = verifier.cover(&(position..position + part.len() as u64));
        let mut bytes = vec![0; (covered.end - covered.start) as usize];
        let read = self.log.storage.read_at(segment, covered.start, &mut bytes);
        let count = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other
                .map_err(|error| JournalError::io(format!("reading segment {segment}"), error))?,
        };
        if !verifier.is_intact(&covered, &bytes[..count]) {
            return Ok(false);
        }
        let skip = (position - covered.start) as usize;
        part.copy_from_slice(&bytes[skip..skip + part.len()]);
        Ok(true)
    }

    /// Gives the whole content to `out`, in order; zeros that are holes here are left out, so the
    /// output is to be cut to the file's size first.
    pub fn copy_out(
        &self,
        file: FileId,
        mut lower: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
        mut out: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), JournalError> {
        let size = self.get(file)?.base.size_bytes;
        let mut buffer = Vec::new();
        for piece in self.pieces(file, 0..size)? {
            if matches!(piece.source, Source::Zero) {
                continue;
            }
            for range in split(piece.range) {
                buffer.resize((range.end - range.start) as usize, 0);
                self.read(file, range.start, &mut buffer, &mut lower)?;
                out(range.start, &buffer)
                    .map_err(|error| JournalError::io("writing the whole file", error))?;
            }
        }
        Ok(())
    }
}

fn split(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    let starts = range.step_by(COPY_BYTES as usize);
    starts.map(move |start| start..end.min(start + COPY_BYTES))
}
