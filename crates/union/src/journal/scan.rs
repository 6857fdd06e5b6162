//! Reading the records of one segment, in order or after a damaged place.
//!
//! Heads are read in windows: large ones where records are small and lie close together, one page
//! where their data is long and is skipped.

use std::ops::Range;

use super::error::JournalError;
use super::record::{self, HEAD_BYTES, Head, Key, Record};
use super::storage::Storage;
use super::sums::Sums;
use super::types::{SegmentId, Sequence};

const WINDOW_BYTES_MAX: usize = 256 << 10;
const WINDOW_BYTES_MIN: usize = 4 << 10;
/// Data of this length makes it worth to skip it.
const SKIP_BYTES: usize = 32 << 10;

/// A reader of one segment.
#[derive(Debug)]
pub(super) struct Scanner<'a, S> {
    storage: &'a S,
    segment: SegmentId,
    key: Key,
    window: Vec<u8>,
    window_start: u64,
    window_bytes: usize,
}

/// A record and where its head is.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) position: u64,
    pub(super) head: Head,
    pub(super) record: Record,
    /// The checksums of its data.
    pub(super) sums: Sums,
}

impl Found {
    /// Returns where the next record begins.
    pub(super) fn end(&self) -> u64 {
        self.position + self.head.record_bytes()
    }

    /// Returns where its data is.
    pub(super) fn data(&self) -> Range<u64> {
        let start = self.position + self.head.data_start();
        start..start + self.head.data_bytes as u64
    }
}

impl<'a, S: Storage> Scanner<'a, S> {
    pub(super) fn new(storage: &'a S, segment: SegmentId, key: Key) -> Self {
        let (window, window_start) = (Vec::new(), 0);
        Self { storage, segment, key, window, window_start, window_bytes: WINDOW_BYTES_MAX }
    }

    /// Returns the bytes at `at`: `len`, or fewer at the segment's end.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], JournalError> {
        let held = self.window_start..self.window_start + self.window.len() as u64;
        if !(held.contains(&at) && at + len as u64 <= held.end) {
            self.window.resize(len.max(self.window_bytes), 0);
            let count = self
                .storage
                .read_at(self.segment, at, &mut self.window)
                .map_err(|error| self.failed(error))?;
            self.window.truncate(count);
            self.window_start = at;
        }
        let skip = (at - self.window_start) as usize;
        Ok(&self.window[skip..self.window.len().min(skip + len)])
    }

    fn failed(&self, error: std::io::Error) -> JournalError {
        JournalError::io(format!("reading segment {}", self.segment), error)
    }

    /// Returns the whole record at `position`, or `None`.
    pub(super) fn record(&mut self, position: u64) -> Result<Option<Found>, JournalError> {
        let key = self.key;
        let Some(head) = Head::parse(self.bytes(position, HEAD_BYTES)?, key) else {
            return Ok(None);
        };
        let bytes = self.bytes(position, HEAD_BYTES + head.body_bytes)?;
        let decoded = record::decode(key, &head, bytes);
        let found = decoded.map(|(record, sums)| Found { position, head, record, sums });
        let is_long = head.data_bytes >= SKIP_BYTES;
        self.window_bytes = if is_long { WINDOW_BYTES_MIN } else { WINDOW_BYTES_MAX };
        Ok(found)
    }

    /// Returns whether the record's data is what was written.
    pub(super) fn is_data_whole(&mut self, found: &Found) -> Result<bool, JournalError> {
        if found.head.data_bytes == 0 {
            return Ok(true);
        }
        Ok(self.data(found)?.is_some())
    }

    /// Returns the record's data, or `None` if it is not what was written.
    pub(super) fn data(&mut self, found: &Found) -> Result<Option<&[u8]>, JournalError> {
        let len = found.head.data_bytes;
        let data = self.bytes(found.data().start, len)?;
        Ok(Some(data).filter(|data| data.len() == len && found.sums.are_of(data)))
    }

    /// Returns the first whole record at or behind `position` with a number above `after`.
    pub(super) fn next_valid(
        &mut self,
        position: u64,
        after: Sequence,
    ) -> Result<Option<Found>, JournalError> {
        let mut at = position;
        loop {
            self.window_bytes = WINDOW_BYTES_MAX;
            let key = self.key;
            let window = self.bytes(at, WINDOW_BYTES_MAX)?;
            let Some(last) = window.len().checked_sub(HEAD_BYTES) else { return Ok(None) };
            // The tag of the key is looked for first: a tail is mostly zeros, and long.
            let tag = (key.epoch as u32).to_le_bytes();
            let is_candidate = |&skip: &usize| {
                window[skip + 4..skip + 8] == tag
                    && Head::parse(&window[skip..], key).is_some_and(|h| h.sequence > after)
            };
            let Some(skip) = (0..=last).step_by(8).find(is_candidate) else {
                at += (last / 8 * 8 + 8) as u64;
                continue;
            };
            at += skip as u64;
            if let Some(found) = self.record(at)? {
                return Ok(Some(found));
            }
            at += 8;
        }
    }
}
