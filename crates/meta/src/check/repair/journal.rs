//! The journal of a repair: a file, written before the repair, with which it can be taken back.
//!
//! The file has a first line, then each record with its old and its new value, then a CRC-32C of
//! all of it.

use crate::store::{Batch, Error, FjallStore, Opening, Store};
use protocol::sums::checksum;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The first line.
const HEAD: &[u8] = b"tsumugi repair 1\n";

/// Stands for no value.
const NONE: u32 = u32::MAX;

/// A record that a repair changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub key: Vec<u8>,
    /// Its old value; `None` if it did not exist.
    pub old: Option<Vec<u8>>,
    /// Its new value; `None` if the repair removes it.
    pub new: Option<Vec<u8>>,
}

fn push(bytes: &mut Vec<u8>, part: Option<&[u8]>) {
    let length = part.map_or(NONE, |part| part.len() as u32);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(part.unwrap_or_default());
}

/// Writes changes to a new file that only its owner can read, and waits until the disk has it.
///
/// # Errors
/// If the file exists or cannot be written.
pub fn write(path: &Path, changes: &[Change]) -> io::Result<()> {
    let mut bytes = HEAD.to_vec();
    for change in changes {
        push(&mut bytes, Some(&change.key));
        push(&mut bytes, change.old.as_deref());
        push(&mut bytes, change.new.as_deref());
    }
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads changes from a file.
///
/// # Errors
/// If it cannot be read, or [`write()`] did not write it.
pub fn read(path: &Path) -> io::Result<Vec<Change>> {
    let damaged =
        || io::Error::new(io::ErrorKind::InvalidData, "it is damaged, or no journal of a repair");
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
    if checksum(body) != u32::from_le_bytes(*sum) {
        return Err(damaged());
    }
    let mut rest = body.strip_prefix(HEAD).ok_or_else(damaged)?;
    let next = |rest: &mut &[u8]| -> io::Result<Option<Vec<u8>>> {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        *rest = after;
        let length = u32::from_le_bytes(*length);
        if length == NONE {
            return Ok(None);
        }
        let part = rest.split_off(..length as usize).ok_or_else(damaged)?;
        Ok(Some(part.to_vec()))
    };
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let key = next(&mut rest)?.ok_or_else(damaged)?;
        let (old, new) = (next(&mut rest)?, next(&mut rest)?);
        changes.push(Change { key, old, new });
    }
    Ok(changes)
}

/// Takes back the repair of the store in a directory; returns the number of changed records. It
/// refuses, without any change, if one of them has changed since the repair.
///
/// # Errors
/// If there is no store, a service has it open, or it cannot be written; [`Error::Corrupt`] if a
/// record has another value.
pub fn take_back(directory: &Path, changes: &[Change]) -> Result<usize, Error> {
    let failed = |source| Error::Store {
        operation: "read /proc/sys/kernel/random/boot_id",
        source: Box::new(source),
    };
    let opening = Opening::here().map_err(failed)?;
    FjallStore::check(directory, opening.boot)?;
    take_back_records(&mut FjallStore::open(directory, opening)?, changes)
}

/// As [`take_back`], for a store that is open already.
///
/// # Errors
/// As [`take_back`].
pub fn take_back_records(store: &mut dyn Store, changes: &[Change]) -> Result<usize, Error> {
    for change in changes {
        if store.get(&change.key)? != change.new {
            let reason = "it has been changed since the repair";
            return Err(crate::records::corrupt(&change.key, reason));
        }
    }
    let back = changes.iter().map(|change| (change.key.clone(), change.old.clone()));
    let batch = Batch { writes: back.collect() };
    store.commit(&batch)?;
    store.sync()?;
    Ok(batch.writes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a journal is read back as it was written, only its owner can read it, it is never
    /// overwritten, and damage of any byte is found.
    #[test]
    fn journals_are_kept_and_checked() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let changes = vec![
            Change { key: vec![1], old: None, new: Some(vec![2, 3]) },
            Change { key: vec![4, 5], old: Some(Vec::new()), new: None },
        ];
        write(&path, &changes).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap(), changes);
        assert!(write(&path, &changes).is_err(), "it was overwritten");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, &damaged).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
        }
    }
}
