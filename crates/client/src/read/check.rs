//! Comparing what devices have returned with the checksums of the blocks.
//!
//! A wrong block is read once more, to other memory. If it is right then, it was changed on the way
//! here. If it is wrong again, the caller checks whether its extents still hold. A read never
//! returns wrong bytes.

use crate::client::Client;
use crate::fetched::Fetched;
use crate::read::command::Command;
use crate::sums::mismatches::WrongBlock;
use crate::sums::{Checks, blocks_at};
use protocol::Errno;
use protocol::sums::checksum;
use reactor::{Buffer, RegionSlice, Shared};
use std::rc::Rc;

/// Bytes of shared memory that are copied at a time for their checksum.
const COPY_BYTES: usize = 4 << 10;

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
        let is_wrong = |(_, block, sum): &&(_, u64, u32)| {
            fetched.sum(start_of(*block), block_size as usize) != *sum
        };
        let wrong: Vec<(u64, u32)> =
            checks.iter().filter(is_wrong).map(|(_, block, sum)| (*block, *sum)).collect();
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
