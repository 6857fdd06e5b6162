//! The existing experiments: databases at or below the given places.

use lab::live::Life;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The name of a database in a directory of results.
pub(super) const DATABASE: &str = "results.sqlite";
/// The depth below a place at which results are found.
const DEPTH_MAX: u32 = 3;
/// The largest number of experiments that are shown.
const FOUND_MAX: usize = 500;
/// The largest number of directories that are searched.
const LOOKED_MAX: usize = 5000;
/// Letters of a hash that distinguishes experiments of one name.
const HASH_LETTERS: usize = 8;

/// The state of a database: its modification time (ns), its length, and whether it is in use.
pub(super) type Stamp = (u128, u64, Life);

/// An experiment.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its name in addresses: letters, digits, '-', '_' and '.' only.
    pub(super) id: String,
    pub(super) database: PathBuf,
    pub(super) life: Life,
    pub(super) stamp: Stamp,
}

/// The experiments that were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// By place.
    pub(super) found: Vec<Entry>,
    /// Whether the search was cut off.
    pub(super) is_cut: bool,
}

impl Entry {
    /// Returns the experiment of a database, if it is one.
    fn of(database: &Path) -> Option<Self> {
        let facts = fs::metadata(database).ok().filter(fs::Metadata::is_file)?;
        let changed = facts.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let path = database.canonicalize().ok()?;
        let is_named = path.file_name().is_some_and(|name| name == DATABASE);
        let name = if is_named { path.parent()?.file_name()? } else { path.file_stem()? };
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        let name: String = name.to_string_lossy().chars().filter(is_plain).collect();
        let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
        let life = Life::of(&path);
        let stamp = (changed, facts.len(), life);
        let id = format!("{name}-{}", &hash[..HASH_LETTERS]);
        Some(Self { id, database: path, life, stamp })
    }
}

/// Returns all experiments.
pub(super) fn entries(places: &[PathBuf]) -> Entries {
    let mut entries = Entries::default();
    let mut looked = 0;
    for place in places {
        if place.is_dir() {
            look(place, 0, &mut looked, &mut entries);
        } else {
            entries.found.extend(Entry::of(place));
        }
    }
    entries.found.sort_by(|a, b| a.database.cmp(&b.database));
    entries.found.dedup_by(|a, b| a.database == b.database);
    entries
}

/// Returns the experiment of a name.
pub(super) fn find(places: &[PathBuf], id: &str) -> Option<Entry> {
    entries(places).found.into_iter().find(|entry| entry.id == id)
}

fn look(directory: &Path, depth: u32, looked: &mut usize, entries: &mut Entries) {
    *looked += 1;
    if *looked > LOOKED_MAX || entries.found.len() >= FOUND_MAX {
        entries.is_cut = true;
        return;
    }
    entries.found.extend(Entry::of(&directory.join(DATABASE)));
    if depth == DEPTH_MAX {
        return;
    }
    // An unreadable directory is skipped; links are not followed, because they may form loops.
    for below in fs::read_dir(directory).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(&below.path(), depth + 1, looked, entries);
        }
    }
}
