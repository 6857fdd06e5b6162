//! Admin commands for users: what there is behind the controller.

use super::{Controller, Link};
use crate::error::Error;
use crate::queue_pair::{Data, Destination};
use nvme::command::{GetLogPage, Identify};
use nvme::identify::{
    IDENTIFY_BYTES, IdentifyNamespace, NamespaceDescriptor, NamespaceDescriptors, NamespaceList,
    cns,
};
use nvme::{CompletionQueueEntry, Nsid, Status, SubmissionQueueEntry};
use ring::Buffer;

/// Most namespaces that a subsystem is asked for.
const NAMESPACES_MAX: usize = 65_536;
/// Most bytes of a log page read with one command.
const LOG_PAGE_BYTES_MAX: usize = 4096;

/// What a namespace is known by; all zero or [`None`] where the target gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// UUID.
    pub uuid: Option<uuid::Uuid>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
    /// What a Tsumugi target calls the device's incarnation.
    pub incarnation: Option<u128>,
}

impl Controller {
    /// Executes an admin command on the present connection and expects success. For reads, the data
    /// comes back as a buffer of `read_bytes`.
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

    /// The active namespaces.
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

    /// Identify Namespace.
    pub async fn identify_namespace(&self, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
        let link = self.link(None).await?;
        link.identify_namespace(nsid).await
    }

    /// The names of a namespace.
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
        let mut page = Vec::with_capacity(bytes);
        while page.len() < bytes {
            let piece_bytes = (bytes - page.len()).min(LOG_PAGE_BYTES_MAX).next_multiple_of(4);
            let request = GetLogPage {
                lid,
                dwords: (piece_bytes / 4) as u64,
                offset: offset + page.len() as u64,
                ..Default::default()
            };
            let sqe = request.encode(nsid).map_err(|source| invalid("Get Log Page", source))?;
            let data = Data::Read(Destination::whole(Buffer::zeroed(piece_bytes)));
            let (_, data) = self.admin("Get Log Page", sqe, data).await?;
            page.extend_from_slice(&data.into_buffer().unwrap_or_else(|| Buffer::zeroed(0)));
        }
        page.truncate(bytes);
        Ok(page)
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

fn invalid(structure: &'static str, source: nvme::Error) -> Error {
    Error::InvalidResponse { structure, fault: source }
}
