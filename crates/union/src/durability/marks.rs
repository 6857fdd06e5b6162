//! The paths of waiting copies, noted for the next process in case this one is killed.
//!
//! One file `WORKDIR/tsumugi/waiting` of records: a copy's name among the waiting ones, and its
//! path. A record costs one write into the page cache. An attribute of each copy would have to be
//! set and removed, and both changes of metadata would wait for commits of the file system's
//! journal. Records are valid only on the boot and the mount on which they were made, which their
//! checksums cover: the page cache lives as long as that mount.
//!
//! When no copy waits, the file is written from its start again. Old records behind the newest one
//! may still be whole; they name copies that no longer exist and have no effect.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::layers::Upper;
use crate::sys;

/// The file, below the work directory.
const NAME: &str = "tsumugi/waiting";
/// Lengths of name and path, and the checksum.
const HEAD_BYTES: usize = 2 + 4 + 8;
/// From this size on the file is begun again when nothing waits.
const LONG_BYTES: u64 = 64 << 10;
/// From this size on the file is written anew with the records of the copies that wait.
const REWRITE_BYTES: u64 = 8 << 20;
/// Most bytes that a recovery reads: far more than the records of all waiting copies.
const READ_BYTES_MAX: u64 = 64 << 20;
/// The file while it is written anew.
const NEW_NAME: &str = "tsumugi/waiting.new";

/// The file as it is written.
#[derive(Debug, Default)]
pub(super) struct Marks {
    file: RefCell<Option<OwnedFd>>,
    witness: Cell<u64>,
    end: Cell<u64>,
    /// The bytes that it had when it was written anew last.
    live: Cell<u64>,
}

impl Marks {
    /// Notes a copy.
    pub(super) fn note(&self, upper: &Upper, name: &[u8], path: &[u8]) -> Result<(), Errno> {
        let mut file = self.file.borrow_mut();
        if file.is_none() {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let mode = Mode::RUSR | Mode::WUSR;
            *file = Some(rustix::fs::openat(&upper.work_root, NAME, flags, mode)?);
            self.witness.set(crate::journal::witness(upper.pending.as_fd()));
        }
        let Some(file) = &*file else { return Err(Errno::IO) };
        let record = encode(self.witness.get(), name, path)?;
        sys::write_all_at(file.as_fd(), &record, self.end.get())?;
        self.end.set(self.end.get() + record.len() as u64);
        Ok(())
    }

    /// Returns whether the file is to be written anew: most of its records are old.
    pub(super) fn is_long(&self) -> bool {
        self.end.get() >= REWRITE_BYTES && self.end.get() / 2 >= self.live.get()
    }

    /// Replaces all records by these, in one step.
    pub(super) fn rewrite<'a>(
        &self,
        upper: &Upper,
        records: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        for (name, path) in records {
            bytes.extend(encode(self.witness.get(), name, path)?);
        }
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&upper.work_root, NEW_NAME, flags, mode)?;
        sys::write_all_at(file.as_fd(), &bytes, 0)?;
        rustix::fs::renameat(&upper.work_root, NEW_NAME, &upper.work_root, NAME)?;
        *self.file.borrow_mut() = Some(file);
        self.end.set(bytes.len() as u64);
        self.live.set(bytes.len() as u64);
        Ok(())
    }

    /// Nothing waits any more.
    pub(super) fn forget_all(&self) {
        if self.end.get() >= LONG_BYTES {
            self.end.set(0);
            self.live.set(0);
        }
    }
}

/// Returns the paths of the copies that a killed process has left waiting, by name. Empty if no
/// record is valid.
pub(super) fn read(upper: &Upper) -> Result<HashMap<Vec<u8>, Vec<u8>>, Errno> {
    read_below(upper.work_root.as_fd(), upper.pending.as_fd())
}

/// Returns the same, of an open work directory and the one of waiting copies in it.
pub(crate) fn read_below(
    work: BorrowedFd<'_>,
    pending: BorrowedFd<'_>,
) -> Result<HashMap<Vec<u8>, Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::openat(work, NAME, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => return Ok(HashMap::new()),
        Err(errno) => return Err(errno),
    };
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, READ_BYTES_MAX), &mut bytes)
        .map_err(crate::sys::errno_of)?;
    Ok(decode(crate::journal::witness(pending), &bytes))
}

/// Returns the path that is noted for a future entry of the index: a zero byte, which no path has,
/// and its name.
pub(super) fn path_in_index(entry: &[u8]) -> Vec<u8> {
    [&[0], entry].concat()
}

/// Removes the file, when what it names is settled: names of copies begin again with each process.
pub(super) fn remove(upper: &Upper) -> Result<(), Errno> {
    match rustix::fs::unlinkat(&upper.work_root, NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn encode(witness: u64, name: &[u8], path: &[u8]) -> Result<Vec<u8>, Errno> {
    let name_bytes = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
    let path_bytes = u32::try_from(path.len()).map_err(|_| Errno::NAMETOOLONG)?;
    let mut record = Vec::with_capacity(HEAD_BYTES + name.len() + path.len());
    record.extend_from_slice(&name_bytes.to_le_bytes());
    record.extend_from_slice(&path_bytes.to_le_bytes());
    record.extend_from_slice(&checksum(witness, name, path).to_le_bytes());
    record.extend_from_slice(name);
    record.extend_from_slice(path);
    Ok(record)
}

/// Returns the records up to the first that is not whole, the later ones winning.
fn decode(witness: u64, mut bytes: &[u8]) -> HashMap<Vec<u8>, Vec<u8>> {
    let mut found = HashMap::new();
    if witness == 0 {
        return found;
    }
    while let Some((name, path, rest)) = decode_one(witness, bytes) {
        found.insert(name.to_vec(), path.to_vec());
        bytes = rest;
    }
    found
}

fn decode_one(witness: u64, bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name_bytes, rest) = bytes.split_first_chunk()?;
    let (path_bytes, rest) = rest.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*name_bytes).into())?;
    let (path, rest) = rest.split_at_checked(u32::from_le_bytes(*path_bytes) as usize)?;
    (u64::from_le_bytes(*sum) == checksum(witness, name, path)).then_some((name, path, rest))
}

fn checksum(witness: u64, name: &[u8], path: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&witness.to_le_bytes());
    digest.update(&(name.len() as u64).to_le_bytes());
    digest.update(name);
    digest.update(path);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Goal: what was noted is read back, later notes of a name winning, up to where the file
        // was cut or overwritten; on another boot or mount nothing is.
        #[test]
        fn notes_are_read_back(
            notes in prop::collection::vec((0u8..5, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
            cut in 0usize..2000,
            garbage in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut bytes = Vec::new();
            let mut expected = HashMap::new();
            for (name, path) in &notes {
                let record = encode(7, &[*name], path).unwrap();
                if bytes.len() + record.len() <= cut {
                    expected.insert(vec![*name], path.clone());
                }
                bytes.extend(record);
            }
            bytes.truncate(cut);
            if bytes.len() < cut {
                bytes.extend(&garbage);
            }
            prop_assert_eq!(decode(7, &bytes), expected);
            prop_assert!(decode(8, &bytes).is_empty() && decode(0, &bytes).is_empty());
        }

        // Goal: no bytes make it panic or read beyond them.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(7, &bytes);
        }
    }
}
