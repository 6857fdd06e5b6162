//! Checks of the engine's tables before the engine opens them.
//!
//! The engine has checksums of its manifests and tables, but checks few of them. If a manifest is
//! damaged or missing, it *removes* the tables that the manifest should have named. So this module
//! compares all checksums first. That reads every table once, about a second for each gigabyte.
//!
//! Form (lsm-tree 3): in the directory of each keyspace, `current` names the newest manifest `vN`
//! and its checksum. The manifest names the tables with theirs (xxh3, 128 bits, over the whole
//! file).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// The keyspaces of every store: the engine's own, and ours.
const KEYSPACES: [&str; 2] = ["0", "1"];

/// Bytes that are hashed at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Checks all manifests and tables of a store; returns a sentence for each that is damaged or
/// missing.
pub(super) fn check(directory: &Path) -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    let keyspaces = directory.join("keyspaces");
    for name in KEYSPACES {
        if !keyspaces.join(name).is_dir() {
            problems.push(format!("{} is missing", keyspaces.join(name).display()));
        }
    }
    if !problems.is_empty() {
        return Ok(problems);
    }
    for entry in std::fs::read_dir(&keyspaces)? {
        let path = entry?.path();
        if path.is_dir() {
            check_keyspace(&path, &mut problems)?;
        }
    }
    Ok(problems)
}

fn check_keyspace(keyspace: &Path, problems: &mut Vec<String>) -> io::Result<()> {
    let current = keyspace.join("current");
    let Some(bytes) = read_if_there(&current)? else {
        problems.push(format!("{} is missing", current.display()));
        return Ok(());
    };
    let parts = (bytes.get(..8), bytes.get(8..24), bytes.len());
    let (Some(Ok(version)), Some(Ok(checksum)), 25) =
        (parts.0.map(<[u8; 8]>::try_from), parts.1.map(<[u8; 16]>::try_from), parts.2)
    else {
        problems.push(format!("{} is damaged", current.display()));
        return Ok(());
    };
    let manifest = keyspace.join(format!("v{}", u64::from_le_bytes(version)));
    let is_whole = compare(&manifest, u128::from_le_bytes(checksum), problems)?;
    if !is_whole {
        return Ok(());
    }
    let Some(tables) = tables_of(&manifest)? else {
        problems.push(format!("{} is damaged", manifest.display()));
        return Ok(());
    };
    for (table, checksum) in tables {
        compare(&keyspace.join("tables").join(table.to_string()), checksum, problems)?;
    }
    Ok(())
}

/// Compares a file with its checksum; returns false and adds a problem if it differs or is missing.
fn compare(path: &PathBuf, checksum: u128, problems: &mut Vec<String>) -> io::Result<bool> {
    let problem = match File::open(path) {
        Ok(file) if hash(&file)? == checksum => return Ok(true),
        Ok(_) => "is damaged",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is missing",
        Err(error) => return Err(error),
    };
    problems.push(format!("{} {problem}", path.display()));
    Ok(false)
}

fn hash(mut file: &File) -> io::Result<u128> {
    let mut hasher = Xxh3Default::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.digest128()),
            length => hasher.update(&piece[..length]),
        }
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the tables that a manifest names, with their checksums; `None` if it is not readable.
fn tables_of(manifest: &Path) -> io::Result<Option<Vec<(u64, u128)>>> {
    let Ok(reader) = sfa::Reader::new(manifest) else { return Ok(None) };
    let Some(section) = reader.toc().section(b"tables") else { return Ok(None) };
    let mut bytes = Vec::new();
    section.buf_reader(manifest)?.read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    Ok(parse_tables(&mut rest))
}

fn parse_tables(rest: &mut &[u8]) -> Option<Vec<(u64, u128)>> {
    let mut tables = Vec::new();
    for _level in 0..take::<1>(rest)?[0] {
        for _run in 0..take::<1>(rest)?[0] {
            for _table in 0..u32::from_le_bytes(take(rest)?) {
                let id = u64::from_le_bytes(take(rest)?);
                let _kind = take::<1>(rest)?;
                tables.push((id, u128::from_le_bytes(take(rest)?)));
                let _number = take::<8>(rest)?;
            }
        }
    }
    Some(tables)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk::<N>()?;
    *rest = others;
    Some(*first)
}
