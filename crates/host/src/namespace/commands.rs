//! Commands that a block device does not have: Compare, Compare and Write, Verify, Copy, Write
//! Uncorrectable.

use super::Namespace;
use super::paths::Trouble;
use super::request::{Request, retry_elsewhere};
use crate::controller::Link;
use crate::error::Error;
use crate::queue_pair::{Data, Outcome};
use nvme::Status;
use nvme::command::{Copy, CopyRange, Fuse};
use nvme::identify::IdentifyController;
use nvme::opcode::NvmOpcode;
use reactor::{Buffer, Shared};
use std::ops::Range;
use std::rc::Rc;

/// Most blocks of one Verify or Write Uncorrectable.
const BLOCKS_MAX: u64 = 1 << 16;

/// The target's limits for Copy.
struct CopyLimits {
    /// Most bytes of one source range (MSSRL).
    range_bytes: u64,
    /// Most bytes of one command (MCL).
    bytes: u64,
    /// Most source ranges of one command (MSRC + 1).
    ranges: usize,
}

impl Namespace {
    /// Returns whether the stored bytes from `offset_bytes` on are `bytes`, which fit one command.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the target does not have the command.
    pub async fn compare(&self, offset_bytes: u64, bytes: Shared) -> Result<bool, Error> {
        self.check_transfer("compare", offset_bytes, bytes.len() as u64)?;
        self.require(IdentifyController::ONCS_COMPARE, "Compare").await?;
        let len = bytes.len() as u64;
        let mut request = self.read_write(NvmOpcode::COMPARE, offset_bytes, len)?;
        request.is_write = false;
        match self.run(&request, Data::Write(bytes), self.lane()).await {
            Ok(_) => Ok(true),
            Err(error) => is_mismatch(error),
        }
    }

    /// Writes `bytes` if the stored bytes are `expected`, and returns whether they were. No other
    /// write to the blocks takes place in between. Both have the same length, at most that for which
    /// the target offers this (ACWU).
    ///
    /// A pair that was under way when its connection ended is not sent again, because the write of
    /// the first attempt would make the comparison of the second one fail.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the target does not have the operation,
    /// [`Error::WriteInterrupted`] if the connection has ended meanwhile.
    pub async fn compare_and_write(
        &self,
        offset_bytes: u64,
        expected: Shared,
        bytes: Shared,
    ) -> Result<bool, Error> {
        let len = bytes.len() as u64;
        self.check_transfer("compare and write", offset_bytes, len)?;
        if expected.len() as u64 != len {
            let (what, why) = ("compare and write", "the expected bytes have another length");
            return Err(Error::InvalidRequest { what, offset_bytes, bytes: len, why });
        }
        let compare = self.read_write(NvmOpcode::COMPARE, offset_bytes, len)?;
        let write = self.read_write(NvmOpcode::WRITE, offset_bytes, len)?;
        let (deadline, mut trouble, mut attempt) = (self.deadline(), Trouble::default(), 0);
        let lane = self.lane();
        loop {
            let route = self.route(deadline, &mut trouble).await?;
            let fuses = route.link.info.identify.fuses.get();
            if fuses & IdentifyController::FUSES_COMPARE_AND_WRITE == 0 {
                return Err(Error::NotOffered("Compare and Write"));
            }
            let Some(connection) = route.link.io.get(lane % route.link.io.len().max(1)) else {
                return Err(Error::ControllerFailed("grants no I/O queue pair"));
            };
            let commands = [
                (compare.sqe.with_fuse(Fuse::First), Data::Write(expected.clone())),
                (write.sqe.with_fuse(Fuse::Second), Data::Write(bytes.clone())),
            ];
            let [compared, written] = match connection.execute_fused(commands).await? {
                [Outcome::Completed(compared), Outcome::Completed(written)] => {
                    [compared.status(), written.status()]
                }
                _ => return Err(Error::WriteInterrupted(connection.reason())),
            };
            if let Some(pause) = retry_elsewhere(&route, [compared, written], attempt) {
                attempt += 1;
                self.check_patience(&mut trouble)?;
                drop(route);
                reactor::time::sleep(pause).await;
                continue;
            }
            return match (compared, written) {
                (compared, written) if compared.is_success() && written.is_success() => Ok(true),
                (compared, _) if compared.is(Status::COMPARE_FAILURE) => Ok(false),
                (compared, written) if compared.is(Status::FUSED_FAILED) => {
                    Err(self.failure(&write, written))
                }
                (compared, _) if !compared.is_success() => Err(self.failure(&compare, compared)),
                (_, written) => Err(self.failure(&write, written)),
            };
        }
    }

    /// Makes the target read `bytes` from `offset_bytes` on, without sending them.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the target does not have the command.
    pub async fn verify(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check("verify", offset_bytes, bytes)?;
        self.require(IdentifyController::ONCS_VERIFY, "Verify").await?;
        let blocks = BLOCKS_MAX.min(self.0.limits.verify_bytes_max >> self.0.block_shift).max(1);
        self.in_pieces(NvmOpcode::VERIFY, offset_bytes..offset_bytes + bytes, blocks).await
    }

    /// Makes reads of the blocks fail until they are written.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the target does not have the command.
    pub async fn write_uncorrectable(&self, offset_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check("write uncorrectable", offset_bytes, bytes)?;
        let (bit, name) = (IdentifyController::ONCS_WRITE_UNCORRECTABLE, "Write Uncorrectable");
        self.require(bit, name).await?;
        let range = offset_bytes..offset_bytes + bytes;
        let blocks =
            BLOCKS_MAX.min(self.0.limits.uncorrectable_bytes_max >> self.0.block_shift).max(1);
        self.in_pieces(NvmOpcode::WRITE_UNCORRECTABLE, range, blocks).await
    }

    /// Makes the target copy `bytes` from one place to another, which may overlap: the destination
    /// then has the bytes that the source had before. It is not atomic; other writes may take place
    /// meanwhile.
    ///
    /// A command that was under way when its connection ended is not sent again, because it may
    /// have changed its own source.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the target does not have the command,
    /// [`Error::WriteInterrupted`] if the connection has ended meanwhile.
    pub async fn copy(&self, from_bytes: u64, to_bytes: u64, bytes: u64) -> Result<(), Error> {
        self.check("copy", from_bytes, bytes)?;
        self.check("copy", to_bytes, bytes)?;
        let limits = self.copy_limits().await?;
        let step = limits.range_bytes.min(limits.bytes).max(1);
        // The pieces of an overlapping copy must not overwrite what is still to be read.
        let is_upward = to_bytes <= from_bytes;
        let mut done = 0;
        while done < bytes {
            let len = step.min(bytes - done);
            let at = if is_upward { done } else { bytes - done - len };
            self.copy_once(&[(from_bytes + at, len)], to_bytes + at).await?;
            done += len;
        }
        Ok(())
    }

    /// Makes the target copy ranges (offset and length in bytes) to one place, one after the other,
    /// by one command.
    ///
    /// # Errors
    /// As [`Self::copy`], and [`Error::InvalidRequest`] if they exceed what one command can copy.
    pub async fn copy_ranges(&self, sources: &[(u64, u64)], to_bytes: u64) -> Result<(), Error> {
        let total = sources.iter().map(|(_, bytes)| bytes).sum();
        self.check("copy", to_bytes, total)?;
        let limits = self.copy_limits().await?;
        for &(offset_bytes, bytes) in sources {
            self.check("copy", offset_bytes, bytes)?;
            if bytes == 0 || bytes > limits.range_bytes {
                let why = "a range is empty or longer than the target's limit (MSSRL)";
                return Err(Error::InvalidRequest { what: "copy", offset_bytes, bytes, why });
            }
        }
        if sources.is_empty() || sources.len() > limits.ranges || total > limits.bytes {
            let why = "there are no ranges, or more than the target's limits (MSRC, MCL)";
            let (what, offset_bytes) = ("copy", to_bytes);
            return Err(Error::InvalidRequest { what, offset_bytes, bytes: total, why });
        }
        self.copy_once(sources, to_bytes).await
    }

    async fn copy_once(&self, sources: &[(u64, u64)], to_bytes: u64) -> Result<(), Error> {
        let shift = self.0.block_shift;
        let fault = |source| Error::InvalidResponse { structure: "request", fault: source };
        let start_lba = to_bytes >> shift;
        let fields =
            Copy { destination_lba: start_lba, ranges: sources.len() as u16, ..Copy::default() };
        let sqe = fields.encode(self.0.nsid).map_err(fault)?;
        let mut list = Buffer::with_capacity(fields.data_bytes());
        let mut blocks = 0;
        for (offset, bytes) in sources {
            let count = bytes >> shift;
            let range = CopyRange::new(offset >> shift, count as u32).map_err(fault)?;
            list.extend_from_slice(range.bytes());
            blocks += count;
        }
        let request = Request { command: "Copy", sqe, start_lba, blocks, is_write: true };
        self.run(&request, Data::Write(list.freeze()), self.lane()).await.map(drop)
    }

    async fn copy_limits(&self) -> Result<CopyLimits, Error> {
        let route = self.require(IdentifyController::ONCS_COPY, "Copy").await?;
        let identify = route.identify_namespace(self.0.nsid).await?;
        let shift = self.0.block_shift;
        Ok(CopyLimits {
            range_bytes: u64::from(identify.mssrl.get()) << shift,
            bytes: u64::from(identify.mcl.get()) << shift,
            ranges: usize::from(identify.msrc) + 1,
        })
    }

    /// Executes a command without data on a range, in pieces one after the other.
    async fn in_pieces(
        &self,
        opcode: NvmOpcode,
        range: Range<u64>,
        blocks_max: u64,
    ) -> Result<(), Error> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(blocks_max << self.0.block_shift);
            let mut request = self.read_write(opcode, at, len)?;
            request.is_write = opcode != NvmOpcode::VERIFY;
            self.run(&request, Data::None, self.lane()).await?;
            at += len;
        }
        Ok(())
    }

    /// Checks the range of a command that moves data, and is not split.
    fn check_transfer(
        &self,
        what: &'static str,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        self.check(what, offset_bytes, bytes)?;
        let why = match bytes {
            0 => "it is empty",
            _ if bytes > u64::from(self.0.transfer_bytes_max) => {
                "more than the target transfers in one command"
            }
            _ => return Ok(()),
        };
        Err(Error::InvalidRequest { what, offset_bytes, bytes, why })
    }

    /// Returns a link whose controller has an optional command.
    async fn require(&self, oncs_bit: u16, name: &'static str) -> Result<Rc<Link>, Error> {
        let route = self.route(self.deadline(), &mut Trouble::default()).await?;
        if route.link.info.identify.oncs.get() & oncs_bit == 0 {
            return Err(Error::NotOffered(name));
        }
        Ok(Rc::clone(&route.link))
    }

    fn failure(&self, request: &Request, status: Status) -> Error {
        let Request { command, start_lba, blocks, .. } = *request;
        Error::Io { command, nsid: self.0.nsid, start_lba, blocks, status }
    }
}

/// Returns the result of a comparison that failed.
fn is_mismatch(error: Error) -> Result<bool, Error> {
    match error {
        Error::Io { status, .. } if status.is(Status::COMPARE_FAILURE) => Ok(false),
        error => Err(error),
    }
}
