//! Computing checksums, and counting and logging wrong ones.

use crate::client::Client;
use crate::sums::mismatches::{ChecksumView, Damage, WrongBlock};
use protocol::inline::Bytes;
use protocol::sums::{Sums, checksum};
use protocol::{DeviceId, InodeId};

impl Client {
    /// Returns a view of the wrong checksums found, for other threads.
    pub fn checksums(&self) -> ChecksumView {
        self.mismatches.counts.clone()
    }

    /// Computes the checksums of blocks that are about to be written; none if this client makes
    /// none.
    pub(crate) fn make_sums(&self, bytes: &[u8], block_size: u32) -> Sums {
        if self.checksum { Sums::of_blocks(bytes, block_size as usize) } else { Sums::default() }
    }

    /// Counts a block whose bytes were wrong, and right when they were read again.
    pub(crate) fn note_repaired(&self, device: DeviceId, block: u64) {
        self.mismatches.count(|counts| counts.checksum_repaired += 1);
        if self.mismatches.may_log_repair() {
            let so_far = self.mismatches.counts().checksum_repaired;
            tracing::warn!(%device, block, so_far, "data did not have its checksum, and has it when it is read again: it was changed on the way; check network and memory");
        }
    }

    /// Counts a read that fails because a block is damaged. The log names each block of a file
    /// once.
    pub(crate) fn note_wrong(&self, inode: InodeId, wrong: WrongBlock) {
        let WrongBlock { device, block } = wrong;
        self.mismatches.count(|counts| {
            counts.checksum_wrong += 1;
            counts.checksum_last = Some(Damage { device, block, inode });
        });
        if self.mismatches.may_name((device, block, inode)) {
            let known = self.devices.info(device);
            let node = known.map(|info| info.node).unwrap_or_default();
            tracing::error!(%device, node, block, %inode, "data does not have its checksum: the device holds other bytes than were written; restore the file, or delete it");
        }
    }

    /// Returns whether inline bytes have their checksum.
    pub(crate) fn is_right(&self, inode: InodeId, bytes: &Bytes, sum: u32) -> bool {
        let is_right = !self.checksum || checksum(&bytes.0) == sum;
        if !is_right {
            tracing::warn!(%inode, "inline data came without its checksum");
        }
        is_right
    }

    /// Counts inline bytes that were wrong at first. `is_repaired` says whether they were right
    /// when the service was asked again.
    pub(crate) fn note_inline(&self, inode: InodeId, is_repaired: bool) {
        if is_repaired {
            self.mismatches.count(|counts| counts.checksum_repaired += 1);
            return;
        }
        self.mismatches.count(|counts| counts.checksum_wrong += 1);
        tracing::error!(%inode, "inline data does not have its checksum; restore the file, or delete it");
    }
}
