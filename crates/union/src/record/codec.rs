//! The record and the path of the work directory as bytes, also readable by people.
//!
//! ```text
//! tsumugi union 1 CHECKSUM
//! upper INODE FILE-SYSTEM KIND HANDLE
//! lower INODE FILE-SYSTEM KIND HANDLE      (one line a layer, from the top)
//! options
//! lowerdir=…                               (to the end, with any bytes of paths)
//! ```
//!
//! The checksum (CRC-64/NVME) is of all lines below its own; handles are in hexadecimal, `-` where
//! a file system has none. The path is stored as `1`, the relative and the absolute path, with zero
//! bytes in between.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crc_fast::CrcAlgorithm;
use reactor::file::FileHandle;

const HEAD: &str = "tsumugi union 1 ";
const OPTIONS: &str = "options";
const WORK_PATH_VERSION: &[u8] = b"1";
/// The longest handle (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;

/// The identity of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) inode: u64,
    /// The file system's number; zeros where it has none.
    pub(super) uuid: [u8; 16],
    /// None where the file system has none.
    pub(super) handle: Option<FileHandle>,
}

/// The layers and options of a union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) upper: Identity,
    /// From the top.
    pub(super) lower: Vec<Identity>,
    /// [`crate::Options::parse`] reads them; all paths are absolute.
    pub(super) options: Vec<u8>,
}

/// The path of the work directory, from the upper directory and from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkPath {
    pub(super) relative: PathBuf,
    pub(super) absolute: PathBuf,
}

impl Identity {
    /// Returns whether it is the same directory; values that a file system does not have are not
    /// compared.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let same_system = self.uuid == [0; 16] || other.uuid == [0; 16] || self.uuid == other.uuid;
        let same_handle = match (&self.handle, &other.handle) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.inode == other.inode && same_system && same_handle
    }

    fn line(&self) -> String {
        let (kind, handle) = match &self.handle {
            Some(handle) => (handle.kind, hex(&handle.bytes)),
            None => (0, "-".into()),
        };
        format!("{} {} {kind} {handle}", self.inode, hex(&self.uuid))
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[inode, uuid, kind, handle] = &fields[..] else { return None };
        let kind: i32 = kind.parse().ok()?;
        let handle = match handle {
            "-" => None,
            handle => Some(FileHandle { kind, bytes: unhex(handle, HANDLE_BYTES_MAX)?.into() }),
        };
        let uuid = unhex(uuid, 16)?.try_into().ok()?;
        Some(Self { inode: inode.parse().ok()?, uuid, handle })
    }
}

impl Record {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = format!("upper {}\n", self.upper.line());
        for layer in &self.lower {
            // Writing to a string does not fail.
            let _ = writeln!(text, "lower {}", layer.line());
        }
        text.push_str(OPTIONS);
        let body = [text.as_bytes(), b"\n", &self.options].concat();
        [format!("{HEAD}{:016x}\n", checksum(&body)).as_bytes(), &body].concat()
    }

    /// Reads a record; if that cannot be, says why.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (head, body) = line_of(bytes).ok_or("it is cut short")?;
        let sum = head.strip_prefix(HEAD).ok_or("it is of another version of this program")?;
        if sum != format!("{:016x}", checksum(body)) {
            return Err("it is damaged (its checksum is wrong)");
        }
        let malformed = "it is malformed";
        let (upper, mut rest) = line_of(body).ok_or(malformed)?;
        let upper = upper.strip_prefix("upper ").and_then(Identity::parse).ok_or(malformed)?;
        let mut lower = Vec::new();
        loop {
            let (line, after) = line_of(rest).ok_or(malformed)?;
            rest = after;
            if line == OPTIONS {
                return Ok(Self { upper, lower, options: rest.to_vec() });
            }
            let layer = line.strip_prefix("lower ").and_then(Identity::parse);
            lower.push(layer.ok_or(malformed)?);
        }
    }
}

impl WorkPath {
    pub(super) fn encode(&self) -> Vec<u8> {
        let paths = [&self.relative, &self.absolute].map(|path| path.as_os_str().as_bytes());
        [WORK_PATH_VERSION, paths[0], paths[1]].join(&0)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let parts: Vec<&[u8]> = bytes.split(|&byte| byte == 0).collect();
        let &[WORK_PATH_VERSION, relative, absolute] = &parts[..] else { return None };
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let work_path = Self { relative: path(relative), absolute: path(absolute) };
        let is_valid = !relative.is_empty()
            && work_path.absolute.is_absolute()
            && !Path::new(&work_path.relative).is_absolute();
        is_valid.then_some(work_path)
    }
}

/// Returns the first line and what follows it.
fn line_of(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

fn checksum(body: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, body)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str, most: usize) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.is_empty() || pairs.len() > most {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> impl Strategy<Value = Identity> {
        let bytes = proptest::collection::vec(any::<u8>(), 1..=HANDLE_BYTES_MAX);
        let handle = (any::<i32>(), bytes)
            .prop_map(|(kind, bytes)| FileHandle { kind, bytes: bytes.into() });
        (any::<u64>(), any::<[u8; 16]>(), proptest::option::of(handle))
            .prop_map(|(inode, uuid, handle)| Identity { inode, uuid, handle })
    }

    fn record() -> impl Strategy<Value = Record> {
        let lower = proptest::collection::vec(identity(), 0..6);
        let options = proptest::collection::vec(any::<u8>(), 0..200);
        (identity(), lower, options).prop_map(|(upper, lower, options)| Record {
            upper,
            lower,
            options,
        })
    }

    fn path_bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(1_u8..=255, 1..40)
    }

    proptest! {
        /// Goal: a record with any bytes in its options reads back; one that was cut or changed
        /// anywhere is refused.
        #[test]
        fn records_read_back(record in record(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let bytes = record.encode();
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
            let at = at.index(bytes.len());
            prop_assert!(Record::decode(&bytes[..at]).is_err());
            let mut changed = bytes;
            changed[at] ^= 1 << bit;
            prop_assert!(Record::decode(&changed).is_err(), "byte {at}");
        }

        /// Goal: a path reads back.
        #[test]
        fn work_paths_read_back(relative in path_bytes(), absolute in path_bytes()) {
            prop_assume!(relative[0] != b'/');
            let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
            let absolute = path([&b"/"[..], &absolute].concat());
            let work_path = WorkPath { relative: path(relative), absolute };
            prop_assert_eq!(WorkPath::decode(&work_path.encode()), Some(work_path));
        }

        /// Goal: no bytes make the readers panic, also behind a right checksum.
        #[test]
        fn any_bytes_are_read_or_refused(noise in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = (Record::decode(&noise), WorkPath::decode(&noise));
            let body = [b"upper ", &noise[..]].concat();
            let head = format!("{HEAD}{:016x}\n", checksum(&body));
            prop_assert!(Record::decode(&[head.as_bytes(), &body].concat()).is_err());
        }
    }

    /// Goal: another inode, handle or file system is another directory; what is unknown is none.
    #[test]
    fn other_directories_are_distinguished() {
        let handle = |byte| Some(FileHandle { kind: 1, bytes: [byte; 8].into() });
        let known = Identity { inode: 5, uuid: [7; 16], handle: handle(1) };
        assert!(known.is_of(&known));
        assert!(known.is_of(&Identity { uuid: [0; 16], handle: None, ..known.clone() }));
        for other in [
            Identity { inode: 6, ..known.clone() },
            Identity { uuid: [8; 16], ..known.clone() },
            Identity { handle: handle(2), ..known.clone() },
        ] {
            assert!(!known.is_of(&other) && !other.is_of(&known), "{other:?}");
        }
    }

    /// Goal: a malformed path is refused.
    #[test]
    fn bad_work_paths_are_refused() {
        for bytes in
            [&b""[..], b"1", b"1\0../w", b"1\0\0/w", b"2\0../w\0/w", b"1\0../w\0w", b"1\0/w\0/w"]
        {
            assert_eq!(WorkPath::decode(bytes), None, "{bytes:?}");
        }
    }
}
