//! The watermark: the length of the chain of commits, in a small file outside the journal.
//!
//! The file has three pages. Two *slots* contain the last commit that was synced. They are written
//! in turn after each sync of the store, and synced themselves, so that one of them is always
//! whole. The *live* page is written at each commit without a sync: it survives the death of the
//! process, and counts only within the machine's boot in which it was written.
//!
//! The file has its full size from the start: writing to it needs no space.

use super::chain::{ENCODED_BYTES, Head};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// The file's name in the store's directory.
pub(super) const NAME: &str = "watermark";

const MAGIC: &[u8; 8] = b"TSMKWM\x00\x01";
const PAGE_BYTES: u64 = 4096;
const LIVE_PAGE: u64 = 2;
const PAGES: u64 = 3;
const BOOT_AT: usize = 16;
const HEAD_AT: usize = 32;
const CHECKSUM_AT: usize = HEAD_AT + ENCODED_BYTES;
const MARK_BYTES: usize = CHECKSUM_AT + 8;

/// The content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Counts the writes of slots; 0 on the live page.
    generation: u64,
    /// The machine's boot in which it was written.
    pub(super) boot: Uuid,
    /// The commit.
    pub(super) head: Head,
}

impl Mark {
    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[BOOT_AT..HEAD_AT].copy_from_slice(self.boot.as_bytes());
        bytes[HEAD_AT..CHECKSUM_AT].copy_from_slice(&self.head.encode());
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
        let bytes: &[u8; MARK_BYTES] = bytes.get(..MARK_BYTES)?.try_into().ok()?;
        let checksum = u64::from_le_bytes(bytes[CHECKSUM_AT..].try_into().ok()?);
        if bytes[..8] != *MAGIC || xxh3_64(&bytes[..CHECKSUM_AT]) != checksum {
            return None;
        }
        Some(Mark {
            generation: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            boot: Uuid::from_bytes(bytes[BOOT_AT..HEAD_AT].try_into().ok()?),
            head: Head::decode(&bytes[HEAD_AT..CHECKSUM_AT])?,
        })
    }
}

/// The content of a watermark file when it was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recorded {
    /// The newer of the whole slots.
    pub(super) synced: Option<Mark>,
    /// The live page, if it is whole.
    pub(super) live: Option<Mark>,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Watermark {
    file: File,
    boot: Uuid,
    /// Number of writes of slots, and the newest commit in one.
    written: Mutex<(u64, u64)>,
}

/// Reads the watermark of a store; `None` if it has no such file.
pub(super) fn read(directory: &Path) -> io::Result<Option<Recorded>> {
    let bytes = match std::fs::read(directory.join(NAME)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let page = |number: u64| Mark::decode(bytes.get((number * PAGE_BYTES) as usize..)?);
    let slots = [page(0), page(1)];
    let synced = slots.into_iter().flatten().max_by_key(|mark| mark.generation);
    Ok(Some(Recorded { synced, live: page(LIVE_PAGE) }))
}

impl Watermark {
    /// Replaces the file by one that counts from `head` on, which must be durable.
    pub(super) fn create(directory: &Path, boot: Uuid, head: Head) -> io::Result<Watermark> {
        let beside = directory.join("watermark.new");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&beside)?;
        file.write_all_at(&vec![0; (PAGES * PAGE_BYTES) as usize], 0)?;
        let mark = Mark { generation: 1, boot, head };
        for page in 0..PAGES {
            file.write_all_at(&mark.encode(), page * PAGE_BYTES)?;
        }
        file.sync_all()?;
        std::fs::rename(&beside, directory.join(NAME))?;
        File::open(directory)?.sync_all()?;
        Ok(Watermark { file, boot, written: Mutex::new((1, head.sequence)) })
    }

    /// Opens the file that was read as `recorded`.
    pub(super) fn open(directory: &Path, boot: Uuid, recorded: &Recorded) -> io::Result<Watermark> {
        let path = directory.join(NAME);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let written = recorded.synced.map_or((0, 0), |mark| (mark.generation, mark.head.sequence));
        Ok(Watermark { file, boot, written: Mutex::new(written) })
    }

    /// Records a commit that survives the death of this process.
    pub(super) fn note_commit(&self, head: Head) -> io::Result<()> {
        let mark = Mark { generation: 0, boot: self.boot, head };
        self.file.write_all_at(&mark.encode(), LIVE_PAGE * PAGE_BYTES)
    }

    /// Records, durably, a commit that survives a loss of power.
    pub(super) fn note_synced(&self, head: Head) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if head.sequence <= written.1 {
            return Ok(());
        }
        *written = (written.0 + 1, head.sequence);
        let generation = written.0;
        let mark = Mark { generation, boot: self.boot, head };
        self.file.write_all_at(&mark.encode(), generation % LIVE_PAGE * PAGE_BYTES)?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the last recorded sync and commit are read back. If one slot is torn, the sync before
    /// is read back; a file with two torn slots is recognised as damaged.
    #[test]
    fn a_torn_slot_leaves_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let boot = Uuid::from_u128(9);
        assert!(read(directory.path()).unwrap().is_none());
        let head = |sequence| Head { sequence, ..Head::default() };
        let mark = Watermark::create(directory.path(), boot, head(1)).unwrap();
        mark.note_synced(head(2)).unwrap();
        mark.note_synced(head(3)).unwrap();
        mark.note_commit(head(4)).unwrap();
        let recorded = || read(directory.path()).unwrap().unwrap();
        assert_eq!(recorded().synced.unwrap().head.sequence, 3);
        assert_eq!(recorded().live.unwrap().head.sequence, 4);
        let mark = Watermark::open(directory.path(), boot, &recorded()).unwrap();
        mark.note_synced(head(5)).unwrap();
        let newest = 4 % LIVE_PAGE * PAGE_BYTES;
        mark.file.write_all_at(&[0xff], newest + 40).unwrap();
        assert_eq!(recorded().synced.unwrap().head.sequence, 3);
        mark.file.write_all_at(&[0xff], (PAGE_BYTES - newest) + 40).unwrap();
        assert_eq!(recorded().synced, None);
        assert_eq!(recorded().live.unwrap().boot, boot);
    }
}
