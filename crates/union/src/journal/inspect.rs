//! A whole check of a store that is not in use: everything that opening looks at, and all stored
//! data.

use super::Journal;
use super::damage::{Damage, DamageKind};
use super::error::JournalError;
use super::log::Log;
use super::mark;
use super::offline::FileStatus;
use super::options::Options;
use super::read::Source;
use super::recover::{Recovery, Replayed, replay};
use super::storage::Storage;
use super::types::{FILE_BYTES_MAX, FileId, Kind, SegmentId};

/// Bytes that are read at once.
const STEP_BYTES: u64 = 1 << 20;

/// The findings of a check.
#[derive(Debug)]
pub struct Inspection {
    /// Every copy-up.
    pub files: Vec<FileStatus>,
    /// What opening the store would find.
    pub recovery: Recovery,
    /// Stored ranges that are not what was written: file, first byte, and one past the last.
    pub rotten: Vec<(FileId, u64, u64)>,
    /// Ranges that were found to be lost earlier, which is recorded.
    pub lost: Vec<(FileId, u64, u64)>,
    /// Slots of the file of marks that are destroyed, while the other one is whole.
    pub damaged_marks: usize,
    /// Segments whose deletion was cut short.
    pub leftovers: Vec<SegmentId>,
    /// Whether the marker is there.
    pub has_marker: bool,
    /// Whether a flush of the store is known to have succeeded.
    pub is_synced: bool,
}

impl<S: Storage> Journal<S> {
    /// Checks a store without changing anything.
    ///
    /// # Errors
    /// If the storage cannot be read.
    pub fn inspect(storage: S, options: Options) -> Result<Inspection, JournalError> {
        let Replayed { survey, segments, state, recovery, last } = replay(&storage)?;
        let has_marker = storage.marker();
        let has_marker =
            has_marker.map_err(|error| JournalError::io("reading the marker", error))?;
        let mut log = Log::for_reading(storage, options);
        log.segments = segments.into_iter().collect();
        (log.appended, log.durable) = (last, survey.synced.min(last));
        let journal = Self { log, state, cleaner: super::clean::Cleaner::default() };
        let mut inspection = Inspection {
            files: journal.status(),
            recovery,
            rotten: Vec::new(),
            lost: Vec::new(),
            damaged_marks: survey.marks.damaged_slots,
            leftovers: survey.leftovers,
            has_marker,
            is_synced: survey.synced.0 > 0,
        };
        for (file, copy_up) in journal.files() {
            if *copy_up.kind() == Kind::Partial && !copy_up.is_damaged() {
                journal.verify(file, &mut inspection)?;
            }
        }
        Ok(inspection)
    }

    /// Reads all that is stored of a file.
    fn verify(&self, file: FileId, inspection: &mut Inspection) -> Result<(), JournalError> {
        let mut buffer = Vec::new();
        for piece in self.pieces(file, 0..FILE_BYTES_MAX)? {
            let (segment, position, verifier) = match piece.source {
                Source::Damaged => {
                    inspection.lost.push((file, piece.range.start, piece.range.end));
                    continue;
                }
                Source::Stored { segment, position, verifier, .. } => (segment, position, verifier),
                Source::Zero | Source::Lower => continue,
            };
            let (start, end) = (piece.range.start, piece.range.end);
            for at in (start..end).step_by(STEP_BYTES as usize) {
                let step_end = end.min(at + STEP_BYTES);
                buffer.resize((step_end - at) as usize, 0);
                let from = position + (at - start);
                if !self.read_stored(segment, from, &verifier, &mut buffer)? {
                    add(&mut inspection.rotten, (file, at, step_end));
                }
            }
        }
        Ok(())
    }
}

/// Adds a range, joined to the last one if they meet.
fn add(ranges: &mut Vec<(FileId, u64, u64)>, range: (FileId, u64, u64)) {
    match ranges.last_mut() {
        Some(last) if last.0 == range.0 && last.2 == range.1 => last.2 = range.2,
        _ => ranges.push(range),
    }
}

impl Inspection {
    /// Describes what is wrong with the store itself: a sentence each.
    pub fn damage(&self) -> &[Damage] {
        &self.recovery.damage
    }

    /// Returns whether a slot of the file of marks is destroyed, and that is all that is wrong with
    /// it.
    pub fn has_damaged_mark(&self) -> bool {
        let is_reported = |damage: &Damage| damage.kind == DamageKind::Marks;
        self.damaged_marks > 0 && !self.recovery.damage.iter().any(is_reported)
    }

    /// Returns the file of marks' name, beside the segments.
    pub fn marks_name() -> &'static str {
        mark::NAME
    }
}
