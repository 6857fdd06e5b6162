//! Comparing what devices have returned with the checksums of the blocks.
//!
//! A wrong block is read once more, to other memory. If it is right then, it was changed on the way
//! here. If it is wrong again, the caller checks whether its extents still hold. A read never
//! returns wrong bytes.

use crate::client::Client;
use crate::fetched::Fetched;
use crate::read::command::Command;
use crate::sums::mismatches::WrongBlock;
use crate::sums::{Check, Checks, blocks_at};
use protocol::Errno;
use protocol::sums::checksum;
use reactor::{Buffer, RegionSlice, Shared};
use std::rc::Rc;

/// Bytes of shared memory that are copied at a time for their checksum.
const COPY_BYTES: usize = 4 << 10;

/// Checksums that are computed at a time: those of the longest command.
const SUMS_MAX: usize = 256;

/// Why a read has no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// An error of a device or a call.
    Failed(Errno),
    /// A block does not have its checksum. It may belong to another file by now.
    Wrong(WrongBlock),
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Unread {
        Unread::Failed(errno)
    }
}

/// Returns the checksum of a part of shared memory. It does not change, because the device has
/// answered.
fn sum_of_region(slice: &RegionSlice, start: usize, length: usize) -> u32 {
    let mut copy = [0; COPY_BYTES];
    if length <= COPY_BYTES {
        slice.range(start, length).copy_out(&mut copy[..length]);
        return checksum(&copy[..length]);
    }
    checksum(&slice.range(start, length).to_buffer())
}

impl Fetched {
    /// Returns the checksum of a part.
    fn sum(&self, start: usize, length: usize) -> u32 {
        match self {
            Fetched::OwnCommit(shared) => checksum(&shared[start..start + length]),
            Fetched::Placed(slice) => sum_of_region(slice, start, length),
        }
    }

    /// Computes the checksums of blocks that follow on each other.
    fn sums(&self, start: usize, block_size: usize, sums: &mut [u32]) {
        let length = sums.len() * block_size;
        let done = match self {
            Fetched::OwnCommit(shared) => {
                reactor::crc32c_of_blocks(&shared[start..start + length], block_size, sums)
            }
            Fetched::Placed(slice) => slice.range(start, length).crc32c_of_blocks(block_size, sums),
        };
        for (index, sum) in sums.iter_mut().enumerate().skip(done) {
            *sum = self.sum(start + index * block_size, block_size);
        }
    }

    /// Returns the blocks, and their right checksums, that do not have it. The bytes begin with
    /// block `first`.
    fn wrong(&self, checks: &[Check], first: u64, block_size: usize) -> Vec<(u64, u32)> {
        let mut wrong = Vec::new();
        for run in checks.chunk_by(|before, check| before.1 + 1 == check.1) {
            for run in run.chunks(SUMS_MAX) {
                let mut sums = [0; SUMS_MAX];
                let sums = &mut sums[..run.len()];
                self.sums((run[0].1 - first) as usize * block_size, block_size, sums);
                let found = run.iter().zip(sums).filter(|((.., right), sum)| right != *sum);
                wrong.extend(found.map(|((_, block, right), _)| (*block, *right)));
            }
        }
        wrong
    }

    /// Replaces wrong bytes with right ones.
    fn mend(self, mended: &[(usize, Shared)]) -> Fetched {
        match self {
            Fetched::OwnCommit(shared) => {
                let mut whole = Buffer::copy_from(&shared);
                for (start, bytes) in mended {
                    whole[*start..*start + bytes.len()].copy_from_slice(bytes);
                }
                Fetched::OwnCommit(whole.freeze())
            }
            Fetched::Placed(slice) => {
                for (start, bytes) in mended {
                    slice.range(*start, bytes.len()).copy_in(bytes);
                }
                Fetched::Placed(slice)
            }
        }
    }
}

impl Client {
    /// Checks the bytes of a command, and replaces bytes that were changed on the way.
    pub(super) async fn checked(
        self: &Rc<Self>,
        command: &Command,
        fetched: Fetched,
        checks: &Checks,
    ) -> Result<Fetched, Unread> {
        if checks.is_empty() || reactor::mutant!("sum-unchecked") {
            return Ok(fetched);
        }
        let block_size = u64::from(self.block_size(command.device)?);
        let blocks =
            blocks_at(command.range.start, command.range.end - command.range.start, block_size);
        let checks = checks.within(command.device, blocks.clone());
        let start_of = |block: u64| ((block - blocks.start) * block_size) as usize;
        let wrong = fetched.wrong(checks, blocks.start, block_size as usize);
        if wrong.is_empty() {
            return Ok(fetched);
        }
        // Boxed: hardly any read needs this state.
        let mended = Box::pin(self.read_again(command, &wrong, block_size)).await?;
        let mended = mended.into_iter().map(|(block, bytes)| (start_of(block), bytes));
        Ok(fetched.mend(&mended.collect::<Vec<_>>()))
    }

    /// Reads wrong blocks once more, to memory of their own.
    async fn read_again(
        self: &Rc<Self>,
        command: &Command,
        wrong: &[(u64, u32)],
        block_size: u64,
    ) -> Result<Vec<(u64, Shared)>, Unread> {
        let device = command.device;
        let mut mended = Vec::with_capacity(wrong.len());
        for &(block, sum) in wrong {
            let bytes = self.read_device(device, block * block_size, block_size as usize).await?;
            if checksum(&bytes) != sum {
                if reactor::mutant!("wrong-bytes-handed-over") {
                    continue;
                }
                return Err(Unread::Wrong(WrongBlock { device, block }));
            }
            self.note_repaired(device, block);
            mended.push((block, bytes));
        }
        Ok(mended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::DeviceId;
    use reactor::Region;

    const BLOCK: usize = 512;
    const FIRST: u64 = 40;

    /// Goal: exactly the blocks that are wrong are found, wherever they lie in a command, with and
    /// without blocks between them that have no checksum.
    #[test]
    fn wrong_blocks_are_found_anywhere() {
        let bytes: Vec<u8> = (0..11 * BLOCK).map(|at| (at * at / 7) as u8).collect();
        let sum = |index: usize| checksum(&bytes[index * BLOCK..(index + 1) * BLOCK]);
        for skipped in [None, Some(0), Some(6), Some(10)] {
            let indices = (0..11).filter(|index| Some(*index) != skipped);
            let checks: Vec<Check> =
                indices.map(|index| (DeviceId(1), FIRST + index as u64, sum(index))).collect();
            for damaged in [vec![], vec![0], vec![3, 4], vec![6], vec![7, 10]] {
                let mut found = bytes.clone();
                for index in &damaged {
                    found[index * BLOCK + 100] ^= 1;
                }
                let region = Region::new(found.len()).unwrap();
                region.copy_in(0, &found);
                let right: Vec<(u64, u32)> = damaged
                    .iter()
                    .filter(|index| Some(**index) != skipped)
                    .map(|index| (FIRST + *index as u64, sum(*index)))
                    .collect();
                for fetched in [
                    Fetched::Placed(region.range(0, region.len())),
                    Fetched::OwnCommit(Buffer::copy_from(&found).freeze()),
                ] {
                    assert_eq!(fetched.wrong(&checks, FIRST, BLOCK), right, "{skipped:?}");
                }
            }
        }
    }
}
