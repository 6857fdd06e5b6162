//! Opening: replays the log's longest intact prefix, and distinguishes damage from the tail that a
//! crash may take.
//!
//! A record counts if it is whole and its number is one more than that of the record before it.
//! Behind the last such record, the rest was not synced and is dropped, unless the missing records
//! are known to have been durable ([`super::survey`]): then they are damage. A store with damage is
//! refused before anything is written. If it is to be opened nevertheless, everything that the
//! missing records may have concerned gives errors.

use super::damage::{Damage, DamageKind};
use super::error::JournalError;
use super::log::{Log, Segment};
use super::options::Options;
use super::record::{Key, Record};
use super::scan::{Found, Scanner};
use super::segment::{HEADER_BYTES, Header};
use super::state::{Location, State};
use super::storage::Storage;
use super::survey::{Candidate, Survey, survey};
use super::types::{SegmentId, Sequence};

/// The findings of opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records that were replayed.
    pub records: u64,
    /// Whether the page cache has lived on since the last use: nothing but a process ended. Then
    /// the work files of pending copy-ups are whole too; else only those recorded as durable.
    pub is_continuous: bool,
    /// Files that had no name any more and were forgotten.
    pub nameless: usize,
    /// Segments that held nothing but what was never synced.
    pub segments_discarded: usize,
    /// Durable records that are lost.
    pub damage: Vec<Damage>,
}

/// More than there are records in lost segments.
const NUMBERS_LOST_MAX: u64 = 1 << 32;

struct Replay<'a, S> {
    storage: &'a S,
    state: State,
    recovery: Recovery,
    /// The last record that was replayed.
    last: Sequence,
    /// Records up to here were known to be durable.
    synced: Sequence,
    /// The newest segment that was known to be durable.
    newest_durable: Option<SegmentId>,
}

/// A log as it lies in its storage: read, with nothing changed.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) survey: Survey,
    pub(super) segments: Vec<(SegmentId, Segment)>,
    pub(super) state: State,
    pub(super) recovery: Recovery,
    pub(super) last: Sequence,
}

/// Replays the log, and makes it one that can be appended to.
pub(super) fn recover<S: Storage>(
    mut storage: S,
    options: Options,
) -> Result<(Log<S>, State, Recovery), JournalError> {
    let Replayed { survey, segments, state, recovery, last } = replay(&storage)?;
    let has_damage = !recovery.damage.is_empty();
    if has_damage && !options.accepts_damage {
        return Err(JournalError::Lost(recovery.damage));
    }
    for segment in &survey.leftovers {
        let result = storage.delete(*segment);
        result.map_err(|error| JournalError::io("deleting an old segment", error))?;
    }
    discard(&mut storage, &survey.candidates[segments.len()..])?;
    let mut log = Log::new(storage, options);
    log.journal = survey.journal.unwrap_or(log.journal);
    log.segments = segments.into_iter().collect();
    log.mark = survey.marks.mark;
    (log.appended, log.durable) = (last, survey.synced.min(last));
    make_durable(&mut log)?;
    Ok((log, state, recovery))
}

/// Reads the log.
pub(super) fn replay<S: Storage>(storage: &S) -> Result<Replayed, JournalError> {
    let survey = survey(storage)?;
    let headers = || survey.candidates.iter().filter_map(|candidate| candidate.header);
    let mut replay = Replay {
        storage,
        state: State::default(),
        recovery: Recovery::default(),
        last: headers().next().map_or(Sequence(0), |header| header.previous),
        synced: survey.synced,
        newest_durable: survey.newest_durable,
    };
    if let Some(newest) = headers().next_back() {
        let witness = storage.witness();
        replay.recovery.is_continuous = witness != 0 && witness == newest.witness;
        replay.state.next_file = newest.next_file;
    }
    let mut segments = Vec::new();
    for (index, candidate) in survey.candidates.iter().enumerate() {
        let next = survey.candidates[index + 1..].iter().find_map(|candidate| candidate.header);
        match replay.segment(candidate, next.as_ref())? {
            Some(segment) => segments.push((candidate.segment, segment)),
            None => break,
        }
    }
    replay.check_marks(&survey);
    let Replay { mut state, mut recovery, last, .. } = replay;
    recovery.nameless = state.finish_replay();
    if !recovery.damage.is_empty() {
        // Lost records may have used numbers that no other record shows.
        state.next_file = state.next_file.saturating_add(NUMBERS_LOST_MAX).min(u64::MAX / 4);
    }
    let discarded = &survey.candidates[segments.len()..];
    recovery.segments_discarded = discarded.iter().filter(|it| !it.is_missing).count();
    Ok(Replayed { survey, segments, state, recovery, last })
}

/// Removes dropped segments, newest first, so that no gap arises in between.
fn discard<S: Storage>(storage: &mut S, given_up: &[Candidate]) -> Result<(), JournalError> {
    for candidate in
        given_up.iter().rev().filter(|_| !reactor::mutant!("journal-torn-segment-kept"))
    {
        storage
            .delete(candidate.segment)
            .and_then(|()| storage.sync_directory())
            .map_err(|error| JournalError::io("deleting a torn segment", error))?;
    }
    Ok(())
}

/// Makes the recovered state durable: a later crash must not lose it when new records build upon
/// it.
fn make_durable<S: Storage>(log: &mut Log<S>) -> Result<(), JournalError> {
    let dirty: Vec<_> = log.dirty().collect();
    if reactor::mutant!("journal-recovered-volatile") {
        return Ok(());
    }
    if !dirty.is_empty() {
        log.dirt.names += 1;
        log.sync_names()?;
    }
    for segment in dirty {
        log.sync_segment(segment)?;
    }
    log.durable = log.appended;
    log.remember()
}

impl<S: Storage> Replay<'_, S> {
    /// Replays one segment, unless the log ends before it.
    fn segment(
        &mut self,
        candidate: &Candidate,
        next: Option<&Header>,
    ) -> Result<Option<Segment>, JournalError> {
        let Some(header) = candidate.header else { return Ok(self.unreadable(candidate, next)) };
        if header.previous > self.last {
            if self.synced <= self.last {
                return Ok(None);
            }
            let resumes = Some(Sequence(header.previous.0 + 1));
            // Where a whole segment is missing, that is the damage, and is known already.
            if self.recovery.damage.last().is_none_or(|it| it.resumes != resumes) {
                self.damaged(DamageKind::Records, candidate.segment, resumes);
            }
            self.last = header.previous;
        }
        let limit = next.map_or(Sequence(u64::MAX), |next| next.previous);
        let mut scanner = Scanner::new(self.storage, header.segment, header.key);
        let mut at = HEADER_BYTES as u64;
        loop {
            let found = scanner.record(at)?;
            let is_next = |found: &Found| {
                found.head.sequence.0 == self.last.0 + 1 && found.head.sequence <= limit
            };
            let mut found = found.filter(is_next);
            if let Some(record) = &found
                && record.head.sequence > self.synced
                && !reactor::mutant!("journal-data-unchecked")
                && !scanner.is_data_whole(record)?
            {
                found = None;
            }
            if found.is_none() && self.last < self.synced && self.last < limit {
                found = scanner.next_valid(at, self.last)?.filter(|f| f.head.sequence <= limit);
                let resumes = found.as_ref().map(|found| found.head.sequence);
                if resumes.is_some() || next.is_none() {
                    let resumes_at = resumes.unwrap_or(Sequence(self.synced.0 + 1));
                    self.damaged(DamageKind::Records, candidate.segment, Some(resumes_at));
                }
                // New records go on behind what is lost, so that the next opening finds the hole
                // too.
                if resumes.is_none() && next.is_none() {
                    self.last = self.synced;
                }
            }
            let Some(found) = found else { break };
            at = found.end();
            self.apply(candidate.segment, found);
        }
        let Candidate { size_bytes, .. } = *candidate;
        let size_bytes = size_bytes.max(at);
        let (key, last) = (header.key, self.last);
        let has_durable_header = next.is_some();
        Ok(Some(Segment { key, size_bytes, end: at, last, has_durable_header }))
    }

    /// Notes a segment without a header. `None` if it was never durable: the log ends
    /// before it.
    fn unreadable(&mut self, candidate: &Candidate, next: Option<&Header>) -> Option<Segment> {
        // A segment is followed by another only after its header is durable.
        let is_known = self.newest_durable.is_some_and(|newest| candidate.segment <= newest);
        let end = match next {
            Some(next) => next.previous,
            None if is_known => self.synced.max(self.last),
            None => return None,
        };
        let kind = if candidate.is_missing { DamageKind::Missing } else { DamageKind::Header };
        self.damaged(kind, candidate.segment, Some(Sequence(end.0 + 1)));
        self.last = self.last.max(end);
        let size_bytes = candidate.size_bytes;
        let (key, last) = (Key { journal: 0, epoch: 0 }, self.last);
        Some(Segment { key, size_bytes, end: size_bytes, last, has_durable_header: true })
    }

    fn apply(&mut self, segment: SegmentId, found: Found) {
        self.recovery.records += 1;
        self.last = found.head.sequence;
        let at = Location {
            segment,
            data_position: found.data().start as u32,
            data_bytes: found.head.data_bytes as u64,
            sums: found.sums,
        };
        // The lost records may hold older bytes of a file that only a snapshot describes, and a
        // snapshot from before the damage does not know of it.
        let file = found.head.file;
        let known = self.state.files.get(&file).filter(|state| state.home.is_some());
        let is_suspect = known.map_or(!self.recovery.damage.is_empty(), |it| it.base.is_suspect);
        let is_repeated = matches!(found.record, Record::Snapshot(_));
        self.state.apply(at, file, found.record);
        if is_suspect && is_repeated {
            self.state.suspect(file);
        }
    }

    /// Durable records are missing: marks everything that they may have concerned as not trusted.
    fn damaged(&mut self, kind: DamageKind, segment: SegmentId, resumes: Option<Sequence>) {
        for file in self.state.files.values_mut() {
            file.base.is_suspect = !reactor::mutant!("journal-damage-trusted");
        }
        if reactor::mutant!("journal-damage-unreported") {
            return;
        }
        self.recovery.damage.push(Damage { kind, segment, after: self.last, resumes });
    }

    /// Compares with the file of marks. A destroyed file of marks alone makes no file suspect.
    fn check_marks(&mut self, survey: &Survey) {
        let kind = match (survey.lacks_marks, survey.is_mark_strange) {
            (true, _) => DamageKind::Marks,
            (_, true) => DamageKind::Strange,
            _ => return,
        };
        let segment = survey.candidates.last().map_or(SegmentId(0), |last| last.segment);
        self.recovery.damage.push(Damage { kind, segment, after: self.last, resumes: None });
    }
}
