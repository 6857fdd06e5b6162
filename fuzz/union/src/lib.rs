//! What is fuzzed: the functions take any bytes and panic if a promise of the crate is broken.
//!
//! They are apart from the fuzz targets so that a plain test can run them too.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use crc_fast::{CrcAlgorithm, Digest};
use union::journal::{FileId, Journal, Kind, Options, SegmentFile, SegmentId, Storage, Time};

/// The keys of the segments that are made here.
const JOURNAL: u64 = 0x6a6f_7572_6e61_6c00;
const EPOCH: u64 = 0x6570_6f63_6800_0000;
const WITNESS: u64 = 7;
/// Bytes of a segment's header, and of a record's head.
const HEADER_BYTES: usize = 96;
const HEAD_BYTES: usize = 48;
/// Segments of a store, and the space of each.
const SEGMENTS_MAX: u32 = 3;
const SEGMENT_BYTES: usize = 8 << 10;

/// Opens a store whose records have the right checksums and any content, as no damage makes them:
/// whatever it shows can be read, changed, cleaned and opened again without another result.
///
/// Each record is made of a choice (new segment, wrong checksum, numbers left out), kind, file and
/// lengths of body and data, a byte each, and then body and data themselves.
///
/// Answers how many files there were.
pub fn journal(bytes: &[u8]) -> usize {
    let disk = Memory::default();
    disk.lay_out(bytes);
    let options = Options {
        chunk_bytes: 4096,
        runs_per_chunk_max: 4,
        runs_max: 256,
        segment_bytes_min: 4096,
        segment_bytes_max: 16_384,
        accepts_damage: true,
        ..Options::default()
    };
    let Ok((mut journal, recovery)) = Journal::open(disk.clone(), options) else { return 0 };
    assert!(recovery.records <= bytes.len() as u64, "more records than were written");
    let files: Vec<FileId> = journal.files().map(|(file, _)| file).collect();
    for &file in &files {
        read(&journal, file);
        change(&mut journal, file);
        read(&journal, file);
    }
    if journal.sync().is_err() {
        return files.len();
    }
    for _ in 0..8 {
        let Ok(cleaned) = journal.clean(1 << 14) else { return files.len() };
        if journal.sync().is_err() || !cleaned.has_more {
            break;
        }
    }
    let mut before = journal.status();
    drop(journal);
    let (journal, _) = Journal::open(disk, options).expect("what was synced opens again");
    // Without a name a file lives until the store is opened.
    before.retain(|status| !status.names.is_empty());
    assert_eq!(journal.status(), before, "opened again it is another");
    files.len()
}

/// Every kind of reading, at both ends of a file.
fn read(journal: &Journal<Memory>, file: FileId) {
    let copy_up = journal.file(file).expect("it was just listed");
    let size = copy_up.size_bytes();
    assert!(copy_up.unfilled_bytes() <= size && copy_up.stored_bytes() <= size);
    for name in copy_up.names() {
        // Another file's, if the records give a name twice, which the store never does.
        let _ = journal.lookup(&name.parent, &name.name);
    }
    if !matches!(copy_up.kind(), Kind::Partial) {
        return;
    }
    let mut at = 0;
    for piece in journal.pieces(file, 0..size).expect("it is partial") {
        assert!(piece.range.start == at && piece.range.end > at, "pieces without gaps");
        at = piece.range.end;
    }
    assert_eq!(at, size, "pieces up to the end");
    for offset in [0, size.saturating_sub(100)] {
        let mut buffer = [0; 5000];
        let lower = |_: u64, part: &mut [u8]| {
            part.fill(1);
            Ok(())
        };
        if let Ok(count) = journal.read(file, offset, &mut buffer, lower) {
            assert_eq!(count as u64, (size - offset).min(5000));
        }
    }
}

/// Changes of every kind; refusals are as good.
fn change(journal: &mut Journal<Memory>, file: FileId) {
    let Some(copy_up) = journal.file(file) else { return };
    let middle = copy_up.size_bytes() / 2;
    let time = Time::default();
    if let Ok(range) = journal.plan_write(file, middle..middle + 10) {
        assert!(range.start <= middle && range.end >= middle + 10);
    }
    let _ = journal.write(file, middle, b"0123456789", time);
    let _ = journal.zero(file, middle + 3..middle + 5, time);
    let _ = journal.truncate(file, middle + 7, time);
    let _ = journal.remove_xattr(file, b"user.x");
    let _ = journal.unpublish(file);
}

/// A disk in memory that does what it is told.
#[derive(Debug, Clone, Default)]
struct Memory(Rc<RefCell<Files>>);

#[derive(Debug, Default)]
struct Files {
    segments: BTreeMap<SegmentId, Vec<u8>>,
    has_marker: bool,
    marks: Option<Vec<u8>>,
    randomness: u64,
}

impl Memory {
    /// Makes segments of records.
    fn lay_out(&self, mut bytes: &[u8]) {
        let mut number = 1;
        let mut sequence = 0;
        let mut segment = header(number, sequence);
        while let Some((&[choice, kind, file, body, data], rest)) = bytes.split_first_chunk() {
            if choice & 0x03 == 0x03 && number < SEGMENTS_MAX {
                self.put(number, segment);
                number += 1;
                segment = header(number, sequence);
            }
            let (body, rest) = rest.split_at(rest.len().min(body.into()));
            let (data, rest) = rest.split_at(rest.len().min(data.into()));
            bytes = rest;
            sequence += 1 + u64::from(choice & 0x0c == 0x0c);
            let mut record = record(sequence, kind, file, body, data);
            record[0] ^= u8::from(choice & 0x30 == 0x30);
            if segment.len() + record.len() > SEGMENT_BYTES {
                break;
            }
            segment.extend(record);
        }
        self.put(number, segment);
    }

    fn put(&self, number: u32, mut segment: Vec<u8>) {
        segment.resize(SEGMENT_BYTES, 0);
        self.0.borrow_mut().segments.insert(SegmentId(number), segment);
    }
}

fn crc(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

fn header(number: u32, previous: u64) -> Vec<u8> {
    let mut bytes = b"tsumgjn1\0\0\0\0".to_vec();
    bytes.extend(number.to_le_bytes());
    for value in [JOURNAL, EPOCH + u64::from(number), previous, previous, 300, WITNESS] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.resize(HEADER_BYTES, 0);
    let crc = crc(&[&bytes]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// A record; its epoch is that of the first segment, so that those of later ones tell strangers.
fn record(sequence: u64, kind: u8, file: u8, body: &[u8], data: &[u8]) -> Vec<u8> {
    let epoch = EPOCH + 1;
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(8), 0);
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend(0u32.to_le_bytes());
    head.extend((epoch as u32).to_le_bytes());
    head.extend(sequence.to_le_bytes());
    head.extend(u64::from(file).to_le_bytes());
    head.extend((body.len() as u32).to_le_bytes());
    head.extend((data.len() as u32).to_le_bytes());
    head.extend(if data.is_empty() { 0 } else { crc(&[data]) }.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    head.push(kind % 20);
    head.resize(HEAD_BYTES, 0);
    let key = [JOURNAL.to_le_bytes(), epoch.to_le_bytes()];
    let sum = crc(&[&key[0], &key[1], &head[4..], &body]);
    head[..4].copy_from_slice(&sum.to_le_bytes());
    let mut record = [&head[..], &body, data].concat();
    record.resize(record.len().next_multiple_of(8), 0);
    record
}

impl Storage for Memory {
    type Handle = SegmentId;

    fn list(&self) -> io::Result<Vec<SegmentFile>> {
        let files = self.0.borrow();
        let file = |(&segment, bytes): (&SegmentId, &Vec<u8>)| SegmentFile {
            segment,
            size_bytes: bytes.len() as u64,
        };
        Ok(files.segments.iter().map(file).collect())
    }

    fn create(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        self.0.borrow_mut().marks.get_or_insert_with(|| vec![0; 8192]);
        let bytes = vec![0; size_bytes as usize];
        self.0.borrow_mut().segments.insert(segment, bytes);
        Ok(())
    }

    fn write_at(&mut self, segment: SegmentId, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut files = self.0.borrow_mut();
        let bytes = files.segments.get_mut(&segment).ok_or(io::ErrorKind::NotFound)?;
        let part = parts.concat();
        let at = offset as usize;
        bytes.resize(bytes.len().max(at + part.len()), 0);
        bytes[at..at + part.len()].copy_from_slice(&part);
        Ok(())
    }

    fn read_at(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let files = self.0.borrow();
        let bytes = files.segments.get(&segment).ok_or(io::ErrorKind::NotFound)?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn sync(&mut self, _: SegmentId) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, segment: SegmentId, size_bytes: u64) -> io::Result<()> {
        let mut files = self.0.borrow_mut();
        let bytes = files.segments.get_mut(&segment).ok_or(io::ErrorKind::NotFound)?;
        bytes.resize(size_bytes as usize, 0);
        Ok(())
    }

    fn delete(&mut self, segment: SegmentId) -> io::Result<()> {
        self.0.borrow_mut().segments.remove(&segment);
        Ok(())
    }

    fn handle(&self, segment: SegmentId) -> io::Result<SegmentId> {
        Ok(segment)
    }

    fn directory_handles(&self) -> io::Result<Vec<SegmentId>> {
        Ok(Vec::new())
    }

    fn write_mark(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(marks) = &mut self.0.borrow_mut().marks {
            marks[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn marks_handle(&self) -> Option<SegmentId> {
        None
    }

    fn read_marks(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.borrow().marks.clone())
    }

    fn set_marker(&mut self, present: bool) -> io::Result<()> {
        self.0.borrow_mut().has_marker = present;
        Ok(())
    }

    fn sync_marker(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn marker_handles(&self) -> io::Result<Vec<SegmentId>> {
        Ok(Vec::new())
    }

    fn marker(&self) -> io::Result<bool> {
        Ok(self.0.borrow().has_marker)
    }

    fn witness(&self) -> u64 {
        WITNESS
    }

    fn random(&mut self) -> u64 {
        let mut files = self.0.borrow_mut();
        files.randomness = files.randomness.wrapping_add(0x9E37_79B9_7F4A_7C15);
        files.randomness
    }
}
