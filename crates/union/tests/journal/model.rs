//! The reference: files as plain arrays, names as a plain map, and a driver that does the same to a
//! journal, remembering the state after every record.

use std::collections::BTreeMap;

use union::journal::{
    Attributes, Creation, FileId, Journal, JournalError, Kind, LowerIdentity, Name, NameChange,
    Options, ParentKey, Recovery, Sequence, Stage, Time, Xattr,
};

use super::disk::{Disk, Random};

pub(crate) const FILE_BYTES: u64 = 20_000;

/// One file of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) content: Vec<u8>,
    pub(crate) names: Vec<(u8, u8)>,
    pub(crate) mode: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) is_publishing: bool,
    lower_seed: u64,
}

pub(crate) type Model = BTreeMap<FileId, File>;

pub(crate) fn options() -> Options {
    Options {
        chunk_bytes: 4096,
        has_whole_chunks: false,
        runs_per_chunk_max: 4,
        runs_max: 1 << 16,
        segment_bytes_min: 8192,
        segment_bytes_max: 16_384,
        accepts_damage: false,
    }
}

/// Returns the lower's bytes, never zero.
pub(crate) fn lower_byte(seed: u64, offset: u64) -> u8 {
    ((seed * 31 + offset * 7 + offset / 251) % 120) as u8 + 1
}

fn name(at: (u8, u8)) -> Name {
    Name::new(ParentKey::new(&[at.0, 7]).unwrap(), &[at.1]).unwrap()
}

/// Returns a file with a lower one.
pub(crate) fn named(size_bytes: u64, parent: &ParentKey, entry: &[u8]) -> Creation {
    let parent = parent.clone();
    Creation {
        lower: Some(LowerIdentity { size_bytes, ..LowerIdentity::default() }),
        kind: Kind::Partial,
        size_bytes,
        attributes: Attributes::default(),
        xattrs: Vec::new(),
        names: vec![Name::new(parent, entry).unwrap()],
    }
}

fn time(random: &mut Random) -> Time {
    Time { seconds: random.below(1 << 40) as i64, nanoseconds: random.below(1_000_000_000) as u32 }
}

/// A journal on a disk, its model, and the model after each record.
pub(crate) struct Driver {
    pub(crate) disk: Disk,
    pub(crate) journal: Option<Journal<Disk>>,
    pub(crate) model: Model,
    pub(crate) history: Vec<(Sequence, Model)>,
    /// What must be there after a power loss.
    pub(crate) acknowledged: Sequence,
    /// The last record of the last sync that was asked for.
    promised: Sequence,
    /// The record that made each file.
    pub(crate) born: BTreeMap<FileId, Sequence>,
    pub(crate) random: Random,
    pub(crate) options: Options,
    written: u8,
    /// A file whose creation failed.
    unborn: Option<File>,
}

impl Driver {
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let disk = Disk::new(seed);
        let journal = Some(Journal::open(disk.clone(), options).unwrap().0);
        Self {
            disk,
            journal,
            model: Model::new(),
            history: vec![(Sequence(0), Model::new())],
            acknowledged: Sequence(0),
            promised: Sequence(0),
            born: BTreeMap::new(),
            random: Random::new(seed ^ 0xABCD),
            options,
            written: 0,
            unborn: None,
        }
    }

    pub(crate) fn journal(&mut self) -> &mut Journal<Disk> {
        self.journal.as_mut().unwrap()
    }

    /// One random operation. An error means that nothing happened.
    pub(crate) fn step(&mut self) -> Result<(), JournalError> {
        let before = self.model.clone();
        let result = self.operate();
        let appended = self.journal().appended();
        if result.is_err() {
            let after = std::mem::replace(&mut self.model, before);
            self.history.push((appended, self.model.clone()));
            // Of an operation in which the power went, the record may be there all the same.
            self.history.push((Sequence(appended.0 + 1), after));
            return result;
        }
        self.history.push((appended, self.model.clone()));
        result
    }

    fn operate(&mut self) -> Result<(), JournalError> {
        let choice = self.random.below(100);
        let open: Vec<_> = self.model.keys().copied().collect();
        if open.is_empty() || choice < 8 && open.len() < 5 {
            return self.create();
        }
        let file = open[self.random.below(open.len() as u64) as usize];
        if self.model[&file].is_publishing {
            return self.end_publication(file, choice);
        }
        match choice {
            0..40 => self.write(file),
            40..48 => self.zero(file),
            48..58 => self.truncate(file),
            58..68 => self.rename(file),
            68..72 => self.attributes(file),
            72..78 => self.xattr(file),
            78..82 => {
                self.model.get_mut(&file).unwrap().is_publishing = true;
                self.journal().publish(file, b"work")
            }
            82..84 => {
                self.model.remove(&file);
                self.journal().drop_file(file)
            }
            84..92 => self.sync(),
            _ => {
                let budget = 1 + self.random.below(20_000);
                self.journal().clean(budget).map(|_| ())
            }
        }
    }

    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        self.journal().sync()?;
        self.acknowledged = self.journal().durable();
        self.promised = self.acknowledged;
        let appended = self.journal().appended();
        assert_eq!(self.acknowledged, appended);
        Ok(())
    }

    pub(crate) fn create(&mut self) -> Result<(), JournalError> {
        let lower_seed = self.random.below(100);
        let size_bytes = self.random.below(FILE_BYTES);
        let taken: Vec<_> = self.model.values().flat_map(|file| file.names.clone()).collect();
        let at = (self.random.below(3) as u8, self.random.below(200) as u8);
        if taken.contains(&at) {
            return Ok(());
        }
        let mode = self.random.below(0o7777) as u32;
        let content = (0..size_bytes).map(|offset| lower_byte(lower_seed, offset)).collect();
        let (names, xattrs) = (vec![at], BTreeMap::new());
        let new = File { content, names, mode, xattrs, is_publishing: false, lower_seed };
        self.unborn = Some(new);
        let file = self.journal().create(Creation {
            lower: Some(LowerIdentity {
                size_bytes,
                inode: lower_seed,
                path: b"a/b".as_slice().into(),
                ..LowerIdentity::default()
            }),
            kind: Kind::Partial,
            size_bytes,
            attributes: Attributes { mode, ..Attributes::default() },
            xattrs: Vec::new(),
            names: vec![name(at)],
        })?;
        assert!(!self.model.contains_key(&file));
        let new = self.unborn.take().unwrap();
        self.model.insert(file, new);
        let appended = self.journal().appended();
        self.born.insert(file, appended);
        Ok(())
    }

    fn write(&mut self, file: FileId) -> Result<(), JournalError> {
        let offset = self.random.below(FILE_BYTES);
        let len = 1 + self.random.below([16, 600, 5000][self.random.clone().below(3) as usize]);
        let mtime = time(&mut self.random);
        self.written = self.written % 100 + 1;
        let byte = 130 + self.written;
        let content = &mut self.model.get_mut(&file).unwrap().content;
        let end = (offset + len) as usize;
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].fill(byte);
        let content = content.clone();
        let store = self.journal().plan_write(file, offset..offset + len)?;
        assert!(store.start <= offset && store.end >= offset + len);
        let data = &content[store.start as usize..store.end as usize];
        let written = self.journal().write(file, store.start, data, mtime)?;
        assert_eq!(written, data.len() as u64);
        Ok(())
    }

    fn zero(&mut self, file: FileId) -> Result<(), JournalError> {
        let start = self.random.below(FILE_BYTES);
        let end = start + 1 + self.random.below(6000);
        let mtime = time(&mut self.random);
        let content = &mut self.model.get_mut(&file).unwrap().content;
        let size = content.len();
        content[size.min(start as usize)..size.min(end as usize)].fill(0);
        self.journal().zero(file, start..end, mtime)
    }

    fn truncate(&mut self, file: FileId) -> Result<(), JournalError> {
        let size = self.random.below(FILE_BYTES);
        let mtime = time(&mut self.random);
        self.model.get_mut(&file).unwrap().content.resize(size as usize, 0);
        self.journal().truncate(file, size, mtime)
    }

    /// Rename, link, unlink or exchange.
    fn rename(&mut self, file: FileId) -> Result<(), JournalError> {
        let to = (self.random.below(3) as u8, self.random.below(200) as u8);
        if self.model.values().any(|other| other.names.contains(&to)) {
            return Ok(());
        }
        let mut changes = Vec::new();
        let choice = self.random.below(4);
        let model = self.model.get_mut(&file).unwrap();
        if choice != 0
            && let Some(old) = model.names.pop()
        {
            changes.push(NameChange::Remove(file, name(old).parent, name(old).name));
        }
        if choice != 1 {
            changes.push(NameChange::Add(file, name(to)));
            model.names.push(to);
        }
        self.journal().change_names(changes)
    }

    fn attributes(&mut self, file: FileId) -> Result<(), JournalError> {
        let mode = self.random.below(0o7777) as u32;
        self.model.get_mut(&file).unwrap().mode = mode;
        self.journal().set_attributes(file, Attributes { mode, ..Attributes::default() })
    }

    fn xattr(&mut self, file: FileId) -> Result<(), JournalError> {
        let name = vec![b'u', self.random.below(3) as u8];
        let xattrs = &mut self.model.get_mut(&file).unwrap().xattrs;
        if self.random.below(3) == 0 {
            xattrs.remove(&name);
            return self.journal().remove_xattr(file, &name);
        }
        let value = vec![self.random.below(256) as u8; self.random.below(50) as usize];
        xattrs.insert(name.clone(), value.clone());
        self.journal().set_xattr(file, Xattr { name: name.into(), value: value.into() })
    }

    fn end_publication(&mut self, file: FileId, choice: u64) -> Result<(), JournalError> {
        let frozen = self.journal().truncate(file, 0, Time::default());
        assert!(matches!(frozen, Err(JournalError::Frozen(_))));
        if choice < 50 {
            self.model.get_mut(&file).unwrap().is_publishing = false;
            return self.journal().unpublish(file);
        }
        self.model.remove(&file);
        self.journal().published(file)
    }

    /// Opens again after a kill or a power loss, and checks what is shown: the state after the last
    /// record that is there, which is not before what was acknowledged.
    pub(crate) fn reopen(&mut self) -> Recovery {
        self.journal = None;
        let had_marker = self.disk.0.borrow().durable_marker;
        let (journal, recovery) = Journal::open(self.disk.clone(), self.options).unwrap();
        assert_eq!(recovery.damage, vec![], "a crash is no damage");
        let shown = journal.appended();
        assert!(shown >= self.acknowledged, "{shown} is before {}", self.acknowledged);
        let position = self.history.iter().rposition(|(sequence, _)| *sequence <= shown);
        let mut expected = self.history[position.unwrap()].1.clone();
        let is_maybe = self.history[position.unwrap()].0 == self.history.last().unwrap().0;
        let last = journal.files().map(|(id, _)| id).last().filter(|id| !expected.contains_key(id));
        if let (Some(last), Some(unborn), true) = (last, self.unborn.take(), is_maybe) {
            self.born.insert(last, shown);
            expected.insert(last, unborn);
        }
        expected.retain(|_, file| !file.names.is_empty());
        check(&journal, &expected);
        let has_old = expected.keys().any(|file| self.born[file] <= self.promised);
        assert!(!has_old || had_marker, "the marker is there while a synced partial file is");
        self.acknowledged = journal.durable();
        self.history = vec![(shown, expected.clone())];
        self.model = expected;
        self.journal = Some(journal);
        recovery
    }
}

/// Reads the lower file of a file.
pub(crate) fn lower_of(file: &File) -> impl FnMut(u64, &mut [u8]) -> std::io::Result<()> {
    let seed = file.lower_seed;
    move |offset, buffer| {
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = lower_byte(seed, offset + index as u64);
        }
        Ok(())
    }
}

/// The journal shows exactly the model.
pub(crate) fn check(journal: &Journal<Disk>, model: &Model) {
    let ids: Vec<_> = journal.files().map(|(id, _)| id).collect();
    assert_eq!(ids, model.keys().copied().collect::<Vec<_>>());
    for (&id, expected) in model {
        let file = journal.file(id).unwrap();
        assert_eq!(file.attributes().mode & 0o7777, expected.mode);
        assert_eq!(matches!(file.stage(), Stage::Publishing(_)), expected.is_publishing);
        assert_eq!(file.size_bytes(), expected.content.len() as u64);
        let xattrs = file.xattrs().iter().map(|x| (x.name.to_vec(), x.value.to_vec()));
        assert_eq!(xattrs.collect::<BTreeMap<_, _>>(), expected.xattrs);
        assert_eq!(file.names().len(), expected.names.len());
        for &at in &expected.names {
            assert_eq!(journal.lookup(&name(at).parent, &name(at).name), Some(id));
        }
        let mut content = vec![0xEE; expected.content.len() + 10];
        let lower_size = file.lower().unwrap().size_bytes;
        let seed = expected.lower_seed;
        let count = journal
            .read(id, 0, &mut content, |offset, buffer| {
                assert!(offset + buffer.len() as u64 <= lower_size, "only what the lower has");
                for (index, byte) in buffer.iter_mut().enumerate() {
                    *byte = lower_byte(seed, offset + index as u64);
                }
                Ok(())
            })
            .unwrap();
        content.truncate(count);
        let differs = content.iter().zip(&expected.content).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first different byte of file {id}");
        assert_eq!(content.len(), expected.content.len());
    }
}
