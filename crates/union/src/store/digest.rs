//! A digest of the data of a lower file, beside its size and times.
//!
//! A ctime changes with each chmod, chown, rename, link and attribute, and never comes back,
//! although the data is the same. So a copy also records a digest: that of fs-verity where the file
//! has one, which proves that every byte is the same; else one of four blocks, which proves it for
//! these blocks only. It is compared where inode, size and mtime are the same and the ctime is not.
//! A sampled digest does not find a change of other blocks by a program that sets the mtime back.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use reactor::{Buffer, File};
use rustix::io::{Errno, ReadWriteFlags};

use crate::journal::LowerIdentity;
use crate::sys::Stat;
use crate::sys::errno_of;

/// The first byte of a digest: its kind.
const VERITY: u8 = 1;
const SAMPLED: u8 = 2;
/// Bytes of a sample.
const SAMPLE_BYTES: usize = 4096;
/// Samples: the first and the last block, and others in between.
const SAMPLES: usize = 4;

/// Returns where the samples of a file lie: a fixed number of reads for any size.
fn offsets(inode: u64, size: u64) -> [u64; SAMPLES] {
    let last = size.saturating_sub(SAMPLE_BYTES as u64);
    // splitmix64
    let mixed = |round: u64| {
        let mut value =
            (inode ^ size.rotate_left(32)).wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    [0, mixed(1) % (last + 1), mixed(2) % (last + 1), last]
}

fn sampled(samples: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Box<[u8]> {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    for sample in samples {
        digest.update(sample.as_ref());
    }
    [&[SAMPLED][..], &digest.finalize().to_le_bytes()].concat().into()
}

fn verity(fd: BorrowedFd<'_>) -> Option<Box<[u8]>> {
    let digest = reactor::file::verity_digest(fd).ok()?;
    Some([&[VERITY][..], &digest].concat().into())
}

/// Returns a sample that the page cache has, without waiting for a disk.
fn cached(fd: BorrowedFd<'_>, size: u64, offset: u64) -> Option<Vec<u8>> {
    let mut sample = vec![0; SAMPLE_BYTES.min((size - offset) as usize)];
    let flags = ReadWriteFlags::NOWAIT;
    let read = rustix::io::preadv2(fd, &mut [IoSliceMut::new(&mut sample)], offset, flags);
    (read == Ok(sample.len())).then_some(sample)
}

/// Returns the digest of a lower file that is about to be copied up in part; empty if it cannot be
/// read.
pub(crate) async fn of(fd: BorrowedFd<'_>, stat: &Stat) -> Box<[u8]> {
    if let Some(digest) = verity(fd) {
        return digest;
    }
    let offsets = offsets(stat.inode, stat.size);
    if let Some(samples) = offsets.iter().map(|&at| cached(fd, stat.size, at)).collect() {
        let samples: Vec<Vec<u8>> = samples;
        return sampled(&samples);
    }
    let Ok(file) = fd.try_clone_to_owned() else { return Box::default() };
    let file = File::from_handle(reactor::Handle::from_fd(file));
    let mut samples = Vec::with_capacity(SAMPLES);
    for offset in offsets {
        let buffer = Buffer::with_capacity(SAMPLE_BYTES);
        let (result, mut buffer) = file.read_at(buffer, 0..SAMPLE_BYTES, offset).await;
        let Ok(count) = result else { return Box::default() };
        buffer.truncate(count);
        samples.push(buffer);
    }
    sampled(samples.iter().map(|sample| &sample[..]))
}

/// Returns whether an open file has the data that a copy was made of, by the digest that was
/// recorded.
pub(super) fn is_same(
    known: &LowerIdentity,
    fd: BorrowedFd<'_>,
    found: &LowerIdentity,
) -> Result<bool, Errno> {
    match known.digest.first() {
        Some(&VERITY) => {
            Ok(known.size_bytes == found.size_bytes && verity(fd).as_ref() == Some(&known.digest))
        }
        Some(&SAMPLED) if known.is_same_but_ctime(found) => {
            let mut samples = Vec::with_capacity(SAMPLES);
            for offset in offsets(known.inode, known.size_bytes) {
                let mut sample = vec![0; SAMPLE_BYTES];
                let mut filled = 0;
                while filled < sample.len() {
                    match rustix::io::pread(fd, &mut sample[filled..], offset + filled as u64) {
                        Ok(0) => break,
                        Ok(count) => filled += count,
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno_of(errno.into())),
                    }
                }
                sample.truncate(filled);
                samples.push(sample);
            }
            Ok(sampled(&samples) == known.digest)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: samples lie within the file, the first and the last block among them, and always
        /// the same.
        #[test]
        fn samples_lie_within(inode: u64, size in 0_u64..1 << 50) {
            let found = offsets(inode, size);
            prop_assert_eq!(found, offsets(inode, size));
            prop_assert_eq!(found[0], 0);
            let last = size.saturating_sub(SAMPLE_BYTES as u64);
            prop_assert_eq!(found[SAMPLES - 1], last);
            prop_assert!(found.iter().all(|&at| at <= last));
        }
    }
}
