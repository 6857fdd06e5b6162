//! The state that the log describes: all copy-ups with their maps and names, and the bytes of each
//! segment that are still needed.
//!
//! One function applies a record, after it is appended and when it is replayed, so a recovered
//! state cannot differ from the original one. It accepts any record in any order. A record of an
//! unknown file makes a *provisional* file, because the record that created it may lie in a segment
//! that was cleaned, and a snapshot of it comes later. A file that is still provisional at the end
//! of a replay was dropped.

use std::collections::BTreeMap;
use std::ops::Range;

use super::base::Base;
use super::map::{Content, RunMap};
use super::record::Record;
use super::sums::{Sums, Verifier};
use super::types::{
    Attributes, FILE_BYTES_MAX, FileId, Kind, Name, NameChange, ParentKey, SegmentId, Stage, Time,
    Xattr,
};

/// Where a record lies.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) segment: SegmentId,
    /// Where its data begins.
    pub(super) data_position: u32,
    pub(super) data_bytes: u64,
    pub(super) sums: Sums,
}

/// One copy-up.
#[derive(Debug)]
pub(super) struct FileState {
    pub(super) base: Base,
    pub(super) map: RunMap,
    /// The segment with the newest record that holds the whole base; `None` while provisional.
    pub(super) home: Option<SegmentId>,
}

/// The part of a segment that is still needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Live {
    pub(super) data_bytes: u64,
    pub(super) bases: u64,
}

/// All copy-ups.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: BTreeMap<FileId, FileState>,
    pub(super) names: BTreeMap<ParentKey, BTreeMap<Box<[u8]>, FileId>>,
    pub(super) live: BTreeMap<SegmentId, Live>,
    /// The data of the records of each segment, by position: length and checksums.
    sums: BTreeMap<SegmentId, BTreeMap<u32, (u32, Sums)>>,
    pub(super) runs: usize,
    pub(super) next_file: u64,
}

impl FileState {
    fn provisional() -> Self {
        let base = Base {
            lower: None,
            lower_limit: FILE_BYTES_MAX,
            kind: Kind::Partial,
            stage: Stage::Open,
            is_data_durable: false,
            is_suspect: false,
            size_bytes: FILE_BYTES_MAX,
            attributes: Attributes::default(),
            xattrs: Vec::new(),
            names: Vec::new(),
        };
        Self { base, map: RunMap::default(), home: None }
    }

    /// Returns the bytes that are the lower's still.
    pub(super) fn unfilled(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.base.lower_limit);
        if range.start >= end { Vec::new() } else { self.map.gaps(range.start..end) }
    }

    fn touch(&mut self, mtime: Time) {
        self.base.attributes.mtime = mtime;
        self.base.attributes.ctime = mtime;
    }
}

impl State {
    /// Makes the record part of the state.
    pub(super) fn apply(&mut self, at: Location, file: FileId, record: Record) {
        match record {
            Record::Create(base) | Record::Snapshot(base) => {
                return self.settle(at.segment, file, base);
            }
            Record::Names(changes) => return self.change_names(changes),
            Record::Published | Record::Dropped => return self.remove(file),
            Record::Forget(_) => return,
            Record::Write { offset, mtime } => {
                let end = self.store(at, file, offset);
                let state = self.file_or_provisional(file);
                state.base.size_bytes = state.base.size_bytes.max(end);
                state.touch(mtime);
                return;
            }
            Record::Move { offset } => {
                self.store(at, file, offset);
                return;
            }
            Record::Zero { ranges, mtime } => return self.zero(file, ranges, mtime),
            Record::Lost { ranges } => {
                for (start, end) in ranges {
                    self.set(file, start..end, Some(Content::Damaged));
                }
                return;
            }
            Record::Truncate { size_bytes, mtime } => {
                self.set(file, size_bytes..FILE_BYTES_MAX, None);
                let state = self.file_or_provisional(file);
                state.base.size_bytes = size_bytes;
                state.base.lower_limit = state.base.lower_limit.min(size_bytes);
                state.touch(mtime);
                return;
            }
            _ => {}
        }
        let base = &mut self.file_or_provisional(file).base;
        match record {
            Record::Attributes(attributes) => base.attributes = attributes,
            Record::SetXattr(xattr) => {
                base.xattrs.retain(|other| other.name != xattr.name);
                base.xattrs.push(xattr);
            }
            Record::RemoveXattr(name) => base.xattrs.retain(|other| other.name != name),
            Record::DataDurable => base.is_data_durable = true,
            Record::Publishing(work) => base.stage = Stage::Publishing(work),
            Record::Unpublishing => base.stage = Stage::Open,
            _ => {}
        }
    }

    fn file_or_provisional(&mut self, file: FileId) -> &mut FileState {
        self.next_file = self.next_file.max(file.0.saturating_add(1));
        self.files.entry(file).or_insert_with(FileState::provisional)
    }

    /// A whole base: everything but the map is replaced.
    fn settle(&mut self, home: SegmentId, file: FileId, base: Base) {
        self.unname(file);
        for name in &base.names {
            self.names.entry(name.parent.clone()).or_default().insert(name.name.clone(), file);
        }
        let state = self.file_or_provisional(file);
        state.base = base;
        let old = state.home.replace(home);
        self.live.entry(home).or_default().bases += 1;
        self.leave(old);
    }

    fn leave(&mut self, home: Option<SegmentId>) {
        if let Some(live) = home.and_then(|segment| self.live.get_mut(&segment)) {
            assert!(live.bases > 0, "a base leaves segment {home:?} that has none");
            live.bases -= 1;
        }
    }

    /// Forgets a file.
    pub(super) fn remove(&mut self, file: FileId) {
        self.unname(file);
        if self.files.contains_key(&file) {
            self.set(file, 0..FILE_BYTES_MAX, None);
        }
        let home = self.files.remove(&file).and_then(|state| state.home);
        self.leave(home);
    }

    fn unname(&mut self, file: FileId) {
        let names = self.files.get_mut(&file).map(|state| std::mem::take(&mut state.base.names));
        for name in names.unwrap_or_default() {
            self.forget_name(file, &name.parent, &name.name);
        }
    }

    fn forget_name(&mut self, file: FileId, parent: &ParentKey, name: &[u8]) {
        if let Some(entries) = self.names.get_mut(parent) {
            if entries.get(name) == Some(&file) {
                entries.remove(name);
            }
            if entries.is_empty() {
                self.names.remove(parent);
            }
        }
    }

    fn change_names(&mut self, changes: Vec<NameChange>) {
        // Removals come first, so that the two parts of an exchange may come in any order.
        for change in &changes {
            if let NameChange::Remove(file, parent, name) = change {
                let names = &mut self.file_or_provisional(*file).base.names;
                names.retain(|other| !is_at(other, parent, name));
                self.forget_name(*file, parent, name);
            }
        }
        for change in changes {
            if let NameChange::Add(file, name) = change {
                let entries = self.names.entry(name.parent.clone()).or_default();
                entries.insert(name.name.clone(), file);
                self.file_or_provisional(file).base.names.push(name);
            }
        }
    }

    /// Maps the record's data; returns the end of it in the file.
    fn store(&mut self, at: Location, file: FileId, offset: u64) -> u64 {
        let end = offset.saturating_add(at.data_bytes).min(FILE_BYTES_MAX);
        if end > offset {
            self.live.entry(at.segment).or_default().data_bytes += end - offset;
            let known = self.sums.entry(at.segment).or_default();
            known.insert(at.data_position, (at.data_bytes as u32, at.sums));
            let content = Content::Stored { segment: at.segment, position: at.data_position };
            self.set(file, offset..end, Some(content));
        }
        end
    }

    fn zero(&mut self, file: FileId, ranges: Vec<(u64, u64)>, mtime: Option<Time>) {
        for (start, end) in ranges {
            let limit = self.file_or_provisional(file).base.lower_limit;
            self.set(file, start..end.min(limit), Some(Content::Zero));
            self.set(file, start.max(limit)..end, None);
        }
        if let Some(mtime) = mtime {
            self.file_or_provisional(file).touch(mtime);
        }
    }

    /// Changes a file's map and the accounts with it.
    fn set(&mut self, file: FileId, range: Range<u64>, content: Option<Content>) {
        self.file_or_provisional(file);
        let (Some(state), live) = (self.files.get_mut(&file), &mut self.live) else { return };
        let before = state.map.len();
        assert!(before <= self.runs, "{file:?} has {before} runs, and all files {}", self.runs);
        state.map.set(range, content, |segment, bytes| {
            let live = live.entry(segment).or_default();
            assert!(
                live.data_bytes >= bytes,
                "{file:?} frees {bytes} bytes of segment {segment}, of which {live:?} live"
            );
            live.data_bytes -= bytes;
        });
        self.runs = self.runs - before + state.map.len();
    }

    /// Returns the record's data that holds a byte of a segment, and what verifies it.
    pub(super) fn verifier(&self, segment: SegmentId, position: u32) -> Option<Verifier> {
        let known = self.sums.get(&segment)?;
        let (&start, (bytes, sums)) = known.range(..=position).next_back()?;
        let (start, bytes) = (u64::from(start), u64::from(*bytes));
        (u64::from(position) < start + bytes).then(|| Verifier { start, bytes, sums: sums.clone() })
    }

    /// Forgets a segment that is gone.
    pub(super) fn forget_segment(&mut self, segment: SegmentId) {
        self.live.remove(&segment);
        self.sums.remove(&segment);
    }

    /// Marks a file as damaged.
    pub(super) fn suspect(&mut self, file: FileId) {
        if let Some(state) = self.files.get_mut(&file) {
            state.base.is_suspect = true;
        }
    }

    /// Ends a replay: drops provisional files (their end is in the log) and nameless ones (no
    /// program can open them any more). Returns the number of nameless files.
    pub(super) fn finish_replay(&mut self) -> usize {
        let gone = |state: &FileState| state.home.is_none() || state.base.names.is_empty();
        let ids: Vec<_> =
            self.files.iter().filter(|(_, state)| gone(state)).map(|(&id, _)| id).collect();
        let nameless = ids.iter().filter(|id| self.files[id].home.is_some()).count();
        for id in ids {
            self.remove(id);
        }
        nameless
    }

    /// Returns the bytes of data that live in all segments.
    pub(super) fn live_data_bytes(&self) -> u64 {
        self.live.values().map(|live| live.data_bytes).sum()
    }

    /// Returns whether nothing of the segment is needed.
    pub(super) fn is_dead(&self, segment: SegmentId) -> bool {
        self.live.get(&segment).is_none_or(|live| live.data_bytes == 0 && live.bases == 0)
    }
}

/// Returns whether `name` is that entry.
pub(super) fn is_at(name: &Name, parent: &ParentKey, entry: &[u8]) -> bool {
    name.parent == *parent && *name.name == *entry
}

impl Xattr {
    /// Returns the bytes that count against the limit of a file.
    pub(super) fn size(&self) -> usize {
        self.name.len() + self.value.len()
    }
}
