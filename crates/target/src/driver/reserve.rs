//! Reservations in the path of I/O commands: the check of each command, and the four commands
//! themselves.

use super::execute::{ALL, Executor};
use super::io_command::IoCommand;
use super::work::Work;
use crate::namespace::Namespace;
use crate::queue_pair::QueuePair;
use crate::reservation::{Access, Change, Register};
use block::IoFuture;
use nvme::command::{
    AcquireAction, RegisterAction, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvme::opcode::NvmOpcode;
use nvme::reservation::{AcquireKeys, RegisterKeys, ReleaseKeys, ReservationStatus};
use nvme::{Status, SubmissionQueueEntry};
use reactor::Chunk;
use std::rc::Rc;
use std::sync::Arc;

/// A command that changes reservations, without its keys, which are its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    Register(ReservationRegister),
    Acquire(ReservationAcquire),
    Release(ReservationRelease),
}

impl Reserve {
    /// Returns whether the command is one of the four reservation commands.
    pub(crate) fn is_opcode(opcode: NvmOpcode) -> bool {
        matches!(
            opcode,
            NvmOpcode::RESERVATION_REGISTER
                | NvmOpcode::RESERVATION_REPORT
                | NvmOpcode::RESERVATION_ACQUIRE
                | NvmOpcode::RESERVATION_RELEASE
        )
    }

    /// Decodes a reservation command.
    pub(super) fn decode(sqe: &SubmissionQueueEntry) -> Result<IoCommand, Status> {
        let invalid = |_| Status::INVALID_FIELD;
        Ok(IoCommand::Reserve(match sqe.nvm_opcode() {
            NvmOpcode::RESERVATION_REGISTER => {
                Self::Register(ReservationRegister::decode(sqe).map_err(invalid)?)
            }
            NvmOpcode::RESERVATION_ACQUIRE => {
                Self::Acquire(ReservationAcquire::decode(sqe).map_err(invalid)?)
            }
            NvmOpcode::RESERVATION_RELEASE => {
                Self::Release(ReservationRelease::decode(sqe).map_err(invalid)?)
            }
            NvmOpcode::RESERVATION_REPORT => return decode_report(sqe),
            _ => return Err(Status::INVALID_OPCODE),
        }))
    }

    /// Returns the length of the keys in bytes.
    pub(crate) fn data_bytes(self) -> u32 {
        let bytes = match self {
            Self::Register(_) => RegisterKeys::BYTES,
            Self::Acquire(_) => AcquireKeys::BYTES,
            Self::Release(_) => ReleaseKeys::BYTES,
        };
        bytes as u32
    }

    fn change(self, data: &[u8]) -> Result<Change, Status> {
        let short = |_| Status::SGL_DATA_LENGTH_INVALID.do_not_retry();
        Ok(match self {
            Self::Register(ReservationRegister { action, ignores_key, persist }) => {
                let keys = RegisterKeys::from_prefix(data).map_err(short)?;
                let (key, new) = ((!ignores_key).then(|| keys.crkey.get()), keys.nrkey.get());
                let how = match action {
                    RegisterAction::Register => Register::Add { new },
                    RegisterAction::Unregister => Register::Remove { key },
                    RegisterAction::Replace => Register::Replace { key, new },
                };
                Change::Register { how, persist }
            }
            Self::Acquire(ReservationAcquire { action, kind }) => {
                let keys = AcquireKeys::from_prefix(data).map_err(short)?;
                let (key, victims) = (keys.crkey.get(), keys.prkey.get());
                match action {
                    AcquireAction::Acquire => Change::Acquire { key, kind },
                    AcquireAction::Preempt => {
                        Change::Preempt { key, victims, kind, is_abort: false }
                    }
                    AcquireAction::PreemptAndAbort => {
                        Change::Preempt { key, victims, kind, is_abort: true }
                    }
                }
            }
            Self::Release(release) => {
                let key = ReleaseKeys::from_prefix(data).map_err(short)?.crkey.get();
                match release {
                    ReservationRelease::Release(kind) => Change::Release { key, kind },
                    ReservationRelease::Clear => Change::Clear { key },
                }
            }
        })
    }
}

fn decode_report(sqe: &SubmissionQueueEntry) -> Result<IoCommand, Status> {
    let report = ReservationReport::decode(sqe);
    // Hosts over fabrics have identifiers of 128 bits, which only the extended structure holds.
    if !report.is_extended {
        return Err(Status::HOST_ID_INCONSISTENT);
    }
    let bytes = u32::try_from(report.dwords * 4).map_err(|_| Status::INVALID_FIELD)?;
    if (bytes as usize) < ReservationStatus::BYTES {
        return Err(Status::INVALID_FIELD);
    }
    Ok(IoCommand::Report { bytes })
}

/// Returns the command group (base figure 672), or [`None`] if reservations do not restrict the
/// command or it has rules of its own.
fn group(command: &IoCommand) -> Option<Access> {
    match command {
        IoCommand::Read(_) | IoCommand::Compare(_) | IoCommand::Verify(_) => Some(Access::Read),
        // A host that may write may read too, so this covers the sources of Copy, and Compare.
        IoCommand::Write { .. }
        | IoCommand::WriteZeroes { .. }
        | IoCommand::WriteUncorrectable(_)
        | IoCommand::Copy { .. }
        | IoCommand::CompareAndWrite { .. }
        | IoCommand::Manage { .. }
        | IoCommand::Flush => Some(Access::Write),
        IoCommand::Reserve(_) | IoCommand::Report { .. } => None,
    }
}

impl Executor {
    /// Checks a command against the reservations of its namespace, or of all namespaces if it
    /// concerns all.
    pub(super) fn check_rights(
        &mut self,
        open: usize,
        command: &IoCommand,
        pair: &mut QueuePair,
    ) -> Result<(), Status> {
        let range = if open == ALL { 0..self.open.len() } else { open..open + 1 };
        for index in range {
            let Some(open) = self.open[index].as_ref().filter(|open| open.is_active) else {
                continue;
            };
            let (Some(guard), Some(reservations)) = (&open.guard, open.namespace.reservations())
            else {
                continue;
            };
            if guard.is_stale(reservations) {
                self.refresh_rights(index, pair);
            }
            let guard = self.open[index].as_ref().and_then(|open| open.guard.as_ref());
            let is_allowed = group(command).zip(guard).is_none_or(|(it, guard)| guard.allows(it));
            if !is_allowed {
                return Err(Status::RESERVATION_CONFLICT);
            }
        }
        Ok(())
    }

    /// Checks whether another host aborts commands of this one.
    pub(super) fn take_tickets(&mut self, pair: &mut QueuePair) {
        for index in 0..self.open.len() {
            self.refresh_rights(index, pair);
        }
    }

    /// Loads the present rights to a namespace. If another host aborts commands of the earlier
    /// rights, running commands get its ticket. Commands that wait for data or because of a limit
    /// are aborted before they start.
    fn refresh_rights(&mut self, index: usize, pair: &mut QueuePair) {
        let Some(open) = &mut self.open[index] else { return };
        let (Some(guard), Some(reservations)) = (&mut open.guard, open.namespace.reservations())
        else {
            return;
        };
        let tickets = guard.refresh(reservations);
        if tickets.is_empty() {
            return;
        }
        let nsid = open.namespace.nsid();
        pair.abort_waiting(nsid);
        for limited in self.limited.values().filter(|limited| limited.nsid == nsid) {
            pair.abort(limited.tag);
        }
        for pending in &mut self.pending {
            let is_concerned = pending.open == index || pending.open == ALL;
            // Two hosts that preempt each other must not wait for each other.
            if is_concerned && group(&pending.command).is_some() {
                pending.tickets.extend(tickets.iter().map(Rc::clone));
            }
        }
    }

    /// Executes a command that changes reservations.
    pub(super) fn reserve(
        &self,
        namespace: &Arc<Namespace>,
        reserve: Reserve,
        data: Option<&[u8]>,
    ) -> Work {
        let change = reserve.change(data.unwrap_or_default());
        let association = self.queue.association();
        let (host, nsid) = (association.host(), namespace.nsid());
        let subsystem = Arc::clone(association.subsystem());
        let (target, namespace) = (Arc::clone(&self.target), Arc::clone(namespace));
        Work::Steps(Box::pin(async move {
            let (Some(reservations), change) = (namespace.reservations(), change?) else {
                return Err(Status::INVALID_OPCODE.do_not_retry());
            };
            // Without an identifier a host could not be recognised.
            if host.is_zero() {
                return Err(Status::OPERATION_DENIED.do_not_retry());
            }
            let (notices, drained) = reservations.change(host, change).await?;
            target.note_reservations(&subsystem, nsid, &notices);
            drained.await;
            Ok(())
        }))
    }
}

/// Executes Reservation Report on a namespace.
pub(super) fn report(namespace: &Namespace, bytes: u32) -> Work {
    let Some(reservations) = namespace.reservations() else {
        let error = Status::INVALID_OPCODE.do_not_retry();
        return Work::Steps(Box::pin(async move { Err(error) }));
    };
    let data = reservations.report(bytes as usize);
    Work::Read(IoFuture::ready(Ok(Chunk::from(data))))
}
