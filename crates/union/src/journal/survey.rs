//! Compares the segments that exist with those that should: before the replay, and without changing
//! anything.
//!
//! Segments are made in order, each name durable before the next segment is made, and deleted from
//! the oldest on. Three places show which segments must exist: a segment's header names the oldest
//! segment of its time, records of the newest segment list those deleted since, and the mark
//! ([`super::mark`]) names the newest.

use super::error::JournalError;
use super::mark;
use super::record::Record;
use super::scan::Scanner;
use super::segment::{HEADER_BYTES, Header};
use super::storage::{SegmentFile, Storage};
use super::types::{SegmentId, Sequence};

/// A segment file and its header, if that is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) segment: SegmentId,
    pub(super) size_bytes: u64,
    pub(super) header: Option<Header>,
    /// Whether there is no such file, although there should be.
    pub(super) is_missing: bool,
}

/// The result.
#[derive(Debug)]
pub(super) struct Survey {
    /// The segments of the log, in order, and those after its end.
    pub(super) candidates: Vec<Candidate>,
    /// Segments whose deletion was cut short.
    pub(super) leftovers: Vec<SegmentId>,
    pub(super) marks: mark::Found,
    /// The log's number, if that is known.
    pub(super) journal: Option<u64>,
    /// Records up to here were known to be durable.
    pub(super) synced: Sequence,
    /// The newest segment that is known to have been durable.
    pub(super) newest_durable: Option<SegmentId>,
    /// Whether the mark is of another log.
    pub(super) is_mark_strange: bool,
    /// Whether the file of marks is gone or destroyed although there must be one.
    pub(super) lacks_marks: bool,
}

/// What the newest segment records about the log.
struct Newest {
    synced: Sequence,
    /// The oldest segment that is needed.
    oldest: Option<SegmentId>,
    /// Whether a record of the segment itself was known to be durable.
    is_durable: bool,
}

/// Looks at a log.
pub(super) fn survey<S: Storage>(storage: &S) -> Result<Survey, JournalError> {
    let mut files =
        storage.list().map_err(|error| JournalError::io("listing the segments", error))?;
    files.sort_by_key(|file| file.segment);
    let bytes = storage.read_marks();
    let bytes =
        bytes.map_err(|error| JournalError::io(format!("reading {}", mark::NAME), error))?;
    let marks = mark::Found::read(bytes.as_deref());
    let mut candidates = Vec::with_capacity(files.len());
    for file in &files {
        candidates.push(candidate(storage, *file)?);
    }
    let header = candidates.iter().rev().find_map(|candidate| candidate.header);
    // All segments of a log carry its number; others cannot be read with it.
    let journal = header.map(|header| header.key.journal).or(marks.mark.map(|mark| mark.journal));
    for candidate in &mut candidates {
        candidate.header = candidate.header.filter(|it| Some(it.key.journal) == journal);
    }
    let newest = header.map(|header| read_newest(storage, &header)).transpose()?;
    let mark = marks.mark.filter(|mark| Some(mark.journal) == journal);
    let (candidates, leftovers) = arrange(
        candidates,
        newest.as_ref().and_then(|newest| newest.oldest),
        mark.map(|mark| mark.segment),
    );
    let is_new_form = |candidate: &&Candidate| candidate.header.is_some_and(|h| h.oldest.is_some());
    let newest_is_new = header.is_some_and(|header| header.oldest.is_some());
    let is_proven = newest.as_ref().is_some_and(|newest| newest.is_durable)
        || candidates.iter().filter(is_new_form).count() > 1;
    // A loss of power may destroy a new file of marks: this is no damage, and shows nothing.
    let witness = storage.witness();
    let has_lost_power = header.is_some_and(|it| witness == 0 || it.witness != witness);
    let has_no_mark =
        !has_lost_power && (marks.is_missing || (marks.mark.is_none() && marks.damaged_slots > 0));
    let synced = newest.map_or(Sequence(0), |newest| newest.synced);
    Ok(Survey {
        candidates,
        leftovers,
        journal,
        synced: synced.max(mark.map_or(Sequence(0), |mark| mark.durable)),
        newest_durable: mark.map(|mark| mark.segment),
        is_mark_strange: marks.mark.is_some() && mark.is_none(),
        lacks_marks: has_no_mark && newest_is_new && is_proven,
        marks,
    })
}

fn candidate<S: Storage>(storage: &S, file: SegmentFile) -> Result<Candidate, JournalError> {
    let SegmentFile { segment, size_bytes } = file;
    let mut bytes = [0; HEADER_BYTES];
    let count = storage
        .read_at(segment, 0, &mut bytes)
        .map_err(|error| JournalError::io(format!("reading segment {segment}"), error))?;
    let header = Header::decode(segment, &bytes[..count]);
    Ok(Candidate { segment, size_bytes, header, is_missing: false })
}

/// Separates the log's segments from leftovers of a deletion, and adds those that are missing.
fn arrange(
    found: Vec<Candidate>,
    oldest: Option<SegmentId>,
    newest: Option<SegmentId>,
) -> (Vec<Candidate>, Vec<SegmentId>) {
    let ids: Vec<u32> = found.iter().map(|candidate| candidate.segment.0).collect();
    // The last run of consecutive numbers belongs to the log in any case: a record that something
    // goes may have survived a loss of power without what goes before it. Older versions record
    // nothing of deletions: there a gap is one that was cut short.
    let run = ids.windows(2).rposition(|pair| pair[0] + 1 != pair[1]).map_or(0, |index| index + 1);
    let run = ids.get(run).copied();
    let known = oldest.map(|oldest| oldest.0).into_iter().chain(run).min();
    let first = known.or(newest.map(|newest| newest.0));
    let Some(first) = first else { return (Vec::new(), Vec::new()) };
    let last = ids.last().copied().unwrap_or(0).max(newest.map_or(0, |newest| newest.0));
    let is_leftover = |candidate: &&Candidate| candidate.segment.0 < first;
    let leftovers = found.iter().filter(is_leftover).map(|candidate| candidate.segment).collect();
    let mut candidates = Vec::new();
    let mut found =
        found.into_iter().skip_while(|candidate| candidate.segment.0 < first).peekable();
    // A hostile number must not make millions of entries: one missing segment stands for its whole
    // gap.
    let mut at = first;
    while at <= last {
        if let Some(candidate) = found.next_if(|candidate| candidate.segment.0 == at) {
            candidates.push(candidate);
        } else {
            let segment = SegmentId(at);
            let gap = Candidate { segment, size_bytes: 0, header: None, is_missing: true };
            candidates.push(gap);
            // Up to the next one that is there, or to the end.
            let end = found.peek().map_or(last, |candidate| candidate.segment.0 - 1);
            if end > at {
                candidates.push(Candidate { segment: SegmentId(end), ..gap });
            }
            at = end;
        }
        let Some(next) = at.checked_add(1) else { break };
        at = next;
    }
    (candidates, leftovers)
}

/// Reads what the newest segment says of the log.
fn read_newest<S: Storage>(storage: &S, header: &Header) -> Result<Newest, JournalError> {
    let mut scanner = Scanner::new(storage, header.segment, header.key);
    let mut newest = Newest { synced: header.synced, oldest: header.oldest, is_durable: false };
    let (mut at, mut last) = (HEADER_BYTES as u64, header.previous);
    loop {
        let found = match scanner.record(at)? {
            Some(found) if found.head.sequence > last => found,
            _ => match scanner.next_valid(at, last)? {
                Some(found) => found,
                None => return Ok(newest),
            },
        };
        newest.synced = newest.synced.max(found.head.synced);
        newest.is_durable |= found.head.synced > header.previous;
        if let (Record::Forget(segment), Some(oldest)) = (&found.record, &mut newest.oldest) {
            *oldest = (*oldest).max(SegmentId(segment.0.saturating_add(1).min(header.segment.0)));
        }
        last = found.head.sequence;
        at = found.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(ids: &[u32]) -> Vec<Candidate> {
        let one = |&id: &u32| Candidate {
            segment: SegmentId(id),
            size_bytes: 9,
            header: None,
            is_missing: false,
        };
        ids.iter().map(one).collect()
    }

    fn arranged(ids: &[u32], oldest: Option<u32>, newest: Option<u32>) -> (String, Vec<SegmentId>) {
        let (found, left) = arrange(there(ids), oldest.map(SegmentId), newest.map(SegmentId));
        let word =
            |it: &Candidate| format!("{}{} ", it.segment.0, if it.is_missing { "-" } else { "" });
        (found.iter().map(word).collect(), left)
    }

    // Goal: what must be there and is not is in the list; what is older than that is a leftover.
    #[test]
    fn missing_segments_are_named() {
        assert_eq!(arranged(&[], None, None), (String::new(), vec![]));
        assert_eq!(arranged(&[1, 3], None, None), ("3 ".into(), vec![SegmentId(1)]));
        assert_eq!(arranged(&[1, 3], Some(1), None).0, "1 2- 3 ");
        assert_eq!(arranged(&[2, 3], Some(1), Some(3)).0, "1- 2 3 ");
        assert_eq!(arranged(&[1, 3], Some(3), Some(2)), ("3 ".into(), vec![SegmentId(1)]));
        assert_eq!(arranged(&[1], Some(1), Some(4)).0, "1 2- 4- ");
        assert_eq!(arranged(&[], None, Some(u32::MAX)).0, format!("{}- ", u32::MAX));
        assert_eq!(arranged(&[7], Some(1), Some(3)).0, "1- 6- 7 ");
    }
}
