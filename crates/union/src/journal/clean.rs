//! Giving space back: dead segments are deleted, and the oldest one is emptied when too little of
//! the log lives.
//!
//! Always the oldest: every record behind the cleaned segment still exists, so a moved record needs
//! only its present state and no history, and the log stays one run of segments. The segment is
//! read record by record, so each piece is checked before it is moved, and a step is bounded. An
//! emptied segment is deleted only when everything that was appended until then is durable.

use super::Journal;
use super::error::JournalError;
use super::map::Content;
use super::record::{RANGES_MAX, Record};
use super::scan::{Found, Scanner};
use super::segment::HEADER_BYTES;
use super::storage::Storage;
use super::types::{FILE_BYTES_MAX, FileId, SegmentId, Sequence};

/// The assumed size of a file's metadata in the log.
const BASE_BYTES: u64 = 512;

/// How far the cleaning of the oldest segment has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cleaner {
    /// The segment that is being emptied, and the position of the next record in it.
    at: Option<(SegmentId, u64)>,
    /// A segment that is dead once all up to this record is durable. Its deletion is recorded in
    /// the other one: the newest, where recovery looks for it.
    dead: Option<(SegmentId, Sequence, SegmentId)>,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Bytes of records that were written again.
    pub moved_bytes: u64,
    /// Segments that were deleted: one or none.
    pub segments_deleted: usize,
    /// Whether a sync, or another step, would get further.
    pub has_more: bool,
}

impl<S: Storage> Journal<S> {
    /// One step: deletes the oldest segment if it is dead, else moves up to about `budget_bytes`
    /// out of the oldest segment if less than half of the log lives.
    pub fn clean(&mut self, budget_bytes: u64) -> Result<Cleaned, JournalError> {
        let mut cleaned = Cleaned::default();
        // One at a time: the unlink of a large file takes the file system a while.
        if self.delete_dead()? {
            cleaned.segments_deleted = 1;
            cleaned.has_more = true;
            return Ok(cleaned);
        }
        if self.cleaner.dead.is_some() {
            cleaned.has_more = true;
            return Ok(cleaned);
        }
        if let Some(oldest) = self.wants_cleaning() {
            let before = self.log.used_bytes();
            self.move_out(oldest, budget_bytes)?;
            cleaned.moved_bytes = self.log.used_bytes() - before;
            cleaned.has_more = true;
        }
        Ok(cleaned)
    }

    /// Deletes the oldest segment if nothing of it is needed and that is durable.
    fn delete_dead(&mut self) -> Result<bool, JournalError> {
        let Some((&oldest, segment)) = self.log.segments.iter().next() else { return Ok(false) };
        // A later segment carries the log on only when a record in it, and so its header, is
        // durable: without it the log would begin again.
        let is_followed = self.log.durable > segment.last;
        if !is_followed || !self.state.is_dead(oldest) {
            self.cleaner.dead = None;
            return Ok(false);
        }
        let newest = self.log.segments.keys().next_back().copied();
        let since = match self.cleaner.dead {
            Some((segment, since, recorded_in))
                if (segment, Some(recorded_in)) == (oldest, newest) =>
            {
                since
            }
            _ => {
                // Without it a segment that is missing later is damage.
                if !reactor::mutant!("journal-segment-unforgotten") {
                    self.append(FileId(0), Record::Forget(oldest), &[])?;
                }
                self.log.appended
            }
        };
        let Some(&recorded_in) = self.log.segments.keys().next_back() else { return Ok(false) };
        self.cleaner.dead = Some((oldest, since, recorded_in));
        if self.log.durable < since || self.log.dirt.names > self.log.dirt.names_synced {
            return Ok(false);
        }
        let result = self.log.storage.delete(oldest);
        result.map_err(|error| JournalError::io(format!("deleting segment {oldest}"), error))?;
        self.log.segments.remove(&oldest);
        self.state.forget_segment(oldest);
        self.cleaner = Cleaner::default();
        Ok(true)
    }

    /// Returns the oldest segment, if it is worth to empty it.
    fn wants_cleaning(&self) -> Option<SegmentId> {
        let (&oldest, _) = self.log.segments.iter().next()?;
        let newest = *self.log.segments.keys().next_back()?;
        if oldest == newest || self.log.is_poisoned {
            return None;
        }
        let live = self.state.live_data_bytes() + BASE_BYTES * self.state.files.len() as u64;
        let slack = self.log.options.segment_bytes_min;
        let is_begun = self.cleaner.at.is_some_and(|(segment, _)| segment == oldest);
        (is_begun || self.log.used_bytes() > 2 * live + slack).then_some(oldest)
    }

    fn move_out(&mut self, oldest: SegmentId, budget_bytes: u64) -> Result<(), JournalError> {
        let start = match self.cleaner.at {
            Some((segment, at)) if segment == oldest => at,
            _ => HEADER_BYTES as u64,
        };
        let Some(&segment) = self.log.segments.get(&oldest) else { return Ok(()) };
        let (mut at, mut spent) = (start, 0);
        while at < segment.end && spent < budget_bytes && !self.state.is_dead(oldest) {
            let mut scanner = Scanner::new(&self.log.storage, oldest, segment.key);
            // Numbers grow in a segment, so any whole record behind a damaged place will do.
            let found = match scanner.record(at)? {
                Some(found) => Some(found),
                None => scanner.next_valid(at, Sequence(0))?,
            };
            let Some(found) = found else { break };
            if found.position >= segment.end {
                break;
            }
            spent += found.head.record_bytes();
            self.move_record(oldest, &found)?;
            at = found.end();
        }
        self.cleaner.at = Some((oldest, at));
        if spent < budget_bytes && !self.state.is_dead(oldest) {
            self.lose_rest(oldest)?;
        }
        Ok(())
    }

    /// Writes again what of a record is still needed.
    fn move_record(&mut self, oldest: SegmentId, found: &Found) -> Result<(), JournalError> {
        let file = found.head.file;
        let Some(state) = self.state.files.get(&file) else { return Ok(()) };
        match found.record {
            Record::Create(_) | Record::Snapshot(_) if state.home == Some(oldest) => {
                self.snapshot(file)
            }
            Record::Write { offset, .. } | Record::Move { offset } => {
                self.move_data(oldest, found, offset)
            }
            _ => Ok(()),
        }
    }

    /// Moves the parts of a record's data that the map still names.
    fn move_data(
        &mut self,
        oldest: SegmentId,
        found: &Found,
        offset: u64,
    ) -> Result<(), JournalError> {
        let file = found.head.file;
        let data = found.data();
        let end = offset.saturating_add(data.end - data.start).min(FILE_BYTES_MAX);
        let is_this = |content: Content, start: u64| match content {
            Content::Stored { segment, position } => {
                segment == oldest && u64::from(position) == data.start + (start - offset)
            }
            _ => false,
        };
        let Some(state) = self.state.files.get(&file) else { return Ok(()) };
        let runs = state.map.overlapping(offset..end);
        let live: Vec<_> =
            runs.filter(|run| is_this(run.content, run.range.start)).map(|run| run.range).collect();
        if live.is_empty() {
            return Ok(());
        }
        let Some(&segment) = self.log.segments.get(&oldest) else { return Ok(()) };
        let mut scanner = Scanner::new(&self.log.storage, oldest, segment.key);
        let bytes = scanner.data(found)?.map(<[u8]>::to_vec);
        let Some(bytes) = bytes else {
            let lost: Vec<_> = live.iter().map(|range| (range.start, range.end)).collect();
            return self.lose(file, &lost);
        };
        for range in live {
            let part = &bytes[(range.start - offset) as usize..(range.end - offset) as usize];
            self.append(file, Record::Move { offset: range.start }, part)?;
        }
        Ok(())
    }

    /// Repeats everything of a file but its stored bytes.
    pub(super) fn snapshot(&mut self, file: FileId) -> Result<(), JournalError> {
        let state = self.get(file)?;
        let base = state.base.clone();
        let of = |wanted: Content| -> Vec<(u64, u64)> {
            let runs = state.map.overlapping(0..FILE_BYTES_MAX).filter(|run| run.content == wanted);
            runs.map(|run| (run.range.start, run.range.end)).collect()
        };
        let (zero, lost) = (of(Content::Zero), of(Content::Damaged));
        self.append(file, Record::Snapshot(base), &[])?;
        for ranges in zero.chunks(RANGES_MAX) {
            self.append(file, Record::Zero { ranges: ranges.to_vec(), mtime: None }, &[])?;
        }
        self.lose(file, &lost)
    }

    fn lose(&mut self, file: FileId, lost: &[(u64, u64)]) -> Result<(), JournalError> {
        for ranges in lost.chunks(RANGES_MAX) {
            self.append(file, Record::Lost { ranges: ranges.to_vec() }, &[])?;
        }
        Ok(())
    }

    /// Records as lost the ranges that still lie in the segment behind the last readable record.
    fn lose_rest(&mut self, oldest: SegmentId) -> Result<(), JournalError> {
        let ids: Vec<_> = self.state.files.keys().copied().collect();
        for file in ids {
            let state = self.get(file)?;
            let in_oldest =
                |content| matches!(content, Content::Stored { segment, .. } if segment == oldest);
            let runs = state.map.overlapping(0..FILE_BYTES_MAX);
            let lost = runs.filter(|run| in_oldest(run.content));
            let lost: Vec<_> = lost.map(|run| (run.range.start, run.range.end)).collect();
            let is_home = state.home == Some(oldest);
            self.lose(file, &lost)?;
            if is_home {
                self.snapshot(file)?;
            }
        }
        Ok(())
    }
}
