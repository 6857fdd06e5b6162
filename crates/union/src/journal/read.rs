//! Queries of the store: files, names, the places of their bytes, and the range that a write must
//! store.

use std::ops::Range;

use super::Journal;
use super::error::JournalError;
use super::map::Content;
use super::state::FileState;
use super::storage::Storage;
use super::sums::Verifier;
use super::types::{
    Attributes, FileId, Kind, LowerIdentity, Name, ParentKey, SegmentId, Stage, Xattr,
};

/// A copy-up as the store knows it.
#[derive(Clone, Copy, Debug)]
pub struct CopyUp<'a> {
    state: &'a FileState,
}

impl<'a> CopyUp<'a> {
    pub(super) fn new(state: &'a FileState) -> Self {
        Self { state }
    }

    /// Returns the lower file that unfilled bytes come from.
    pub fn lower(&self) -> Option<&'a LowerIdentity> {
        self.state.base.lower.as_ref()
    }

    /// Returns where its data is.
    pub fn kind(&self) -> &'a Kind {
        &self.state.base.kind
    }

    /// Returns how far it has come.
    pub fn stage(&self) -> &'a Stage {
        &self.state.base.stage
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state.base.size_bytes
    }

    /// Returns mode, owner and times.
    pub fn attributes(&self) -> Attributes {
        self.state.base.attributes
    }

    /// Returns the extended attributes.
    pub fn xattrs(&self) -> &'a [Xattr] {
        &self.state.base.xattrs
    }

    /// Returns the names.
    pub fn names(&self) -> &'a [Name] {
        &self.state.base.names
    }

    /// Returns whether the work file of a pending copy-up was recorded as durable.
    pub fn is_data_durable(&self) -> bool {
        self.state.base.is_data_durable
    }

    /// Returns whether a durable record that may have concerned it was lost; its bytes give errors.
    pub fn is_damaged(&self) -> bool {
        self.state.base.is_suspect
    }

    /// Returns the ranges that are the lower's still.
    pub fn unfilled(&self) -> Vec<Range<u64>> {
        self.state.unfilled(0..self.size_bytes())
    }

    /// Returns the bytes that are the lower's still.
    pub fn unfilled_bytes(&self) -> u64 {
        self.unfilled().iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the bytes that are stored in segments.
    pub fn stored_bytes(&self) -> u64 {
        let stored = |content| matches!(content, Content::Stored { .. });
        let runs = self.state.map.overlapping(0..self.size_bytes());
        runs.filter(|run| stored(run.content)).map(|run| run.range.end - run.range.start).sum()
    }

    /// Returns the number of runs in its map.
    pub fn runs(&self) -> usize {
        self.state.map.len()
    }
}

/// A part of a file and where its bytes are.
#[derive(Clone, Debug)]
pub struct Piece<H> {
    /// Which bytes of the file.
    pub range: Range<u64>,
    /// Where they are.
    pub source: Source<H>,
}

/// Where bytes are.
#[derive(Clone, Debug)]
pub enum Source<H> {
    /// In a segment, at this position; the handle stays readable when the segment is deleted.
    Stored {
        /// The segment's number.
        segment: SegmentId,
        /// The segment's file.
        handle: H,
        /// Where the piece begins in it.
        position: u64,
        /// Verifies what is read.
        verifier: Verifier,
    },
    /// Nowhere: they are zeros.
    Zero,
    /// In the lower file, at the same offset, provided that it is unchanged.
    Lower,
    /// Lost: reading them is an error.
    Damaged,
}

impl<S: Storage> Journal<S> {
    /// Returns the copy-up of that name.
    pub fn lookup(&self, parent: &ParentKey, name: &[u8]) -> Option<FileId> {
        self.state.names.get(parent)?.get(name).copied()
    }

    /// Returns the copy-ups of a directory, by name.
    pub fn children(&self, parent: &ParentKey) -> impl Iterator<Item = (&[u8], FileId)> + '_ {
        let entries = self.state.names.get(parent);
        entries.into_iter().flatten().map(|(name, &file)| (&**name, file))
    }

    /// One copy-up.
    pub fn file(&self, file: FileId) -> Option<CopyUp<'_>> {
        self.state.files.get(&file).map(CopyUp::new)
    }

    /// Returns all copy-ups, oldest first.
    pub fn files(&self) -> impl Iterator<Item = (FileId, CopyUp<'_>)> + '_ {
        self.state.files.iter().map(|(&id, state)| (id, CopyUp::new(state)))
    }

    /// Returns where the bytes of `range` are, in order and without gaps, up to the file's end.
    pub fn pieces(
        &self,
        file: FileId,
        range: Range<u64>,
    ) -> Result<Vec<Piece<S::Handle>>, JournalError> {
        let state = self.get(file)?;
        if let Kind::Pending(_) = state.base.kind {
            return Err(JournalError::WrongKind(file, "a work file"));
        }
        let end = range.end.min(state.base.size_bytes);
        let mut pieces = Vec::new();
        if range.start >= end {
            return Ok(pieces);
        }
        if state.base.is_suspect {
            pieces.push(Piece { range: range.start..end, source: Source::Damaged });
            return Ok(pieces);
        }
        let mut at = range.start;
        for run in state.map.overlapping(range.start..end) {
            unmapped(state, at..run.range.start, &mut pieces);
            at = run.range.end;
            let source = self.source(run.content, run.range.end - run.range.start)?;
            pieces.push(Piece { range: run.range, source });
        }
        unmapped(state, at..end, &mut pieces);
        Ok(pieces)
    }

    fn source(&self, content: Content, bytes: u64) -> Result<Source<S::Handle>, JournalError> {
        Ok(match content {
            Content::Zero => Source::Zero,
            Content::Damaged => Source::Damaged,
            Content::Stored { segment, position } => {
                let verifier = self.state.verifier(segment, position);
                let end = u64::from(position) + bytes;
                let Some(verifier) = verifier.filter(|it| end <= it.start + it.bytes) else {
                    return Ok(Source::Damaged);
                };
                let handle = self.log.storage.handle(segment);
                let handle = handle.map_err(|error| {
                    JournalError::io(format!("opening segment {segment}"), error)
                })?;
                Source::Stored { segment, handle, position: u64::from(position), verifier }
            }
        })
    }

    /// Returns the range that a write of `range` is to store, for which the caller puts the new
    /// bytes over the present content: `range` itself, or more at its two ends where chunks are
    /// stored whole, or where a chunk is in so many pieces that it is better stored again. What
    /// lies between the file's end and the write is zeros.
    pub fn plan_write(&self, file: FileId, range: Range<u64>) -> Result<Range<u64>, JournalError> {
        let state = self.get(file)?;
        let chunk = self.log.options.chunk_bytes;
        if chunk == 0 || range.is_empty() || state.base.kind != Kind::Partial {
            return Ok(range);
        }
        let end = state.base.size_bytes.max(range.end);
        let head = range.start / chunk * chunk;
        let tail = ((range.end - 1) / chunk * chunk).saturating_add(chunk).min(end);
        let mut store = range.clone();
        if head < range.start && self.is_stored_whole(state, head, &range, end) {
            store.start = head;
            store.end = store.end.max(head.saturating_add(chunk).min(end));
        }
        let last = (range.end - 1) / chunk * chunk;
        if tail > store.end && self.is_stored_whole(state, last, &range, end) {
            store.end = tail;
            store.start = store.start.min(last);
        }
        Ok(store)
    }

    fn is_stored_whole(
        &self,
        state: &FileState,
        start: u64,
        range: &Range<u64>,
        file_end: u64,
    ) -> bool {
        let options = &self.log.options;
        let end = start.saturating_add(options.chunk_bytes).min(file_end);
        let (before, after) = (start..range.start.max(start), range.end.min(end)..end);
        let has_unfilled = !state.unfilled(before).is_empty() || !state.unfilled(after).is_empty();
        if options.has_whole_chunks && has_unfilled {
            return true;
        }
        let mut runs = 0;
        for run in state.map.overlapping(start..end) {
            if run.content == Content::Damaged {
                return false;
            }
            runs += 1;
        }
        runs + 2 > options.runs_per_chunk_max
    }
}

/// Returns the source of bytes that no run covers: the lower file below the limit, zeros from there
/// on.
fn unmapped<H>(state: &FileState, range: Range<u64>, pieces: &mut Vec<Piece<H>>) {
    let border = state.base.lower_limit.clamp(range.start, range.end);
    for (range, source) in [(range.start..border, Source::Lower), (border..range.end, Source::Zero)]
    {
        if !range.is_empty() {
            pieces.push(Piece { range, source });
        }
    }
}
