//! Little-endian fields, and the checked reading of them.
//!
//! Records are of many shapes and short, so they are written field by field rather than as structs;
//! reading never panics and never allocates more than what is there.

use super::types::Time;

/// Appends fields to a body.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn time(&mut self, time: Time) {
        self.u64(time.seconds as u64);
        self.u32(time.nanoseconds);
    }

    /// A length in 4 bytes and the bytes.
    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
    }
}

/// Takes fields from a body; `None` means that the body is malformed.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn time(&mut self) -> Option<Time> {
        let seconds = self.u64()? as i64;
        let nanoseconds = self.u32()?;
        (nanoseconds < 1_000_000_000).then_some(Time { seconds, nanoseconds })
    }

    /// Returns a blob of at most `limit` bytes.
    pub(super) fn blob(&mut self, limit: usize) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        if count > limit {
            return None;
        }
        self.take(count)
    }

    /// Checks that the body ends here: only zeros up to the next multiple of 8 may be left.
    pub(super) fn padding(&self) -> Option<()> {
        (self.bytes.len() < 8 && self.bytes.iter().all(|&byte| byte == 0)).then_some(())
    }
}
