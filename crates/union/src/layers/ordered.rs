//! Whether one commit of a file system's journal makes everything durable that was done before it.
//!
//! ext4 with a journal in the file system, ordered data, barriers and without fast commits: a
//! transaction's commit follows all earlier ones, and the device is flushed before its last block
//! is written, so that data which the device had taken is durable with it, as is every change of
//! metadata made before. Fast commits take single files. All this is read from the kernel and the
//! superblock; a process that may not read the superblock (it takes root) cannot know, and syncs
//! each file.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `EXT4_SUPER_MAGIC` of linux/magic.h, as statfs(2) returns it and as the superblock has it.
const MAGIC: u16 = 0xef53;
/// Where the superblock begins, and its size.
const SUPERBLOCK: (u64, usize) = (1024, 1024);
/// Fields of `struct ext4_super_block` (fs/ext4/ext4.h).
const S_MAGIC: usize = 0x38;
const S_FEATURE_COMPAT: usize = 0x5c;
const S_UUID: usize = 0x68;
const S_JOURNAL_INUM: usize = 0xe0;
const S_JOURNAL_DEV: usize = 0xe4;
/// Bits of `s_feature_compat`.
const HAS_JOURNAL: u32 = 0x4;
const FAST_COMMIT: u32 = 0x400;

/// Returns whether this is known of the file system of a directory on this device.
pub(super) fn is_proven(directory: BorrowedFd<'_>, device: u64) -> bool {
    read(directory, device).is_some_and(|(options, superblock, uuid)| {
        has_options(&options) && has_journal(&superblock, &uuid)
    })
}

/// Returns the options that the kernel goes by, the superblock, and the number that the mounted
/// file system has.
fn read(directory: BorrowedFd<'_>, device: u64) -> Option<(String, [u8; SUPERBLOCK.1], [u8; 16])> {
    let kind = rustix::fs::fstatfs(directory).ok()?.f_type;
    if kind as u64 != u64::from(MAGIC) {
        return None;
    }
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(Path::new("/sys/dev/block").join(&number)).ok()?;
    let name = link.file_name()?;
    let options = Path::new("/proc/fs/ext4").join(name).join("options");
    let options = std::fs::read_to_string(options).ok()?;
    let block = std::fs::File::open(Path::new("/dev/block").join(&number))
        .or_else(|_| std::fs::File::open(Path::new("/dev").join(name)))
        .ok()?;
    let mut superblock = [0; SUPERBLOCK.1];
    block.read_exact_at(&mut superblock, SUPERBLOCK.0).ok()?;
    let uuid = reactor::file::file_system_uuid(directory).ok()?;
    Some((options, superblock, uuid))
}

/// `/proc/fs/ext4/DEVICE/options`: one a line, defaults too.
fn has_options(text: &str) -> bool {
    let has = |option| text.lines().any(|line| line == option);
    has("data=ordered") && has("barrier") && !has("journal_async_commit")
}

fn has_journal(superblock: &[u8; SUPERBLOCK.1], uuid: &[u8; 16]) -> bool {
    let number =
        |at: usize| superblock[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let features = number(S_FEATURE_COMPAT);
    superblock[S_MAGIC..S_MAGIC + 2] == MAGIC.to_le_bytes()
        && superblock[S_UUID..S_UUID + 16] == *uuid
        && features & HAS_JOURNAL != 0
        && features & FAST_COMMIT == 0
        && number(S_JOURNAL_INUM) != 0
        && number(S_JOURNAL_DEV) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &str = "rw\nbarrier\nauto_da_alloc\ndata=ordered\ncommit=5\n";

    fn superblock() -> [u8; SUPERBLOCK.1] {
        let mut bytes = [0; SUPERBLOCK.1];
        bytes[S_MAGIC..S_MAGIC + 2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[S_FEATURE_COMPAT] = 0x3c;
        bytes[S_UUID..S_UUID + 16].copy_from_slice(&[7; 16]);
        bytes[S_JOURNAL_INUM] = 8;
        bytes
    }

    // Goal: it counts as proven if every condition holds, and not if any one fails.
    #[test]
    fn each_condition_counts() {
        assert!(has_options(OPTIONS) && has_journal(&superblock(), &[7; 16]));
        for (from, to) in [
            ("data=ordered", "data=writeback"),
            ("barrier", "nobarrier"),
            ("commit=5", "journal_async_commit"),
        ] {
            assert!(!has_options(&OPTIONS.replace(from, to)), "{to}");
        }
        assert!(!has_journal(&superblock(), &[8; 16]), "another file system's device");
        for (at, byte) in [
            (S_MAGIC, 0),
            (S_FEATURE_COMPAT, 0x38),
            (S_FEATURE_COMPAT + 1, 0x04),
            (S_JOURNAL_INUM, 0),
            (S_JOURNAL_DEV, 1),
        ] {
            let mut other = superblock();
            other[at] = byte;
            assert!(!has_journal(&other, &[7; 16]), "byte {at:#x}");
        }
    }
}
