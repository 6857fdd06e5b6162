//! A mark in a file that a flush of a device has failed: for the process that opens the device
//! next.
//!
//! The system reports lost writes once, and the failure of a flush is known to one process. If that
//! process ends, a later flush by the next one succeeds and proves nothing. So a device counts as
//! another incarnation once a mark has changed.
//!
//! The mark need not reach the disk: after a boot the incarnation is another one anyway.

use reactor::{Buffer, File};
use std::io;

/// The sixteen bytes of a file that change when a flush of a device fails.
#[derive(Clone, Debug)]
pub struct FailureMark {
    file: File,
    offset: u64,
    failed: u128,
}

impl FailureMark {
    /// Length of a mark in bytes.
    pub const BYTES: u64 = 16;

    /// Returns a mark at `offset` of a file that is open for writing.
    pub fn new(file: File, offset: u64) -> Self {
        let word = || u128::from(reactor::random::u64());
        Self { file, offset, failed: word() << 64 | word() }
    }

    /// Writes what is different from all earlier marks of this device. It may be repeated.
    pub(crate) async fn set(&self) -> io::Result<()> {
        let bytes = Buffer::copy_from(&self.failed.to_le_bytes());
        self.file.write_at(bytes, self.offset).await.0
    }
}
