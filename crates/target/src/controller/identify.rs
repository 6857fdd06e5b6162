//! Identify (base 5.1.13): describes the controller and the namespaces.

use super::{Controller, ERROR_ENTRIES_MAX, Reply};
use crate::ana;
use crate::limits::COPY_RANGES_MAX;
use crate::namespace::Namespace;
use crate::subsystem::Subsystem;
use crate::target::Transport;
use nvme::command::Identify;
use nvme::identify::{
    ControllerList, IDENTIFY_BYTES, IdentifyController, IdentifyControllerNvm, IdentifyNamespace,
    IdentifyNamespaceIndependent, IdentifyNamespaceNvm, IoCommandSets, NamespaceDescriptor,
    NamespaceDescriptorWriter, NamespaceList, cns, csi,
};
use nvme::property::Version;
use nvme::{Nsid, Status, SubmissionQueueEntry, U16, U32, U64};
use reactor::Buffer;
use std::sync::Arc;

/// The version of the base specification that controllers report.
pub(super) const VERSION: Version = Version::V2_0;

/// Firmware revision: the crate's version.
pub(super) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// NWPC: namespaces can be write protected and unprotected.
const WRITE_PROTECTION: u8 = 1;
/// Submission queue entries of exactly 2^6 bytes.
const SQES: u8 = 0x66;
/// Completion queue entries of exactly 2^4 bytes.
const CQES: u8 = 0x44;
/// KAS: keep alive granularity in units of 100 ms.
const KEEP_ALIVE_GRANULARITY: u16 = 1;
/// FRMW: one firmware slot, read only.
const ONE_READ_ONLY_SLOT: u8 = 0b11;

impl Controller {
    pub(super) fn identify(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        match super::transfer_bytes(sqe) {
            Ok(bytes) if bytes as usize >= IDENTIFY_BYTES => {}
            Ok(_) => return Status::SGL_DATA_LENGTH_INVALID.do_not_retry().into(),
            Err(status) => return status.into(),
        }
        let identify = Identify::decode(sqe);
        let nsid = sqe.namespace_id();
        let result = if self.is_discovery() && identify.cns != cns::CONTROLLER {
            Err(Status::INVALID_FIELD)
        } else {
            self.identify_data(identify, nsid)
        };
        match result {
            Ok(data) => Reply::data(data),
            Err(status) => status.do_not_retry().into(),
        }
    }

    fn identify_data(&self, identify: Identify, nsid: Nsid) -> Result<Buffer, Status> {
        let is_nvm = || match identify.csi {
            csi::NVM => Ok(()),
            _ => Err(Status::INVALID_FIELD),
        };
        let subsystem = &self.association.subsystem;
        let data = match identify.cns {
            cns::CONTROLLER => Buffer::copy_from(self.identify_controller().bytes()),
            cns::CONTROLLER_BY_COMMAND_SET => {
                is_nvm()?;
                Buffer::copy_from(self.identify_controller_nvm().bytes())
            }
            cns::IO_COMMAND_SETS => Buffer::copy_from(IoCommandSets::nvm().bytes()),
            cns::CONTROLLERS | cns::NAMESPACE_CONTROLLERS => {
                if identify.cns == cns::NAMESPACE_CONTROLLERS {
                    self.valid_namespace(nsid)?.ok_or(Status::INVALID_FIELD)?;
                }
                let ids = self.target.controller_ids(subsystem);
                let list = ControllerList::new(ids.into_iter().filter(|id| *id >= identify.cntid));
                Buffer::copy_from(list.bytes())
            }
            cns::ACTIVE_NAMESPACES_BY_COMMAND_SET => {
                is_nvm()?;
                self.active_namespaces(nsid)?
            }
            cns::ACTIVE_NAMESPACES => self.active_namespaces(nsid)?,
            cns::NAMESPACE_BY_COMMAND_SET => {
                is_nvm()?;
                // Nothing to report for an active namespace either: there is no metadata.
                self.valid_namespace(nsid)?;
                Buffer::copy_from(IdentifyNamespaceNvm::default().bytes())
            }
            cns::NAMESPACE => self.namespace(nsid)?,
            cns::NAMESPACE_INDEPENDENT => {
                let namespace = self.valid_namespace(nsid)?;
                let mut data = IdentifyNamespaceIndependent::default();
                if let Some(namespace) = &namespace {
                    data = independent(namespace);
                    data.anagrpid = self.ana_group_id(namespace);
                }
                Buffer::copy_from(data.bytes())
            }
            cns::NAMESPACE_DESCRIPTORS => self.descriptors(nsid)?,
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(data)
    }

    /// Returns the limits of commands that move no data, which MDTS therefore does not bound.
    fn identify_controller_nvm(&self) -> IdentifyControllerNvm {
        let limits = self.limits();
        IdentifyControllerNvm {
            vsl: limits.wzsl(),
            wzsl: limits.wzsl(),
            dmrl: limits.deallocate_ranges_max,
            dmrsl: U32::new(limits.deallocate_range_blocks_max),
            dmsl: U64::new(limits.dmsl()),
            ..IdentifyControllerNvm::default()
        }
    }

    /// Returns the namespace with a valid identifier (1 … NN), or [`None`] if it is not active. The
    /// broadcast identifier requests the common properties of all namespaces, which only
    /// controllers with namespace management report (base 3.2.1.2, 5.1.13.2.1).
    fn valid_namespace(&self, nsid: Nsid) -> Result<Option<Arc<Namespace>>, Status> {
        let subsystem = &self.association.subsystem;
        if nsid.get() == 0 || nsid.get() > subsystem.namespaces_max() {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(self.association.namespace(nsid))
    }

    fn active_namespaces(&self, after: Nsid) -> Result<Buffer, Status> {
        // No identifier can follow FFFFFFFEh and above (base 5.1.13.2.2).
        if after.get() >= 0xffff_fffe {
            return Err(Status::INVALID_NAMESPACE);
        }
        let list =
            NamespaceList::new(after, self.association.namespaces().iter().map(|it| it.nsid()));
        Ok(Buffer::copy_from(list.bytes()))
    }

    fn namespace(&self, nsid: Nsid) -> Result<Buffer, Status> {
        // An inactive namespace is all zeros (base 5.1.13.2.1).
        let Some(namespace) = self.valid_namespace(nsid)? else {
            return Ok(Buffer::zeroed(IDENTIFY_BYTES));
        };
        let shift = namespace.block_shift() as u8;
        let mut data = IdentifyNamespace::new(namespace.blocks(), shift)
            .map_err(|_| Status::INTERNAL_ERROR)?;
        data.nmic = IdentifyNamespace::NMIC_SHARED;
        data.rescap = rescap(&namespace);
        data.anagrpid = self.ana_group_id(&namespace);
        data.nguid = namespace.uuid();
        data.nsfeat =
            IdentifyNamespace::NSFEAT_UNIQUE_IDS | IdentifyNamespace::NSFEAT_OPTIMAL_PERFORMANCE;
        data.nsattr = u8::from(namespace.is_write_protected());
        if namespace.reads_zero_after_discard() {
            data.dlfeat = IdentifyNamespace::DLFEAT_READS_ZERO
                | IdentifyNamespace::DLFEAT_WRITE_ZEROES_DEALLOCATES;
        }
        let copied = self.limits().copy_blocks_max(namespace.block_shift());
        data.mcl = U32::new(copied);
        data.mssrl = U16::new(u16::try_from(copied).unwrap_or(u16::MAX));
        data.msrc = (COPY_RANGES_MAX - 1) as u8;
        let size = u128::from(namespace.blocks()) << namespace.block_shift();
        data.nvmcap = size.to_le_bytes();
        data.set_incarnation(namespace.backing().incarnation().0);
        Ok(Buffer::copy_from(data.bytes()))
    }

    /// Returns ANAGRPID: 0 if asymmetric access is not reported.
    fn ana_group_id(&self, namespace: &Namespace) -> U32 {
        let has_ana = self.association.subsystem.ana().is_some();
        U32::new(if has_ana { namespace.ana_group().get() } else { 0 })
    }

    fn descriptors(&self, nsid: Nsid) -> Result<Buffer, Status> {
        let namespace = self.valid_namespace(nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
        let mut out = [0; IDENTIFY_BYTES];
        let mut list = NamespaceDescriptorWriter::new(&mut out);
        for descriptor in [
            NamespaceDescriptor::Nguid(namespace.uuid()),
            NamespaceDescriptor::Uuid(namespace.uuid()),
            NamespaceDescriptor::Csi(csi::NVM),
        ] {
            list.push(&descriptor).map_err(|_| Status::INTERNAL_ERROR)?;
        }
        Ok(Buffer::copy_from(&out))
    }

    fn identify_controller(&self) -> IdentifyController {
        let (subsystem, limits) = (&self.association.subsystem, self.limits());
        let mut data = IdentifyController {
            cntlid: U16::new(self.association.id.get()),
            ver: U32::new(VERSION.0),
            oaes: U32::new(self.events.supported()),
            ctratt: U32::new(
                IdentifyController::CTRATT_HOST_ID_128
                    | IdentifyController::CTRATT_TRAFFIC_BASED_KEEP_ALIVE,
            ),
            mdts: limits.mdts(),
            cirn: U64::new(self.instance),
            acl: limits.aborts_max - 1,
            aerl: limits.async_events_max - 1,
            frmw: ONE_READ_ONLY_SLOT,
            lpa: IdentifyController::LPA_EXTENDED_DATA,
            elpe: (ERROR_ENTRIES_MAX - 1) as u8,
            kas: U16::new(KEEP_ALIVE_GRANULARITY),
            sqes: SQES,
            cqes: CQES,
            maxcmd: U16::new(limits.queue_entries_max),
            sgls: U32::new(
                IdentifyController::SGLS_SUPPORTED
                    | IdentifyController::SGLS_OFFSET
                    | match self.association.transport() {
                        Transport::Tcp => IdentifyController::SGLS_TRANSPORT,
                        Transport::Rdma => IdentifyController::SGLS_KEYED,
                    },
            ),
            subnqn: subsystem.nqn().to_field(),
            ioccsz: U32::new(limits.ioccsz()),
            iorcsz: U32::new(1),
            msdbd: 1,
            ..IdentifyController::default()
        };
        data.set_firmware(FIRMWARE);
        data.set_serial(subsystem.serial());
        data.set_model(subsystem.model());
        if subsystem.is_discovery() {
            data.cntrltype = IdentifyController::TYPE_DISCOVERY;
            data.dctype = 1;
            return data;
        }
        data.cntrltype = IdentifyController::TYPE_IO;
        data.cmic = IdentifyController::CMIC_MULTI_PORT | IdentifyController::CMIC_MULTI_CONTROLLER;
        if subsystem.ana().is_some() {
            data.cmic |= IdentifyController::CMIC_ANA;
            data.anatt = ana::TRANSITION_SECONDS;
            data.anacap = ana::CAPABILITIES;
            data.anagrpmax = U32::new(ana::ANA_GROUPS_MAX);
            data.nanagrpid = U32::new(ana::ANA_GROUPS_MAX);
        }
        data.lpa |=
            IdentifyController::LPA_COMMAND_EFFECTS | IdentifyController::LPA_SUPPORTED_PAGES;
        data.nn = U32::new(subsystem.namespaces_max());
        data.mnan = U32::new(subsystem.namespaces_max());
        data.oncs = U16::new(optional_commands(subsystem));
        data.cdfs = U16::new(IdentifyController::CDFS_FORMAT_0);
        // ACWU stays 0: one block.
        if subsystem.allows_compare_and_write() {
            data.fuses = U16::new(IdentifyController::FUSES_COMPARE_AND_WRITE);
        }
        data.nwpc = WRITE_PROTECTION;
        data.vwc = IdentifyController::VWC_FLUSH_BROADCAST
            | if subsystem.has_write_cache() { IdentifyController::VWC_PRESENT } else { 0 };
        data
    }
}

/// Returns ONCS.
fn optional_commands(subsystem: &Subsystem) -> u16 {
    let mut oncs = IdentifyController::ONCS_COMPARE
        | IdentifyController::ONCS_DATASET_MANAGEMENT
        | IdentifyController::ONCS_WRITE_ZEROES
        | IdentifyController::ONCS_SAVE_AND_SELECT
        | IdentifyController::ONCS_TIMESTAMP
        | IdentifyController::ONCS_VERIFY
        | IdentifyController::ONCS_COPY;
    if subsystem.allows_write_uncorrectable() {
        oncs |= IdentifyController::ONCS_WRITE_UNCORRECTABLE;
    }
    if subsystem.has_reservations() {
        oncs |= IdentifyController::ONCS_RESERVATIONS;
    }
    oncs
}

fn rescap(namespace: &Namespace) -> u8 {
    namespace.reservations().map_or(0, |reservations| reservations.capabilities())
}

fn independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    let cache = if namespace.has_write_cache() {
        0
    } else {
        IdentifyNamespaceIndependent::NSFEAT_NO_WRITE_CACHE
    };
    IdentifyNamespaceIndependent {
        nsfeat: IdentifyNamespace::NSFEAT_UNIQUE_IDS | cache,
        nmic: IdentifyNamespace::NMIC_SHARED,
        rescap: rescap(namespace),
        nsattr: u8::from(namespace.is_write_protected()),
        nstat: IdentifyNamespaceIndependent::NSTAT_READY,
        ..IdentifyNamespaceIndependent::default()
    }
}
