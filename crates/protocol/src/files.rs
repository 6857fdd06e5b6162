//! Whole small files, created and read many at a time.
//!
//! [`encode`] and [`decode`] are for programs that pass such files to a mount, which creates them
//! with [`crate::client::ChangeCall::CreateFiles`].

use crate::attr::{Attr, Timestamp};
use crate::client::Name;
use crate::errno::Errno;
use crate::inline::Bytes;
use serde::{Deserialize, Serialize};

/// The extended attribute of a directory that creates files in it when it is set. It can never be
/// read.
pub const FILES_XATTR: &str = "user.tsumugi.files";

/// Most files that one call creates.
pub const NEW_FILES_MAX: usize = 256;

/// Most files that one call reads.
pub const READ_FILES_MAX: usize = 128;

/// Most bytes that the fields of an encoded file take besides its name and data.
pub const FIELDS_MAX_BYTES: usize = 48;

/// A regular file that appears with all of its data and attributes, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFile {
    /// Its name in the directory.
    pub name: Name,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group, also in a directory with sgid.
    pub gid: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the data.
    pub mtime: Timestamp,
    /// Its data, at most [`crate::inline::INLINE_MAX_BYTES`].
    pub bytes: Bytes,
    /// Its CRC-32C; none if the client computes none.
    pub sum: Option<u32>,
}

/// A small file with all of its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallFile {
    /// Its attributes.
    pub attr: Attr,
    /// Its data, without zeros at the end.
    pub bytes: Bytes,
    /// The CRC-32C of the bytes.
    pub sum: u32,
}

/// Returns the value of [`FILES_XATTR`] for some files.
///
/// # Errors
/// EINVAL if they cannot be encoded.
pub fn encode(files: &[NewFile]) -> Result<Vec<u8>, Errno> {
    postcard::to_stdvec(&(crate::VERSION, files)).map_err(|_| Errno::EINVAL)
}

/// Returns the files of a value of [`FILES_XATTR`].
///
/// # Errors
/// EOPNOTSUPP if another version of this program encoded it, EINVAL if it is not such a value.
pub fn decode(value: &[u8]) -> Result<Vec<NewFile>, Errno> {
    let (version, files) = postcard::take_from_bytes::<u16>(value).map_err(|_| Errno::EINVAL)?;
    if version != crate::VERSION {
        return Err(Errno::EOPNOTSUPP);
    }
    match postcard::take_from_bytes(files) {
        Ok((files, [])) => Ok(files),
        Ok(_) | Err(_) => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &[u8], length: usize) -> NewFile {
        NewFile {
            name: name.to_vec(),
            mode: u16::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            atime: Timestamp(i64::MIN),
            mtime: Timestamp(i64::MAX),
            bytes: Bytes(vec![7; length]),
            sum: Some(u32::MAX),
        }
    }

    /// Goal: files come back as they were, take no more bytes than is counted, and other bytes are
    /// not accepted as files.
    #[test]
    fn files_are_read_as_they_were_written() {
        let files = vec![file(b"a", 0), file(&[b'n'; 255], 16 << 10)];
        let value = encode(&files).unwrap_or_default();
        let most = |file: &NewFile| FIELDS_MAX_BYTES + file.name.len() + file.bytes.0.len();
        assert!(value.len() <= files.iter().map(most).sum());
        assert_eq!(decode(&value), Ok(files));
        assert_eq!(decode(&value[..value.len() - 1]), Err(Errno::EINVAL));
        assert_eq!(decode(&[&value[..], &[0]].concat()), Err(Errno::EINVAL));
        assert_eq!(decode(b""), Err(Errno::EINVAL));
        let other = [&[crate::VERSION as u8 + 1][..], &value[1..]].concat();
        assert_eq!(decode(&other), Err(Errno::EOPNOTSUPP));
    }
}
