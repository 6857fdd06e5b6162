//! The `origin` attribute: the lower inode that a copy was made from (`struct ovl_fb` of
//! `fs/overlayfs/overlayfs.h`). The `upper` attribute of the index names the upper directory in the
//! same form.
//!
//! Bytes: version 0, magic 0xfb, length of all, flags, handle type, the file system's UUID (16),
//! the handle. An empty value means that there is an origin that could not be named.

use reactor::file::FileHandle;

const VERSION: u8 = 0;
const MAGIC: u8 = 0xfb;
const HEAD_BYTES: usize = 21;
/// The handle is in big-endian form.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The handle is good on machines of either order.
const FLAG_ANY_ENDIAN: u8 = 2;
/// It is an inode of the upper layer.
const FLAG_UPPER: u8 = 4;
const FLAG_HERE: u8 = if cfg!(target_endian = "big") { FLAG_BIG_ENDIAN } else { 0 };

/// An inode's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) uuid: [u8; 16],
    pub(crate) handle: FileHandle,
}

impl Origin {
    /// Returns the attribute's value; `None` if the handle does not fit into the format.
    pub(crate) fn value(&self) -> Option<Vec<u8>> {
        self.flagged(FLAG_HERE)
    }

    /// As [`Origin::value`], of an inode of the upper layer.
    pub(crate) fn value_of_upper(&self) -> Option<Vec<u8>> {
        self.flagged(FLAG_HERE | FLAG_UPPER)
    }

    fn flagged(&self, flags: u8) -> Option<Vec<u8>> {
        let kind = u8::try_from(self.handle.kind).ok()?;
        let len = u8::try_from(HEAD_BYTES + self.handle.bytes.len()).ok()?;
        let mut value = vec![VERSION, MAGIC, len, flags, kind];
        value.extend_from_slice(&self.uuid);
        value.extend_from_slice(&self.handle.bytes);
        Some(value)
    }

    /// Reads the attribute's value; `None` if it names no inode that can be found here.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let (head, handle) = value.split_at_checked(HEAD_BYTES)?;
        let &[VERSION, MAGIC, len, flags, kind, ref uuid @ ..] = head else { return None };
        let is_ours = flags & FLAG_ANY_ENDIAN != 0 || flags & FLAG_BIG_ENDIAN == FLAG_HERE;
        if usize::from(len) != value.len() || handle.is_empty() || !is_ours {
            return None;
        }
        let handle = FileHandle { kind: kind.into(), bytes: handle.into() };
        Some(Self { uuid: uuid.try_into().ok()?, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: what is written reads back, and no bytes make the reader panic.
        #[test]
        fn values_read_back(
            uuid in any::<[u8; 16]>(),
            kind in 0..256,
            bytes in proptest::collection::vec(any::<u8>(), 1..100),
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let origin = Origin { uuid, handle: FileHandle { kind, bytes: bytes.into() } };
            prop_assert_eq!(Origin::parse(&origin.value().unwrap()), Some(origin));
            let _ = Origin::parse(&noise);
        }
    }

    /// Goal: the value that the kernel writes for an inode of ext4 is understood.
    #[test]
    fn the_kernels_own_values_are_read() {
        let mut value = vec![0, 0xfb, 29, 0, 1];
        value.extend([7; 16]);
        value.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let origin = Origin::parse(&value).unwrap();
        assert_eq!((origin.uuid, origin.handle.kind), ([7; 16], 1));
        value[2] = 28;
        assert_eq!(Origin::parse(&value), None);
    }
}
