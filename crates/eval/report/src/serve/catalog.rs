//! Which experiments there are: databases at or below the given places.

use lab::live::Life;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// What a database is called in a directory of results.
pub(super) const DATABASE: &str = "results.sqlite";
/// How deep below a place results are looked for.
const DEPTH_MAX: u32 = 3;
/// Most experiments that are shown.
const FOUND_MAX: usize = 500;
/// Most directories that are looked into.
const LOOKED_MAX: usize = 5000;
/// Letters of a hash that distinguishes experiments of one name.
const HASH_LETTERS: usize = 8;

/// State of a database: when it was changed (ns) and how long it is, and how it stands.
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

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// By place.
    pub(super) found: Vec<Entry>,
    /// Whether there may be more.
    pub(super) is_cut: bool,
}

impl Entry {
    /// The experiment of a database, if it is one.
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

/// All experiments.
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

/// The experiment of a name.
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
    // A directory that may not be read has nothing to show; links may lead anywhere, and round.
    for below in fs::read_dir(directory).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(&below.path(), depth + 1, looked, entries);
        }
    }
}
