//! The segments in order: appending records, rolling over, and what is durable.

use std::collections::BTreeMap;
use std::io;

use super::error::JournalError;
use super::mark::{self, Mark};
use super::options::Options;
use super::record::{self, Key, Record};
use super::segment::{HEADER_BYTES, Header};
use super::state::Location;
use super::storage::Storage;
use super::sums::Sums;
use super::types::{FileId, SegmentId, Sequence};

/// Room for one record of the kind `Forget` in each segment.
const SPARE_BYTES: u64 = 72;

/// A segment file of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) key: Key,
    /// Bytes of the file.
    pub(super) size_bytes: u64,
    /// Where the last record ends.
    pub(super) end: u64,
    /// The last record in it.
    pub(super) last: Sequence,
    /// Whether its header is known to be durable.
    pub(super) has_durable_header: bool,
}

/// Changes of the directory that are not synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dirt {
    /// Counts changes of the segments' names.
    pub(super) names: u64,
    /// The count at the last sync that covers them.
    pub(super) names_synced: u64,
    /// Counts creations of the marker.
    pub(super) markers: u64,
    /// The count at the last sync of it.
    pub(super) markers_synced: u64,
}

/// The log.
#[derive(Debug)]
pub(super) struct Log<S> {
    pub(super) storage: S,
    pub(super) options: Options,
    pub(super) journal: u64,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    /// The segment that is appended to: always the last one, and none after a recovery.
    pub(super) active: Option<SegmentId>,
    pub(super) appended: Sequence,
    pub(super) durable: Sequence,
    pub(super) dirt: Dirt,
    pub(super) has_marker: bool,
    pub(super) is_poisoned: bool,
    /// The last mark that was written.
    pub(super) mark: Option<Mark>,
}

impl<S: Storage> Log<S> {
    /// An empty log.
    pub(super) fn new(mut storage: S, options: Options) -> Self {
        let journal = storage.random();
        Self { journal, ..Self::for_reading(storage, options) }
    }

    /// An empty log that nothing is appended to.
    pub(super) fn for_reading(storage: S, options: Options) -> Self {
        Self {
            storage,
            options,
            journal: 0,
            segments: BTreeMap::new(),
            active: None,
            appended: Sequence(0),
            durable: Sequence(0),
            dirt: Dirt::default(),
            has_marker: false,
            is_poisoned: false,
            mark: None,
        }
    }

    /// Appends one record with one write. On an error nothing was appended.
    pub(super) fn append(
        &mut self,
        file: FileId,
        record: &Record,
        data: &[u8],
        next_file: u64,
    ) -> Result<Location, JournalError> {
        if self.is_poisoned {
            return Err(JournalError::Poisoned);
        }
        // Sized with any key first: the key depends on the segment, and that on the size.
        let sums = Sums::of(data);
        let body_bytes = record.body_bytes(&sums);
        let room = (record::HEAD_BYTES + body_bytes + data.len() + 16) as u64;
        // The last room of a segment is for saying that another one goes: that gives space back.
        let is_spare = matches!(record, Record::Forget(_));
        let id = self.segment_with_room(room + u64::from(!is_spare) * SPARE_BYTES, next_file)?;
        let Some(segment) = self.segments.get_mut(&id) else { return Err(JournalError::Poisoned) };
        let sequence = Sequence(self.appended.0 + 1);
        let bytes = record::encode(
            segment.key,
            sequence,
            self.durable,
            file,
            record,
            record::Payload { data, sums: &sums },
        )
        .ok_or(JournalError::TooLarge {
            what: "record",
            found: room,
            limit: record::BODY_BYTES_MAX as u64,
        })?;
        let data_position = segment.end + bytes.len() as u64;
        let end = (data_position + data.len() as u64).next_multiple_of(8);
        assert!(
            end <= segment.size_bytes
                && segment.last <= self.appended
                && self.durable <= self.appended,
            "record {sequence:?} of {file:?} would end at {end} of {segment:?} of {id}, with all \
             durable up to {:?}",
            self.durable
        );
        self.storage
            .write_at(id, segment.end, &[&bytes, data])
            .map_err(|error| JournalError::io(format!("writing segment {id}"), error))?;
        segment.end = end;
        segment.last = sequence;
        self.appended = sequence;
        let data_position = u32::try_from(data_position);
        let Ok(data_position) = data_position else {
            panic!("record {sequence:?} of {file:?} lies past 4 GiB of segment {id}: {segment:?}")
        };
        Ok(Location { segment: id, data_position, data_bytes: data.len() as u64, sums })
    }

    fn segment_with_room(&mut self, room: u64, next_file: u64) -> Result<SegmentId, JournalError> {
        if let Some(id) = self.active
            && let Some(segment) = self.segments.get(&id)
            && segment.end + room <= segment.size_bytes
        {
            return Ok(id);
        }
        self.roll(room, next_file)
    }

    /// Makes the next segment, as large as the log suggests or as the disk has room for.
    fn roll(&mut self, room: u64, next_file: u64) -> Result<SegmentId, JournalError> {
        // Recovery takes a missing segment for a deleted one, and one without a header for the
        // last, so both become durable in order. Usually a ticket has done it by now.
        if let Some((&newest, segment)) = self.segments.iter().next_back()
            && !segment.has_durable_header
        {
            self.sync_segment(newest)?;
        }
        self.sync_names()?;
        self.cut_recovered()?;
        assert!(
            self.dirt.names == self.dirt.names_synced,
            "a segment is made before the names of others are durable: {:?}",
            self.dirt
        );
        let id = SegmentId(self.segments.keys().next_back().map_or(1, |last| last.0 + 1));
        let size_bytes = self.create(id, room + HEADER_BYTES as u64)?;
        let key = Key { journal: self.journal, epoch: self.storage.random() };
        let header = Header {
            segment: id,
            key,
            previous: self.appended,
            synced: self.durable,
            next_file,
            witness: self.storage.witness(),
            oldest: Some(self.segments.keys().next().map_or(id, |oldest| *oldest)),
        };
        if let Err(error) = self.storage.write_at(id, 0, &[&header.encode()]) {
            // Without a header the file is ignored by recovery, and replaced by the next attempt.
            let _ = self.storage.delete(id);
            return Err(JournalError::io(format!("writing segment {id}"), error));
        }
        self.dirt.names += 1;
        let (end, last) = (HEADER_BYTES as u64, self.appended);
        let segment = Segment { key, size_bytes, end, last, has_durable_header: false };
        assert!(
            self.segments.keys().next_back().is_none_or(|last| *last < id),
            "segment {id} is made after {:?}",
            self.segments.keys().next_back()
        );
        let before = self.segments.insert(id, segment);
        assert!(before.is_none(), "segment {id} was made twice: {before:?}");
        self.active = Some(id);
        Ok(id)
    }

    fn create(&mut self, id: SegmentId, needed: u64) -> Result<u64, JournalError> {
        let used: u64 = self.segments.values().map(|segment| segment.size_bytes).sum();
        let Options { segment_bytes_min, segment_bytes_max, .. } = self.options;
        // A quarter of the log at most is space that waits to be used.
        let wanted = (used / 4).next_power_of_two().clamp(segment_bytes_min, segment_bytes_max);
        let mut size_bytes = wanted.max(needed);
        loop {
            match self.storage.create(id, size_bytes) {
                Ok(()) => return Ok(size_bytes),
                Err(error) => {
                    let error = JournalError::io(format!("making segment {id}"), error);
                    if !matches!(error, JournalError::NoSpace(_)) || size_bytes == needed {
                        return Err(error);
                    }
                    size_bytes = (size_bytes / 4).max(needed);
                }
            }
        }
    }

    /// Gives back the unused space of the segment that was written last before a recovery.
    fn cut_recovered(&mut self) -> Result<(), JournalError> {
        let Some((&id, segment)) = self.segments.iter_mut().next_back() else { return Ok(()) };
        if self.active.is_none() && segment.end < segment.size_bytes {
            self.storage
                .truncate(id, segment.end)
                .map_err(|error| JournalError::io(format!("cutting segment {id}"), error))?;
            segment.size_bytes = segment.end;
        }
        assert!(segment.end <= segment.size_bytes, "segment {id} ends past its file: {segment:?}");
        Ok(())
    }

    /// Makes the segments' names durable, if they are not.
    pub(super) fn sync_names(&mut self) -> Result<(), JournalError> {
        if self.dirt.names > self.dirt.names_synced {
            let result = self.storage.sync_directory();
            self.flushed(result)?;
            self.dirt.names_synced = self.dirt.names;
        }
        Ok(())
    }

    /// Flushes one segment.
    pub(super) fn sync_segment(&mut self, id: SegmentId) -> Result<(), JournalError> {
        let result = self.storage.sync(id);
        self.flushed(result)?;
        self.headers_durable(id);
        Ok(())
    }

    /// Notes the headers of all segments up to `newest`.
    pub(super) fn headers_durable(&mut self, newest: SegmentId) {
        for segment in self.segments.range_mut(..=newest).rev().map(|(_, segment)| segment) {
            if segment.has_durable_header {
                break;
            }
            segment.has_durable_header = true;
        }
    }

    /// Notes, where a damaged log cannot lose it, how far this one is durable.
    pub(super) fn remember(&mut self) -> Result<(), JournalError> {
        let is_durable = |segment: &Segment| segment.has_durable_header;
        let newest = self.segments.iter().rev().find(|(_, segment)| is_durable(segment));
        let Some((&segment, _)) = newest else { return Ok(()) };
        let (journal, durable) = (self.journal, self.durable);
        let count = self.mark.map_or(0, |mark| mark.count);
        if self.mark == Some(Mark { journal, count, segment, durable })
            || reactor::mutant!("journal-mark-unwritten")
        {
            return Ok(());
        }
        let mark = Mark { journal, count: count + 1, segment, durable };
        self.storage
            .write_mark(mark.position(), &mark.encode())
            .map_err(|error| JournalError::io(format!("writing {}", mark::NAME), error))?;
        self.mark = Some(mark);
        Ok(())
    }

    /// Turns a failed flush into the sticky state.
    pub(super) fn flushed(&mut self, result: io::Result<()>) -> Result<(), JournalError> {
        result.map_err(|error| {
            self.is_poisoned = true;
            JournalError::io("flushing the copy-up store", error)
        })
    }

    /// Makes the marker exist; it is durable with the next ticket.
    pub(super) fn mark(&mut self) -> Result<(), JournalError> {
        if !self.has_marker {
            self.storage
                .set_marker(true)
                .map_err(|error| JournalError::io("making the marker", error))?;
            self.has_marker = true;
            self.dirt.markers += 1;
        }
        Ok(())
    }

    /// Returns the segments that are not known to be durable, newest first.
    pub(super) fn dirty(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let durable = self.durable;
        let is_dirty =
            move |segment: &Segment| segment.last > durable || !segment.has_durable_header;
        self.segments.iter().rev().take_while(move |(_, s)| is_dirty(s)).map(|(&id, _)| id)
    }

    /// Returns the bytes of all records.
    pub(super) fn used_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.end).sum()
    }

    /// Returns the bytes of all segment files.
    pub(super) fn size_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.size_bytes).sum()
    }
}
