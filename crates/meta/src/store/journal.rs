//! Reads the engine's journals before the engine does, to find missing commits.
//!
//! The engine cuts a journal off at a frame that it cannot read, continues with the next journal,
//! and does not report it. This module only reads the journals: the chain ([`super::chain`]) must
//! lead without a gap from the first batch to the last.
//!
//! Form of a journal (fjall 3): batches of a start (tag 1, number of items, number of the batch),
//! items (tag 2, kind, compression, keyspace, lengths, key, value) and an end (tag 3, xxh3 of the
//! items, a magic word). Anything else is the end of the journal.

use super::chain::{self, Head};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const END_MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];
/// Tag, kind, compression, keyspace, lengths of the key, of the value, and of the stored value.
const ITEM_HEAD_BYTES: usize = 21;
const KIND_VALUE: u8 = 0;
const KIND_REMOVAL: u8 = 1;
/// Most by which the engine's number of a batch may exceed the expected number.
const ENGINE_SLACK: u64 = 1 << 20;

/// A break of the chain.
#[derive(Clone, Debug)]
pub(super) struct Break {
    /// The journal.
    pub(super) path: PathBuf,
    /// The end of the last good batch before it.
    pub(super) offset: u64,
    /// The reason.
    pub(super) why: String,
}

/// The content of a store's journals.
#[derive(Debug, Default)]
pub(super) struct Journals {
    /// All journals, in order.
    pub(super) paths: Vec<PathBuf>,
    /// The first commit.
    pub(super) first: Option<Head>,
    /// The last commit to which the chain leads.
    pub(super) last: Option<Head>,
    /// The requested commits.
    pub(super) found: Vec<Head>,
    /// Number of batches from before there was a chain.
    pub(super) unchained: u64,
    /// The break of the chain, if there is one.
    pub(super) broken: Option<Break>,
    /// The journals that were read, and the offset at which each stops being readable.
    pub(super) ends: Vec<(PathBuf, u64)>,
}

/// A key and its new value, or `None` for its removal.
type Write = (Vec<u8>, Option<Vec<u8>>);

/// A batch of a journal.
struct Frame {
    engine: u64,
    writes: Vec<Write>,
}

/// Returns a store's journals with their numbers, in order.
pub(super) fn numbered(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut numbered = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok());
        numbered.extend(number.map(|number| (number, path)));
    }
    numbered.sort();
    Ok(numbered)
}

/// Returns a store's journals, in order.
pub(super) fn paths(directory: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(numbered(directory)?.into_iter().map(|(_, path)| path).collect())
}

/// Reads the journals of a store up to the first break of the chain. Returns the commits numbered
/// `wanted` among its results.
pub(super) fn read(directory: &Path, wanted: &[u64]) -> io::Result<Journals> {
    let mut journals = Journals { paths: paths(directory)?, ..Journals::default() };
    for path in journals.paths.clone() {
        let file = File::open(&path)?;
        let mut reader = Reader { left: file.metadata()?.len(), file: BufReader::new(file), at: 0 };
        loop {
            let offset = reader.at;
            let Some(frame) = reader.frame()? else {
                journals.ends.push((path, offset));
                break;
            };
            if let Err(why) = journals.take(&frame, wanted) {
                journals.ends.push((path.clone(), offset));
                journals.broken = Some(Break { path, offset, why });
                return Ok(journals);
            }
        }
    }
    Ok(journals)
}

impl Journals {
    /// Follows the chain by one batch.
    fn take(&mut self, frame: &Frame, wanted: &[u64]) -> Result<(), String> {
        let head = frame.writes.iter().find(|(key, _)| *key == chain::KEY);
        let Some((_, value)) = head else {
            if self.last.is_some() {
                return Err("a batch has no number".into());
            }
            self.unchained += 1;
            return Ok(());
        };
        let head = value.as_deref().and_then(Head::decode).ok_or("a batch's number is damaged")?;
        if !(head.engine..head.engine + ENGINE_SLACK).contains(&frame.engine) {
            return Err(format!("commit {} has a wrong number in the engine", head.sequence));
        }
        let before = match self.last {
            Some(before) => Some(before),
            // The head of the first commit has the values from before it.
            None if head.sequence == 1 => {
                Some(Head { engine: head.engine_before, ..Head::default() })
            }
            None if self.unchained > 0 => {
                return Err(format!("commit {} follows batches without numbers", head.sequence));
            }
            None => None,
        };
        if let Some(before) = before {
            if head.sequence != before.sequence + 1 {
                let (is, was) = (head.sequence, before.sequence);
                return Err(format!("commit {is} follows commit {was}"));
            }
            let writes = frame.writes.iter().filter(|(key, _)| *key != chain::KEY);
            let writes = writes.map(|(key, value)| (key.as_slice(), value.as_deref()));
            if before.next(writes, head.engine, head.time_ns) != head {
                return Err(format!("the digest of commit {} is wrong", head.sequence));
            }
        }
        self.first.get_or_insert(head);
        self.last = Some(head);
        if wanted.contains(&head.sequence) {
            self.found.push(head);
        }
        Ok(())
    }
}

struct Reader {
    file: BufReader<File>,
    at: u64,
    /// Number of unread bytes of the file.
    left: u64,
}

impl Reader {
    /// Returns the next batch; `None` at the end of the journal or of its readable part.
    fn frame(&mut self) -> io::Result<Option<Frame>> {
        let begin = self.at;
        let frame = self.try_frame()?;
        if frame.is_none() {
            self.at = begin;
        }
        Ok(frame)
    }

    fn try_frame(&mut self) -> io::Result<Option<Frame>> {
        let mut start = [0; 13];
        if self.peek()? != Some(TAG_START) || !self.fill(&mut start)? {
            return Ok(None);
        }
        let (Some(items), Some(engine)) = (u32_at(&start, 1), u64_at(&start, 5)) else {
            return Ok(None);
        };
        let mut hasher = Xxh3Default::new();
        let mut writes = Vec::new();
        for _ in 0..items {
            match self.item(&mut hasher)? {
                Some(write) => writes.push(write),
                None => return Ok(None),
            }
        }
        let mut end = [0; 13];
        if !self.fill(&mut end)? || end[0] != TAG_END || end[9..] != END_MAGIC {
            return Ok(None);
        }
        let is_whole = u64_at(&end, 1) == Some(hasher.digest());
        Ok(is_whole.then_some(Frame { engine, writes }))
    }

    fn item(&mut self, hasher: &mut Xxh3Default) -> io::Result<Option<Write>> {
        let mut head = [0; ITEM_HEAD_BYTES];
        if !self.fill(&mut head)? || head[0] != TAG_ITEM || head[2] != 0 {
            return Ok(None);
        }
        let key_bytes = usize::from(u16::from_le_bytes([head[11], head[12]]));
        let (Some(length), Some(stored)) = (u32_at(&head, 13), u32_at(&head, 17)) else {
            return Ok(None);
        };
        if length != stored || u64::from(stored) > self.left {
            return Ok(None);
        }
        let (mut key, mut value) = (vec![0; key_bytes], vec![0; stored as usize]);
        if !self.fill(&mut key)? || !self.fill(&mut value)? {
            return Ok(None);
        }
        for part in [head.as_slice(), &key, &value] {
            hasher.update(part);
        }
        Ok(match head[1] {
            KIND_VALUE => Some((key, Some(value))),
            KIND_REMOVAL => Some((key, None)),
            _ => None,
        })
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.file.fill_buf()?.first().copied())
    }

    /// Fills a buffer; returns false if the file is too short.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        if self.left < bytes.len() as u64 {
            return Ok(false);
        }
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                self.left -= bytes.len() as u64;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
