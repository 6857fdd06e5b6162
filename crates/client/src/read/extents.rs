//! The extents that a read uses, held until it ends.

use crate::client::Client;
use crate::extent_map::Run;
use crate::inode::Inode;
use crate::session::life::{ReadGuard, SessionStamp};
use crate::sums::known::KnownSums;
use crate::sums::{Checks, blocks_at};
use protocol::client::{Answer, Call, ReadCall};
use protocol::inline::INLINE_MAX_BYTES;
use protocol::sums::BlockSums;
use protocol::{AllocationId, Attr, Errno, Extent, FILE_SIZE_MAX_BYTES, Place, Rights};
use reactor::local::InFlight;
use std::rc::Rc;

/// Extents asked for at least, in bytes of the file, so that reading on needs no further call.
pub(crate) const AHEAD_BYTES: u64 = 64 << 20;

/// The state that must not change while bytes are read: the session, and the devices' incarnations.
/// If it does, the session may have been fenced, or a device may have lost data that the extents
/// name, and the bytes may belong to another file.
pub(crate) struct Validity {
    session: SessionStamp,
    pub(crate) losses: u64,
}

/// Extents for one read, and guards that make them hold until it ends.
pub(crate) struct HeldExtents {
    pub(crate) size: u64,
    pub(crate) runs: Vec<Run<Place>>,
    /// The checksums of their blocks that have one.
    pub(crate) sums: Checks,
    /// The file's first bytes, where no run is.
    pub(crate) head: Rc<[u8]>,
    _epoch: ReadGuard,
    lease: Option<InFlight>,
}

impl HeldExtents {
    /// Returns whether READ was held when the extents were taken, so that they may be cached.
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some()
    }
}

/// The service's answer about a range of a file.
pub(crate) struct ExtentsAnswer {
    pub(crate) extents: Vec<Extent>,
    /// The extents are complete up to here.
    pub(crate) covered_to: u64,
    pub(crate) inline: Vec<u8>,
    /// The checksums of the blocks that the extents touch.
    pub(crate) sums: BlockSums,
    pub(crate) attr: Attr,
}

impl Client {
    /// Returns the present state, taken before the extents, for [`Client::still_holds`] after the
    /// bytes are read.
    pub(crate) fn validity(&self) -> Validity {
        Validity { session: self.session.life.stamp(), losses: self.devices.losses() }
    }

    /// Returns whether the state is still the same, and the session alive.
    pub(crate) fn still_holds(&self, validity: &Validity) -> bool {
        if reactor::mutant!("dead-session-reads") {
            return true;
        }
        self.session.life.is_alive()
            && (self.session.life.is_present(validity.session)
                || reactor::mutant!("read-outlives-session"))
            && (validity.losses == self.devices.losses() || reactor::mutant!("loss-unseen-by-read"))
    }

    /// Returns the cached extents of a range, held until the read ends.
    pub(crate) fn hold_cached(&self, inode: &Inode, offset: u64, end: u64) -> Option<HeldExtents> {
        let state = inode.state.borrow();
        if !state.rights.contains(Rights::READ) {
            return None;
        }
        let (attr, runs) = state.extents(offset, end)?;
        let epoch = self.session.life.hold();
        let lease = Some(inode.lease_reads.enter());
        let sums = self.sums_of(&state.sums, &runs);
        Some(HeldExtents { size: attr.size, runs, sums, head: state.head(), _epoch: epoch, lease })
    }

    /// Returns the committed extents of a range, held until the read ends.
    pub(crate) async fn hold_extents(
        self: &Rc<Self>,
        inode: &Rc<Inode>,
        offset: u64,
        length: u64,
    ) -> Result<HeldExtents, Errno> {
        let end = offset.saturating_add(length);
        if let Some(held) = self.hold_cached(inode, offset, end) {
            return Ok(held);
        }
        if offset < INLINE_MAX_BYTES {
            self.fetch_neighbours(inode).await?;
            if let Some(held) = self.hold_cached(inode, offset, end) {
                return Ok(held);
            }
        }
        let mut at = offset;
        let mut runs = Vec::new();
        let mut sums = Checks::default();
        let mut head: Rc<[u8]> = Rc::default();
        // Taken before the first answer, so its epoch is no later than that of any answer.
        let epoch = self.session.life.hold();
        loop {
            let wanted = (end - at).max(AHEAD_BYTES);
            let ExtentsAnswer { extents, covered_to, inline, sums: more, attr } =
                self.ask_extents(inode, at, wanted).await?;
            if !inline.is_empty() {
                head = inline.into();
            }
            sums.extend(self.checks_of(&more));
            runs.extend(extents.iter().filter_map(|extent| {
                let extent = extent.clip(at, end.min(covered_to))?;
                let length = u64::from(extent.length);
                Some(Run { offset: extent.offset, length, place: extent.place })
            }));
            at = covered_to;
            if at >= end.min(attr.size) {
                let lease = inode
                    .state
                    .borrow()
                    .rights
                    .contains(Rights::READ)
                    .then(|| inode.lease_reads.enter());
                sums.sort();
                return Ok(HeldExtents { size: attr.size, runs, sums, head, _epoch: epoch, lease });
            }
        }
    }

    /// Returns the checksums in an answer, if this client checks them.
    pub(crate) fn checks_of(&self, sums: &BlockSums) -> Checks {
        let mut checks = Checks::default();
        if self.checksum {
            sums.each().for_each(|(device, block, sum)| checks.push(device, block, sum));
            checks.sort();
        }
        checks
    }

    /// Returns the known checksums of the blocks that runs touch.
    pub(crate) fn sums_of(&self, known: &KnownSums, runs: &[Run<Place>]) -> Checks {
        let mut checks = Checks::default();
        if !self.checksum {
            return checks;
        }
        for run in runs {
            let AllocationId { device, block } = run.place.allocation;
            let Some(block_size) = self.devices.block_size(device).map(u64::from) else { continue };
            let address = block * block_size + u64::from(run.place.at);
            known.add_to(&mut checks, device, blocks_at(address, run.length, block_size));
        }
        checks.sort();
        checks
    }

    /// Asks the service for extents. The answer is complete from `offset` to `covered_to`. Asks
    /// once more if inline bytes do not have their checksum.
    pub(crate) async fn ask_extents(
        self: &Rc<Self>,
        inode: &Inode,
        offset: u64,
        length: u64,
    ) -> Result<ExtentsAnswer, Errno> {
        let length = length.min(FILE_SIZE_MAX_BYTES - offset);
        let mut is_again = false;
        loop {
            let call = Call::Read(ReadCall::ReadExtents { inode: inode.id, offset, length });
            match self.session.call(call).await? {
                Answer::Extents { extents, covered_to, inline, inline_sum, sums, attr, .. }
                    if covered_to > offset =>
                {
                    let is_right = self.is_right(inode.id, &inline, inline_sum);
                    if is_again {
                        self.note_inline(inode.id, is_right);
                    }
                    if is_right {
                        let (extents, inline) = (extents.0, inline.0);
                        return Ok(ExtentsAnswer { extents, covered_to, inline, sums, attr });
                    }
                    if std::mem::replace(&mut is_again, true) {
                        return Err(Errno::EIO);
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
    }
}
