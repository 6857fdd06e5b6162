//! A file system's set of files: made in a directory of ours, or found there as it has to be.
//!
//! The layout is FFSB's: `data/datafileN` and `data/datadirD/datafileN`, `meta/` for metadata operations,
//! `data/fillfileN` for what ages the file system. FFSB removes `data` and `meta` first; here nothing that
//! is found is removed: it is used if the profile says `reuse=1`, else it is in the way.

use super::FfsbError;
use super::files::Files;
use super::profile::{FileSystem, Profile};
use super::worker::Worker;
use base::Error;
use rustix::fs::Mode;
use stats::random::Random;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Files that there are at least when a file system is aged.
const FILL_FILES: u32 = 10;
/// How often it is looked how full an aged file system is.
const AGING_PERIOD: Duration = Duration::from_millis(200);

/// A set of files.
#[derive(Debug)]
pub(super) struct Set {
    /// What the profile says of it.
    pub(super) file_system: FileSystem,
    pub(super) root: PathBuf,
    pub(super) data: Files,
    pub(super) meta: Files,
    pub(super) fill: Files,
}

impl Set {
    /// Makes one below `root`, which is made too if it is not there, or uses what is there; only that if it
    /// `finds` its files.
    pub(super) fn prepare(
        profile: &Profile,
        number: usize,
        (root, finds): (&Path, bool),
        seed: u64,
    ) -> Result<Self, FfsbError> {
        let mut file_system = profile.file_systems[number].clone();
        file_system.reuses |= finds;
        let (data, meta) = (root.join("data"), root.join("meta"));
        let set = Self {
            root: root.into(),
            data: Files::new(data.clone(), "data"),
            meta: Files::new(meta.clone(), "meta"),
            fill: Files::new(data.clone(), "fill"),
            file_system,
        };
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        if finds || is_there(&data) || is_there(&meta) {
            if !set.file_system.reuses {
                let what = if is_there(&data) { data } else { meta };
                return Err(FfsbError::InTheWay(what));
            }
            set.find()?;
            return Ok(set);
        }
        fs::create_dir_all(root).map_err(FfsbError::file("cannot make", root))?;
        make_directory(&data)?;
        make_directory(&meta)?;
        let mut random = Random::of(seed, number as u64);
        for _ in 0..set.file_system.directories {
            let (number, path) = set.data.new_directory();
            make_directory(&path)?;
            set.data.open_directory(number);
        }
        set.age(profile, &mut random)?;
        set.make(&mut random)?;
        set.data.are_settled();
        Ok(set)
    }

    /// Makes the files to begin with.
    fn make(&self, random: &mut Random) -> Result<(), FfsbError> {
        let it = &self.file_system;
        // One that has a number of files has just these; else one of the other two ends it.
        let is_short = |files: u32, bytes: u64| -> Result<bool, FfsbError> {
            Ok(match (it.files, it.init_bytes) {
                (0, 0) => it.init_share > 0.0 && fullness(&self.root)? < it.init_share,
                (0, wanted) => bytes < wanted,
                (wanted, _) => files < wanted,
            })
        };
        let (mut files, mut bytes) = (0, 0);
        while is_short(files, bytes)? {
            let size = size(it, random);
            make_file(&self.data, size, it.create_block_bytes, random)?;
            files += 1;
            bytes += size;
        }
        Ok(())
    }

    /// Loads the file system until it is as full as it is to be.
    fn age(&self, profile: &Profile, random: &mut Random) -> Result<(), FfsbError> {
        let Some(aging) = &self.file_system.aging else { return Ok(()) };
        for _ in 0..FILL_FILES {
            make_file(&self.fill, 0, self.file_system.age_block_bytes, random)?;
        }
        let failed: Mutex<Option<FfsbError>> = Mutex::default();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let note = |error| {
            if let Ok(mut failed) = failed.lock() {
                failed.get_or_insert(error);
            }
            is_over.store(true, relaxed);
        };
        std::thread::scope(|scope| {
            for thread in 0..aging.group.threads {
                let seed = random.next_u64();
                let (note, is_over) = (&note, &is_over);
                scope.spawn(move || {
                    let mut worker =
                        Worker::aging(profile, &aging.group, self, seed ^ u64::from(thread));
                    while !is_over.load(relaxed) {
                        if let Err(error) = worker.step() {
                            note(error);
                        }
                    }
                });
            }
            while !is_over.load(relaxed) {
                match fullness(&self.root) {
                    Ok(full) if full >= aging.share => is_over.store(true, relaxed),
                    Ok(_) => std::thread::sleep(AGING_PERIOD),
                    Err(error) => note(error),
                }
            }
        });
        failed.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// Takes what is there, if it is what the profile would make.
    fn find(&self) -> Result<(), FfsbError> {
        let mut directories = 0;
        self.find_in(self.data.base(), &mut directories)?;
        let it = &self.file_system;
        let (files, wanted) = (self.data.len(), it.files as usize);
        if wanted > 0 && files != wanted || directories != it.directories {
            let wanted = format!("{wanted} files and {} directories", it.directories);
            let what = format!("{files} files and {directories} directories, not {wanted}");
            return Err(FfsbError::NotReusable(self.root.clone(), what));
        }
        // Whoever only reads needs none; metadata operations need it empty.
        match fs::read_dir(self.meta.base()).map(Iterator::count) {
            Ok(entries) if entries > 0 => {
                Err(FfsbError::NotReusable(self.root.clone(), "its meta is not empty".into()))
            }
            Ok(_) => Ok(()),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(FfsbError::file("cannot read", self.meta.base())(cause)),
        }
    }

    fn find_in(&self, directory: &Path, directories: &mut u32) -> Result<(), FfsbError> {
        let wrong = || FfsbError::file("cannot read", directory);
        for entry in fs::read_dir(directory).map_err(wrong())? {
            let entry = entry.map_err(wrong())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = |kind: &str| name.strip_prefix(kind).and_then(|it| it.parse::<u32>().ok());
            let kind = entry.file_type().map_err(wrong())?;
            let other = || {
                let what = format!("{} is no file of such a set", entry.path().display());
                FfsbError::NotReusable(self.root.clone(), what)
            };
            if kind.is_dir() && directory == self.data.base() {
                self.data.open_directory(number("datadir").ok_or_else(other)?);
                *directories += 1;
                self.find_in(&entry.path(), directories)?;
            } else if kind.is_file() && number("datafile").is_some() {
                let bytes = entry.metadata().map_err(wrong())?.len();
                if !fits(&self.file_system, bytes) {
                    let what = format!("{} has {bytes} bytes", entry.path().display());
                    return Err(FfsbError::NotReusable(self.root.clone(), what));
                }
                self.data.add_found(entry.path());
            } else {
                return Err(other());
            }
        }
        Ok(())
    }

    /// Flushes what was written to the file system.
    pub(super) fn flush(&self) -> Result<(), FfsbError> {
        let root = File::open(&self.root).map_err(FfsbError::file("cannot open", &self.root))?;
        rustix::fs::syncfs(&root)
            .map_err(|errno| FfsbError::file("cannot flush", &self.root)(errno.into()))
    }
}

/// Whether a file of a set may have this size.
fn fits(it: &FileSystem, bytes: u64) -> bool {
    if it.weights.is_empty() {
        (it.min_bytes..=it.max_bytes).contains(&bytes)
    } else {
        it.weights.iter().any(|weight| weight.bytes == bytes)
    }
}

/// The size of a new file.
pub(super) fn size(it: &FileSystem, random: &mut Random) -> u64 {
    let sum: u64 = it.weights.iter().map(|it| u64::from(it.weight)).sum();
    let mut place = random.next_u64() % sum.max(1);
    for weighted in &it.weights {
        if place < u64::from(weighted.weight) {
            return weighted.bytes;
        }
        place -= u64::from(weighted.weight);
    }
    it.min_bytes + random.next_u64() % (it.max_bytes - it.min_bytes).max(1)
}

/// How full the file system around a directory is, 0 to 1.
fn fullness(directory: &Path) -> Result<f64, FfsbError> {
    let found = rustix::fs::statvfs(directory)
        .map_err(|errno| FfsbError::file("cannot look at", directory)(errno.into()))?;
    Ok(found.f_blocks.saturating_sub(found.f_bfree) as f64 / found.f_blocks.max(1) as f64)
}

fn make_directory(path: &Path) -> Result<(), FfsbError> {
    rustix::fs::mkdir(path, Mode::RWXU)
        .map_err(|errno| FfsbError::file("cannot make", path)(errno.into()))
}

/// Makes one file through the page cache, whatever the load does, as FFSB does.
fn make_file(files: &Files, bytes: u64, block: u32, random: &mut Random) -> Result<(), FfsbError> {
    let held = files.add(random);
    let name = held.name();
    let mut file = File::create_new(&*name).map_err(FfsbError::file("cannot make", &name))?;
    let mut data = vec![0; u64::from(block).min(bytes) as usize];
    fill(&mut data, random);
    let mut left = bytes;
    while left > 0 {
        let part = left.min(u64::from(block)) as usize;
        file.write_all(&data[..part]).map_err(FfsbError::file("cannot write", &name))?;
        left -= part as u64;
    }
    Ok(())
}

/// Fills a buffer with what does not compress.
pub(super) fn fill(buffer: &mut [u8], random: &mut Random) {
    for chunk in buffer.chunks_mut(8) {
        let word = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Name of the directory of a profile's file system with this number, in an instance's own.
pub fn root_name(number: usize) -> String {
    format!("fs-{number}")
}

/// Creates a profile's files in a directory, for instances that work on them with `reuse=1` or with
/// [`Job::finds_files`](super::Job): the same seed makes the same files.
pub fn make_file_sets(profile: &Profile, directory: &Path, seed: u64) -> Result<(), Error> {
    for number in 0..profile.file_systems.len() {
        Set::prepare(profile, number, (&directory.join(root_name(number)), false), seed)?;
    }
    Ok(())
}
