//! Admin commands for users: identify and read what a controller provides.

use super::{Controller, Link};
use crate::error::Error;
use crate::queue_pair::{Data, Destination};
use nvme::command::{GetLogPage, Identify};
use nvme::identify::{
    IDENTIFY_BYTES, IdentifyControllerNvm, IdentifyNamespace, NamespaceDescriptor,
    NamespaceDescriptors, NamespaceList, cns,
};
use nvme::{CompletionQueueEntry, Nsid, Status, SubmissionQueueEntry};
use reactor::Buffer;

/// Maximum number of namespaces that are listed for a subsystem.
const NAMESPACES_MAX: usize = 65_536;
/// Most bytes of a log page that one command reads.
const LOG_PAGE_BYTES_MAX: usize = 4096;

/// The identifiers of a namespace; all zero or [`None`] if the target reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// UUID.
    pub uuid: Option<uuid::Uuid>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
    /// The device's incarnation, which only a Tsumugi target reports.
    pub incarnation: Option<u128>,
}

impl Controller {
    /// Executes an admin command on the present connection and expects success. For reads, returns
    /// the data as a buffer of `read_bytes`.
    pub async fn admin_command(
        &self,
        command: &'static str,
        sqe: SubmissionQueueEntry,
        read_bytes: usize,
    ) -> Result<(CompletionQueueEntry, Option<Buffer>), Error> {
        let link = self.link(None).await?;
        let data = match read_bytes {
            0 => Data::None,
            _ => Data::Read(Destination::whole(Buffer::zeroed(read_bytes))),
        };
        let (cqe, data) = link.admin(command, sqe, data).await?;
        Ok((cqe, data.into_buffer()))
    }

    /// Returns the active namespaces.
    pub async fn namespace_ids(&self) -> Result<Vec<Nsid>, Error> {
        let link = self.link(None).await?;
        let mut nsids: Vec<Nsid> = Vec::new();
        while nsids.len() < NAMESPACES_MAX {
            let after = nsids.last().copied().unwrap_or(Nsid(0));
            let page = identify(&link, "Identify Active Namespaces", cns::ACTIVE_NAMESPACES, after)
                .await?;
            let list = NamespaceList::from_prefix(&page)
                .map_err(|source| invalid("Active Namespace List", source))?;
            let before = nsids.len();
            for nsid in list.iter() {
                if nsids.last().is_some_and(|last| *last >= nsid) {
                    let value = u64::from(nsid.get());
                    let source = nvme::Error::InvalidField { field: "nsid", value };
                    return Err(invalid("Active Namespace List", source));
                }
                nsids.push(nsid);
            }
            if nsids.len() - before < NamespaceList::ENTRIES_MAX {
                break;
            }
        }
        Ok(nsids)
    }

    /// Returns the data of Identify Namespace.
    pub async fn identify_namespace(&self, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
        let link = self.link(None).await?;
        link.identify_namespace(nsid).await
    }

    /// Returns the identifiers of a namespace.
    pub async fn namespace_identity(&self, nsid: Nsid) -> Result<NamespaceIdentity, Error> {
        let link = self.link(None).await?;
        let identify = link.identify_namespace(nsid).await?;
        link.namespace_identity(nsid, &identify).await
    }

    /// Reads a log page of `bytes` (rounded up to a multiple of 4) from `offset` on.
    pub async fn log_page(
        &self,
        lid: u8,
        nsid: Nsid,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        let link = self.link(None).await?;
        link.log_page(lid, nsid, offset, bytes).await
    }
}

impl Link {
    pub(crate) async fn identify_namespace(
        &self,
        nsid: Nsid,
    ) -> Result<Box<IdentifyNamespace>, Error> {
        let page = match identify(self, "Identify Namespace", cns::NAMESPACE, nsid).await {
            Err(Error::Refused { status, .. }) if status.is(Status::INVALID_NAMESPACE) => {
                return Err(Error::NoSuchNamespace(nsid));
            }
            other => other?,
        };
        let identify = IdentifyNamespace::from_prefix(&page)
            .map_err(|source| invalid("Identify Namespace", source))?;
        // An inactive namespace is all zeros (base 5.1.13.2.1).
        if identify.nsze.get() == 0 {
            return Err(Error::NoSuchNamespace(nsid));
        }
        Ok(Box::new(*identify))
    }

    /// Returns the limits of commands that move no data, or no limits if the controller states
    /// none.
    pub(crate) async fn nvm_limits(&self) -> Result<NvmLimits, Error> {
        let command = "Identify Controller (NVM command set)";
        let page = match identify(self, command, cns::CONTROLLER_BY_COMMAND_SET, Nsid(0)).await {
            // Does not exist before version 2.0.
            Err(Error::Refused { .. }) => return Ok(NvmLimits::default()),
            other => other?,
        };
        let limits = IdentifyControllerNvm::from_prefix(&page)
            .map_err(|source| invalid("Identify Controller (NVM command set)", source))?;
        Ok(NvmLimits::new(limits, self.info.capabilities.mpsmin()))
    }

    pub(crate) async fn namespace_identity(
        &self,
        nsid: Nsid,
        namespace: &IdentifyNamespace,
    ) -> Result<NamespaceIdentity, Error> {
        let mut identity = NamespaceIdentity {
            uuid: None,
            nguid: Some(namespace.nguid).filter(|id| *id != [0; 16]),
            eui64: Some(namespace.eui64).filter(|id| *id != [0; 8]),
            incarnation: namespace.incarnation(),
        };
        let command = "Identify Namespace Descriptors";
        let page = match identify(self, command, cns::NAMESPACE_DESCRIPTORS, nsid).await {
            // Optional before version 1.3.
            Err(Error::Refused { .. }) => return Ok(identity),
            other => other?,
        };
        for descriptor in NamespaceDescriptors::new(&page) {
            match descriptor.map_err(|source| invalid(command, source))? {
                NamespaceDescriptor::Uuid(id) => identity.uuid = Some(uuid::Uuid::from_bytes(id)),
                NamespaceDescriptor::Nguid(id) => identity.nguid = Some(id),
                NamespaceDescriptor::Eui64(id) => identity.eui64 = Some(id),
                NamespaceDescriptor::Csi(_) => {}
            }
        }
        Ok(identity)
    }

    pub(crate) async fn log_page(
        &self,
        lid: u8,
        nsid: Nsid,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        self.log_page_of(lid, 0, nsid, offset, bytes).await
    }

    /// Reads a log page as [`Self::log_page`] does, with the page's own parameter (LSP).
    pub(crate) async fn log_page_of(
        &self,
        lid: u8,
        lsp: u8,
        nsid: Nsid,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut page = Vec::with_capacity(bytes);
        while page.len() < bytes {
            let piece_bytes = (bytes - page.len()).min(LOG_PAGE_BYTES_MAX).next_multiple_of(4);
            let at = offset + page.len() as u64;
            page.extend_from_slice(&self.log_page_piece(lid, lsp, nsid, at, piece_bytes).await?);
        }
        page.truncate(bytes);
        Ok(page)
    }

    /// Reads a log page by one command. `bytes` is a multiple of 4 and at most
    /// [`Link::transfer_bytes_max`].
    pub(crate) async fn log_page_piece(
        &self,
        lid: u8,
        lsp: u8,
        nsid: Nsid,
        offset: u64,
        bytes: usize,
    ) -> Result<Buffer, Error> {
        let dwords = (bytes / 4) as u64;
        let request = GetLogPage { lid, lsp, dwords, offset, ..Default::default() };
        let sqe = request.encode(nsid).map_err(|source| invalid("Get Log Page", source))?;
        let data = Data::Read(Destination::whole(Buffer::zeroed(bytes)));
        let (_, data) = self.admin("Get Log Page", sqe, data).await?;
        Ok(data.into_buffer().unwrap_or_else(|| Buffer::zeroed(0)))
    }
}

async fn identify(
    link: &Link,
    command: &'static str,
    cns: u8,
    nsid: Nsid,
) -> Result<Buffer, Error> {
    let sqe = Identify { cns, ..Default::default() }.encode(nsid);
    let data = Data::Read(Destination::whole(Buffer::zeroed(IDENTIFY_BYTES)));
    let (_, data) = link.admin(command, sqe, data).await?;
    Ok(data.into_buffer().unwrap_or_else(|| Buffer::zeroed(IDENTIFY_BYTES)))
}

/// Limits of commands that move no data.
#[allow(clippy::struct_field_names, reason = "each is a maximum")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NvmLimits {
    /// Most bytes of one Write Zeroes.
    pub(crate) zero_bytes_max: u64,
    /// Most bytes of one Verify.
    pub(crate) verify_bytes_max: u64,
    /// Most bytes of one Write Uncorrectable.
    pub(crate) uncorrectable_bytes_max: u64,
    /// Most ranges of one Dataset Management command.
    pub(crate) discard_ranges_max: usize,
    /// Most blocks of one of its ranges.
    pub(crate) discard_range_blocks_max: u64,
    /// Most blocks of all its ranges.
    pub(crate) discard_blocks_max: u64,
}

impl Default for NvmLimits {
    /// Returns the limits of the commands' fields.
    fn default() -> Self {
        Self {
            zero_bytes_max: u64::MAX,
            verify_bytes_max: u64::MAX,
            uncorrectable_bytes_max: u64::MAX,
            discard_ranges_max: 256,
            discard_range_blocks_max: u32::MAX.into(),
            discard_blocks_max: u64::MAX,
        }
    }
}

impl NvmLimits {
    /// Returns the stated limits; 0 means no limit.
    fn new(stated: &IdentifyControllerNvm, mpsmin: u64) -> Self {
        let none = Self::default();
        let stated_or = |stated: u64, none: u64| if stated == 0 { none } else { stated.min(none) };
        // Powers of two of the smallest page.
        let bytes = |exponent: u8| {
            let shift = u64::from(exponent) + 12 + mpsmin;
            if exponent != 0 && shift < 64 { 1 << shift } else { u64::MAX }
        };
        let ranges = stated_or(stated.dmrl.into(), none.discard_ranges_max as u64);
        Self {
            zero_bytes_max: bytes(stated.wzsl),
            verify_bytes_max: bytes(stated.vsl),
            uncorrectable_bytes_max: bytes(stated.wusl),
            discard_ranges_max: ranges as usize,
            discard_range_blocks_max: stated_or(
                stated.dmrsl.get().into(),
                none.discard_range_blocks_max,
            ),
            discard_blocks_max: stated_or(stated.dmsl.get(), none.discard_blocks_max),
        }
    }

    /// Returns the limits that hold for both.
    pub(crate) fn merge(self, other: Self) -> Self {
        let least = |of: fn(&Self) -> u64| of(&self).min(of(&other));
        Self {
            zero_bytes_max: least(|it| it.zero_bytes_max),
            verify_bytes_max: least(|it| it.verify_bytes_max),
            uncorrectable_bytes_max: least(|it| it.uncorrectable_bytes_max),
            discard_ranges_max: self.discard_ranges_max.min(other.discard_ranges_max),
            discard_range_blocks_max: least(|it| it.discard_range_blocks_max),
            discard_blocks_max: least(|it| it.discard_blocks_max),
        }
    }

    /// Returns the blocks of a range and the ranges of a command with which no command exceeds a
    /// limit.
    pub(crate) fn discard(&self) -> (u64, usize) {
        let blocks = self.discard_range_blocks_max.min(self.discard_blocks_max).max(1);
        let ranges = (self.discard_blocks_max / blocks).min(self.discard_ranges_max as u64);
        (blocks, ranges.max(1) as usize)
    }
}

fn invalid(structure: &'static str, source: nvme::Error) -> Error {
    Error::InvalidResponse { structure, fault: source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::{U32, U64};

    /// Goal: limits that are not stated are those of the commands' fields, and no command of the
    /// resulting sizes exceeds a stated limit.
    #[test]
    fn limits_are_kept() {
        assert_eq!(NvmLimits::new(&IdentifyControllerNvm::default(), 0), NvmLimits::default());
        for (dmrl, dmrsl, dmsl) in [(0, 0, 0), (64, 1 << 22, 1 << 28), (3, 100, 150), (1, 7, 3)] {
            let stated = IdentifyControllerNvm {
                wzsl: 5,
                dmrl,
                dmrsl: U32::new(dmrsl),
                dmsl: U64::new(dmsl),
                ..IdentifyControllerNvm::default()
            };
            let limits = NvmLimits::new(&stated, 1);
            assert_eq!(limits.zero_bytes_max, 32 << 13);
            let (blocks, ranges) = limits.discard();
            assert!(blocks > 0 && ranges > 0 && ranges <= 256, "{limits:?}");
            assert!(dmrl == 0 || ranges <= usize::from(dmrl), "{limits:?}");
            assert!(dmrsl == 0 || blocks <= u64::from(dmrsl), "{limits:?}");
            assert!(dmsl == 0 || blocks * ranges as u64 <= dmsl, "{limits:?}");
        }
    }
}
