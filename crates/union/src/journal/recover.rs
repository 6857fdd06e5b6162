//! Opening: finds the log's segments, replays the longest intact prefix, and distinguishes damage from the tail
//! that a crash may take.
//!
//! Segments are made in order, each name durable before the next segment is made, and deleted from
//! the oldest on; so the log is the last run of consecutive numbers. A record counts if it is whole
//! and its number is one more than that of the record before it. Where that ends, the rest was not
//! synced and goes, unless something later knew the missing records to be durable: then they are
//! damaged, which is reported, and everything that they may have concerned gives errors.

use super::error::JournalError;
use super::log::{Log, Segment};
use super::options::Options;
use super::record::{Key, Record};
use super::scan::{Found, Scanner};
use super::segment::{HEADER_BYTES, Header};
use super::state::{Location, State};
use super::storage::Storage;
use super::types::{SegmentId, Sequence};

/// What was found at opening.
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

/// A place where durable records are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: SegmentId,
    /// The last record before it.
    pub after: Sequence,
    /// The first whole record behind it, if there is one.
    pub resumes: Option<Sequence>,
}

struct Replay<'a, S> {
    storage: &'a S,
    state: State,
    recovery: Recovery,
    /// The last record that was replayed.
    last: Sequence,
    /// Records up to here were known to be durable.
    synced: Sequence,
}

/// A segment file and its header, if that is whole.
struct Candidate {
    segment: SegmentId,
    size_bytes: u64,
    header: Option<Header>,
}

/// Replays the log.
pub(super) fn recover<S: Storage>(
    mut storage: S,
    options: Options,
) -> Result<(Log<S>, State, Recovery), JournalError> {
    let candidates = candidates(&mut storage)?;
    let headers: Vec<_> = candidates.iter().filter_map(|candidate| candidate.header).collect();
    let mut log_segments = Vec::new();
    let mut replay = Replay {
        storage: &storage,
        state: State::default(),
        recovery: Recovery::default(),
        last: headers.first().map_or(Sequence(0), |header| header.previous),
        synced: Sequence(0),
    };
    if let Some(newest) = headers.last() {
        let witness = storage.witness();
        replay.recovery.is_continuous = witness != 0 && witness == newest.witness;
        replay.synced = replay.survey(newest)?;
        replay.state.next_file = newest.next_file;
    }
    for (index, candidate) in candidates.iter().enumerate() {
        let next = candidates[index + 1..].iter().find_map(|candidate| candidate.header);
        match replay.segment(candidate, next.as_ref())? {
            Some(segment) => log_segments.push((candidate.segment, segment)),
            None => break,
        }
    }
    let Replay { mut state, mut recovery, last, synced, .. } = replay;
    recovery.nameless = state.finish_replay();
    recovery.segments_discarded = candidates.len() - log_segments.len();
    discard(&mut storage, &candidates[log_segments.len()..])?;
    let mut log = Log::new(storage, options);
    log.journal = headers.last().map_or(log.journal, |header| header.key.journal);
    log.segments = log_segments.into_iter().collect();
    (log.appended, log.durable) = (last, synced.min(last));
    make_durable(&mut log)?;
    Ok((log, state, recovery))
}

/// The last run of consecutive segments; older ones are leftovers of a deletion, and go.
fn candidates<S: Storage>(storage: &mut S) -> Result<Vec<Candidate>, JournalError> {
    let failed = |error| JournalError::io("listing the segments", error);
    let mut files = storage.list().map_err(failed)?;
    files.sort_by_key(|file| file.segment);
    let breaks = |pair: &[super::SegmentFile]| pair[0].segment.0 + 1 != pair[1].segment.0;
    let start = files.windows(2).rposition(breaks).map_or(0, |index| index + 1);
    for file in files.drain(..start) {
        let result = storage.delete(file.segment);
        result.map_err(|error| JournalError::io("deleting an old segment", error))?;
    }
    let mut candidates = Vec::with_capacity(files.len());
    for file in files {
        let mut bytes = [0; HEADER_BYTES];
        let count = storage.read_at(file.segment, 0, &mut bytes).map_err(|error| {
            JournalError::io(format!("reading segment {}", file.segment), error)
        })?;
        let header = Header::decode(file.segment, &bytes[..count]);
        let (segment, size_bytes) = (file.segment, file.size_bytes);
        candidates.push(Candidate { segment, size_bytes, header });
    }
    // All segments of a log carry its number; others cannot be read with it.
    let journal = candidates.iter().rev().find_map(|candidate| candidate.header);
    for candidate in &mut candidates {
        let same = |header: &Header| journal.is_some_and(|j| j.key.journal == header.key.journal);
        candidate.header = candidate.header.filter(same);
    }
    Ok(candidates)
}

/// Removes what was given up, newest first, so that no gap arises in between.
fn discard<S: Storage>(storage: &mut S, given_up: &[Candidate]) -> Result<(), JournalError> {
    for candidate in given_up.iter().rev().filter(|_| !ring::mutant!("journal-torn-segment-kept")) {
        storage
            .delete(candidate.segment)
            .and_then(|()| storage.sync_directory())
            .map_err(|error| JournalError::io("deleting a torn segment", error))?;
    }
    Ok(())
}

/// What is shown must not go in a later crash, when new records build upon it.
fn make_durable<S: Storage>(log: &mut Log<S>) -> Result<(), JournalError> {
    let dirty: Vec<_> = log.dirty().collect();
    if ring::mutant!("journal-recovered-volatile") {
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
    Ok(())
}

impl<S: Storage> Replay<'_, S> {
    /// The last record that the newest segment, or anything in it, knew to be durable.
    fn survey(&self, header: &Header) -> Result<Sequence, JournalError> {
        let mut scanner = Scanner::new(self.storage, header.segment, header.key);
        let mut synced = header.synced;
        let (mut at, mut last) = (HEADER_BYTES as u64, header.previous);
        loop {
            let found = match scanner.record(at)? {
                Some(found) if found.head.sequence > last => found,
                _ => match scanner.next_valid(at, last)? {
                    Some(found) => found,
                    None => return Ok(synced),
                },
            };
            synced = synced.max(found.head.synced);
            last = found.head.sequence;
            at = found.end();
        }
    }

    /// Replays one segment, unless the log ends before it.
    fn segment(
        &mut self,
        candidate: &Candidate,
        next: Option<&Header>,
    ) -> Result<Option<Segment>, JournalError> {
        let Some(header) = candidate.header else {
            // A segment is followed by another only after its header is durable.
            let Some(next) = next else { return Ok(None) };
            self.damaged(candidate.segment, Some(Sequence(next.previous.0 + 1)));
            self.last = self.last.max(next.previous);
            let size_bytes = candidate.size_bytes;
            let key = Key { journal: 0, epoch: 0 };
            let (end, last) = (size_bytes, self.last);
            let blank = Segment { key, size_bytes, end, last, has_durable_header: true };
            return Ok(Some(blank));
        };
        if header.previous > self.last {
            if self.synced <= self.last {
                return Ok(None);
            }
            self.damaged(candidate.segment, Some(Sequence(header.previous.0 + 1)));
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
                && !ring::mutant!("journal-data-unchecked")
                && !scanner.is_data_whole(record)?
            {
                found = None;
            }
            if found.is_none() && self.last < self.synced && self.last < limit {
                found = scanner.next_valid(at, self.last)?.filter(|f| f.head.sequence <= limit);
                let resumes = found.as_ref().map(|found| found.head.sequence);
                if resumes.is_some() || next.is_none() {
                    self.damaged(candidate.segment, resumes);
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

    fn apply(&mut self, segment: SegmentId, found: Found) {
        self.recovery.records += 1;
        self.last = found.head.sequence;
        let at = Location {
            segment,
            data_position: found.data().start as u32,
            data_bytes: found.head.data_bytes as u64,
        };
        // Of a file that only a snapshot tells of, older bytes may lie in what was lost.
        let file = found.head.file;
        let is_new = self.state.files.get(&file).is_none_or(|state| state.home.is_none());
        let is_repeated = matches!(found.record, Record::Snapshot(_));
        self.state.apply(at, file, found.record);
        if is_new && is_repeated && !self.recovery.damage.is_empty() {
            self.state.suspect(file);
        }
    }

    /// Durable records are missing: whatever they concerned is not to be trusted.
    fn damaged(&mut self, segment: SegmentId, resumes: Option<Sequence>) {
        for file in self.state.files.values_mut() {
            file.base.is_suspect = !ring::mutant!("journal-damage-trusted");
        }
        if ring::mutant!("journal-damage-unreported") {
            return;
        }
        self.recovery.damage.push(Damage { segment, after: self.last, resumes });
    }
}
