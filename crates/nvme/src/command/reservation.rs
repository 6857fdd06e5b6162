//! Reservation commands (base 7.5 to 7.8).

use crate::opcode::NvmOpcode;
use crate::reservation::ReservationType;
use crate::{Error, Nsid, SubmissionQueueEntry, U32};

const IGNORE_EXISTING_KEY: u32 = 1 << 3;
const PERSIST_SHIFT: u32 = 30;

/// RREGA: the action of Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// 000b: registers a key.
    Register,
    /// 001b: removes the host's registration.
    Unregister,
    /// 010b: replaces the host's key.
    Replace,
}

/// Dword 10 of Reservation Register; its data is
/// [`RegisterKeys`](crate::reservation::RegisterKeys).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRegister {
    /// The action.
    pub action: RegisterAction,
    /// IEKEY: the current key is not compared.
    pub ignores_key: bool,
    /// CPTPL: whether registrations survive a power loss from now on; [`None`] changes nothing.
    pub persist: Option<bool>,
}

impl ReservationRegister {
    /// Unpacks the dword.
    ///
    /// Fails with [`Error::InvalidField`] `rrega` or `cptpl` for a reserved value.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let cdw10 = sqe.cdw10.get();
        let action = match cdw10 & 7 {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            value => return Err(invalid("rrega", value)),
        };
        let persist = match cdw10 >> PERSIST_SHIFT {
            0 => None,
            2 => Some(false),
            3 => Some(true),
            value => return Err(invalid("cptpl", value)),
        };
        Ok(Self { action, ignores_key: cdw10 & IGNORE_EXISTING_KEY != 0, persist })
    }

    /// Encodes the command.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let action = match self.action {
            RegisterAction::Register => 0,
            RegisterAction::Unregister => 1,
            RegisterAction::Replace => 2,
        };
        let iekey = if self.ignores_key { IGNORE_EXISTING_KEY } else { 0 };
        let cptpl = self.persist.map_or(0, |persist| 2 | u32::from(persist));
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::RESERVATION_REGISTER, nsid);
        sqe.cdw10 = U32::new(action | iekey | (cptpl << PERSIST_SHIFT));
        sqe
    }
}

/// RACQA: the action of Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireAction {
    /// 000b: takes a reservation that no other host holds.
    Acquire,
    /// 001b: removes other registrants, and takes the reservation of those that held it.
    Preempt,
    /// 010b: the same, and aborts their commands.
    PreemptAndAbort,
}

/// Dword 10 of Reservation Acquire; its data is [`AcquireKeys`](crate::reservation::AcquireKeys).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationAcquire {
    /// The action.
    pub action: AcquireAction,
    /// RTYPE: the type of the reservation.
    pub kind: ReservationType,
}

impl ReservationAcquire {
    /// Unpacks the dword.
    ///
    /// Fails with [`Error::InvalidField`] `racqa` or `rtype` for a reserved value, `iekey` if that
    /// is set.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let cdw10 = sqe.cdw10.get();
        let action = match cdw10 & 7 {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            value => return Err(invalid("racqa", value)),
        };
        check_key_is_compared(cdw10)?;
        Ok(Self { action, kind: ReservationType::from_u8((cdw10 >> 8) as u8)? })
    }

    /// Encodes the command.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let action = match self.action {
            AcquireAction::Acquire => 0,
            AcquireAction::Preempt => 1,
            AcquireAction::PreemptAndAbort => 2,
        };
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::RESERVATION_ACQUIRE, nsid);
        sqe.cdw10 = U32::new(action | (u32::from(self.kind.to_u8()) << 8));
        sqe
    }
}

/// Dword 10 of Reservation Release (RRELA, RTYPE); its data is
/// [`ReleaseKeys`](crate::reservation::ReleaseKeys).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationRelease {
    /// 000b: releases the reservation of this type.
    Release(ReservationType),
    /// 001b: releases any reservation and removes all registrations.
    Clear,
}

impl ReservationRelease {
    /// Unpacks the dword.
    ///
    /// Fails with [`Error::InvalidField`] `rrela` or `rtype` for a reserved value, `iekey` if that
    /// is set.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let cdw10 = sqe.cdw10.get();
        check_key_is_compared(cdw10)?;
        match cdw10 & 7 {
            0 => Ok(Self::Release(ReservationType::from_u8((cdw10 >> 8) as u8)?)),
            1 => Ok(Self::Clear),
            value => Err(invalid("rrela", value)),
        }
    }

    /// Encodes the command.
    pub fn encode(&self, nsid: Nsid) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::RESERVATION_RELEASE, nsid);
        sqe.cdw10 = U32::new(match self {
            Self::Release(kind) => u32::from(kind.to_u8()) << 8,
            Self::Clear => 1,
        });
        sqe
    }
}

/// Dwords 10 and 11 of Reservation Report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// Dwords to transfer, 1 to 2^32 (NUMD + 1).
    pub dwords: u64,
    /// EDS: the structures with 128-bit host identifiers.
    pub is_extended: bool,
}

impl ReservationReport {
    /// Unpacks the dwords; every value is possible.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Self {
        let dwords = u64::from(sqe.cdw10.get()) + 1;
        Self { dwords, is_extended: sqe.cdw11.get() & 1 != 0 }
    }

    /// Encodes the command.
    ///
    /// Fails with [`Error::InvalidField`] `numd` if `dwords` is not in 1 to 2^32.
    pub fn encode(&self, nsid: Nsid) -> Result<SubmissionQueueEntry, Error> {
        let numd = self.dwords.checked_sub(1).and_then(|numd| u32::try_from(numd).ok());
        let numd = numd.ok_or(Error::InvalidField { field: "numd", value: self.dwords })?;
        let mut sqe = SubmissionQueueEntry::nvm(NvmOpcode::RESERVATION_REPORT, nsid);
        sqe.cdw10 = U32::new(numd);
        sqe.cdw11 = U32::new(u32::from(self.is_extended));
        Ok(sqe)
    }
}

/// Checks IEKEY: since version 1.3 it is for Reservation Register alone.
fn check_key_is_compared(cdw10: u32) -> Result<(), Error> {
    if cdw10 & IGNORE_EXISTING_KEY != 0 { Err(invalid("iekey", 1)) } else { Ok(()) }
}

fn invalid(field: &'static str, value: u32) -> Error {
    Error::InvalidField { field, value: u64::from(value) }
}
