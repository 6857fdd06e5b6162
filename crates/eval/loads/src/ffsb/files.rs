//! Files of a set that are there at a moment, for threads that choose among them at random.
//!
//! A file is locked while an operation works on it: shared for work on its data, exclusive for creation,
//! removal and rename. An operation that finds a file locked chooses another one. Numbers and names of removed
//! files are reused, as in FFSB.

use super::FfsbError;
use stats::random::Random;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Longest name; a renamed directory gets a letter more each time.
const NAME_BYTES_MAX: usize = 255;
/// State of a file that one operation has alone; else how many share it.
const ALONE: i32 = -1;
/// So many files in a row may be found locked before the thread gives way to others.
const TRIES: u32 = 64;

/// A file, or a directory of metadata operations.
#[derive(Debug)]
struct Entry {
    name: RwLock<PathBuf>,
    state: AtomicI32,
    /// Where it is among those that are there.
    place: AtomicUsize,
    /// Whether an operation has written to it, or made it.
    is_written: AtomicBool,
}

/// Files with names of one kind, in one directory and those below it.
#[derive(Debug)]
pub(super) struct Files {
    base: PathBuf,
    /// Begins each name.
    kind: &'static str,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    present: Vec<Arc<Entry>>,
    removed: VecDeque<Arc<Entry>>,
    /// The next file's number.
    next_file: u32,
    /// Numbers of directories in which files are made, beside the one that all are in.
    directories: Vec<u32>,
    next_directory: u32,
}

/// A locked file.
#[derive(Debug)]
pub(super) struct Held {
    entry: Arc<Entry>,
    is_alone: bool,
}

impl Held {
    /// Its name at this moment.
    pub(super) fn name(&self) -> RwLockReadGuard<'_, PathBuf> {
        self.entry.name.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is written to; whether this is the first time.
    pub(super) fn is_first_write(&self) -> bool {
        !self.entry.is_written.swap(true, Ordering::Relaxed)
    }

    /// Gives it another, unused name; returns the old and the new one.
    pub(super) fn rename(&self) -> (PathBuf, PathBuf) {
        let mut name = self.entry.name.write().unwrap_or_else(PoisonError::into_inner);
        let old = name.clone();
        let mut new = old.file_name().unwrap_or_default().to_os_string();
        if new.len() < NAME_BYTES_MAX {
            new.push("a");
        } else {
            // Without its letters it is the name of its number alone.
            let text = new.to_string_lossy().trim_end_matches('a').to_string();
            new = text.into();
        }
        *name = old.with_file_name(new);
        (old, name.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_alone {
            self.entry.state.store(0, Ordering::Release);
        } else {
            self.entry.state.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Files {
    /// None yet.
    pub(super) fn new(base: PathBuf, kind: &'static str) -> Self {
        Self { base, kind, inner: RwLock::default() }
    }

    /// The directory that all are in.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.read().present.len()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory_name(&self, number: u32) -> PathBuf {
        self.base.join(format!("{}dir{number}", self.kind))
    }

    /// A name for a new directory.
    pub(super) fn new_directory(&self) -> (u32, PathBuf) {
        let mut inner = self.write();
        let number = inner.next_directory;
        inner.next_directory += 1;
        (number, self.directory_name(number))
    }

    /// From now on files are made in this directory too.
    pub(super) fn open_directory(&self, number: u32) {
        let mut inner = self.write();
        inner.directories.push(number);
        inner.next_directory = inner.next_directory.max(number + 1);
    }

    /// A file to make, which its maker has alone.
    pub(super) fn add(&self, random: &mut Random) -> Held {
        let mut inner = self.write();
        let entry = inner.removed.pop_front().unwrap_or_else(|| {
            let directory = match random.below(inner.directories.len() + 1) {
                0 => self.base.clone(),
                place => self.directory_name(inner.directories[place - 1]),
            };
            let name = directory.join(format!("{}file{}", self.kind, inner.next_file));
            inner.next_file += 1;
            Arc::new(Entry::new(name))
        });
        entry.state.store(ALONE, Ordering::Release);
        entry.is_written.store(true, Ordering::Relaxed);
        inner.insert(&entry);
        Held { entry, is_alone: true }
    }

    /// A file that is there already.
    pub(super) fn add_found(&self, name: PathBuf) {
        let mut inner = self.write();
        inner.next_file += 1;
        inner.insert(&Arc::new(Entry::new(name)));
    }

    /// Forgets which files were written to, when their making is done.
    pub(super) fn are_settled(&self) {
        self.read().present.iter().for_each(|it| it.is_written.store(false, Ordering::Relaxed));
    }

    /// A random file that no operation has locked exclusively.
    pub(super) fn share(&self, random: &mut Random) -> Result<Held, FfsbError> {
        self.choose(random, false)
    }

    /// A random file that no operation has locked, and locks it exclusively.
    pub(super) fn take(&self, random: &mut Random) -> Result<Held, FfsbError> {
        self.choose(random, true)
    }

    fn choose(&self, random: &mut Random, is_alone: bool) -> Result<Held, FfsbError> {
        for tries in 1_u32.. {
            let inner = self.read();
            if inner.present.is_empty() {
                break;
            }
            let entry = &inner.present[random.below(inner.present.len())];
            if entry.lock(is_alone) {
                return Ok(Held { entry: Arc::clone(entry), is_alone });
            }
            drop(inner);
            if tries.is_multiple_of(TRIES) {
                std::thread::yield_now();
            }
        }
        Err(FfsbError::NoFiles(self.base.clone()))
    }

    /// Takes a file, which the caller has alone, off those that are there, and removes it by `act`. Its name is
    /// used again only after that.
    pub(super) fn remove<E>(
        &self,
        held: Held,
        act: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut inner = self.write();
        let place = held.entry.place.load(Ordering::Relaxed);
        inner.present.swap_remove(place);
        if let Some(moved) = inner.present.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        drop(inner);
        act(&held.name())?;
        let entry = Arc::clone(&held.entry);
        drop(held);
        self.write().removed.push_back(entry);
        Ok(())
    }
}

impl Inner {
    fn insert(&mut self, entry: &Arc<Entry>) {
        entry.place.store(self.present.len(), Ordering::Relaxed);
        self.present.push(Arc::clone(entry));
    }
}

impl Entry {
    fn new(name: PathBuf) -> Self {
        Self {
            name: RwLock::new(name),
            state: AtomicI32::new(0),
            place: AtomicUsize::new(0),
            is_written: AtomicBool::new(false),
        }
    }

    fn lock(&self, is_alone: bool) -> bool {
        let next = |state: i32| match (is_alone, state) {
            (true, 0) => Some(ALONE),
            (false, state) if state != ALONE => Some(state + 1),
            _ => None,
        };
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: a shared file is not had alone, one had alone is not shared, and both end.
    #[test]
    fn locks_exclude() {
        let mut random = Random::new(1);
        let entry = Arc::new(Entry::new("x".into()));
        assert!(entry.lock(false) && entry.lock(false) && !entry.lock(true));
        let shared = || Held { entry: Arc::clone(&entry), is_alone: false };
        drop((shared(), shared()));
        assert!(entry.lock(true) && !entry.lock(true) && !entry.lock(false));
        drop(Held { entry: Arc::clone(&entry), is_alone: true });
        assert!(entry.lock(false));
        let files = Files::new("/set".into(), "data");
        assert!(matches!(files.share(&mut random), Err(FfsbError::NoFiles(_))));
    }

    /// Goal: removed files are not chosen, their names come back first, and all that are there are chosen.
    #[test]
    fn removed_names_are_used_again() {
        let mut random = Random::new(2);
        let files = Files::new("/set".into(), "data");
        files.open_directory(0);
        (0..20).for_each(|_| drop(files.add(&mut random)));
        let gone: Vec<PathBuf> = (0..5)
            .map(|_| {
                let held = files.take(&mut random).unwrap();
                let name = held.name().clone();
                files.remove(held, |it| if *it == *name { Ok(()) } else { Err(()) }).unwrap();
                name
            })
            .collect();
        let mut seen = BTreeSet::new();
        (0..500).for_each(|_| {
            seen.insert(files.share(&mut random).unwrap().name().clone());
        });
        assert_eq!((seen.len(), files.len()), (15, 15));
        assert!(gone.iter().all(|name| !seen.contains(name)));
        assert_eq!(*files.add(&mut random).name(), gone[0]);
        let in_directory = seen.iter().filter(|it| it.starts_with("/set/datadir0")).count();
        assert!(in_directory > 0 && in_directory < 15);
    }

    /// Goal: names stay short enough however often they change, and no two are the same.
    #[test]
    fn renamed_names_stay_short() {
        let mut random = Random::new(3);
        let files = Files::new("/set".into(), "meta");
        let held = files.add(&mut random);
        for _ in 0..600 {
            let (old, new) = held.rename();
            assert_ne!(old, new);
            assert!(new.file_name().unwrap().len() <= NAME_BYTES_MAX);
            assert!(new.starts_with("/set") && new.to_string_lossy().contains("metafile0"));
        }
    }
}
